"""`tf.ragged`: rows of different lengths."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.element.dtypes import as_dtype
from penstock.element.ragged import Ragged
from penstock.errors import InvalidArgumentError
from penstock.tf.arrays import join_ragged
from penstock.tf.missing_operations import refuse_names_of_tf
from penstock.tf.ragged_values import RaggedTensor, plain_rows, stack_rows, wrap_rows
from penstock.tf.values import as_tensor, to_array

__all__ = [
    "boolean_mask",
    "constant",
    "map_flat_values",
    "range",
    "row_splits_to_segment_ids",
    "segment_ids_to_row_splits",
    "stack",
]


def constant(
    pylist: Any,
    dtype: Any = None,
    ragged_rank: int | None = None,
    inner_shape: Any = None,
    name: str | None = None,
    row_splits_dtype: Any = np.int64,
) -> Any:
    """Ragged rows of a nested list.

    >>> constant([[1, 2], [], [3]]).row_lengths().numpy().tolist()
    [2, 0, 1]
    """
    inner = () if inner_shape is None else tuple(inner_shape)
    rank = _depth(pylist) - 1 - len(inner) if ragged_rank is None else ragged_rank
    if rank < 1:
        return as_tensor(to_array(pylist, dtype))
    flat, splits = pylist, []
    for _ in _count(rank):
        splits.append(np.concatenate([[0], np.cumsum([len(row) for row in flat], dtype=np.int64)]))
        flat = [item for row in flat for item in row]
    empty = np.zeros((0, *inner), as_dtype(dtype or "float32").dtype)
    values: Any = to_array(flat, dtype) if flat else empty
    if inner_shape is not None and values.shape[1:] != inner:
        raise InvalidArgumentError(
            f"tf.ragged.constant: inner_shape is {inner}, but the values have {values.shape[1:]}"
        )
    for one in reversed(splits):
        values = Ragged(values, one.astype(row_splits_dtype))
    return wrap_rows(values)


_count = range


def _depth(value: Any) -> int:
    if not isinstance(value, list | tuple | np.ndarray):
        return 0
    if isinstance(value, np.ndarray):
        return value.ndim
    depths = [_depth(part) for part in value]
    if depths and min(depths) == 0 < max(depths):
        raise InvalidArgumentError(
            f"tf.ragged.constant: all values must be equally deep in lists, got {value!r:.60}"
        )
    return 1 + max(depths, default=0)


def stack(values: Any, axis: int = 0, name: str | None = None) -> Any:
    """Rows of different lengths as one ragged tensor; along another axis, tensors of ragged rows.

    >>> stack([constant([[1], [2, 3]]), constant([[4], [5]])], axis=1).to_list()
    [[[1], [4]], [[2, 3], [5]]]
    """
    if axis == 0:
        return stack_rows(values)
    if any(isinstance(one, RaggedTensor) for one in values):
        return join_ragged("ragged.stack", values, axis, is_stack=True)
    return as_tensor(np.stack([to_array(one) for one in values], axis))


def range(
    starts: Any,
    limits: Any = None,
    deltas: Any = 1,
    dtype: Any = None,
    name: str | None = None,
    row_splits_dtype: Any = np.int64,
) -> RaggedTensor:
    """A row of numbers for each start and limit."""
    first, last = (0, starts) if limits is None else (starts, limits)
    ends = np.broadcast_arrays(to_array(first), to_array(last), to_array(deltas))
    kind = ends[1].dtype if dtype is None else as_dtype(dtype).dtype
    rows = [
        np.arange(*row, dtype=kind) for row in zip(*(np.atleast_1d(e) for e in ends), strict=True)
    ]
    return RaggedTensor(Ragged.from_rows(rows, kind))


def row_splits_to_segment_ids(splits: Any, name: str | None = None, out_type: Any = None) -> Any:
    """The number of the row of each value."""
    ends = to_array(splits)
    ids = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
    return as_tensor(ids.astype(as_dtype(out_type or "int64").dtype))


def segment_ids_to_row_splits(
    segment_ids: Any, num_segments: Any = None, out_type: Any = None, name: str | None = None
) -> Any:
    """Where each row ends, by the number of the row of each value."""
    counts = np.bincount(to_array(segment_ids), minlength=int(num_segments or 0))
    ends = np.concatenate([[0], np.cumsum(counts)])
    return as_tensor(ends.astype(as_dtype(out_type or "int64").dtype))


def boolean_mask(data: Any, mask: Any, name: str | None = None) -> RaggedTensor:
    """The values of each row where the mask is True."""
    pairs = zip(plain_rows(data), plain_rows(mask), strict=True)
    return stack_rows([row[kept.astype(bool)] for row, kept in pairs])


def map_flat_values(op: Any, *args: Any, **kwargs: Any) -> Any:
    """A function of the values of ragged arguments, with the rows of the first one."""
    rows = next(one for one in args if isinstance(one, RaggedTensor))
    flat = [one.flat_values if isinstance(one, RaggedTensor) else one for one in args]
    return rows.with_flat_values(op(*flat, **kwargs))


__getattr__ = refuse_names_of_tf("ragged", __all__)
