"""Batches of unequal elements: checked arguments of `padded_batch` and of length buckets.

`padded_batch` gets one shape and one value per leaf. Bucket i holds the lengths from
`boundaries[i - 1]` up to and without `boundaries[i]`.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from penstock.data.arguments import describe, element, integer
from penstock.element import nest
from penstock.element.spec import DatasetSpec, Dims, RaggedTensorSpec, TensorShape, TensorSpec
from penstock.element.values import spec_of
from penstock.errors import InternalError, InvalidArgumentError, InvalidTypeError, UnfitTypeError
from penstock.plan.nodes import unpaddable


def check_paddable(where: str, spec: Any, shapes_given: bool) -> None:
    """Only arrays can be padded, and without `padded_shapes` only those of known rank.

    A list of a table, whose batches are ragged, is an array itself.
    """
    for leaf in nest.flatten(spec)[0]:
        is_list = isinstance(leaf, RaggedTensorSpec) and leaf.ragged_rank == 0
        if not isinstance(leaf, TensorSpec) and not is_list:
            raise unpaddable(where, leaf, isinstance(leaf, DatasetSpec))
        if leaf.shape.rank is None and not shapes_given:
            raise InvalidArgumentError(
                f"{where}: the rank of {leaf} is unknown; give padded_shapes"
            )


def padded_shapes(where: str, given: Any, spec: Any) -> tuple[TensorShape, ...]:
    """One shape per leaf, each at least as large as the leaf's own."""
    leaves, tree = nest.flatten(spec)
    parts = _parts(where, "padded_shapes", tree, given)
    return tuple(_shape(where, *pair) for pair in zip(parts, leaves, strict=True))


def padding_values(where: str, given: Any, spec: Any) -> tuple[Any, ...]:
    """One value per leaf; None means 0 or the empty string."""
    leaves = nest.flatten(spec)[0]
    if nest.flatten(given)[1] == nest.LEAF:
        parts = [given] * len(leaves)
    else:
        parts = _values(where, given, spec)
    return tuple(_value(where, *pair) for pair in zip(parts, leaves, strict=True))


def _values(where: str, given: Any, spec: Any) -> list[Any]:
    """One value per leaf; a None is repeated for all leaves below it."""
    values, tree = nest.flatten(given)
    try:
        below = [nest.flatten(part)[1].num_leaves for part in nest.flatten_up_to(tree, spec)]
    except ValueError:
        below = [0]
    if any(count != 1 for value, count in zip(values, below, strict=False) if value is not None):
        return _parts(where, "padding_values", nest.flatten(spec)[1], given)
    return [value for value, count in zip(values, below, strict=True) for _ in range(count)]


def _parts(where: str, name: str, tree: nest.Tree, given: Any) -> list[Any]:
    try:
        return nest.flatten_up_to(tree, given)
    except ValueError as error:
        raise UnfitTypeError(
            f"{where}: {name} must have the structure of the element, got {describe(given)}"
        ) from error


def _shape(where: str, given: Any, leaf: TensorSpec) -> TensorShape:
    try:
        shape = given if isinstance(given, TensorShape) else _as_shape(given)
    except (TypeError, ValueError) as error:
        raise UnfitTypeError(
            f"{where}: padded_shapes must hold shapes, got {describe(given)}"
        ) from error
    if not _has_room(shape, leaf.shape):
        raise InvalidArgumentError(
            f"{where}: padded_shapes {shape} cannot hold an element of shape {leaf.shape}"
        )
    return shape


def _as_shape(given: Any) -> TensorShape:
    if given is None:
        return TensorShape(None)
    # -1 in a vector means None.
    dims = np.atleast_1d(np.array(given, object)).tolist()
    return TensorShape([None if d == -1 else d for d in dims])


def _has_room(shape: TensorShape, inner: TensorShape) -> bool:
    if shape.dims is None or inner.dims is None:
        return True
    pairs = zip(shape.dims, inner.dims, strict=False)
    fits = all(a is None or b is None or a >= b for a, b in pairs)
    return fits and len(shape.dims) == len(inner.dims)


def _value(where: str, given: Any, leaf: TensorSpec) -> Any:
    if given is None:
        return None
    value = element(f"{where}: padding_values", given)
    spec = spec_of(value)
    if not isinstance(spec, TensorSpec) or spec.shape.rank != 0:
        raise UnfitTypeError(
            f"{where}: padding_values must hold single values, got {describe(given)}"
        )
    if spec.dtype != leaf.dtype:
        raise InvalidTypeError(
            f"{where}: padding_values must have the dtype of the element, {leaf.dtype.name}, "
            f"got {given!r} ({spec.dtype.name}); write numpy.{leaf.dtype.name}({given!r})"
        )
    return value


_BUCKETS = "Dataset.bucket_by_sequence_length"


@dataclass(frozen=True)
class Buckets:
    """The limits of the buckets and the batch size of each."""

    boundaries: tuple[int, ...]
    sizes: tuple[int, ...]

    __leaf__ = True

    def bucket_of(self, length: Any) -> int:
        return bisect_right(self.boundaries, int(length))

    def size_of(self, bucket: Any) -> int:
        size = self.sizes[int(bucket)]
        if size < 1:  # As in TensorFlow, an error when an element comes into the bucket.
            raise InvalidArgumentError(
                f"{_BUCKETS}: bucket_batch_sizes must be at least 1, got {size}"
            )
        return size

    def longest(self, bucket: Any) -> int:
        """The greatest length in a bucket; the last one has none."""
        if bucket >= len(self.boundaries):
            raise InternalError(
                f"{_BUCKETS}: with pad_to_bucket_boundary, lengths must be below the last of "
                f"bucket_boundaries, {self.boundaries[-1] if self.boundaries else 'none given'}"
            )
        return self.boundaries[int(bucket)] - 1


def check_sequence(element: Any, *others: Any) -> None:
    """Raises if `len` of this element would count its features, which are not its length."""
    if isinstance(element, dict) and element:
        names = [str(name) for name in element]
        raise InvalidArgumentError(
            f"{_BUCKETS}: len counts the features {', '.join(names)}; write a function for the "
            f"length of one of them, as lambda row: len(row[{names[0]!r}])"
        )


def make_buckets(boundaries: Any, sizes: Any) -> Buckets:
    limits = tuple(integer(_BUCKETS, "bucket_boundaries", one) for one in boundaries)
    counts = tuple(integer(_BUCKETS, "bucket_batch_sizes", one) for one in sizes)
    if any(one >= following for one, following in pairwise(limits)):
        raise InvalidArgumentError(
            f"{_BUCKETS}: bucket_boundaries must rise, got {list(limits)}; sort them, each once"
        )
    if len(counts) != len(limits) + 1:
        raise InvalidArgumentError(
            f"{_BUCKETS}: bucket_batch_sizes must be one more than bucket_boundaries "
            f"({len(limits)}), got {len(counts)}"
        )
    return Buckets(limits, counts)


def fill_unknown(shapes: Any, spec: Any, is_declared: bool, length: int) -> Any:
    """`shapes` (those of `spec` if None) with `length` for every unknown dimension.

    Where `spec` was inferred from samples (not `is_declared`), a dimension may look known by
    chance. Such dimensions are left to the batch. If none is unknown, the leading one is the
    sequence's.
    """
    leaves, tree = nest.flatten(spec)
    if shapes is not None:
        given = [TensorShape(shape).dims for shape in nest.flatten_up_to(tree, shapes)]
    else:
        given = [leaf.shape.dims for leaf in leaves]
        if not is_declared and not any(None in (dims or ()) for dims in given):
            given = [dims and (None, *dims[1:]) for dims in given]
    known_by_chance = shapes is None and not is_declared
    return nest.unflatten(
        tree, [TensorShape(_fill_dims(dims, length, known_by_chance)) for dims in given]
    )


def _fill_dims(dims: Dims | None, length: int, known_by_chance: bool) -> Dims | None:
    if dims is None:
        return None
    known = [None] * len(dims) if known_by_chance else dims
    return tuple(length if size is None else one for size, one in zip(dims, known, strict=True))
