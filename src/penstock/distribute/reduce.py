"""Sums, means and concatenations over the replicas of all processes.

The values of this process's replicas are combined first, then those of all workers by the
collectives. Only the backend computes with tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Number
from typing import Any

import numpy as np

from penstock.distribute.backends import Backend, Handle
from penstock.distribute.backends.numpy_backend import as_kind_of
from penstock.distribute.replicas import Replicas
from penstock.distribute.strategy_options import ReduceOp
from penstock.distribute.values.indexed_slices import (
    IndexedSlices,
    add_slices,
    gather_slices,
    refuse_slices,
)
from penstock.distribute.values.operators import current_value
from penstock.distribute.values.per_replica import DistributedValues, PerReplica, values_of
from penstock.distribute.values.storage import refuse_foreign
from penstock.element.ragged import Ragged
from penstock.element.values import short_repr
from penstock.errors import (
    InvalidArgumentError,
    InvalidTypeError,
    UnfitTypeError,
    UnimplementedError,
)

Axis = Any
"""An axis, a tuple of axes, or None; checked where the shape is known."""


def reduce_op(given: Any, call: str) -> ReduceOp:
    """A `ReduceOp`, or its name in any case."""
    name = given.upper() if isinstance(given, str) else None
    for op in ReduceOp:
        if given is op or name == op.value:
            return op
    kind = InvalidArgumentError if name else UnfitTypeError
    raise kind(f"{call}: reduce_op must be 'SUM' or 'MEAN', got {given!r}")


def reduce_leaf(replicas: Replicas, op: ReduceOp, value: Any, axis: Axis, call: str) -> Any:
    """The sum or mean of one leaf over the replicas, and over an axis of each of its values."""
    given = local_values(replicas, value, call)
    if given is None and axis is None:
        return _reduce_common(replicas, op, value, call)
    if given is None:
        given = [value] * replicas.here
    if axis is None and replicas.total == 1:
        return current_value(given[0])
    if isinstance(given[0], IndexedSlices):
        return _reduce_slices(replicas, op, given, axis, call)
    tensors = [_number_tensor(replicas, part, index, call) for index, part in enumerate(given)]
    _check_dtypes(replicas, given, call)
    if axis is None:
        total = _add_all(replicas, tensors, call)
        return total if op is ReduceOp.SUM else replicas.backend.divide(total, replicas.total)
    return _reduce_over_axis(replicas, op, tensors, axis, call)


def _reduce_slices(
    replicas: Replicas, op: ReduceOp, parts: Sequence[Any], axis: Axis, call: str
) -> IndexedSlices:
    if axis is not None:
        raise UnimplementedError(
            f"{call}: IndexedSlices are not added over an axis; make an array of them first, with "
            "tf.convert_to_tensor"
        )
    rows = add_slices(parts, replicas.total if op is ReduceOp.MEAN else 1)
    if replicas.collectives is None:
        return rows
    return add_slices(gather_slices(rows, replicas.collectives.gather), 1)


def local_values(replicas: Replicas, value: Any, call: str) -> Sequence[Any] | None:
    """The value of each replica of this process; None for a value common to all of them."""
    if isinstance(value, DistributedValues):
        return values_of(value, replicas.here, call)
    return [value] if replicas.here == 1 else None


def _reduce_common(replicas: Replicas, op: ReduceOp, value: Any, call: str) -> Any:
    if op is ReduceOp.SUM:
        raise InvalidArgumentError(
            f"{call}: SUM needs one value per replica, got {short_repr(value)} for all "
            f"{replicas.total} together; pass what strategy.run returned"
        )
    return value


def _reduce_over_axis(
    replicas: Replicas, op: ReduceOp, tensors: Sequence[Any], axis: Axis, call: str
) -> Any:
    sums, counts = [], []
    for tensor in tensors:
        axes, count = _axes(tensor, axis, call)
        sums.append(replicas.backend.sum(tensor, axes))
        counts.append(count)
    total = _add_all(replicas, sums, call)
    if op is ReduceOp.SUM:
        return total
    count = sum(counts)
    if replicas.collectives is not None:
        count = int(sum(replicas.collectives.gather(np.array(count))))
    return replicas.backend.divide(total, count or math.nan)


def _axes(tensor: Any, axis: Axis, call: str) -> tuple[tuple[int, ...], int]:
    """The axes as non-negative numbers, and the number of entries along them."""
    shape = tuple(tensor.shape)
    axes = axis if isinstance(axis, tuple) else (axis,)
    for one in axes:
        if isinstance(one, bool) or not isinstance(one, int | np.integer):
            raise InvalidTypeError(f"{call}: axis must be an int, ints or None, got {axis!r}")
        if not -len(shape) <= one < len(shape):
            raise InvalidArgumentError(
                f"{call}: axis {axis!r} does not fit values of shape {shape}; "
                f"their axes are 0 to {len(shape) - 1}"
                if shape
                else f"{call}: axis {axis!r} does not fit single numbers; pass axis=None"
            )
    front = tuple(int(one) % len(shape) for one in axes)
    if len(set(front)) < len(front):
        raise InvalidArgumentError(f"{call}: axis {axis!r} names an axis twice; name each once")
    return front, math.prod(shape[one] for one in front)


def _number_tensor(replicas: Replicas, value: Any, index: int, call: str) -> Any:
    """One replica's value as a tensor; raises if its dtype cannot be added."""
    tensor = _tensor(replicas, value, index, call)
    dtype = str(getattr(tensor, "dtype", type(value).__name__)).removeprefix("torch.")
    numeric = replicas.backend.is_tensor(tensor) and dtype not in ("bool", "object")
    if not numeric:
        raise UnfitTypeError(
            f"{call}: needs numbers or tensors of backend {replicas.backend.name!r}, got "
            f"{short_repr(value)} ({dtype})"
        )
    return tensor


def _tensor(replicas: Replicas, value: Any, index: int, call: str) -> Any:
    value = current_value(value)
    refuse_foreign(replicas, value, call)
    if replicas.backend.is_tensor(value):
        return value
    tensor = replicas.backend.put(value, replicas.devices[index].handle)
    return np.asarray(tensor)[()] if isinstance(tensor, Number) else tensor


def _add_all(replicas: Replicas, tensors: Sequence[Any], call: str) -> Any:
    _check_shapes(tensors, call)
    total = add_tensors(replicas.backend, tensors, replicas.devices[0].handle)
    if replicas.collectives is None:
        return total
    return as_kind_of(total, replicas.collectives.all_reduce(total))


def add_tensors(backend: Backend, tensors: Sequence[Any], handle: Handle) -> Any:
    """The sum of tensors of one shape, from any devices, on a device."""
    total = backend.put(tensors[0], handle)
    for tensor in tensors[1:]:
        total = total + backend.put(tensor, handle)
    return total


def _gather_from_workers(replicas: Replicas, tensor: Any) -> list[Any]:
    """The tensors of all workers, on the first device of this process."""
    if replicas.collectives is None:
        return [tensor]
    arrays = replicas.collectives.gather(np.asarray(replicas.backend.numpy(tensor)))
    handle = replicas.devices[0].handle
    return [as_kind_of(tensor, replicas.backend.put(array, handle)) for array in arrays]


def _check_shapes(tensors: Sequence[Any], call: str) -> None:
    shapes = [tuple(tensor.shape) for tensor in tensors]
    if any(shape != shapes[0] for shape in shapes):
        raise InvalidArgumentError(
            f"{call}: values of the shapes {', '.join(map(str, shapes))} cannot be added; pass "
            "axis=0 to add up the rows of each first, or let every replica give the same shape"
        )


def _check_dtypes(replicas: Replicas, given: Sequence[Any], call: str) -> None:
    """Raises if tensors have different dtypes; Python's numbers have none."""
    tensors = filter(replicas.backend.is_tensor, map(current_value, given))
    dtypes = list(dict.fromkeys(str(tensor.dtype) for tensor in tensors))
    if len(dtypes) > 1:
        raise InvalidArgumentError(
            f"{call}: the replicas' values have the dtypes {', '.join(dtypes)}; convert them to one"
        )


def gather_leaf(replicas: Replicas, value: Any, axis: int, call: str) -> Any:
    """The values of one leaf concatenated along an axis, in the order of the replicas."""
    check_axis(axis, call)
    given = local_values(replicas, value, call)
    refuse_slices([value] if given is None else given, call)
    if given is None or replicas.total == 1:
        return current_value(value if given is None else given[0])
    if all(isinstance(part, Ragged) for part in given):
        return _gather_ragged(replicas, given, axis, call)
    tensors = [_row_tensor(replicas, part, index, axis, call) for index, part in enumerate(given)]
    _check_dtypes(replicas, given, call)
    whole = _concatenate(replicas, tensors, axis, call)
    of_workers = _gather_from_workers(replicas, whole)
    return whole if len(of_workers) == 1 else _concatenate(replicas, of_workers, axis, call)


def check_axis(axis: Any, call: str) -> None:
    if axis is None:
        raise InvalidArgumentError(f"{call}: axis must be an int, got None; 0 is the batch")
    if isinstance(axis, bool) or not isinstance(axis, int | np.integer):
        raise InvalidTypeError(f"{call}: axis must be an int, got {axis!r}")


def _row_tensor(replicas: Replicas, value: Any, index: int, axis: int, call: str) -> Any:
    tensor = _tensor(replicas, value, index, call)
    is_text = isinstance(tensor, np.ndarray) and tensor.dtype.kind == "O"
    if not (replicas.backend.is_tensor(tensor) or is_text):
        raise InvalidTypeError(
            f"{call}: needs tensors of backend {replicas.backend.name!r}, got {short_repr(value)} "
            f"({type(value).__name__})"
        )
    if is_text and replicas.collectives is not None:
        raise InvalidTypeError(f"{call}: strings cannot be gathered from other processes")
    if len(tensor.shape) == 0:
        raise single_number_error(axis, call)
    _axes(tensor, axis, call)
    return tensor


def single_number_error(axis: Any, call: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{call}: axis {axis} does not fit single numbers; give them an axis first, with "
        "value[None]"
    )


def missing_error(path: str | None, whose: str, call: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{call}: {path or 'value'} is None{whose}, and needs numbers; leave it out of the tree, "
        "or put zeros there"
    )


def _concatenate(replicas: Replicas, tensors: Sequence[Any], axis: int, call: str) -> Any:
    shapes = [list(tensor.shape) for tensor in tensors]
    without_axis = [shape[:axis] + shape[axis:][1:] for shape in shapes]
    if any(shape != without_axis[0] for shape in without_axis):
        raise InvalidArgumentError(
            f"{call}: values of the shapes {', '.join(str(tuple(s)) for s in shapes)} cannot be "
            f"joined along axis {axis}; only that axis may differ"
        )
    if isinstance(tensors[0], np.ndarray):
        return as_kind_of(tensors[0], np.concatenate(tensors, axis))
    return replicas.backend.concatenate(tensors, axis, replicas.devices[0].handle)


def _gather_ragged(replicas: Replicas, values: Sequence[Any], axis: int, call: str) -> Any:
    if axis != 0:
        raise InvalidArgumentError(f"{call}: ragged values are joined along axis 0, got {axis}")
    if replicas.collectives is not None:
        raise UnimplementedError(f"{call}: ragged values cannot be gathered from other processes")
    return Ragged.concat(values)


def copy_to_replicas(replicas: Replicas, tensor: Any) -> PerReplica:
    """A copy of a result for each replica, on its device and in memory of its own."""
    return PerReplica([_copy_to_replica(replicas, tensor, index) for index in range(replicas.here)])


def _copy_to_replica(replicas: Replicas, tensor: Any, index: int) -> Any:
    placed = replicas.backend.put(tensor, replicas.devices[index].handle)
    shared = index > 0 and placed is tensor
    if hasattr(placed, "detach"):
        # A gradient would lead from one replica into the functions of other replicas.
        placed = placed.detach()
    if not shared or isinstance(tensor, Ragged):
        return placed
    # Replicas may write into their arguments, and replicas on logical devices share a device.
    return placed.clone() if hasattr(placed, "clone") else placed.copy()
