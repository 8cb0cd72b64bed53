"""Columns: one leaf of n consecutive elements.

A column is an array with a leading axis of n, a `Ragged` of n rows, or, if leaves differ in shape
or are no arrays, a list of n leaves. Code that only moves rows calls the functions here; code that
reads or writes the memory of columns must handle all three kinds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.element import strings
from penstock.element.datasets import Datasets, is_dataset
from penstock.element.ragged import Ragged
from penstock.errors import InvalidArgumentError

Array = np.ndarray[Any, Any]
Column = Array | Ragged | list[Any]


def make(leaves: list[Any]) -> Column:
    """A column of leaves of one dtype: an array if their shapes are equal, else a list."""
    return leaves if len(set(map(type, leaves))) > 1 else make_alike(leaves)


def make_alike(leaves: list[Any]) -> Column:
    """The same as `make`, for leaves that are known to be of one type."""
    first = leaves[0]
    if isinstance(first, bytes):
        return strings.make_column(leaves)
    if isinstance(first, np.generic):
        return np.array(leaves, first.dtype)
    if type(first) is not np.ndarray:
        return leaves
    shape = first.shape
    if any(leaf.shape != shape for leaf in leaves):
        return leaves
    return first[None] if len(leaves) == 1 else np.stack(leaves)


def take(column: Column, indices: Array) -> Column:
    """The rows at `indices`, copied."""
    if type(column) is np.ndarray:
        return column.take(indices, axis=0)
    if isinstance(column, Ragged):
        return column.take(indices)
    return [column[i] for i in indices]


_SHARED_BYTES = 4 << 10
"""Rows of at least this size are repeated without copies."""


def again(column: Column, count: int) -> Column:
    """The only row of a column, `count` times; large rows share their memory."""
    if type(column) is np.ndarray and column.nbytes >= _SHARED_BYTES and not column.dtype.hasobject:
        return np.broadcast_to(column, (count, *column.shape[1:]))
    return take(column, np.zeros(count, np.intp))


def _copy_shared_rows(array: Array) -> Array:
    """Copies rows that share memory (see `again`), because users get contiguous arrays."""
    return np.ascontiguousarray(array) if len(array) > 1 and array.strides[0] == 0 else array


def join(columns: Sequence[Column]) -> Column:
    """The rows of all columns, in order."""
    first = columns[0]
    if len(columns) == 1:
        return first
    if all(type(c) is np.ndarray and c.shape[1:] == first.shape[1:] for c in columns):  # type: ignore[union-attr]
        return np.concatenate(columns)  # type: ignore[arg-type]
    if all(isinstance(c, Ragged) for c in columns):
        return Ragged.concat(columns)  # type: ignore[arg-type]
    return [leaf for column in columns for leaf in column]


def weave(columns: Sequence[Column], block: int) -> Column:
    """A block of rows of each column in turn; all columns have the same number of blocks."""
    first, size = columns[0], sum(map(len, columns))
    if all(type(c) is np.ndarray and c.shape[1:] == first.shape[1:] for c in columns):  # type: ignore[union-attr]
        blocks = [c.reshape(len(c) // block, block, *c.shape[1:]) for c in columns]  # type: ignore[union-attr]
        return np.stack(blocks, axis=1).reshape(size, *first.shape[1:])  # type: ignore[union-attr]
    order = np.arange(size).reshape(len(columns), len(first) // block, block)
    return take(join(columns), order.swapaxes(0, 1).ravel())


def as_read_only(column: Column) -> Column:
    if isinstance(column, list):
        return [
            as_read_only(leaf) if isinstance(leaf, np.ndarray | Ragged) else leaf for leaf in column
        ]
    if isinstance(column, Ragged):
        return Ragged(as_read_only(column.values), column.row_splits)  # type: ignore[arg-type]
    view = column.view()
    view.flags.writeable = False
    return view


def kind(column: Column) -> Any:
    """The dtype; for leaves without a dtype, their type."""
    if isinstance(column, list):
        return getattr(column[0], "dtype", type(column[0]))
    return column.dtype


def nbytes(column: Column) -> int:
    if isinstance(column, list):
        return sum(getattr(leaf, "nbytes", 64) for leaf in column)
    size = int(column.nbytes)
    if column.dtype.kind == "O" and size:
        items = column.flat_values if isinstance(column, Ragged) else column.ravel()
        size += len(items) * len(items[0]) if len(items) else 0
    return size


def stack(column: Column, size: int) -> Column | None:
    """Groups of `size` rows, each stacked to one leaf; the number of rows is a multiple of `size`.

    None if the rows of a group differ in shape, so that they cannot be stacked.
    """
    if type(column) is np.ndarray:
        return _copy_shared_rows(column).reshape(len(column) // size, size, *column.shape[1:])
    leaves = stack_each(column, [size] * (len(column) // size))
    if any(leaf is UNSTACKABLE for leaf in leaves):
        return None
    return make(leaves)


UNSTACKABLE = object()
"""The result of stacking leaves that differ in shape."""


def stack_leaves(leaves: list[Any]) -> Any:
    """One leaf with a leading axis over `leaves`, or `UNSTACKABLE`."""
    first = leaves[0]
    if isinstance(first, Ragged):
        return Ragged.from_rows(leaves)
    if first is None:
        return None
    if is_dataset(first):
        shapes = {getattr(leaf, "shape", ()) for leaf in leaves}
        return Datasets(leaves) if len(shapes) == 1 else UNSTACKABLE
    column = make(leaves)
    return column if type(column) is np.ndarray else UNSTACKABLE


def stack_each(column: Column, sizes: list[int]) -> list[Any]:
    """Groups of rows, by `sizes`, each stacked to one leaf or `UNSTACKABLE`."""
    groups, start = [], 0
    column = _copy_shared_rows(column) if type(column) is np.ndarray else column
    for size in sizes:
        part = column[start : start + size]
        groups.append(stack_leaves(part) if isinstance(part, list) else part)
        start += size
    return groups


def unstack_all(columns: Sequence[Column]) -> list[tuple[Column, Array]]:
    """`unstack` for every column; a column of None gets the row counts of the other columns."""
    if len(columns) == 1:
        return [unstack(columns[0])]
    parts = [
        None if isinstance(column, list) and column[0] is None else unstack(column)
        for column in columns
    ]
    counts = next((part[1] for part in parts if part is not None), None)
    if counts is None:
        return [unstack(column) for column in columns]
    nones: tuple[Column, Array] = [None] * int(counts.sum()), counts
    return [nones if part is None else part for part in parts]


def unstack(column: Column) -> tuple[Column, Array]:
    """The rows of all leaves, along their leading axis, and the number of rows of each leaf."""
    if isinstance(column, Ragged):
        return column.flat, column.row_lengths
    if type(column) is np.ndarray and column.ndim > 1:
        counts = np.array([column.shape[1]]).repeat(len(column))
        return column.reshape(len(column) * column.shape[1], *column.shape[2:]), counts
    if len(column) > 1 and set(map(type, column)) == {np.ndarray}:
        with contextlib.suppress(ValueError):  # Single values, or rows of different shapes.
            return np.concatenate(column), np.fromiter(map(len, column), np.int64, len(column))
    if not all(isinstance(leaf, Ragged | Datasets) or _rank(leaf) for leaf in column):
        raise InvalidArgumentError(
            "Dataset.unbatch: an element is a single value and has no rows; it needs a batch"
        )
    rows: Any = [list(leaf) if isinstance(leaf, Datasets) else leaf for leaf in column]
    return join(rows), np.array([len(leaf) for leaf in column])


def _rank(leaf: Any) -> int:
    return 0 if hasattr(type(leaf), "__leaf_spec__") else np.ndim(leaf)
