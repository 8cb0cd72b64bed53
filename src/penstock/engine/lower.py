"""Lowering: a plan and a state become streams. `open_plan` is the only way to start one.

A plan with random access is opened at a position, all the way down; any other plan gets back the
states that its operators saved. Prefetching and parallel calls leave no trace in a state.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

from penstock.element.chunk import Chunk
from penstock.engine.access import access, key_of, round_length
from penstock.engine.collate import collate_of
from penstock.engine.context import Context
from penstock.engine.gather import Gather
from penstock.engine.logs import Sequels
from penstock.engine.meters import Meter
from penstock.engine.parallel import ParallelMapStream
from penstock.engine.prefetch import PrefetchStream
from penstock.engine.stream import State, Stream, discard
from penstock.engine.streams import (
    batching,
    buffering,
    counting,
    elementwise,
    files,
    interleaving,
    merging,
    ordering,
    sources,
    unordered,
    windowing,
)
from penstock.engine.tuning import Budget, Depth, Parallelism, cores
from penstock.errors import FailedPreconditionError
from penstock.plan import nodes
from penstock.plan.nodes import Node
from penstock.plan.pieces import pieces_of
from penstock.plan.seeds import numbers_from

_INNER_AHEAD = 16
"""How many elements each inner dataset is read ahead, if they are read in parallel."""


_GATHER_THREADS = 16
"""Measured on 16 cores: one thread gathers 3.5 GB/s, 8 gather 19, 12 and 16 gather 24."""


class Tap(Stream):
    """Stands behind every operator: counts, times, and knows the position on random access.

    There it numbers the elements, from `first` at position 0, if it is told to.
    """

    def __init__(
        self,
        stream: Stream,
        meter: Meter | None,
        position: int | None = None,
        first: int | None = None,
    ) -> None:
        self.inputs = (stream,)
        self._stream = stream
        self._meter = meter
        self._position = position
        self._first = first
        self._ended = False

    def pull(self, limit: int) -> Chunk:
        if self._ended:
            raise StopIteration
        started = time.perf_counter()
        try:
            chunk = self._stream.pull(limit)
        except StopIteration:
            self._ended = True
            self._stream.finish()
            raise
        except Exception:
            if self._position is not None:
                self._position += 1
            raise
        if self._position is not None:
            if self._first is not None:
                chunk = chunk.numbered(numbers_from(self._first + self._position, len(chunk)))
            self._position += len(chunk)
        if self._meter is not None:
            self._meter.record(len(chunk), chunk.nbytes, time.perf_counter() - started)
        return chunk

    def save(self) -> State:
        return self._stream.save() if self._position is None else self._position

    def sure(self, limit: int) -> int:
        return self._stream.sure(limit)

    def commit(self, unused: int = 0) -> None:
        self._stream.commit(unused)

    def unused(self, count: int) -> None:
        self._stream.unused(count)

    def warm(self) -> None:
        self._stream.warm()


def open_plan(node: Node, state: State, context: Context) -> Stream:
    """The streams of a plan, from a state (None: the start)."""
    if isinstance(state, dict) and "skip" in state:
        stream = open_plan(node, state["from"], context)
        discard(stream, state["skip"])
        return stream
    if isinstance(node, nodes.WithOptions):
        return open_plan(node.input, state, context)
    if isinstance(node, nodes.Shard) and node.shards < 1:
        raise FailedPreconditionError(
            "Dataset.shard: SHARD_HINT is filled in when the dataset is distributed with "
            "AutoShardPolicy.HINT; give the number of shards and the index to iterate here"
        )
    if isinstance(node, nodes.Part):
        opened = open_plan(node.input, state, context)
        return merging.PartStream(opened, node.number) if context.numbered else opened
    meter = context.meters.of(node)
    if node.blocked is None and not isinstance(state, dict):
        first = _first(node) if context.numbered else None
        opened = _at(node, state or 0, replace(context, numbered=False))
        return Tap(opened, meter, state or 0, first)
    # Whether a map without order has random access depends on its parallel calls, and those may
    # have changed since the state was saved: the state says what it was, and so it goes on.
    if isinstance(state, int):
        return Tap(_at(node, state, replace(context, in_order=True)), meter)
    return Tap(_from(node, state, context), meter)


def _at(node: Node, start: int, context: Context) -> Stream:
    """A plan with random access, from a position on."""
    match node:
        case nodes.Prefetch(source, size):
            return _prefetch(open_plan(source, start, context), size, context)
        case _ if node.pure:
            return _accessed(node, start, context)
        case nodes.Map(source):
            return _map(node, open_plan(source, start, context), start, context)
        case nodes.Batch(source, size):
            return _batch(node, open_plan(source, start * size, context), context)
        case nodes.Take(source, count):
            return counting.TakeStream(open_plan(source, start, context), count - start)
        case nodes.Skip(source, count):
            return counting.SkipStream(open_plan(source, start + count, context), 0)
        case nodes.Repeat(source, count):
            number, within = divmod(start, round_length(source))
            opens, sequels = _rounds(node, context), Sequels(loose=_is_loose(source))
            return ordering.RepeatStream(opens, count, number, within, True, sequels)
        case nodes.Tail(source, first):
            return open_plan(source, start + first, context)
        case nodes.Round(source, number):
            return open_plan(source, start, context.repetition(number))
        case nodes.Enumerate(source, first):
            return counting.EnumerateStream(open_plan(source, start, context), first + start)
        case nodes.Zip(parts, tree):
            opened = tuple(open_plan(part, start, context) for part in parts)
            return merging.ZipStream(opened, tree)
        case nodes.Concatenate(first, second):
            opens = [partial(_open, part, context) for part in (first, second)]
            late = 0 <= first.cardinality <= start
            position = start - first.cardinality if late else start
            sequels = Sequels(loose=_is_loose(second))
            return merging.ConcatenateStream(opens, int(late), position, sequels)
        case nodes.AssertCardinality(source, count):
            opened_source = open_plan(source, start, context)
            return counting.AssertCardinalityStream(opened_source, count, start)
        case _:
            return _accessed(node, start, context)


def _from(node: Node, state: State, context: Context) -> Stream:
    """Any other plan, from what its operators saved."""
    match node:
        case nodes.Prefetch(source, size):
            return _prefetch(open_plan(source, state, context), size, context)
        case nodes.Cache(source, ""):
            return buffering.CacheStream(node, partial(_open, source, context), state)
        case nodes.Cache(source):
            return files.FileCacheStream(node, partial(_open, source, context), state)
        case nodes.Snapshot(source):
            return files.snapshot(node, source, context, open_plan, state)
        case nodes.Distribute():
            return context.environment.connect(node, state, context)
    own, inputs = _begin(node) if state is None else (state["own"], state["inputs"])
    match node:
        case nodes.Repeat(source, count):
            number, produced, done, *known = own or (0, False, False)
            number = count if done and count >= 0 else number
            sequels, context = _sequels(source, state, known, context)
            opens = _rounds(node, context)
            return ordering.RepeatStream(opens, count, number, inputs[0], produced, sequels)
        case nodes.Concatenate(first, second):
            which, *known = own or (0,)
            sequels, context = _sequels(second, state, known, context)
            opens = [partial(_open, part, context) for part in (first, nodes.Part(second, 1))]
            return merging.ConcatenateStream(opens, which, inputs[0], sequels)
        case nodes.Unbatch(source):
            return batching.UnbatchStream("unbatch", open_plan(source, inputs[0], context), own)
    below = replace(context, numbered=True) if _draws_by_numbers(node) else context
    streams = tuple(open_plan(i, s, below) for i, s in zip(node.inputs, inputs, strict=True))
    if state is None and isinstance(node, nodes.Inputs):
        discard(streams[0], node.first)
    return _over(node, streams, own, context)


def _draws_by_numbers(node: Node) -> bool:
    """Whether the numbers of its elements matter to an operator, and others may have a piece."""
    match node:
        case nodes.Interleave() | nodes.Map(random=int()):
            return pieces_of(node) is not None
    return False


def _over(node: Node, streams: tuple[Stream, ...], own: State, context: Context) -> Stream:
    """An operator over open inputs, with its own state."""
    wrap = context.environment.wrap
    match node:
        case nodes.Generator():
            return sources.GeneratorStream(node, own)
        case nodes.Records():
            return sources.RecordsStream(node, streams[0], own, context.numbered, context.trail)
        case nodes.Saved():
            return sources.ChunksStream(partial(files.saved_chunks, node, context.numbered), own)
        case nodes.Map():
            return _map(node, streams[0], own, context)
        case nodes.TakeWhile():
            return elementwise.TakeWhileStream(node, streams[0], own)
        case nodes.Filter():
            return elementwise.FilterStream(node, streams[0], own)
        case nodes.Interleave():
            return _interleave(node, streams[0], own, context)
        case nodes.Scan():
            return elementwise.ScanStream(node, streams[0], own)
        case nodes.IgnoreErrors(_, log_warning):
            return elementwise.IgnoreErrorsStream(streams[0], log_warning)
        case nodes.Batch():
            return _batch(node, streams[0], context)
        case nodes.Rebatch():
            return batching.RebatchStream(node, streams[0], own)
        case nodes.Window():
            return windowing.WindowStream(node, streams[0], wrap, own)
        case nodes.GroupByWindow():
            inner = partial(_inner, context, False)
            return windowing.GroupByWindowStream(node, streams[0], wrap, inner, own)
        case nodes.Shuffle(_, buffer, seed, reshuffle):
            key = key_of(seed, context.epoch, reshuffle)
            return ordering.ShuffleStream(streams[0], buffer if buffer > 0 else None, key, own)
        case nodes.Take(_, count):
            return counting.TakeStream(streams[0], count if own is None else own)
        case nodes.Skip(_, count):
            return counting.SkipStream(streams[0], count if own is None else own)
        case nodes.Shard(_, shards, index):
            return counting.ShardStream(streams[0], shards, index, own)
        case nodes.Enumerate(_, start):
            return counting.EnumerateStream(streams[0], start if own is None else own)
        case nodes.Unique():
            return counting.UniqueStream(streams[0], own)
        case nodes.AssertCardinality(_, count):
            return counting.AssertCardinalityStream(streams[0], count, own)
        case nodes.Zip(_, tree):
            return merging.ZipStream(streams, tree)
        case nodes.Choose():
            return merging.ChooseStream(streams, node.stop_on_empty, own)
        case _:
            raise AssertionError(f"no stream for {node.label}")


def _open(node: Node, context: Context, state: State) -> Stream:
    return open_plan(node, state, context)


def _rounds(node: nodes.Repeat, context: Context) -> Any:
    endless = node.count == nodes.INFINITE
    return lambda number, state: open_plan(node.input, state, context.repetition(number, endless))


def _sequels(
    node: Node, state: State, known: list[list[State]], context: Context
) -> tuple[Sequels, Context]:
    """For those that are opened later, and the context to open them in."""
    if state is not None and not known:
        context = replace(context, in_order=True)
    return Sequels(*known[:1], loose=_is_loose(node)), context


def _is_loose(node: Node) -> bool:
    """Whether elements may come as they are ready."""
    if isinstance(node, nodes.Map | nodes.Interleave):
        own = node.loose
    else:
        own = isinstance(node, nodes.Distribute)
    return own or any(map(_is_loose, node.inputs))


def _begin(node: Node) -> tuple[State, list[State]]:
    """The states at the start; what numbers its elements goes on from the number of the first."""
    inputs: list[State] = [None] * len(node.inputs)
    first = _first(node) if isinstance(node, nodes.Map | nodes.Filter | nodes.Interleave) else 0
    if first and isinstance(node, nodes.Interleave):
        return {"at": [0, 0, first], "slots": []}, inputs
    if isinstance(node, nodes.Map):
        return [first, [], []], inputs
    return first or None, inputs


def _first(node: Node) -> int:
    """The number of the first element: pieces of a plan are numbered as in the whole."""
    skipped = node.first if isinstance(node, nodes.Inputs) else 0
    while node.inputs and not isinstance(node, nodes.Tail):
        node = node.inputs[0]
    return skipped + (node.start if isinstance(node, nodes.Tail) else 0)


def _accessed(node: Node, start: int, context: Context) -> Stream:
    stop = node.cardinality if node.cardinality >= 0 else None
    gather = Gather(1 if context.inline else min(cores(), _GATHER_THREADS))
    read = access(node, context.environment.spec, gather)
    return sources.AccessStream(read, context.epoch, start, stop, node.pure, gather.stop)


def _batch(node: nodes.Batch, source: Stream, context: Context) -> Stream:
    collate = collate_of(node, lambda: context.environment.spec(node))
    return batching.BatchStream(node, source, collate)


def _map(node: nodes.Map, source: Stream, own: State, context: Context) -> Stream:
    # What was begun in order goes on in order: its states do not say what followed them.
    ordered = node.deterministic is not False or isinstance(own, int) or context.in_order
    ordinal, *early = own if isinstance(own, list) else (own, [], [])
    alone = node.parallel is None or context.inline
    if node.vectorized or (alone and not any(early)):
        return elementwise.MapStream(node, source, context.epoch, ordinal)
    return ParallelMapStream(
        source,
        elementwise.map_calls(node, context.epoch),
        partial(elementwise.arguments, node),
        Parallelism(node.parallel or 1, Budget.of(context.options)),
        ordered,
        (ordinal, *early),
    )


def _prefetch(source: Stream, size: int, context: Context) -> Stream:
    if size == 0 or context.inline:
        return source
    return PrefetchStream(source, Depth(size, Budget.of(context.options)))


def _interleave(
    node: nodes.Interleave, source: Stream, own: State, context: Context
) -> interleaving.InterleaveStream:
    width = _width(node, context)
    inner = partial(_inner, context, width > 0)
    rest = (source, context.inside(0).key, inner, width, context.numbered, own)
    if isinstance(node, nodes.Inputs) and context.trail is not None:
        return interleaving.InputsStream(node, *rest, base=_first(node), trail=context.trail)
    ordered = not (node.loose and width) or context.in_order
    # What was begun in order goes on in order: its states do not say what followed them.
    if (ordered or own is not None) and "log" not in (own or ()):
        return interleaving.InterleaveStream(node, *rest)
    return unordered.UnorderedInterleaveStream(node, *rest, ordered=ordered)


def _width(node: nodes.Interleave, context: Context) -> int:
    """How many inner datasets are read at once; 0 for one after the other."""
    if node.parallel is None or context.inline:
        return 0
    return Parallelism(node.parallel, Budget.of(context.options)).most + 1


def _inner(context: Context, ahead: bool, plan: Node, state: State, number: int) -> Stream:
    """A dataset inside a dataset."""
    inside = context.inside(number)
    stream = open_plan(plan, state, inside)
    return _prefetch(stream, _INNER_AHEAD, inside) if ahead else stream
