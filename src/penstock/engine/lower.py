"""Lowering: a plan and a state become streams. `open_plan` is the only way to start one.

A plan with random access is opened at a position, all the way down; any other plan gets back the
states that its operators saved. Prefetching and parallel calls leave no trace in a state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial

from penstock.element.chunk import Chunk
from penstock.engine.access import access, count_failing, key_of
from penstock.engine.caching import with_cache
from penstock.engine.calling import Calling
from penstock.engine.collate import collate_of
from penstock.engine.context import Context
from penstock.engine.contract import State, Stream
from penstock.engine.gather import Gather
from penstock.engine.heap import keep_freed_memory
from penstock.engine.inlets import FedStream, discard
from penstock.engine.logs import Sequels
from penstock.engine.meters import Tap
from penstock.engine.origins import RecordNumbersStream, find_origin, simplify
from penstock.engine.parallel import ParallelMapStream
from penstock.engine.positions import first_number, states_of
from penstock.engine.prefetch import PrefetchStream
from penstock.engine.streams import (
    batching,
    buffering,
    choosing,
    counting,
    elementwise,
    interleaving,
    merging,
    ordering,
    packing,
    sources,
    windowing,
)
from penstock.engine.tuning import Brevity, Budget, Depth, Parallelism, cores
from penstock.engine.user_calls import Origin
from penstock.errors import FailedPreconditionError
from penstock.plan import nodes
from penstock.plan.nodes import Node
from penstock.plan.optimize import prepare
from penstock.plan.splits import pieces_of

_INNER_AHEAD = 16
"""How many elements each inner dataset is read ahead, if they are read in parallel.

More of them, if they cost next to nothing."""


_STORED_AT_ONCE = 1024

_GATHER_THREADS = 16
"""Measured on 16 cores: one thread gathers 3.5 GB/s, 8 gather 19, 12 and 16 gather 24."""


def open_plan(node: Node, state: State, context: Context) -> Stream:
    """The streams of a plan, from a state (None: the start)."""
    keep_freed_memory()
    if isinstance(state, dict) and "skip" in state:
        stream = open_plan(node, state["from"], context)
        discard(stream, state["skip"])
        return stream
    if isinstance(node, nodes.WithOptions):
        return open_plan(node.input, state, context)
    if (search := context.search) and (found := simplify(node, state, context, search)):
        return open_plan(*found)
    if isinstance(node, nodes.Shard) and node.shards < 1:
        raise FailedPreconditionError(
            "Dataset.shard: SHARD_HINT is filled in when the dataset is distributed with "
            "AutoShardPolicy.HINT; give the number of shards and the index to iterate here"
        )
    if isinstance(node, nodes.Branch):
        opened = open_plan(node.input, state, context)
        if node.number is None or not context.numbered:
            return opened
        return merging.BranchStream(opened, node.number)
    meter = context.meters.of(node)
    if node.blocked is None and not isinstance(state, dict):
        position, first = state or 0, None
        if context.numbered:
            first, context = first_number(node), replace(context, numbered=False)
        return Tap(_open_operator(node, position, context), meter, position, first)
    # Whether a map without order has random access depends on its parallel calls, and those may
    # have changed since the state was saved. A position was saved in order, so it resumes in order.
    context = replace(context, in_order=True) if isinstance(state, int) else context
    # A service needs the numbers of a piece. Else they are for the operator that draws by them.
    ends_here = not context.numbered and context.trail is None and _draws_by_numbers(node)
    return Tap(_open_operator(node, state, context), meter, numbers_end_here=ends_here)


def chunks_of(plan: Node, context: Context) -> Iterator[Chunk]:
    """All elements of a plan, from its start, for code that stores them."""
    opened = with_cache(open_plan(prepare(plan), None, context), context.options)
    with closing(opened) as stream, suppress(StopIteration):
        while True:
            yield stream.pull(_STORED_AT_ONCE)


def _open_operator(node: Node, state: State, context: Context) -> Stream:
    """The stream of one operator, over the streams of its inputs.

    A state that is a position was saved where the plan had random access.
    """
    match node:
        case nodes.Cache(source):
            first = context.first_pass()
            return buffering.CacheStream(node, lambda at: open_plan(source, at, first), state)
        case nodes.Snapshot(source):
            return buffering.snapshot(node, source, context, open_plan, state)
        case nodes.Distribute():
            return context.environment.connect(node, state, context)
    if isinstance(state, int) and _is_accessed(node):
        return _access_stream(node, state, context)
    own, inputs = states_of(node, state)
    match node:
        case nodes.Repeat():
            return _repeat(node, own, inputs[0], context)
        case nodes.Concatenate():
            return _concatenate(node, own, inputs[0], context)
        case nodes.Mix():
            return _mix(node, own, inputs, context)
    below = _context_below(node, state, context)
    streams = tuple(open_plan(i, s, below) for i, s in zip(node.inputs, inputs, strict=True))
    if state is None and isinstance(node, nodes.Inputs):
        discard(streams[0], node.first)
    stream = _make_stream(node, streams, own, context)
    if context.trail is not None and isinstance(stream, FedStream) and hasattr(node, "function"):
        context.trail.calling.append((node, stream.count_used))
    return stream


def _is_accessed(node: Node) -> bool:
    """Whether a plan with random access is read by index as a whole, and not by streams."""
    if isinstance(node, nodes.Prefetch):
        return False
    return node.pure or isinstance(node, nodes.Shuffle | nodes.Shard | nodes.Select)


def _context_below(node: Node, state: State, context: Context) -> Context:
    """The context in which the inputs of an operator are opened."""
    if isinstance(node, nodes.OneRepetition):
        return context.repetition(node.number)
    if isinstance(node, nodes.Records | nodes.Interleave):
        context = replace(context, search=None)  # The names of files are needed as they are.
    if not isinstance(state, int) and _draws_by_numbers(node):
        return replace(context, numbered=True)
    return context


def _draws_by_numbers(node: Node) -> bool:
    """Whether an operator draws by the numbers of its elements, and its plan has pieces."""
    match node:
        case nodes.Interleave() | nodes.Map(random=int()):
            return pieces_of(node) is not None
    return False


def _make_stream(node: Node, streams: tuple[Stream, ...], own: State, context: Context) -> Stream:
    """An operator over open inputs, with its own state."""
    wrap = context.environment.wrap
    match node:
        case nodes.Generator():
            return sources.GeneratorStream(node, own)
        case nodes.Records() if context.search is not None:
            return RecordNumbersStream(node, streams[0], own, context.search)
        case nodes.Records():
            return sources.RecordsStream(node, streams[0], own, context.numbered, context.trail)
        case nodes.Saved():
            return sources.ChunksStream(partial(sources.saved_chunks, node, context.numbered), own)
        case nodes.Map():
            return _map(node, streams[0], own, context)
        case nodes.TakeWhile():
            return elementwise.TakeWhileStream(node, streams[0], own, _origin(node, context))
        case nodes.Filter():
            return elementwise.FilterStream(node, streams[0], own, _origin(node, context))
        case nodes.Interleave():
            return _interleave(node, streams[0], own, context)
        case nodes.Scan():
            return elementwise.ScanStream(node, streams[0], own, _origin(node, context))
        case nodes.IgnoreErrors():
            return _ignore_errors(node, streams[0], context)
        case nodes.Prefetch(_, size):
            return _prefetch(streams[0], size, context)
        case nodes.Batch():
            return _batch(node, streams[0], context)
        case nodes.Unbatch():
            return batching.UnbatchStream("unbatch", streams[0], own)
        case nodes.Rebatch():
            return batching.RebatchStream(node, streams[0], own)
        case nodes.Pack():
            return packing.PackStream(node, streams[0], own)
        case nodes.Window():
            return windowing.WindowStream(node, streams[0], wrap, own)
        case nodes.GroupByWindow():
            inner, seed = partial(_open_inner, context, None), context.inside(0).key
            return windowing.GroupByWindowStream(
                node, streams[0], wrap=wrap, open_inner=inner, state=own, seed=seed
            )
        case nodes.GroupByReducer():
            return windowing.GroupByReducerStream(node, streams[0], own)
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
        case nodes.Tail() | nodes.OneRepetition():
            return streams[0]
        case nodes.Zip(_, tree):
            return merging.ZipStream(streams, tree)
        case nodes.Choose():
            return choosing.ChooseStream(streams, node.stop_on_empty, own)
        case _:
            raise AssertionError(f"no stream for {node.label}")


def _repeat(
    node: nodes.Repeat, own: State, state: State, context: Context
) -> ordering.RepeatStream:
    number, produced, done, *known = own
    sequels, context = _sequels(node.input, known, context)
    endless = node.count == nodes.INFINITE
    return ordering.RepeatStream(
        lambda number, state: open_plan(node.input, state, context.repetition(number, endless)),
        node.count,
        number=node.count if done and not endless else number,
        state=state,
        produced=produced,
        sequels=sequels,
    )


def _concatenate(node: nodes.Concatenate, own: State, state: State, context: Context) -> Stream:
    which, *known = own
    sequels, context = _sequels(node.second, known, context)
    parts = (node.first, nodes.Branch(node.second, 1))
    return merging.ConcatenateStream(
        lambda number, at: open_plan(parts[number], at, context), which, state, sequels
    )


def _mix(node: nodes.Mix, own: State, states: list[State], context: Context) -> Stream:
    parts: list[Stream] = []
    repetitions: list[Callable[[], int] | None] = []
    for part, on_end, state in zip(node.parts, node.on_end, states, strict=True):
        if on_end == "repeat":
            repeated = _repeat_part(part, state, context)
            repetitions.append(partial(getattr, repeated, "number"))
            parts.append(repeated)
        else:
            repetitions.append(None)
            parts.append(open_plan(part, state, context))
    stream = choosing.MixStream(node, tuple(parts), repetitions, own)
    if (meter := context.meters.of(node)) is not None:
        meter.drawn = stream.count_drawn
    return stream


def _repeat_part(part: Node, state: State, context: Context) -> ordering.RepeatStream:
    """A part of a `mix` without an end. Its epochs are counted, so it is never one access."""
    skipped = state["skip"] if isinstance(state, dict) and "skip" in state else 0
    repeat = nodes.Repeat(part)
    own, inputs = states_of(repeat, state["from"] if skipped else state)
    stream = _repeat(repeat, own, inputs[0], context)
    discard(stream, skipped)
    return stream


def _sequels(node: Node, known: list[list[State]], context: Context) -> tuple[Sequels, Context]:
    """What opens the plans that come later, and the context to open them in.

    A state without a log was saved where everything came in order, so it resumes in order.
    """
    if not known:
        context = replace(context, in_order=True)
    return Sequels(*known[:1], loose=_is_loose(node)), context


def _is_loose(node: Node) -> bool:
    """Whether elements may come as they are ready."""
    return node.loose or any(map(_is_loose, node.inputs))


def _access_stream(node: Node, start: int, context: Context) -> Stream:
    stop = node.cardinality if node.cardinality >= 0 else None
    gather = Gather(1 if context.inline else min(cores(), _GATHER_THREADS))
    read = access(node, context.environment.spec, gather)
    return sources.AccessStream(
        read, context.epoch, start=start, stop=stop, pure=node.pure, release=gather.stop
    )


def _ignore_errors(node: nodes.IgnoreErrors, source: Stream, context: Context) -> Stream:
    def skip_failing(stream: Stream) -> tuple[Stream, int]:
        """Opens the input behind a block that cannot be read; returns how many rows that skips.

        Each of the rows would fail like the first one.
        """
        if node.input.blocked is not None or context.search is not None:
            return stream, 0
        position = stream.save()
        # A state that was saved without random access is no position.
        count = count_failing(node.input, position) if isinstance(position, int) else 0
        if not count:
            return stream, 0
        stream.close()
        if (meter := context.meters.of(node.input)) is not None:
            meter.errors += count
        return open_plan(node.input, position + count, context), count

    return elementwise.IgnoreErrorsStream(source, node, skip_failing)


def _batch(node: nodes.Batch, source: Stream, context: Context) -> Stream:
    collate = collate_of(node, lambda: context.environment.spec(node))
    if type(node) is nodes.Batch and isinstance(source.inputs[0], ParallelMapStream):
        source.inputs[0].expect_batches(node.size)
    return batching.BatchStream(node, source, collate)


def _map(node: nodes.Map, source: Stream, own: State, context: Context) -> Stream:
    # A state that is a number was saved in order, so it resumes in order.
    ordered = node.deterministic is not False or isinstance(own, int) or context.in_order
    ordinal, *early = own if isinstance(own, list) else (own, [], [])
    alone = node.parallel is None or context.inline
    calls = elementwise.map_calls(node, context.epoch, _origin(node, context))
    if node.vectorized or (alone and not any(early)):
        return elementwise.MapStream(node, source, calls, ordinal)
    parallelism = Parallelism(node.parallel or 1, Budget.of(context.options))
    calling = Calling(calls, parallelism, context.options.executor or "auto")
    if (meter := context.meters.of(node)) is not None:
        meter.calls = calling.times
    return ParallelMapStream(
        source,
        calls,
        arguments=partial(elementwise.arguments, node),
        calling=calling,
        ordered=ordered,
        state=(ordinal, *early),
    )


def _origin(
    node: nodes.Map | nodes.Filter | nodes.TakeWhile | nodes.Scan, context: Context
) -> Origin:
    """Finds where an element comes from that a function fails on."""
    return partial(find_origin, open_plan, node.input, context)


def _prefetch(source: Stream, size: int, context: Context) -> Stream:
    if size == 0 or context.inline:
        return source
    return PrefetchStream(source, Depth(size, Budget.of(context.options)))


def _interleave(
    node: nodes.Interleave, source: Stream, own: State, context: Context
) -> interleaving.InterleaveStream:
    width, brevity = _width(node, context), Brevity()
    ordered = not (node.loose and width) or context.in_order
    make: Callable[..., interleaving.InterleaveStream]
    if isinstance(node, nodes.Inputs) and context.trail is not None:
        make = partial(
            interleaving.InputsStream,
            base=first_number(node),
            count=node.count,
            trail=context.trail,
        )
    elif (ordered or own is not None) and "log" not in (own or ()):
        # A state without a log was saved in order, so it resumes in order.
        make = interleaving.InterleaveStream
    else:
        make = partial(interleaving.UnorderedInterleaveStream, ordered=ordered)
    return make(
        node,
        source,
        key=context.inside(0).key,
        open_inner=partial(_open_inner, context, brevity if width else None),
        brevity=brevity,
        ahead=width,
        numbered=context.numbered,
        state=own,
    )


def _width(node: nodes.Interleave, context: Context) -> int:
    """How many inner datasets are read at once; 0 for one after the other."""
    if node.parallel is None or context.inline:
        return 0
    return Parallelism(node.parallel, Budget.of(context.options)).most + 1


def _open_inner(
    context: Context, brevity: Brevity | None, plan: Node, state: State, number: int
) -> Stream:
    """The stream of a dataset that a function made of outer element `number`.

    It is read ahead if `brevity` is given.
    """
    inside = context.inside(number)
    stream = open_plan(plan, state, inside)
    if brevity is None or inside.inline:
        return stream
    depth = Depth(_INNER_AHEAD, Budget.of(inside.options), guess=True)
    # A function may wait for what another dataset does, so threads call it.
    return PrefetchStream(stream, depth, brevity if plan.pure else None)
