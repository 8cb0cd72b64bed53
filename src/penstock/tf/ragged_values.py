"""`RaggedTensor` and `SparseTensor`: rows of different lengths, in TensorFlow's two forms.

Both hold a `Ragged` of the element: functions and loops get a `RaggedTensor`, and what
functions return becomes a `Ragged` again. A sparse tensor here only holds rows that are filled
from the left, which is what `parse_example` returns.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from penstock.element.dtypes import DType, as_dtype, of_numpy
from penstock.element.ragged import Ragged
from penstock.element.spec import TensorShape
from penstock.errors import InvalidArgumentError, InvalidTypeError, UnimplementedError
from penstock.tf.missing_operations import missing_from_tf
from penstock.tf.values import Array, Tensor, as_tensor, has_any, plain_leaf, to_array


class RaggedTensor:
    """Rows of different lengths; `tf.ragged.constant` makes one.

    >>> x = RaggedTensor.from_row_lengths([1, 2, 3], [2, 0, 1])
    >>> x.to_list(), x.row_lengths().numpy().tolist(), x.to_tensor().numpy().tolist()
    ([[1, 2], [], [3]], [2, 0, 1], [[1, 2], [0, 0], [3, 0]])
    """

    def __init__(self, ragged: Ragged) -> None:
        if not isinstance(ragged, Ragged):
            raise InvalidTypeError(
                "RaggedTensor: use a factory, such as RaggedTensor.from_row_splits"
            )
        self.ragged = ragged

    @classmethod
    def from_row_splits(cls, values: Any, row_splits: Any, **_: Any) -> RaggedTensor:
        splits = to_array(row_splits)
        if isinstance(row_splits, list | tuple) and not has_any(row_splits, (Tensor,)):
            splits = to_array(row_splits, np.int64)
        return cls(Ragged.from_row_splits(plain_rows(values), splits))

    @classmethod
    def from_row_lengths(cls, values: Any, row_lengths: Any, **_: Any) -> RaggedTensor:
        splits = np.concatenate([[0], np.cumsum(to_array(row_lengths), dtype=np.int64)])
        return cls(Ragged.from_row_splits(plain_rows(values), splits))

    @classmethod
    def from_value_rowids(
        cls, values: Any, value_rowids: Any, nrows: Any = None, **_: Any
    ) -> RaggedTensor:
        rows = to_array(value_rowids).astype(np.int64)
        count = int(rows[-1]) + 1 if nrows is None and len(rows) else int(nrows or 0)
        return cls.from_row_lengths(values, np.bincount(rows, minlength=count))

    @classmethod
    def from_uniform_row_length(
        cls, values: Any, uniform_row_length: Any, nrows: Any = None, **_: Any
    ) -> RaggedTensor:
        flat, length = plain_rows(values), int(uniform_row_length)
        count = len(flat) // max(length, 1) if nrows is None else int(nrows)
        return cls(Ragged.from_row_splits(flat, np.arange(count + 1) * length))

    @classmethod
    def from_row_starts(cls, values: Any, row_starts: Any, **_: Any) -> RaggedTensor:
        flat = plain_rows(values)
        return cls.from_row_splits(values, np.append(to_array(row_starts), len(flat)))

    @classmethod
    def from_row_limits(cls, values: Any, row_limits: Any, **_: Any) -> RaggedTensor:
        return cls.from_row_splits(values, np.insert(to_array(row_limits), 0, 0))

    @classmethod
    def from_nested_row_splits(
        cls, flat_values: Any, nested_row_splits: Any, **_: Any
    ) -> RaggedTensor:
        made: Any = flat_values
        for splits in reversed(nested_row_splits):
            made = cls.from_row_splits(made, splits)
        return cls(plain_rows(made))

    @classmethod
    def from_tensor(
        cls,
        tensor: Any,
        lengths: Any = None,
        padding: Any = None,
        ragged_rank: int = 1,
        name: str | None = None,
        row_splits_dtype: Any = np.int64,
    ) -> RaggedTensor:
        """The rows of an array, cut to `lengths`, or before the trailing `padding`."""
        array = to_array(tensor)
        if not 0 < ragged_rank < array.ndim:
            raise InvalidArgumentError(
                f"RaggedTensor.from_tensor: ragged_rank must be from 1 to {array.ndim - 1} for "
                f"{array.ndim} dimensions, got {ragged_rank}"
            )
        kind = as_dtype(row_splits_dtype).dtype
        if isinstance(lengths, list | tuple) and np.ndim(lengths[0]) == 1:
            return cls(_cut_each(array, lengths, kind))
        rows = array.reshape(math.prod(array.shape[:ragged_rank]), *array.shape[ragged_rank:])
        ragged = _cut_rows(rows, _count_kept(rows, lengths, padding), kind)
        return cls(group_rows(ragged, array.shape[:ragged_rank], kind))

    @classmethod
    def from_sparse(cls, st_input: Any, row_splits_dtype: Any = np.int64) -> RaggedTensor:
        if isinstance(st_input, RaggedTensor):
            return st_input
        rows = st_input.rows if isinstance(st_input, SparseTensor) else st_input
        if not isinstance(rows, Ragged):
            raise InvalidArgumentError(
                f"RaggedTensor.from_sparse: needs two dimensions, got {st_input!r}"
            )
        return cls(rows)

    def numpy(self) -> Any:
        """A copy as an array of rows; a plain array if the rows have one length."""
        values = self.values.numpy()
        rows = np.split(values, plain_leaf(self.row_splits)[1:-1]) if len(self) else []
        if len({len(row) for row in rows}) == 1:
            return np.stack(rows)
        made = np.empty(len(rows), object if rows else values.dtype)
        for place, row in enumerate(rows):
            made[place] = row
        return made

    def to_list(self) -> list[Any]:
        return self.ragged.to_list()

    def to_tensor(self, default_value: Any = None, shape: Any = None, **_: Any) -> Tensor:
        """The rows in one array, filled up with `default_value` (0, or an empty string)."""
        return as_tensor(fill_rows(self.ragged, default_value, shape))

    def to_sparse(self, name: str | None = None) -> SparseTensor:
        return SparseTensor.of_rows(self.ragged)

    def row_lengths(self, axis: int = 1, name: str | None = None) -> Any:
        """The number of values of each row, or of the rows in it (`axis` 2 and more)."""
        if axis > 1 and isinstance(inner := self.values, RaggedTensor):
            return self.with_values(inner.row_lengths(axis - 1))
        return as_tensor(self.ragged.row_lengths)

    def nrows(self, out_type: Any = None, name: str | None = None) -> Tensor:
        return as_tensor(np.asarray(len(self.ragged), np.int64 if out_type is None else out_type))

    def bounding_shape(self, axis: Any = None, **_: Any) -> Tensor:
        shape = np.array(fill_rows(self.ragged, None, None).shape, np.int64)
        return as_tensor(shape if axis is None else shape[axis])

    @property
    def values(self) -> Any:
        flat = self.ragged.flat
        return RaggedTensor(flat) if isinstance(flat, Ragged) else as_tensor(flat)

    @property
    def flat_values(self) -> Tensor:
        return as_tensor(self.ragged.flat_values)

    @property
    def row_splits(self) -> Tensor:
        return as_tensor(self.ragged.row_splits - self.ragged.row_splits[0])

    @property
    def nested_row_splits(self) -> tuple[Tensor, ...]:
        inner = self.values
        more = inner.nested_row_splits if isinstance(inner, RaggedTensor) else ()
        return (self.row_splits, *more)

    def nested_row_lengths(self, name: str | None = None) -> tuple[Tensor, ...]:
        return tuple(as_tensor(np.diff(plain_leaf(one))) for one in self.nested_row_splits)

    def row_starts(self, name: str | None = None) -> Tensor:
        return self.row_splits[:-1]

    def row_limits(self, name: str | None = None) -> Tensor:
        return self.row_splits[1:]

    def with_values(self, new_values: Any) -> RaggedTensor:
        made = _check_count("with_values", plain_rows(new_values), len(self.ragged.flat))
        return RaggedTensor(Ragged(made, plain_leaf(self.row_splits)))

    def get_shape(self) -> TensorShape:
        return self.shape

    def merge_dims(self, outer_axis: int, inner_axis: int) -> Any:
        """The dimensions from one to another as one."""
        rank = len(self.ragged.shape)
        outer, inner = (axis + rank if axis < 0 else axis for axis in (outer_axis, inner_axis))
        if not 0 <= outer <= inner < rank:
            raise InvalidArgumentError(
                f"RaggedTensor.merge_dims: a tensor of {rank} dimensions has no dimensions from "
                f"{outer_axis} to {inner_axis}"
            )
        return self if outer == inner else wrap_rows(_merge(self.ragged, outer, inner))

    def value_rowids(self, name: str | None = None) -> Tensor:
        return as_tensor(np.repeat(np.arange(len(self.ragged)), self.ragged.row_lengths))

    def with_flat_values(self, new_values: Any) -> RaggedTensor:
        count = len(plain_leaf(self.flat_values))
        made = _check_count("with_flat_values", plain_rows(new_values), count)
        return RaggedTensor(_with_flat_values(self.ragged, made))

    @property
    def dtype(self) -> DType:
        return of_numpy(self.ragged.dtype)

    @property
    def shape(self) -> TensorShape:
        return TensorShape(self.ragged.shape)

    @property
    def ragged_rank(self) -> int:
        return self.ragged.ragged_rank

    def __getattr__(self, name: str) -> NoReturn:
        raise missing_from_tf("RaggedTensor", name, dir(type(self)))

    def __len__(self) -> int:
        return len(self.ragged)

    def __getitem__(self, key: Any) -> Any:
        first, *rest = key if isinstance(key, tuple) else (key,)
        if first is Ellipsis:
            return self[(*[slice(None)] * (len(self.shape) - len(rest)), *rest)]
        if first is None or (rest and rest[0] is None and first == slice(None)):
            ends = [0, len(self)] if first is None else np.arange(len(self) + 1)
            made = RaggedTensor.from_row_splits(self, ends)
            more = rest if first is None else [slice(None), *rest[1:]]
            return made[(slice(None), *more)]
        if isinstance(first, slice) and rest and not isinstance(rest[0], slice):
            raise InvalidArgumentError("RaggedTensor[...]: cannot index into an inner dimension")
        if isinstance(first, Tensor):
            first = int(first)
        part = self.ragged[first]
        if not rest:
            return wrap_rows(part)
        if isinstance(first, slice):
            rows = [plain_rows(wrap_rows(row)[tuple(rest)]) for row in part]
            return RaggedTensor(Ragged.from_rows(rows, self.ragged.dtype))
        return wrap_rows(part)[tuple(rest)]

    def __iter__(self) -> Iterator[Any]:
        return map(wrap_rows, self.ragged)

    def __repr__(self) -> str:
        # NumPy calls the formatter for each value; the values of an array of rows are arrays.
        with np.printoptions(formatter={"all": _value_text}):
            return f"<tf.RaggedTensor {_value_text(self.numpy())}>"

    def operand_like(self, other: Any, call: str) -> Any:
        """The other operand, for the flat values: with the same rows, one per row, or for all."""
        if isinstance(other, RaggedTensor):
            if _splits(other) != _splits(self):
                raise InvalidArgumentError(
                    f"tf.{call}: the rows of {self!r:.60} and {other!r:.60} differ in length"
                )
            return other.flat_values
        array = to_array(other, self.dtype if isinstance(other, list) else None, call)
        shape, inner = array.shape, self.flat_values.ndim
        while inner <= array.ndim <= len(self.shape) and len(array) == 1:
            array, other = array[0], other[0]
        lengths = plain_leaf(self.nested_row_lengths()[-1]).tolist()
        if array.ndim < inner or (array.ndim == inner and lengths == [len(array)]):
            return other
        if array.ndim == inner + 1 and len(array) == len(self) and self.ragged_rank == 1:
            if array.shape[1] == 1:
                return as_tensor(np.repeat(array[:, 0], lengths, axis=0))
            if set(lengths) <= {array.shape[1]}:
                return as_tensor(array.reshape(sum(lengths), *array.shape[2:]))
        raise InvalidArgumentError(
            f"tf.{call}: {shape} does not fit the rows of {self!r:.60}; pass a column"
        )

    def _apply(self, call: Callable[[Any, Any], Any], other: Any, is_reflected: bool) -> Any:
        flat, more = self.flat_values, self.operand_like(other, call.__name__.strip("_"))
        return self.with_flat_values(call(more, flat) if is_reflected else call(flat, more))

    def __eq__(self, other: object) -> Any:
        return self._compare(operator.eq, other, False)

    def __ne__(self, other: object) -> Any:
        return self._compare(operator.ne, other, True)

    def _compare(self, call: Callable[[Any, Any], Any], other: object, unfit: bool) -> Any:
        """`unfit` for what has another dtype or other rows, as in TensorFlow."""
        try:
            return unfit if other is None else self._apply(call, other, False)
        except (TypeError, ValueError, IndexError):
            return unfit

    def __neg__(self) -> RaggedTensor:
        return self.with_flat_values(-self.flat_values)

    def __invert__(self) -> RaggedTensor:
        return self.with_flat_values(~self.flat_values)

    def __abs__(self) -> RaggedTensor:
        return self.with_flat_values(abs(self.flat_values))

    __hash__ = None  # type: ignore[assignment]
    __array_ufunc__ = None  # Arrays leave operators with ragged rows to the methods here.


def _value_text(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return str(value)
    return np.array2string(value, separator=", ") if value.size else repr(value.tolist())


def _splits(value: RaggedTensor) -> list[list[int]]:
    return [plain_leaf(one).tolist() for one in value.nested_row_splits]


def _make_operator(name: str, is_reflected: bool) -> Callable[[RaggedTensor, Any], Any]:
    call = getattr(operator, f"__{name}__")
    return lambda self, other: self._apply(call, other, is_reflected)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"):
    setattr(RaggedTensor, f"__{_name}__", _make_operator(_name, False))
    setattr(RaggedTensor, f"__r{_name}__", _make_operator(_name, True))
for _name in ("lt", "le", "gt", "ge"):
    setattr(RaggedTensor, f"__{_name}__", _make_operator(_name, False))


def wrap_rows(value: Any) -> Any:
    """A row (or rows) as a tensor."""
    return RaggedTensor(value) if isinstance(value, Ragged) else as_tensor(value)


def plain_rows(value: Any) -> Any:
    """The `Ragged` of a ragged tensor, or the array of another value."""
    return value.ragged if isinstance(value, RaggedTensor) else to_array(value)


def stack_rows(rows: Iterable[Any]) -> RaggedTensor:
    """Rows of different lengths as one ragged tensor."""
    return RaggedTensor(Ragged.from_rows([plain_rows(row) for row in rows]))


def group_rows(rows: Ragged, shape: Sequence[int], dtype: Any = np.int64) -> Ragged:
    """The rows in dimensions of fixed sizes: each of the inner ones becomes a dimension of rows."""
    for depth in reversed(range(1, len(shape))):
        rows = Ragged(rows, np.arange(math.prod(shape[:depth]) + 1, dtype=dtype) * shape[depth])
    return rows


def _check_count(call: str, values: Any, count: int) -> Any:
    """The values; InvalidArgumentError if they are not as many as those that they replace."""
    if values.shape[:1] != (count,):
        raise InvalidArgumentError(
            f"RaggedTensor.{call}: {count} values are needed, got the shape {values.shape}"
        )
    return values


def _with_flat_values(ragged: Ragged, values: Array | Ragged) -> Ragged:
    flat, splits = ragged.flat, ragged.row_splits - ragged.row_splits[0]
    return Ragged(_with_flat_values(flat, values) if isinstance(flat, Ragged) else values, splits)


def _count_kept(rows: Array, lengths: Any, padding: Any) -> Array:
    """How many values of each row are kept."""
    size = rows.shape[1]
    if lengths is not None:
        return np.clip(to_array(lengths), 0, size)
    if padding is None:
        return np.full(len(rows), size)
    kept = (rows != to_array(padding, rows.dtype)).reshape(*rows.shape[:2], -1).any(axis=2)
    return np.where(kept.any(axis=1), size - kept[:, ::-1].argmax(axis=1), 0)


def _cut_rows(rows: Array, counts: Array, kind: Any) -> Ragged:
    splits = np.concatenate(([0], counts.cumsum())).astype(kind)
    return Ragged(rows[np.arange(rows.shape[1]) < counts[:, None]], splits)


def _cut_each(rows: Array, lengths: Any, kind: Any) -> Ragged:
    """Cuts rows to `lengths[0]`, and the values inside of them to the further lengths."""
    ragged = _cut_rows(rows, _count_kept(rows, lengths[0], None), kind)
    if len(lengths) == 1:
        return ragged
    return Ragged(_cut_each(ragged.flat, lengths[1:], kind), ragged.row_splits)


def _merge(value: Ragged | Array, outer: int, inner: int) -> Ragged | Array:
    """The dimensions of a value from `outer` to `inner` as one."""
    if not isinstance(value, Ragged):
        return value.reshape(*value.shape[:outer], -1, *value.shape[inner + 1 :])
    flat, splits = value.flat, value.row_splits - value.row_splits[0]
    if outer == 0:
        return flat if inner == 1 else _merge(flat, 0, inner - 1)
    if outer > 1:
        return Ragged(_merge(flat, outer - 1, inner - 1), splits)
    for _ in range(inner - 1):
        if isinstance(flat, Ragged):
            splits = (flat.row_splits - flat.row_splits[0])[splits]
            flat = flat.flat
        else:
            splits = splits * flat.shape[1]
            flat = flat.reshape(-1, *flat.shape[2:])
    return Ragged(flat, splits)


def fill_rows(ragged: Ragged, default: Any, shape: Any) -> Array:
    """The rows as one array."""
    filling = default_filling(default, ragged.dtype)
    flat = ragged.flat
    inner = fill_rows(flat, default, None) if isinstance(flat, Ragged) else flat
    lengths = ragged.row_lengths
    longest = int(lengths.max(initial=0))
    result = np.empty((len(ragged), longest, *inner.shape[1:]), inner.dtype)
    result[...] = filling
    result[np.arange(longest) < lengths[:, None]] = inner
    return result if shape is None else _fit(result, list(shape), filling)


def default_filling(default: Any, dtype: np.dtype[Any]) -> Array:
    """What is where no value is: by default 0, or an empty string."""
    if default is None:
        return np.array(b"" if dtype.kind == "O" else 0, dtype)
    return to_array(default, of_numpy(dtype))


def _fit(array: Array, shape: list[Any], filling: Array) -> Array:
    """Cuts and fills the leading dimensions of an array to a shape; None leaves one as it is."""
    wanted = [
        have if want is None else int(want) for have, want in zip(array.shape, shape, strict=True)
    ]
    result = np.full(wanted, filling, array.dtype)
    common = tuple(slice(min(a, b)) for a, b in zip(array.shape, wanted, strict=True))
    result[common] = array[common]
    return result


class SparseTensor:
    """Values with their indices, as `parse_example` returns them for a `VarLenFeature`.

    >>> x = SparseTensor([[0, 0], [0, 1], [2, 0]], [1, 2, 3], [3, 2])
    >>> x.rows
    <Ragged [[1, 2], [], [3]]>
    """

    def __init__(self, indices: Any, values: Any, dense_shape: Any) -> None:
        self.__dict__["indices"] = as_tensor(to_array(indices).astype(np.int64))
        self.values = as_tensor(to_array(values))
        self.dense_shape = as_tensor(to_array(dense_shape).astype(np.int64))

    @classmethod
    def of_rows(cls, rows: Ragged | Array) -> SparseTensor:
        """The sparse tensor of rows, or of one row."""
        made = cls.__new__(cls)
        made.__dict__["rows"] = rows
        if isinstance(rows, Ragged):
            longest = int(rows.row_lengths.max(initial=0))
            made.values, shape = as_tensor(rows.flat_values), [len(rows), longest]
        else:
            made.values, shape = as_tensor(rows), [len(rows)]
        made.dense_shape = as_tensor(np.array(shape, np.int64))
        return made

    @functools.cached_property
    def indices(self) -> Tensor:
        """The place of each value."""
        if not isinstance(self.rows, Ragged):
            return as_tensor(np.arange(len(self.rows))[:, None])
        lengths = self.rows.row_lengths
        places = np.repeat(np.arange(len(self.rows)), lengths)
        columns = np.arange(len(places)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return as_tensor(np.stack([places, columns], 1))

    @functools.cached_property
    def rows(self) -> Any:
        """The rows as a `Ragged`, or as an array if there is one dimension."""
        indices, values = plain_leaf(self.indices), plain_leaf(self.values)
        if indices.shape[1] == 1:
            return values
        lengths = np.bincount(indices[:, 0], minlength=int(self.dense_shape[0]))
        made = Ragged(values, np.concatenate([[0], np.cumsum(lengths)]))
        columns = np.arange(len(values)) - np.repeat(made.row_splits[:-1], lengths)
        if indices.shape[1] != 2 or not np.array_equal(indices[:, 1], columns):
            raise UnimplementedError(
                "SparseTensor: only rows that are filled from the left can be elements; "
                "use tf.sparse.to_dense"
            )
        return made

    @property
    def dtype(self) -> DType:
        return self.values.dtype

    @property
    def shape(self) -> TensorShape:
        return TensorShape(plain_leaf(self.dense_shape).tolist())

    def get_shape(self) -> TensorShape:
        return self.shape

    def __repr__(self) -> str:
        shown = f"{self.indices!s}, values={self.values!s}, dense_shape={self.dense_shape!s}"
        return f"SparseTensor(indices={shown})"

    if not TYPE_CHECKING:  # A type checker knows the names, and would take any other one, too.

        def __getattr__(self, name: str) -> NoReturn:
            raise missing_from_tf("SparseTensor", name, ())
