"""Operations that make tensors, and that change their shape."""

from __future__ import annotations

import builtins
import contextlib
import itertools
import math
import time
from typing import Any

import numpy as np

from penstock.distribute.values.indexed_slices import IndexedSlices
from penstock.distribute.values.variables import Variable
from penstock.element.dtypes import as_dtype
from penstock.element.ragged import Ragged
from penstock.element.spec import TensorShape
from penstock.errors import InvalidArgumentError, InvalidTypeError, UnimplementedError
from penstock.shim import arrays as plain
from penstock.shim.literals import cast_array, is_literal
from penstock.tf.operations import axes, dims, elementwise, integer, numbers, operation
from penstock.tf.ragged_shapes import DynamicRaggedShape
from penstock.tf.ragged_values import RaggedTensor, SparseTensor, plain_rows, wrap_rows
from penstock.tf.values import (
    Array,
    Tensor,
    as_tensor,
    has_any,
    list_leaves,
    operand_dtype,
    plain_leaf,
    quotient_dtype,
    to_array,
)
from penstock.tf.variable_updates import add_up


@operation
def constant(value: Any, dtype: Any = None, shape: Any = None, name: str | None = None) -> Any:
    """A tensor of a value."""
    if isinstance(value, Tensor) and dtype is not None and value.dtype != as_dtype(dtype):
        raise InvalidTypeError(
            f"tf.constant: a tensor of {value.dtype.name} was given, and dtype is "
            f"{as_dtype(dtype).name}; use tf.cast"
        )
    given = to_array(value) if isinstance(value, Tensor | TensorShape) else value
    if is_literal(value):
        given = to_array(value, dtype, "constant")
    return plain.constant(given, dtype, None if shape is None else dims("constant", shape))


def convert_to_tensor(
    value: Any, dtype: Any = None, dtype_hint: Any = None, name: str | None = None
) -> Any:
    """A tensor of a value; a tensor is returned as it is."""
    if isinstance(value, RaggedTensor | SparseTensor):
        return value
    if isinstance(value, IndexedSlices):
        value = as_tensor(add_up(value))
    array = to_array(value, None if isinstance(value, Tensor) else dtype)
    if dtype is not None and array.dtype != as_dtype(dtype).dtype:
        raise InvalidArgumentError(
            f"tf.convert_to_tensor: a tensor of {array.dtype.name} was given, and dtype is "
            f"{as_dtype(dtype).name}; use tf.cast"
        )
    return as_tensor(array)


def is_tensor(x: Any) -> bool:
    """Whether it is a tensor (also a ragged or sparse one) or a variable."""
    return isinstance(x, Tensor | RaggedTensor | SparseTensor | Variable)


@elementwise
def identity(input: Any, name: str | None = None) -> Any:
    """The same values."""
    return to_array(input)


stop_gradient = identity


@elementwise
def cast(x: Any, dtype: Any, name: str | None = None) -> Any:
    """The values in another dtype; floats lose their fraction when they become ints."""
    array, target = to_array(x, None, "cast"), as_dtype(dtype)
    if array.dtype == target.dtype:
        return array
    if array.dtype.kind == "O" or target.name == "string":
        raise UnimplementedError(
            "tf.cast: from or to string; use tf.strings.to_number or tf.strings.as_string"
        )
    return cast_array(array, target)


@elementwise
def saturate_cast(value: Any, dtype: Any, name: str | None = None) -> Any:
    """The values in another dtype; a value that does not fit becomes its least or greatest."""
    array, target = to_array(value), as_dtype(dtype)
    if target.dtype.kind in "iuf" and array.dtype.kind in "iuf":
        array = clip_to_limits(array, target.dtype)
    return cast_array(array, target)


def clip_to_limits(array: Array, dtype: np.dtype[Any]) -> Array:
    """The numbers; a number that a dtype does not have becomes its nearest value.

    The nearest value is one that the dtype of the array has: 2147483520 of float32 for int32.
    """
    limits: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    if array.dtype.kind != "f":
        own = np.iinfo(array.dtype)
        low, high = max(limits.min, own.min), min(limits.max, own.max)
        return np.clip(array, array.dtype.type(low), array.dtype.type(high))
    most = np.finfo(array.dtype).max
    ends = [
        array.dtype.type(np.clip(float(end), -float(most), float(most)))
        for end in (limits.min, limits.max)
    ]
    if float(ends[1]) > float(limits.max):
        ends[1] = np.nextafter(ends[1], array.dtype.type(0))
    return np.clip(array, *ends)


@operation
def zeros(shape: Any, dtype: Any = np.float32, name: str | None = None) -> Any:
    """Zeros, empty strings or False."""
    if isinstance(shape, DynamicRaggedShape):
        return shape.broadcast(plain.zeros((), dtype))
    return plain.zeros(dims("zeros", shape), dtype)


@operation
def ones(shape: Any, dtype: Any = np.float32, name: str | None = None) -> Any:
    """Ones or True."""
    if isinstance(shape, DynamicRaggedShape):
        return shape.broadcast(plain.ones((), dtype))
    return plain.ones(dims("ones", shape), dtype)


@elementwise
def zeros_like(input: Any, dtype: Any = None, name: str | None = None) -> Any:
    """Zeros in the shape of another tensor."""
    array = to_array(input)
    return plain.zeros(array.shape, array.dtype if dtype is None else dtype)


@elementwise
def ones_like(input: Any, dtype: Any = None, name: str | None = None) -> Any:
    """Ones in the shape of another tensor."""
    array = to_array(input)
    return plain.ones(array.shape, array.dtype if dtype is None else dtype)


@operation
def fill(dims: Any, value: Any, name: str | None = None) -> Any:
    """One value in a shape."""
    filling = to_array(value)
    if filling.ndim:
        raise InvalidArgumentError(f"tf.fill: value must be a scalar, got shape {filling.shape}")
    if isinstance(dims, DynamicRaggedShape):
        return dims.broadcast(filling)
    return np.full(_dims("fill", dims), filling, filling.dtype)


_dims = dims


@operation
def eye(
    num_rows: Any,
    num_columns: Any = None,
    batch_shape: Any = None,
    dtype: Any = np.float32,
    name: str | None = None,
) -> Any:
    """The identity matrix."""
    columns = None if num_columns is None else int(num_columns)
    matrix = np.eye(int(num_rows), columns, dtype=as_dtype(dtype).dtype)
    batch = () if batch_shape is None else dims("eye", batch_shape)
    return np.broadcast_to(matrix, (*batch, *matrix.shape)).copy()


@operation
def range(
    start: Any, limit: Any = None, delta: Any = 1, dtype: Any = None, name: str | None = None
) -> Any:
    """Numbers from `start` (0 if only one is given) up to and without `limit`."""
    ends = [one.numpy() if isinstance(one, Tensor) else one for one in (start, limit, delta)]
    return plain.range(ends[0], ends[1], ends[2], dtype)


@operation
def linspace(start: Any, stop: Any, num: Any, name: str | None = None, axis: int = 0) -> Any:
    """`num` numbers in equal steps, both ends included."""
    first = to_array(start)
    dtype = quotient_dtype(first.dtype)
    return np.linspace(first, to_array(stop), int(num), axis=axis).astype(dtype)


@elementwise
def one_hot(
    indices: Any,
    depth: Any,
    on_value: Any = None,
    off_value: Any = None,
    axis: Any = None,
    dtype: Any = None,
    name: str | None = None,
) -> Any:
    """Vectors with `on_value` at an index and `off_value` elsewhere."""
    is_empty = isinstance(indices, list | tuple) and not np.size(indices)
    places = numbers("one_hot", to_array(indices, np.int32) if is_empty else indices, "iu")
    count = integer("one_hot", "depth", depth)
    if dtype is None:
        given = on_value if on_value is not None else off_value
        dtype = np.float32 if given is None else to_array(given).dtype
    kind = as_dtype(dtype)
    on: Any = True
    off: Any = False
    if kind.name != "bool":
        on = to_array(1 if on_value is None else on_value, kind)
        off = to_array(0 if off_value is None else off_value, kind)
    if count < 0:
        raise InvalidArgumentError(f"tf.one_hot: depth must not be negative, got {count}")
    hot = places[..., None] == np.arange(count)
    made = np.where(hot, on, off).astype(kind.dtype, copy=False)
    return made if axis in (None, -1) else np.moveaxis(made, -1, int(axis))


def shape(input: Any, out_type: Any = np.int32, name: str | None = None) -> Any:
    """The shape, as a tensor; of ragged rows, a `DynamicRaggedShape`."""
    if isinstance(input, RaggedTensor):
        return DynamicRaggedShape(input, out_type)
    return as_tensor(np.array(to_array(input).shape, as_dtype(out_type).dtype))


def size(input: Any, out_type: Any = np.int32, name: str | None = None) -> Any:
    """How many values there are."""
    array = input.flat_values if isinstance(input, RaggedTensor) else input
    return as_tensor(np.asarray(to_array(array).size, as_dtype(out_type).dtype))


def rank(input: Any, name: str | None = None) -> Any:
    """The number of dimensions."""
    count = len(input.shape) if isinstance(input, RaggedTensor) else to_array(input).ndim
    return as_tensor(np.int32(count))


@operation
def reshape(tensor: Any, shape: Any, name: str | None = None) -> Any:
    """The same values in another shape; a size of -1 is computed from the number of values."""
    if isinstance(shape, DynamicRaggedShape):
        return shape.fill(to_array(tensor))
    flat = tensor.flat_values if isinstance(tensor, RaggedTensor) else tensor
    array, wanted = to_array(flat), dims("reshape", shape)
    if not array.size and 0 in wanted and -1 in wanted:
        # Sizes of 0 do not count, so the open size is that of the other ones.
        have, said = ([n for n in sizes if n > 0] for sizes in (array.shape, wanted))
        open_size = math.prod(have) // math.prod(said)
        wanted = tuple(open_size if n == -1 else n for n in wanted)
    return array.reshape(wanted)


@operation
def ensure_shape(x: Any, shape: Any, name: str | None = None) -> Any:
    """The tensor itself, if it has this shape."""
    given = shape.numpy().tolist() if isinstance(shape, Tensor) else shape
    array, wanted = to_array(x), TensorShape(given)
    if not wanted.fits(array.shape):
        raise InvalidArgumentError(
            f"tf.ensure_shape: the shape is {array.shape}, but must fit {wanted}"
        )
    return array


@operation
def transpose(a: Any, perm: Any = None, conjugate: bool = False, name: str | None = None) -> Any:
    """The dimensions in another order; by default in reverse."""
    array = to_array(a).transpose(None if perm is None else dims("transpose", perm))
    return np.asarray(array.conj() if conjugate else array, order="C")


@operation
def expand_dims(input: Any, axis: Any, name: str | None = None) -> Any:
    """A dimension of 1 more."""
    place = _only("expand_dims", axis)
    if isinstance(input, RaggedTensor):
        return _expand_ragged(input, place)
    return np.expand_dims(to_array(input), place)


def _only(call: str, axis: Any) -> int:
    """An axis, or the one that a list has."""
    if np.size(axis) != 1:
        raise InvalidArgumentError(f"tf.{call}: axis must be one integer, got {axis!r}")
    return integer(call, "axis", axis if np.ndim(axis) == 0 else axis[0])


def _expand_ragged(rows: RaggedTensor, axis: int) -> RaggedTensor:
    place = axis + len(rows.shape) + 1 if axis < 0 else axis
    if place == 0:
        return RaggedTensor.from_row_splits(rows, [0, len(rows)])
    if place == 1:
        return RaggedTensor.from_row_splits(rows, np.arange(len(rows) + 1))
    return rows.with_values(expand_dims(rows.values, place - 1))


@operation
def squeeze(input: Any, axis: Any = None, name: str | None = None) -> Any:
    """Without dimensions of 1: all of them, or those at `axis`; ragged rows, at one `axis`."""
    where = axes(axis)
    if isinstance(input, RaggedTensor):
        return _squeeze_ragged(input, where[0] if isinstance(where, tuple) and where else where)
    return np.squeeze(to_array(input), None if where == () else where)


def _squeeze_ragged(rows: RaggedTensor, axis: int | None) -> Any:
    if not isinstance(axis, int):
        raise InvalidArgumentError("tf.squeeze: axis must be given for ragged rows")
    place = axis + len(rows.shape) if axis < 0 else axis
    if place > 1:
        return rows.with_values(squeeze(rows.values, place - 1))
    lengths = rows.ragged.row_lengths if place else np.array([len(rows)])
    if (lengths != 1).any():
        raise InvalidArgumentError(f"tf.squeeze: dimension {axis} of ragged rows is not 1")
    return rows.values if place else rows[0]


@operation
def concat(values: Any, axis: Any, name: str | None = None) -> Any:
    """Tensors one after another along an existing dimension."""
    if isinstance(values, list | tuple) and any(isinstance(one, RaggedTensor) for one in values):
        return join_ragged("concat", values, integer("concat", "axis", axis))
    if not isinstance(values, list | tuple):
        return to_array(values)  # One tensor alone.
    arrays = _to_one_dtype("concat", values)
    if arrays[0].ndim == 0:
        raise InvalidArgumentError("tf.concat: needs tensors with dimensions, got single values")
    return np.concatenate(arrays, _place("concat", integer("concat", "axis", axis), arrays[0].ndim))


def _place(call: str, axis: int, rank: int) -> int:
    """The number of a dimension from the first one on, of an axis that may be negative."""
    if not -rank <= axis < rank:
        raise InvalidArgumentError(f"tf.{call}: axis must be in [{-rank}, {rank}), got {axis}")
    return axis % rank


def join_ragged(call: str, values: Any, axis: int, is_stack: bool = False) -> Any:
    """Ragged rows one after another, along a dimension; a stack of them has a new dimension."""
    parts = [
        one.ragged if isinstance(one, RaggedTensor) else RaggedTensor.from_tensor(one).ragged
        for one in values
    ]
    place = _place(call, axis, len(parts[0].shape) + is_stack)
    return wrap_rows(_join_rows(call, parts, place, is_stack))


def _join_rows(call: str, parts: list[Any], axis: int, is_stack: bool) -> Any:
    """As more rows, as longer rows, or inside of the rows."""
    if not isinstance(parts[0], Ragged):
        return np.stack(parts, axis) if is_stack else np.concatenate(parts, axis)
    if axis == 0:
        return Ragged.from_rows(parts) if is_stack else Ragged.concat(parts)
    if len({len(part) for part in parts}) > 1:
        raise InvalidArgumentError(
            f"tf.{call}: the tensors have {[len(part) for part in parts]} rows"
        )
    if axis == 1:
        order = np.arange(sum(map(len, parts))).reshape(len(parts), -1).T.ravel()
        rows = Ragged.concat(parts).take(order)
        if is_stack:
            return Ragged(rows, np.arange(0, len(order) + 1, len(parts)))
        return Ragged(rows.flat, rows.row_splits[:: len(parts)])
    if not all(np.array_equal(part.row_lengths, parts[0].row_lengths) for part in parts):
        raise InvalidArgumentError(f"tf.{call}: the rows of the tensors differ in length")
    joined = _join_rows(call, [part.flat for part in parts], axis - 1, is_stack)
    return Ragged(joined, parts[0].row_splits - parts[0].row_splits[0])


def _to_one_dtype(call: str, values: Any) -> list[Array]:
    """Tensors of one dtype; Python's numbers get the dtype of the tensors."""
    if isinstance(values, Tensor | np.ndarray):
        return [to_array(one) for one in values] if np.ndim(values) else [to_array(values)]
    dtype = operand_dtype(f"tf.{call}", values)
    return [to_array(one, dtype, f"tf.{call}") for one in values]


@operation
def stack(values: Any, axis: Any = 0, name: str | None = "stack") -> Any:
    """Tensors of one shape side by side, along a new dimension."""
    if not isinstance(values, list | tuple | Tensor | np.ndarray):
        raise InvalidTypeError(f"tf.stack: needs a list of tensors, got {values!r}")
    place = integer("stack", "axis", axis)
    if any(isinstance(one, RaggedTensor) for one in values):
        return join_ragged("stack", values, place, is_stack=True)
    if not len(values) and place == 0:
        return np.zeros(0, np.float32)
    if place == 0 and has_any(list_leaves(values), (Tensor, bool, int, float)):
        with contextlib.suppress(InvalidArgumentError, InvalidTypeError):
            return to_array(list(values), None, "tf.stack")
    return np.stack(_to_one_dtype("stack", values), place)


@operation
def unstack(value: Any, num: Any = None, axis: Any = 0, name: str | None = "unstack") -> Any:
    """The slices along a dimension, as a list."""
    array = np.moveaxis(to_array(value), integer("unstack", "axis", axis), 0)
    if num is not None and int(num) != len(array):
        raise InvalidArgumentError(f"tf.unstack: num is {num}, but there are {len(array)} slices")
    return list(array)


@operation
def split(
    value: Any, num_or_size_splits: Any, axis: Any = 0, num: Any = None, name: str | None = "split"
) -> Any:
    """Parts along a dimension: as many as said, or of the sizes said."""
    if isinstance(value, RaggedTensor):
        return _split_ragged(value, num_or_size_splits, axis)
    array, sizes = to_array(value), to_array(num_or_size_splits)
    if sizes.ndim == 0:
        if int(sizes) < 1:
            raise InvalidArgumentError(f"tf.split: needs at least 1 part, got {int(sizes)}")
        if array.shape[int(axis)] % int(sizes):
            raise InvalidArgumentError(
                f"tf.split: {array.shape[int(axis)]} rows cannot be split into {int(sizes)}"
            )
        return np.split(array, int(sizes), int(axis))
    lengths = sizes.astype(np.int64)
    lengths[lengths < 0] = array.shape[int(axis)] - lengths[lengths >= 0].sum()
    if lengths.sum() != array.shape[int(axis)]:
        raise InvalidArgumentError(
            f"tf.split: the sizes {lengths.tolist()} do not add up to {array.shape[int(axis)]}"
        )
    return np.split(array, np.cumsum(lengths)[:-1], int(axis))


def _split_ragged(rows: RaggedTensor, num_or_size_splits: Any, axis: Any) -> list[RaggedTensor]:
    if integer("split", "axis", axis) not in (0, -len(rows.shape)):
        raise InvalidArgumentError(
            f"tf.split: ragged rows only along axis 0, got {axis}; loop over the rows"
        )
    parts: Any = split(np.arange(len(rows)), num_or_size_splits)
    return [RaggedTensor(rows.ragged.take(np.asarray(part))) for part in parts]


@operation
def pad(
    tensor: Any,
    paddings: Any,
    mode: str = "CONSTANT",
    constant_values: Any = 0,
    name: str | None = None,
) -> Any:
    """More values around; `mode` is CONSTANT, REFLECT or SYMMETRIC."""
    array, widths = to_array(tensor), to_array(paddings)
    if widths.shape != (array.ndim, 2):
        raise InvalidArgumentError(
            f"tf.pad: paddings must have the shape ({array.ndim}, 2), got {widths.shape}"
        )
    if (widths < 0).any():
        raise InvalidArgumentError(f"tf.pad: paddings must not be negative, got {widths.tolist()}")
    how: Any = mode.lower()
    if how not in ("constant", "reflect", "symmetric"):
        raise InvalidArgumentError(
            f"tf.pad: mode must be CONSTANT, REFLECT or SYMMETRIC, got {mode}"
        )
    if how != "constant":
        _check_mirror(array, widths, int(how == "reflect"))
        return np.pad(array, widths, how)
    # As in TensorFlow, any number of Python or NumPy that is 0 stands for the dtype's own zero.
    is_zero = np.isscalar(constant_values) and constant_values == 0
    zero = b"" if array.dtype.kind == "O" else np.zeros((), array.dtype)
    value = to_array(zero if is_zero else constant_values, array.dtype, "pad")
    pairs = list(zip(widths.tolist(), array.shape, strict=True))
    result = np.empty([before + size + after for (before, after), size in pairs], array.dtype)
    result[...] = value
    inside = [builtins.slice(before, before + size) for (before, _), size in pairs]
    result[tuple(inside)] = array
    return result


def _check_mirror(array: Array, widths: Array, edge: int) -> None:
    if (widths > np.array(array.shape)[:, None] - edge).any():
        raise InvalidArgumentError(
            f"tf.pad: paddings {widths.tolist()} are too wide for the shape {array.shape}"
        )


@operation
def tile(input: Any, multiples: Any, name: str | None = None) -> Any:
    """The tensor several times along each dimension."""
    rows, times = plain_rows(input), dims("tile", multiples)
    if len(times) != len(rows.shape):
        raise InvalidArgumentError(
            f"tf.tile: multiples must have {len(rows.shape)} values, got {len(times)}"
        )
    if isinstance(rows, Ragged):
        return RaggedTensor(_tile_rows(rows, times))
    return np.tile(rows, times)


def _tile_rows(rows: Any, times: tuple[int, ...]) -> Any:
    if not isinstance(rows, Ragged):
        return np.tile(rows, times)
    return Ragged.from_rows([_tile_rows(row, times[1:]) for row in rows] * times[0], rows.dtype)


@operation
def repeat(input: Any, repeats: Any, axis: Any = None, name: str | None = None) -> Any:
    """Every value (or row) several times."""
    if isinstance(input, RaggedTensor) and axis is None:
        return np.repeat(plain_leaf(input.flat_values), to_array(repeats))
    return np.repeat(to_array(input), to_array(repeats), axes(axis))


@operation
def broadcast_to(input: Any, shape: Any, name: str | None = None) -> Any:
    """The values repeated to a shape."""
    if isinstance(shape, DynamicRaggedShape):
        return shape.broadcast(to_array(input))
    return np.broadcast_to(to_array(input), dims("broadcast_to", shape)).copy()


@operation
def reverse(tensor: Any, axis: Any, name: str | None = None) -> Any:
    """The values in reverse along the given dimensions."""
    if isinstance(tensor, RaggedTensor):
        places = {_place("reverse", one, len(tensor.shape)) for one in dims("reverse", axis)}
        return RaggedTensor(_reverse_rows(tensor.ragged, places))
    return np.flip(to_array(tensor), dims("reverse", axis)).copy()


def _reverse_rows(rows: Any, places: set[int]) -> Any:
    if not isinstance(rows, Ragged):
        return np.flip(rows, tuple(places))
    inner = {place - 1 for place in places if place}
    made = [_reverse_rows(row, inner) if inner else row for row in rows]
    return Ragged.from_rows(made[::-1] if 0 in places else made, rows.dtype)


@operation
def roll(input: Any, shift: Any, axis: Any, name: str | None = None) -> Any:
    """The values moved along dimensions; what leaves at one end enters at the other."""
    return np.roll(to_array(input), axes(shift), axes(axis))


@operation
def slice(input_: Any, begin: Any, size: Any, name: str | None = None) -> Any:
    """A part that begins at `begin`; a size of -1 means all that is left."""
    array, starts, sizes = to_array(input_), dims("slice", begin), dims("slice", size)
    if len(starts) != array.ndim or len(sizes) != array.ndim:
        raise InvalidArgumentError(f"tf.slice: begin and size must have {array.ndim} values")
    ends = [
        n if count < 0 else start + count
        for start, count, n in zip(starts, sizes, array.shape, strict=True)
    ]
    if any(
        not 0 <= start <= end <= n for start, end, n in zip(starts, ends, array.shape, strict=True)
    ):
        raise InvalidArgumentError(
            f"tf.slice: begin {starts} and size {sizes} are outside of the shape {array.shape}"
        )
    return array[tuple(map(builtins.slice, starts, ends))].copy()


@operation
def meshgrid(*args: Any, indexing: Any = "xy", name: str | None = None) -> Any:
    """Coordinates of a grid, one tensor for each dimension."""
    grids: Any = np.meshgrid(*map(to_array, args), indexing=indexing)
    return [np.array(one) for one in grids]


@operation
def sequence_mask(
    lengths: Any, maxlen: Any = None, dtype: Any = np.bool_, name: str | None = None
) -> Any:
    """Rows that are True up to a length."""
    counts = to_array(lengths)
    longest = counts.max(initial=0) if maxlen is None else to_array(maxlen)[()]
    if longest < 0:
        raise InvalidArgumentError(f"tf.sequence_mask: maxlen must not be negative, got {longest}")
    steps = np.arange(longest)
    mask = steps < counts.astype(np.asarray(longest).dtype)[..., None]
    return mask.astype(as_dtype(dtype).dtype)


def identity_n(input: Any, name: str | None = None) -> list[Any]:
    """The same tensors, as a list."""
    return [identity(one) for one in input]


def shape_n(input: Any, out_type: Any = np.int32, name: str | None = None) -> list[Any]:
    """The shapes of several tensors."""
    return [shape(one, out_type) for one in input]


def get_static_value(tensor: Any, partial: bool = False) -> Any:
    """What `numpy()` of a tensor returns; None for a variable, other values as they are."""
    if isinstance(tensor, Variable):
        return None
    return tensor.numpy() if isinstance(tensor, Tensor) else tensor


def broadcast_static_shape(shape_x: TensorShape, shape_y: TensorShape) -> TensorShape:
    """The shape that two shapes are broadcast to."""
    if shape_x.rank is None or shape_y.rank is None:
        return TensorShape(None)
    sizes = itertools.zip_longest(reversed(shape_x), reversed(shape_y), fillvalue=1)
    return TensorShape([_broadcast_size(*pair) for pair in sizes][::-1])


def _broadcast_size(left: int | None, right: int | None) -> int | None:
    if 1 in (left, right):
        return right if left == 1 else left
    if None not in (left, right) and left != right:
        raise InvalidArgumentError(
            f"tf.broadcast_static_shape: the sizes {left} and {right} do not fit"
        )
    return left if right is None else right


@operation
def broadcast_dynamic_shape(shape_x: Any, shape_y: Any) -> Any:
    """The shape that two shapes are broadcast to, as a tensor."""
    both = [dims("broadcast_dynamic_shape", one) for one in (shape_x, shape_y)]
    known = [to_array(one).dtype for one in (shape_x, shape_y) if np.size(one)]
    return np.array(np.broadcast_shapes(*both), known[0] if known else np.int32)


def timestamp(name: str | None = None) -> Any:
    """The seconds since 1970."""
    return as_tensor(np.float64(time.time()))
