"""Collating: rows become batches, column by column; one function per way of batching.

A collate function gets rows and the sizes of the batches to make of them. Where a batch cannot be
made, it raises `UnstackableError` with the number of batches before it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from penstock.element import columns, nest
from penstock.element.chunk import Chunk
from penstock.element.columns import UNSTACKABLE, Column
from penstock.element.datasets import is_dataset
from penstock.element.ragged import Ragged
from penstock.element.spec import RaggedTensorSpec, TensorShape
from penstock.element.values import is_opaque, short_repr, zeros
from penstock.errors import DataLossError, InvalidArgumentError, OpError
from penstock.plan.nodes import Batch, PaddedBatch, RaggedBatch, unpaddable

Collate = Callable[[Chunk, list[int]], Chunk]


class UnstackableError(Exception):
    """Batch number `index` cannot be made, because of `error`."""

    def __init__(self, index: int, error: OpError) -> None:
        super().__init__(index, error)
        self.index = index
        self.error = error


def collate_of(node: Batch, spec: Callable[[], Any]) -> Collate:
    """The collate function of `node`; `spec` returns the spec of its batches, if it is needed."""
    match node:
        case PaddedBatch():
            return partial(_pad_batches, node)
        case RaggedBatch():
            leaves = nest.flatten(spec())[0]
            return partial(_make_ragged, node, leaves)
        case _:
            return stack_rows


def collate_all(collate: Collate, rows: Chunk, sizes: list[int]) -> Chunk:
    """All batches, or the error; for callers that cannot keep some batches for later."""
    try:
        return collate(rows, sizes)
    except UnstackableError as failed:
        raise failed.error from None


def stack_rows(rows: Chunk, sizes: list[int]) -> Chunk:
    """Rows under one leading axis."""
    size = sizes[0]
    if sizes[-1] == size and rows.size == size * len(sizes):
        made = [columns.stack(column, size) for column in rows.columns]
        if not any(column is None for column in made):
            return Chunk(rows.tree, made, len(sizes))  # type: ignore[arg-type]
    return Chunk(rows.tree, [_stack_each(column, sizes) for column in rows.columns], len(sizes))


def _stack_each(column: Column, sizes: list[int]) -> Column:
    leaves = columns.stack_each(column, sizes)
    for index, leaf in enumerate(leaves):
        if leaf is UNSTACKABLE:
            start = sum(sizes[:index])
            raise UnstackableError(index, _stacking_error(column[start : start + sizes[index]]))
    return columns.make(leaves)


def _stacking_error(leaves: Any) -> InvalidArgumentError:
    if is_opaque(leaves[0]):
        return InvalidArgumentError(
            f"Dataset.batch: a {type(leaves[0]).__name__} cannot be batched; use flat_map to make "
            "its elements part of the outer dataset"
        )
    shapes = [np.shape(leaf) for leaf in leaves]
    odd = next((at for at, shape in enumerate(shapes) if shape != shapes[0]), 0)
    return InvalidArgumentError(
        f"Dataset.batch: element 0 of the batch has the shape {shapes[0]}, but element {odd} has "
        f"{shapes[odd]}; use padded_batch or ragged_batch"
    )


_PADDED = "Dataset.padded_batch"


def _pad_batches(node: PaddedBatch, rows: Chunk, sizes: list[int]) -> Chunk:
    shapes = node.shapes or (None,) * len(rows.columns)
    values = node.values or (None,) * len(rows.columns)
    made: list[Column] = []
    for column, shape, value in zip(rows.columns, shapes, values, strict=True):
        dims = None if shape is None else shape.dims
        made.append(_pad_each(column, sizes, dims, value))
    return Chunk(rows.tree, made, len(sizes))


def _pad_each(column: Column, sizes: list[int], dims: Any, value: Any) -> Column:
    batches, start = [], 0
    for index, size in enumerate(sizes):
        part = column[start : start + size]
        start += size
        if type(part) is np.ndarray and (dims is None or dims == part.shape[1:]):
            batches.append(np.ascontiguousarray(part))
        else:
            batches.append(_pad(list(part), dims, value, index))
    return columns.make(batches)


def _pad(leaves: list[Any], dims: Any, value: Any, index: int) -> Any:
    leaves = [leaf if type(leaf) is np.ndarray else _as_array(leaf, index) for leaf in leaves]
    try:
        largest = tuple(map(max, zip(*(leaf.shape for leaf in leaves), strict=True)))
        target = tuple(
            have if want is None else want
            for have, want in zip(largest, dims or largest, strict=True)
        )
    except ValueError:
        raise UnstackableError(index, _rank_error(leaves, dims)) from None
    if any(have > want for have, want in zip(largest, target, strict=True)):
        raise UnstackableError(
            index,
            DataLossError(
                f"{_PADDED}: an element of shape {largest} does not fit into "
                f"padded_shapes {target}; use larger padded_shapes, or None for the batch's own"
            ),
        )
    dtype = leaves[0].dtype
    default: Any = b"" if dtype.kind == "O" else 0
    out = np.full((len(leaves), *target), default if value is None else value, dtype)
    if len(target) == 1 and dtype.kind != "O":
        lengths = np.fromiter(map(len, leaves), np.int64, len(leaves))
        out[np.arange(target[0]) < lengths[:, None]] = np.concatenate(leaves)
    else:
        for row, leaf in zip(out, leaves, strict=True):
            row[tuple(slice(n) for n in leaf.shape)] = leaf
    return out


def _rank_error(leaves: list[Any], dims: Any) -> InvalidArgumentError:
    rank = len(dims) if dims else leaves[0].ndim
    odd = next(leaf.shape for leaf in leaves if leaf.ndim != rank)
    return InvalidArgumentError(
        f"{_PADDED}: all elements of a batch need the same number of dimensions, here {rank}, "
        f"got one of the shape {odd}; reshape them in map"
    )


def _as_array(leaf: Any, index: int) -> Any:
    """A leaf to be padded. What a function returns may be no array, and is seen only here."""
    if leaf is not None and not is_opaque(leaf):
        try:
            return np.asarray(leaf)
        except ValueError:  # The rows of a Ragged differ.
            pass
    raise UnstackableError(index, unpaddable(_PADDED, short_repr(leaf), is_dataset(leaf)))


def _make_ragged(node: RaggedBatch, specs: list[Any], rows: Chunk, sizes: list[int]) -> Chunk:
    made: list[Column] = []
    for column, spec in zip(rows.columns, specs, strict=True):
        if isinstance(spec, RaggedTensorSpec):
            made.append(_make_ragged_each(column, sizes, spec, node.row_splits.dtype))
        else:
            made.append(_stack_each(column, sizes))
    return Chunk(rows.tree, made, len(sizes))


def _make_ragged_each(column: Column, sizes: list[int], spec: Any, splits: Any) -> Column:
    if splits.kind != "i":
        raise UnstackableError(
            0,
            InvalidArgumentError(
                f"Dataset.ragged_batch: row_splits_dtype must be int32 or int64, got {splits}"
            ),
        )
    batches: list[Any] = []
    start = 0
    for index, size in enumerate(sizes):
        part = column[start : start + size]
        _check_ragged(part, spec, index)
        leaves = [_nest_leaf(leaf, spec.ragged_rank - 1) for leaf in part]
        batches.append(_with_splits(Ragged.from_rows(leaves, zeros(spec).dtype), splits))
        start += size
    return batches


def _check_ragged(leaves: Any, spec: Any, index: int) -> None:
    """Checks dimensions that are not ragged against the spec, which may come from samples."""
    row = TensorShape(spec.shape.dims[1:])
    shapes = (leaf.shape for leaf in leaves if not isinstance(leaf, Ragged))
    odd = next((shape for shape in shapes if not row.fits(shape)), None)
    if odd is not None:
        raise UnstackableError(
            index,
            InvalidArgumentError(
                f"Dataset.ragged_batch: an element has shape {odd}, but those before it {row}; say "
                "which dimensions differ with None in map(..., output_signature=...)"
            ),
        )


def _nest_leaf(leaf: Any, rank: int) -> Any:
    """A dense leaf as `rank` levels of ragged rows."""
    if rank <= 0 or isinstance(leaf, Ragged):
        return leaf
    splits = np.arange(leaf.shape[0] + 1) * leaf.shape[1]
    flat = leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])
    return Ragged(_nest_leaf(flat, rank - 1), splits)


def _with_splits(ragged: Ragged, splits: Any) -> Ragged:
    values = ragged.values
    inner = _with_splits(values, splits) if isinstance(values, Ragged) else values
    return Ragged(inner, ragged.row_splits.astype(splits, copy=False))
