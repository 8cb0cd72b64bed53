"""Specs: the types and shapes of the leaves of elements.

Specs are immutable values that print as in TensorFlow. The spec of an element has its structure,
with a `TypeSpec` at each leaf; `relax` and `fits` at the end take such structures.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.element import dtypes, nest
from penstock.element.dtypes import DType, as_dtype
from penstock.errors import InvalidArgumentError, InvalidTypeError, UnfitTypeError

Dims = tuple[int | None, ...]


class TensorShape:
    """Dimensions, each a number or None if unknown; `TensorShape(None)` has an unknown rank.

    >>> TensorShape([None, 2]), TensorShape(None)
    (TensorShape([None, 2]), TensorShape(None))
    >>> shape = TensorShape([None, 2])
    >>> shape.concatenate([3]), shape.is_compatible_with([5, 2]), TensorShape([2, 3]).num_elements()
    (TensorShape([None, 2, 3]), True, 6)
    """

    __slots__ = ("dims",)

    def __init__(self, dims: Any) -> None:
        if isinstance(dims, TensorShape):
            dims = dims.dims
        elif isinstance(dims, (int, np.integer)):
            dims = (dims,)
        self.dims: Dims | None = None if dims is None else tuple(_dimension(d) for d in dims)

    @property
    def rank(self) -> int | None:
        return None if self.dims is None else len(self.dims)

    ndims = rank

    @property
    def known(self) -> bool:
        """Whether every dimension is a number."""
        return self.dims is not None and None not in self.dims

    def num_elements(self) -> int | None:
        """The product of all dimensions, if they are known."""
        return math.prod(self._known_rank()) if self.known else None  # type: ignore[arg-type]

    def concatenate(self, other: Any) -> TensorShape:
        """The dimensions of both, one after the other."""
        more = TensorShape(other)
        if self.dims is None or more.dims is None:
            return TensorShape(None)
        return TensorShape(self.dims + more.dims)

    __add__ = concatenate

    def __radd__(self, other: Any) -> TensorShape:
        return TensorShape(other).concatenate(self)

    def is_compatible_with(self, other: Any) -> bool:
        """Whether a value can have both shapes."""
        more = TensorShape(other)
        if self.dims is None or more.dims is None:
            return True
        pairs = zip(self.dims, more.dims, strict=False)
        return len(self.dims) == len(more.dims) and all(
            a is None or b is None or a == b for a, b in pairs
        )

    def is_fully_defined(self) -> bool:
        return self.known

    def as_list(self) -> list[int | None]:
        return list(self._known_rank())

    def prepend(self, size: int | None) -> TensorShape:
        return TensorShape(None if self.dims is None else (size, *self.dims))

    def rest(self) -> TensorShape:
        """Without the leading dimension."""
        return TensorShape(None if self.dims is None else self.dims[1:])

    def relax(self, other: TensorShape) -> TensorShape:
        """The most specific shape that fits both."""
        if self.dims is None or other.dims is None or len(self.dims) != len(other.dims):
            return TensorShape(None)
        pairs = zip(self.dims, other.dims, strict=True)
        return TensorShape([a if a == b else None for a, b in pairs])

    def fits(self, shape: tuple[int | None, ...]) -> bool:
        """Whether a value of `shape` has all dimensions that are known here."""
        if self.dims is None:
            return True
        pairs = zip(self.dims, shape, strict=False)
        return len(self.dims) == len(shape) and all(a is None or a == b for a, b in pairs)

    # Relations to other shapes and ranks, with TensorFlow's names

    def is_subtype_of(self, other: Any) -> bool:
        """Whether every value of this shape has the other one, too.

        >>> TensorShape([3]).is_subtype_of(TensorShape([None]))
        True
        """
        return isinstance(other, TensorShape) and other.relax(self) == other

    def most_specific_compatible_shape(self, other: Any) -> TensorShape:
        """The most specific shape that the values of both have.

        >>> TensorShape([3, 2]).most_specific_compatible_shape([4, 2])
        TensorShape([None, 2])
        """
        return self.relax(TensorShape(other))

    def most_specific_common_supertype(self, others: Iterable[Any]) -> TensorShape | None:
        """The most specific shape that the values of all have; None if one is no shape.

        >>> TensorShape([3]).most_specific_common_supertype([TensorShape([4])])
        TensorShape([None])
        """
        found = self
        for other in others:
            if not isinstance(other, TensorShape):
                return None
            found = found.relax(other)
        return found

    def merge_with(self, other: Any) -> TensorShape:
        """What is known of a value that has both shapes.

        >>> TensorShape([None, 2]).merge_with([3, None])
        TensorShape([3, 2])
        """
        more = TensorShape(other)
        if self.dims is None or more.dims is None:
            return self if more.dims is None else more
        self.assert_is_compatible_with(more)
        pairs = zip(self.dims, more.dims, strict=True)
        return TensorShape([b if a is None else a for a, b in pairs])

    def with_rank(self, rank: int | None) -> TensorShape:
        """This shape, which must have or may have the rank.

        >>> TensorShape(None).with_rank(2)
        TensorShape([None, None])
        """
        if rank is None:
            return self
        if self.dims is None:
            return TensorShape([None] * rank)
        self.assert_has_rank(rank)
        return self

    def with_rank_at_least(self, rank: int) -> TensorShape:
        """This shape; raises if its rank is less.

        >>> TensorShape([3]).with_rank_at_least(1)
        TensorShape([3])
        """
        if self.rank is not None and self.rank < rank:
            raise InvalidArgumentError(f"TensorShape: {self} must have a rank of at least {rank}")
        return self

    def with_rank_at_most(self, rank: int) -> TensorShape:
        """This shape; raises if its rank is greater.

        >>> TensorShape([3]).with_rank_at_most(1)
        TensorShape([3])
        """
        if self.rank is not None and self.rank > rank:
            raise InvalidArgumentError(f"TensorShape: {self} must have a rank of at most {rank}")
        return self

    def assert_has_rank(self, rank: int | None) -> None:
        """Raises if the rank is another one.

        >>> TensorShape([3]).assert_has_rank(1)
        """
        if None not in (self.rank, rank) and self.rank != rank:
            raise InvalidArgumentError(f"TensorShape: {self} must have rank {rank}")

    def assert_same_rank(self, other: Any) -> None:
        """Raises if the ranks are known and differ.

        >>> TensorShape([3]).assert_same_rank([None])
        """
        more = TensorShape(other)
        if None not in (self.rank, more.rank) and self.rank != more.rank:
            raise InvalidArgumentError(f"TensorShape: {self} and {more} must have the same rank")

    def assert_is_compatible_with(self, other: Any) -> None:
        """Raises if no value can have both shapes.

        >>> TensorShape([3]).assert_is_compatible_with([None])
        """
        if not self.is_compatible_with(other):
            raise InvalidArgumentError(
                f"TensorShape: {self} and {TensorShape(other)} are not compatible"
            )

    def assert_is_fully_defined(self) -> None:
        """Raises if a dimension is unknown.

        >>> TensorShape([3]).assert_is_fully_defined()
        """
        if not self.known:
            raise InvalidArgumentError(f"TensorShape: {self} is not fully defined")

    def _known_rank(self) -> Dims:
        if self.dims is None:
            raise InvalidArgumentError("TensorShape: the rank is unknown, so it has no dimensions")
        return self.dims

    def __iter__(self) -> Iterator[int | None]:
        return iter(self._known_rank())

    def __len__(self) -> int:
        return len(self._known_rank())

    def __bool__(self) -> bool:
        return self.dims is not None

    def __getitem__(self, key: Any) -> Any:
        part = self._known_rank()[key]
        return TensorShape(part) if isinstance(key, slice) else part

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (tuple, list)):
            other = TensorShape(other)
        return isinstance(other, TensorShape) and self.dims == other.dims

    def __hash__(self) -> int:
        return hash(self.dims)

    def __repr__(self) -> str:
        return f"TensorShape({None if self.dims is None else list(self.dims)})"

    def __str__(self) -> str:
        return "<unknown>" if self.dims is None else str(self.dims)


def _dimension(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, (int, np.integer)) and value >= 0:
        return int(value)
    kind = InvalidArgumentError if isinstance(value, (int, np.integer)) else UnfitTypeError
    raise kind(f"TensorShape: a dimension is a number >= 0 or None, got {value!r}")


class TypeSpec:
    """A leaf of a spec. `batch` adds a leading dimension, `unbatch` takes it away.

    >>> spec = TensorSpec([2], np.int32)
    >>> isinstance(spec, TypeSpec), spec.is_compatible_with(np.zeros(2, np.int32))
    (True, True)
    """

    __leaf__ = True

    def batch(self, size: int | None) -> TypeSpec:
        return self

    def unbatch(self) -> TypeSpec:
        return self

    def relax(self, other: TypeSpec) -> TypeSpec | None:
        """The most specific spec that fits both; None if there is none."""
        return self if self == other else None

    def fits(self, value: Any) -> bool:
        """Whether `value` has the type, dtype and shape of this spec."""
        raise AssertionError(f"{type(self).__name__} does not define fits()")

    def is_compatible_with(self, spec_or_value: Any) -> bool:
        """Whether a value, or some value of another spec, has the type and shape of this spec."""
        given = spec_or_value
        return self._overlaps(given) if isinstance(given, TypeSpec) else self.fits(given)

    def _overlaps(self, other: TypeSpec) -> bool:
        """Whether a value can fit both specs."""
        return self.relax(other) is not None and _shape_of(self).is_compatible_with(
            _shape_of(other)
        )

    def is_subtype_of(self, other: Any) -> bool:
        """Whether every value that fits this spec fits the other one.

        >>> TensorSpec([2], np.int64).is_subtype_of(TensorSpec([None], np.int64))
        True
        """
        return isinstance(other, TypeSpec) and other.fits(self)

    def most_specific_common_supertype(self, others: Any) -> TypeSpec | None:
        """The most specific spec that fits all values of all these specs, if there is one.

        >>> TensorSpec([2], np.int64).most_specific_common_supertype([TensorSpec([3], np.int64)])
        TensorSpec(shape=(None,), dtype=tf.int64, name=None)
        """
        spec: TypeSpec | None = self
        for other in others:
            try:
                spec = None if spec is None else spec.relax(other)
            except InvalidTypeError:
                return None
        return spec

    def most_specific_compatible_type(self, other: TypeSpec) -> TypeSpec:
        """The most specific spec that fits the values of both.

        >>> TensorSpec([2], np.int64).most_specific_compatible_type(TensorSpec([3], np.int64))
        TensorSpec(shape=(None,), dtype=tf.int64, name=None)
        """
        spec = self.most_specific_common_supertype([other])
        if spec is None:
            raise InvalidArgumentError(f"TypeSpec: no spec fits both {self} and {other}")
        return spec

    @property
    def rows(self) -> int | None:
        """The leading dimension, if there is one and it is known."""
        dims = _shape_of(self).dims
        return dims[0] if dims else None


_NO_SHAPE = TensorShape(None)


def _shape_of(spec: TypeSpec) -> TensorShape:
    shape: TensorShape = getattr(spec, "shape", _NO_SHAPE)
    return shape


@dataclass(frozen=True, repr=False)
class TensorSpec(TypeSpec):
    """An array of a dtype and a shape.

    >>> TensorSpec([None, 1], np.float32)
    TensorSpec(shape=(None, 1), dtype=tf.float32, name=None)
    """

    shape: TensorShape
    dtype: DType
    name: str | None

    def __init__(self, shape: Any, dtype: Any = np.float32, name: str | None = None) -> None:
        object.__setattr__(self, "shape", TensorShape(shape))
        object.__setattr__(self, "dtype", as_dtype(dtype))
        object.__setattr__(self, "name", name)

    @classmethod
    def from_spec(cls, spec: TensorSpec, name: str | None = None) -> TensorSpec:
        return cls(spec.shape, spec.dtype, name or spec.name)

    @classmethod
    def from_tensor(cls, tensor: Any, name: str | None = None) -> TensorSpec:
        array = np.asarray(tensor)
        return cls(array.shape, array.dtype, name)

    def batch(self, size: int | None) -> TensorSpec:
        return TensorSpec(self.shape.prepend(size), self.dtype)

    def unbatch(self) -> TensorSpec:
        return TensorSpec(self.shape.rest(), self.dtype)

    def relax(self, other: TypeSpec) -> TypeSpec | None:
        if not isinstance(other, TensorSpec) or other.dtype != self.dtype:
            return None
        return TensorSpec(self.shape.relax(other.shape), self.dtype)

    def is_compatible_with(self, spec_or_tensor: Any) -> bool:
        return super().is_compatible_with(spec_or_tensor)

    def is_subtype_of(self, other: Any) -> bool:
        named = isinstance(other, TensorSpec) and (not self.name or self.name == other.name)
        return named and super().is_subtype_of(other)

    def fits(self, value: Any) -> bool:
        if isinstance(value, TensorSpec) and value.shape.dims is None:
            return value.dtype == self.dtype and self.shape.dims is None
        if isinstance(value, TensorSpec):
            return value.dtype == self.dtype and self.shape.fits(value.shape.dims or ())
        if isinstance(value, (bytes, str)):
            return self.dtype == dtypes.string and self.shape.fits(())
        dtype = getattr(value, "dtype", None)
        return dtype is not None and self.dtype == dtype and self.shape.fits(np.shape(value))

    def __repr__(self) -> str:
        return f"TensorSpec(shape={self.shape}, dtype={self.dtype!r}, name={self.name!r})"


@dataclass(frozen=True, repr=False)
class RaggedTensorSpec(TypeSpec):
    """A `Ragged`; with a ragged rank of 0, one row of it.

    >>> import penstock
    >>> rows = penstock.data.Dataset.range(1, 4).map(lambda n: np.zeros(n)).ragged_batch(2)
    >>> rows.element_spec
    RaggedTensorSpec(TensorShape([None, None]), tf.float64, 1, tf.int64)
    >>> rows.element_spec == RaggedTensorSpec([None, None], np.float64)
    True
    """

    shape: TensorShape
    dtype: DType
    ragged_rank: int
    row_splits_dtype: DType

    def __init__(
        self,
        shape: Any = None,
        dtype: Any = np.float32,
        ragged_rank: int | None = None,
        row_splits_dtype: Any = np.int64,
    ) -> None:
        shape = TensorShape(shape)
        if ragged_rank is None:
            ragged_rank = (shape.rank or 2) - 1
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", as_dtype(dtype))
        object.__setattr__(self, "ragged_rank", ragged_rank)
        object.__setattr__(self, "row_splits_dtype", as_dtype(row_splits_dtype))

    def batch(self, size: int | None) -> RaggedTensorSpec:
        return RaggedTensorSpec(
            self.shape.prepend(size), self.dtype, self.ragged_rank + 1, self.row_splits_dtype
        )

    def unbatch(self) -> RaggedTensorSpec:
        rank = max(self.ragged_rank - 1, 0)
        return RaggedTensorSpec(self.shape.rest(), self.dtype, rank, self.row_splits_dtype)

    def relax(self, other: TypeSpec) -> TypeSpec | None:
        same = isinstance(other, RaggedTensorSpec) and (
            (other.dtype, other.ragged_rank) == (self.dtype, self.ragged_rank)
        )
        if not same:
            return None
        shape = self.shape.relax(other.shape)  # type: ignore[attr-defined]
        return RaggedTensorSpec(shape, self.dtype, self.ragged_rank, self.row_splits_dtype)

    def is_subtype_of(self, other: Any) -> bool:
        return isinstance(other, RaggedTensorSpec) and self.relax(other) == other

    def fits(self, value: Any) -> bool:
        if isinstance(value, RaggedTensorSpec):
            return value.relax(self) is not None
        rank = getattr(value, "ragged_rank", 0)
        dtype = getattr(value, "dtype", None)
        if dtype is None or self.dtype != dtype or rank != self.ragged_rank:
            return False
        pairs = zip(self.shape.dims or (), value.shape, strict=False)
        return all(a is None or b is None or a == b for a, b in pairs)

    def __repr__(self) -> str:
        parts = f"{self.shape!r}, {self.dtype!r}, {self.ragged_rank}, {self.row_splits_dtype!r}"
        return f"RaggedTensorSpec({parts})"


@dataclass(frozen=True)
class NoneTensorSpec(TypeSpec):
    """A leaf that is `None`."""

    def fits(self, value: Any) -> bool:
        return value is None or isinstance(value, NoneTensorSpec)


@dataclass(frozen=True, repr=False)
class DatasetSpec(TypeSpec):
    """A dataset as an element, as `window` returns them, or an array of datasets.

    >>> import penstock
    >>> penstock.data.Dataset.range(10).window(5).element_spec
    DatasetSpec(TensorSpec(shape=(), dtype=tf.int64, name=None), TensorShape([]))
    """

    element_spec: Any
    dataset_shape: TensorShape = TensorShape(())  # noqa: RUF009 (immutable)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dataset_shape", TensorShape(self.dataset_shape))
        leaves, tree = nest.flatten(self.element_spec)
        if None in leaves:
            specs = [NoneTensorSpec() if leaf is None else leaf for leaf in leaves]
            object.__setattr__(self, "element_spec", nest.unflatten(tree, specs))

    @staticmethod
    def from_value(value: Any) -> DatasetSpec:
        """The spec of a dataset.

        >>> import penstock
        >>> DatasetSpec.from_value(penstock.data.Dataset.range(3))
        DatasetSpec(TensorSpec(shape=(), dtype=tf.int64, name=None), TensorShape([]))
        """
        return DatasetSpec(value.element_spec)

    def batch(self, size: int | None) -> DatasetSpec:
        return DatasetSpec(self.element_spec, self.dataset_shape.prepend(size))

    def unbatch(self) -> DatasetSpec:
        return DatasetSpec(self.element_spec, self.dataset_shape.rest())

    def relax(self, other: TypeSpec) -> TypeSpec | None:
        if not isinstance(other, DatasetSpec):
            return None
        shape = self.dataset_shape.relax(other.dataset_shape)
        return DatasetSpec(relax(self.element_spec, other.element_spec), shape)

    def _overlaps(self, other: TypeSpec) -> bool:
        return (
            isinstance(other, DatasetSpec)
            and self.dataset_shape.is_compatible_with(other.dataset_shape)
            and overlap(self.element_spec, other.element_spec)
        )

    def is_subtype_of(self, other: Any) -> bool:
        if not isinstance(other, DatasetSpec):
            return False
        leaves, tree = nest.flatten(self.element_spec)
        other_leaves, other_tree = nest.flatten(other.element_spec)
        return (
            tree == other_tree
            and other.dataset_shape.fits(self.dataset_shape.dims or ())
            and all(a.is_subtype_of(b) for a, b in zip(leaves, other_leaves, strict=True))
        )

    def fits(self, value: Any) -> bool:
        spec = value.__leaf_spec__() if hasattr(value, "__leaf_spec__") else value
        return (
            isinstance(spec, DatasetSpec)
            and self.dataset_shape.fits(spec.dataset_shape.dims or ())
            and fits(self.element_spec, spec.element_spec)
        )

    @property
    def shape(self) -> TensorShape:
        return self.dataset_shape

    def __repr__(self) -> str:
        return f"DatasetSpec({self.element_spec!r}, {self.dataset_shape!r})"


@dataclass(frozen=True, repr=False)
class OptionalSpec(TypeSpec):
    """An `Optional` with values of `value_spec`.

    >>> import penstock
    >>> iterator = iter(penstock.data.Dataset.range(3))
    >>> optional = iterator.get_next_as_optional()
    >>> OptionalSpec(optional.element_spec)
    OptionalSpec(TensorSpec(shape=(), dtype=tf.int64, name=None),)
    """

    value_spec: Any

    @staticmethod
    def from_value(value: Any) -> OptionalSpec:
        """The spec of an `Optional`.

        >>> from penstock.element.optional import Optional
        >>> OptionalSpec.from_value(Optional.from_value(3))
        OptionalSpec(TensorSpec(shape=(), dtype=tf.int32, name=None),)
        """
        return OptionalSpec(value.element_spec)

    def _overlaps(self, other: TypeSpec) -> bool:
        return isinstance(other, OptionalSpec) and overlap(self.value_spec, other.value_spec)

    def fits(self, value: Any) -> bool:
        if isinstance(value, OptionalSpec):
            return fits(self.value_spec, value.value_spec)
        return hasattr(value, "has_value") and overlap(self.value_spec, value.element_spec)

    def __repr__(self) -> str:
        return f"OptionalSpec({self.value_spec!r},)"


@dataclass(frozen=True, repr=False)
class IteratorSpec(TypeSpec):
    """An iterator of elements.

    >>> import penstock
    >>> IteratorSpec(iter(penstock.data.Dataset.range(3)).element_spec)
    IteratorSpec(TensorSpec(shape=(), dtype=tf.int64, name=None),)
    """

    element_spec: Any

    def fits(self, value: Any) -> bool:
        return isinstance(value, IteratorSpec) or hasattr(value, "get_next")

    def __repr__(self) -> str:
        return f"IteratorSpec({self.element_spec!r},)"


def relax(first: Any, second: Any, why: str = "Dataset") -> Any:
    """The most specific structure of specs that fits both; InvalidTypeError if there is none."""
    from_first, tree = nest.flatten(first)
    from_second, other_tree = nest.flatten(second)
    leaves = []
    if tree == other_tree:
        leaves = [a.relax(b) for a, b in zip(from_first, from_second, strict=True)]
    if tree != other_tree or None in leaves:
        raise InvalidTypeError(
            f"{why}: elements must have the same structure and dtypes, got {first} and {second}; "
            "map them to what they have in common"
        )
    return nest.unflatten(tree, leaves)


def relax_all(specs: Iterable[Any], why: str = "Dataset") -> Any:
    """The most specific structure of specs that fits all; InvalidTypeError if there is none."""
    return functools.reduce(lambda first, second: relax(first, second, why), specs)


def overlap(first: Any, second: Any) -> bool:
    """Whether an element can fit both structures of specs."""
    leaves, tree = nest.flatten(first)
    other_leaves, other_tree = nest.flatten(second)
    pairs = zip(leaves, other_leaves, strict=False)
    return tree == other_tree and all(one.is_compatible_with(other) for one, other in pairs)


def fits(spec: Any, value: Any) -> bool:
    """Whether an element has the structure of `spec`, and every leaf fits."""
    leaves, tree = nest.flatten(spec)
    try:
        values = nest.flatten_up_to(tree, value)
    except (ValueError, TypeError):
        return False
    return all(leaf.fits(v) for leaf, v in zip(leaves, values, strict=True))
