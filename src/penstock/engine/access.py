"""Random access: a plan as a pure function *index -> elements*.

`access(node)` returns the `Access` of a plan that nothing blocks: a function that takes an index (a
`range` for views, an array for gathers) and the epoch, and returns one chunk. It holds no position.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from penstock.element import columns, nest
from penstock.element.chunk import Chunk
from penstock.element.index import Index, array_of, groups, scale, slice_of
from penstock.element.values import as_value
from penstock.engine.call_watch import refuse_many
from penstock.engine.collate import Collate, collate_all, collate_of
from penstock.engine.fitting import fit_chunk
from penstock.engine.gather import MappedFiles, TakeRows
from penstock.engine.permute import BlockOrder, block_order, shuffle_index
from penstock.engine.processes.shared_arrays import LazyRows, find_lazy_rows
from penstock.engine.table_access import open_table
from penstock.engine.user_calls import Calls
from penstock.errors import InvalidArgumentError
from penstock.plan import nodes
from penstock.plan.block_lengths import tables_of
from penstock.plan.joined_data import JoinedData
from penstock.plan.nodes import Node
from penstock.plan.seeds import derive, derive_array, generator

Epoch = tuple[int, ...]
"""Which pass this is: the number of the iteration, then of each repetition around it."""

Access = Callable[[Index, Epoch], Chunk]
"""Computes the elements of a plan at an index, in an epoch."""

Specs = Callable[[Node], Any]


def access(node: Node, specs: Specs, take: TakeRows = columns.take) -> Access:
    """The access to a plan whose elements can be computed in any order.

    `specs` returns a plan's spec where one is needed, `take` gathers rows from a column.
    """
    read = [access(part, specs, take) for part in node.inputs]
    match node:
        case nodes.Slices(data):
            chunk = data.rows if isinstance(data, JoinedData) else data.chunk
            return partial(_slices, chunk, MappedFiles(chunk), find_lazy_rows(chunk), take)
        case nodes.TableRows():
            table = open_table(node)
            return lambda index, epoch: table.read(index, take)
        case nodes.Select():
            return partial(_select, read[0], read[1])
        case nodes.Range(start, _, step, dtype):
            if not (dtype.is_integer or dtype.is_floating):
                raise InvalidArgumentError(
                    f"Dataset.range: output_type must be a type of numbers, got {dtype.name}"
                )
            return partial(_range, start, step, dtype.dtype)
        case nodes.Counter(start, step, dtype):
            return partial(_counter, start, step, dtype.dtype)
        case nodes.Random(seed, again):
            return partial(_random, seed, again)
        case nodes.Choices(weights, seed, again):
            return partial(_choices, np.cumsum(weights) / np.sum(weights), seed, again)
        case nodes.Map():
            calls = Calls("map", node.function, signature=node.signature)
            return partial(_map, read[0], node, calls)
        case nodes.Batch(source, size):
            collate = collate_of(node, lambda: specs(node))
            length = source.cardinality if source.cardinality >= 0 else 1 << 62
            return partial(_batch, read[0], collate, size, length)
        case nodes.Unbatch(rows=int() as count):
            return partial(_unbatch, read[0], count)
        case nodes.ShuffleBlocks():
            for rows in tables_of(node):
                open_table(rows).keep_blocks(node.blocks)
            order_of = lru_cache(maxsize=2)(partial(block_order, node))
            return partial(_shuffle_blocks, read[0], node, order_of)
        case nodes.Shuffle():
            return partial(_shuffle, read[0], node)
        case nodes.Repeat(source):
            if source.cardinality == 1 and source.pure and not source.by_epoch:
                return lambda index, epoch: read[0](range(1), (*epoch, 0)).again(len(index))
            return partial(_repeat, read[0], repetition_length(source), source.by_epoch)
        case nodes.OneRepetition(_, number):
            return lambda index, epoch: read[0](index, (*epoch, number))
        case nodes.Skip(_, count) | nodes.Tail(_, count):
            return lambda index, epoch: read[0](scale(index, 1, count), epoch)
        case nodes.Shard(_, shards, offset):
            return lambda index, epoch: read[0](scale(index, shards, offset), epoch)
        case nodes.Enumerate(_, start):
            return lambda index, epoch: pair(
                leaf(array_of(scale(index, 1, start))), read[0](index, epoch)
            )
        case nodes.Zip(_, tree):
            return lambda index, epoch: beside(tree, [part(index, epoch) for part in read])
        case nodes.Concatenate(first):
            return partial(_concatenate, read[0], read[1], first.cardinality)
        case nodes.Take() | nodes.Prefetch() | nodes.WithOptions() | nodes.AssertCardinality():
            return read[0]
        case _:
            raise AssertionError(f"{node.label} has no random access: {node.blocked}")


def count_failing(node: Node, position: int) -> int:
    """How many elements from a position on fail, because the block that failed last has them."""
    match node:
        case nodes.TableRows():
            return open_table(node).count_failing(position)
        case nodes.Skip(source, count) | nodes.Tail(source, count):
            return count_failing(source, position + count)
        case nodes.Take(source) | nodes.AssertCardinality(source):
            return max(0, min(count_failing(source, position), node.cardinality - position))
    return 0


def repetition_length(source: Node) -> int:
    """How many elements one repetition of a plan has."""
    return max(source.cardinality, 1) if source.cardinality != nodes.INFINITE else 1 << 62


@lru_cache(maxsize=256)
def key_of(seed: int, epoch: Epoch, varies: bool) -> int:
    """The key of a random operator: the same in every epoch, or a different one in each."""
    return derive(seed, *epoch) if varies else derive(seed)


def leaf(column: Any) -> Chunk:
    """A chunk of bare leaves."""
    return Chunk(nest.LEAF, [column], len(column))


def _slices(
    rows: Chunk,
    mapped: MappedFiles,
    lazy: LazyRows | None,
    take: TakeRows,
    index: Index,
    epoch: Epoch,
) -> Chunk:
    if lazy is not None:
        lazy.require(index)
    if isinstance(index, range):
        part = slice_of(index)
        return Chunk(rows.tree, [column[part] for column in rows.columns], len(index))
    return mapped.gather(rows, index, take)


def _select(read: Access, positions: Access, index: Index, epoch: Epoch) -> Chunk:
    column: Any = positions(index, epoch).columns[0]
    return read(np.asarray(column, np.int64), epoch)


def _range(start: int, step: int, dtype: Any, index: Index, epoch: Epoch) -> Chunk:
    return leaf(array_of(scale(index, step, start)).astype(dtype, copy=False))


def _counter(start: Any, step: Any, dtype: Any, index: Index, epoch: Epoch) -> Chunk:
    return leaf((start + array_of(index) * step).astype(dtype, copy=False))


def _random(seed: int, again: bool, index: Index, epoch: Epoch) -> Chunk:
    words = derive_array(key_of(seed, epoch, again), array_of(index))
    return leaf((words >> np.uint64(32)).astype(np.int64))


def _choices(edges: Any, seed: int, again: bool, index: Index, epoch: Epoch) -> Chunk:
    words = derive_array(key_of(seed, epoch, again), array_of(index))
    points = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    picked = np.searchsorted(edges, points, side="right")
    return leaf(np.minimum(picked, len(edges) - 1))


def _map(read: Access, node: nodes.Map, calls: Calls, index: Index, epoch: Epoch) -> Chunk:
    rows = read(index, epoch)
    numbers = array_of(index)
    if node.vectorized:
        return call_vectorized(calls, rows, int(numbers[0]))
    elements = rows.elements()
    results = []
    for number, element in zip(numbers.tolist(), elements, strict=True):
        more = () if node.random is None else (generator(node.random, *epoch, number),)
        results.append(calls.one(element, number, *more))
    return _check_signature(Chunk.of(results, calls.where, int(numbers[0])), calls)


def _check_signature(chunk: Chunk, calls: Calls) -> Chunk:
    """Checks a chunk against the `output_signature`, if there is one."""
    return chunk if calls.signature is None else fit_chunk(chunk, calls.signature, calls.where)


def call_vectorized(calls: Calls, rows: Chunk, ordinal: int) -> Chunk:
    """Calls a function with whole columns; it must return as many rows as it was given."""
    refuse_many(len(rows))
    leaves, tree = nest.flatten(calls.one(nest.unflatten(rows.tree, rows.columns), ordinal))
    made = [_as_column(leaf, len(rows), calls.where) for leaf in leaves]
    return _check_signature(Chunk(tree, made, len(rows)), calls)


def _as_column(value: Any, size: int, where: str) -> Any:
    if type(value) is list:
        raise InvalidArgumentError(
            f"{where} returned a list; with vectorized=True a column is an array, and several "
            "columns are a tuple"
        )
    column = as_value(value)
    rows = len(column) if hasattr(column, "__len__") and np.ndim(column) else None
    if rows != size:
        raise InvalidArgumentError(
            f"{where} was given {size} rows but returned "
            f"{'a scalar' if rows is None else f'{rows} rows'}; "
            "with vectorized=True a function gets and gives whole columns"
        )
    return column


def _batch(
    read: Access, collate: Collate, size: int, length: int, index: Index, epoch: Epoch
) -> Chunk:
    members, sizes = groups(index, size, length)
    return collate_all(collate, read(members, epoch), sizes)


def _unbatch(read: Access, rows: int, index: Index, epoch: Epoch) -> Chunk:
    elements, within = np.divmod(array_of(index), rows)
    numbers, where = np.unique(elements, return_inverse=True)
    chunk = read(numbers, epoch)
    parts = columns.unstack_all(chunk.columns)
    if any((counts != rows).any() for _, counts in parts):
        raise InvalidArgumentError(
            f"Dataset.unbatch: the first elements have {rows} rows, but other elements have "
            "another number, so there is no random access; iterate over the dataset"
        )
    unstacked = Chunk(chunk.tree, [column for column, _ in parts], len(chunk) * rows)
    return unstacked.take(where * rows + within)


def _shuffle(read: Access, node: nodes.Shuffle, index: Index, epoch: Epoch) -> Chunk:
    length = node.cardinality
    key = key_of(node.seed, epoch, node.reshuffle)
    order = shuffle_index(index, length if length >= 0 else None, node.buffer, key)
    return read(order, epoch)


def _shuffle_blocks(
    read: Access,
    node: nodes.ShuffleBlocks,
    order_of: Callable[[int], BlockOrder],
    index: Index,
    epoch: Epoch,
) -> Chunk:
    order = order_of(key_of(node.seed, epoch, node.reshuffle))
    if not isinstance(index, range) or index.step != 1:
        return read(order.elements(index), epoch)
    # One window after the other: their blocks need not be in memory at the same time.
    return Chunk.join([read(order.elements(part), epoch) for part in order.cut(index)])


def _repeat(read: Access, length: int, by_epoch: bool, index: Index, epoch: Epoch) -> Chunk:
    if isinstance(index, range) and index[0] // length == index[-1] // length:
        again = index[0] // length
        return read(scale(index, 1, -again * length), (*epoch, again))
    repetitions, within = np.divmod(array_of(index), length)
    if not by_epoch:
        return read(within, (*epoch, 0))
    numbers, where = np.unique(repetitions, return_inverse=True)
    order = np.argsort(where, kind="stable")
    parts = [read(within[where == i], (*epoch, int(n))) for i, n in enumerate(numbers)]
    return Chunk.join(parts).take(np.argsort(order, kind="stable"))


def pair(numbers: Chunk, rows: Chunk) -> Chunk:
    """Numbers and elements, side by side."""
    return beside(nest.PAIR, [numbers, rows])


def beside(tree: nest.Tree, parts: list[Chunk]) -> Chunk:
    """Chunks of one length, side by side in the structure `tree`."""
    grafted = nest.graft(tree, tuple(part.tree for part in parts))
    return Chunk(grafted, [column for part in parts for column in part.columns], len(parts[0]))


def _concatenate(first: Access, second: Access, length: int, index: Index, epoch: Epoch) -> Chunk:
    if length < 0 or (max(index[0], index[-1]) < length and isinstance(index, range)):
        return first(index, epoch)
    if isinstance(index, range) and min(index[0], index[-1]) >= length:
        return second(scale(index, 1, -length), epoch)
    numbers = array_of(index)
    early = numbers < length
    parts = []
    if early.any():
        parts.append(first(numbers[early], epoch))
    if not early.all():
        parts.append(second(numbers[~early] - length, epoch))
    order = np.argsort(~early, kind="stable")
    return Chunk.join(parts).take(np.argsort(order, kind="stable"))
