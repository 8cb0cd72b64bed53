"""Elements in files: saved datasets and snapshots; file caches are in `buffering`.

A snapshot writes its input down as it passes through; `recording` says when that counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from penstock.element import nest
from penstock.element.chunk import Chunk
from penstock.engine.context import Context
from penstock.engine.contract import State, Stream
from penstock.engine.formats import saved
from penstock.engine.formats.folders import join
from penstock.engine.formats.runs import RunWriter, Shard
from penstock.engine.formats.saved import SavedInfo, find
from penstock.engine.streams.recording import Open, Recorder, RecordingStream
from penstock.engine.streams.windowing import plan_of
from penstock.engine.user_calls import Calls
from penstock.errors import AlreadyExistsError
from penstock.plan.codec import fingerprint
from penstock.plan.nodes import UNKNOWN, Data, Node, Saved, Slices, Snapshot
from penstock.plan.seeds import derive_array, numbers_from, seed_scope

OpenPlan = Callable[[Node, State, Context], Stream]


def saved_chunks(node: Saved, numbered: bool) -> Iterator[Chunk]:
    """The elements of the shards that `node` names; an element's number depends on its shard."""
    for number, shard in enumerate(node.shards):
        count = 0
        for chunk in saved.read(node.path, [shard], node.compression, node.spec, "Dataset.load"):
            numbers = numbers_from(count, len(chunk)) if numbered else None
            if numbers is not None and len(node.shards) > 1:
                numbers = derive_array(number, numbers)
            count += len(chunk)
            yield chunk.with_numbers(numbers)


class SnapshotStream(RecordingStream):
    """A pass through a snapshot that was not complete when the pass began.

    It writes the snapshot, unless another pass does.
    """

    def __init__(self, node: Snapshot, folder: str, open_input: Open, state: State) -> None:
        super().__init__(node.input, 0 if state is None else state["count"])
        if state is not None and state["input"] is not None:
            self._read(open_input(state["input"]))
        else:
            self._begin(_run(node, folder), open_input)


def _run(node: Snapshot, folder: str) -> Recorder | None:
    try:
        return RunWriter(folder, node.compression, _shard(node), "Dataset.snapshot")
    except AlreadyExistsError:
        return None


def _shard(node: Snapshot) -> Shard | None:
    if node.shard is None:
        return None
    calls, ordinals = Calls("snapshot", node.shard), itertools.count()
    return lambda element: calls.one(element, next(ordinals))


class SnapshotReadStream(Stream):
    """The elements of a complete snapshot, as the reader function arranges them."""

    def __init__(self, source: Stream, count: int) -> None:
        self.inputs = (source,)
        self._count = count

    def pull(self, limit: int) -> Chunk:
        chunk = self.inputs[0].pull(limit)
        self._count += len(chunk)
        return chunk

    def save(self) -> State:
        return {"count": self._count, "input": None, "reader": self.inputs[0].save()}


def snapshot(
    node: Snapshot, source: Node, context: Context, open_plan: OpenPlan, state: State
) -> Stream:
    """The stream of a snapshot: reads it if it is complete now, else reads the input."""
    folder = join(node.path, f"{fingerprint(source):020}")
    begun = state is not None and state["input"] is not None
    info = None if begun else find(folder, "Dataset.snapshot")
    if info is None:
        return SnapshotStream(node, folder, lambda at: open_plan(source, at, context), state)
    plan = _plan_of_snapshot(node, folder, info, context)
    count, at = (0, None) if state is None else (state["count"], state["reader"])
    return SnapshotReadStream(open_plan(plan, at, context.inside(0)), count)


def _plan_of_snapshot(node: Snapshot, folder: str, info: SavedInfo, context: Context) -> Node:
    def load(*shards: str, count: int = UNKNOWN) -> Saved:
        return Saved(folder, shards, info.spec, count, info.compression)

    if node.reader is None or not info.shards:
        return load(*info.shards, count=info.count)
    wrap = context.environment.wrap
    each: list[Any] = [wrap(load(shard)) for shard in info.shards]
    datasets = wrap(Slices(Data(Chunk(nest.LEAF, [each], len(each)))))
    with seed_scope(context.inside(0).key):
        made = Calls("snapshot", node.reader).plain(0, datasets)
    return plan_of(f"Dataset.snapshot: {node.reader}", made)
