"""Buffering operators: caches and snapshots; prefetching is in `engine.prefetch`.

A cache passes its input through and keeps it; once it has seen all of it, later passes read the
cache and do not open the input. The files of a cache are:

    <name>.data-00000-of-00001   the elements, an Arrow IPC file: see `formats.chunks`
    <name>.index                 how many; with it the cache is complete
    <name>_0.lockfile            the process that is filling the cache
    <name>_0.<number>            the elements that it has written so far

The index also says which plan filled the cache. Elements that do not fit the spec of the plan that
reads them are an error. A plan with other operators or functions causes a warning.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import glob
import hashlib
import itertools
import logging
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from penstock.element import nest
from penstock.element.chunk import Chunk
from penstock.engine.context import Context, OpenPlan
from penstock.engine.contract import State, Stream
from penstock.engine.fitting import fits_spec, spec_of_chunk
from penstock.engine.formats.chunks import ChunkWriter, read_chunks
from penstock.engine.formats.files import join, translate_write_errors
from penstock.engine.formats.locks import LockFile
from penstock.engine.formats.saved import RunWriter, SavedInfo, Shard, find
from penstock.engine.inlets import Inlet, discard
from penstock.engine.streams.sources import ChunksStream
from penstock.engine.streams.windowing import plan_of
from penstock.engine.user_calls import Calls
from penstock.errors import (
    AlreadyExistsError,
    DataLossError,
    InvalidArgumentError,
    NotFoundError,
    UnimplementedError,
)
from penstock.plan import codec
from penstock.plan.functions import Function, fingerprint
from penstock.plan.nodes import (
    INFINITE,
    UNKNOWN,
    AssertCardinality,
    Cache,
    Data,
    Distribute,
    Generator,
    Node,
    Saved,
    Slices,
    Snapshot,
    Store,
    known_spec,
)
from penstock.plan.resume import structure
from penstock.plan.seeds import seed_scope

log = logging.getLogger("penstock")

# Recording: a pass through the input that writes its elements down, for later passes to read
#
# The recording is committed when the last element was handed on, even if the caller never asks for
# the end: `zip`, `take` and a counted number of `next` do not. A pass that fails, is closed or is
# garbage collected before that leaves nothing behind.

Open = Callable[[State], Stream]


class Recorder(Protocol):
    """Where elements are written. It must not refer to its stream, or that is never collected."""

    def write(self, chunk: Chunk) -> None: ...

    def commit(self) -> bool:
        """Makes the recording visible to later passes; False if another writer has taken over."""

    def abandon(self) -> None:
        """Removes the recording, unless it is committed; a second call does nothing."""


class RecordingStream(Stream):
    """The input, passed through and recorded.

    An element that could not be made ends the recording. So does a failure to write, which is
    logged at once and raised at the end of the pass, because it must not replace an element.
    """

    def __init__(self, source: Node, count: int) -> None:
        self._total = _sure_count(source)
        self._looks_ahead = self._total == UNKNOWN and not _may_wait_for_caller(source)
        self._count = count
        self._pid = os.getpid()
        self._recorder: Recorder | None = None
        self._failure: Exception | None = None

    def _read(self, stream: Stream) -> None:
        """Hands on the elements of `stream` without recording them."""
        self.inputs = (stream,)
        self._feed: Stream | Inlet = stream

    def _begin(self, recorder: Recorder | None, open_input: Open) -> None:
        """Opens the input at its start, even if only the rest is wanted: all is recorded."""
        wanted, self._count = self._count, 0
        try:
            self._record(recorder, lambda: open_input(None))
            discard(self, wanted)
        except BaseException:
            self.close()
            raise

    def _record(self, recorder: Recorder | None, open_rest: Callable[[], Stream]) -> None:
        """Opens the rest of the input, which is recorded behind what `recorder` has."""
        if recorder is not None:
            self._recorder = recorder
            self._finalizer = weakref.finalize(self, recorder.abandon)
        self._read(open_rest())
        if self._looks_ahead:
            self._feed = Inlet(self.inputs[0])

    def pull_needed(self, needed: int, limit: int, rows: int = 0) -> Chunk:
        try:
            if isinstance(self._feed, Inlet):
                chunk = self._feed.pull(limit, needed, rows)
            else:
                chunk = self._feed.pull_needed(needed, limit, rows)
        except StopIteration:
            self._end()
            raise
        except Exception:
            self._count += 1
            self._abandon()
            raise
        self._count += len(chunk)
        if self._recorder is not None:
            chunk = self._write(self._recorder, chunk)
            if self._is_complete(limit):
                self._commit()
        return chunk

    def _write(self, recorder: Recorder, chunk: Chunk) -> Chunk:
        """Records a chunk and returns it as it is handed on."""
        if os.getpid() != self._pid:
            return chunk  # A forked child: the files belong to its parent.
        try:
            recorder.write(chunk)
        except Exception as error:
            self._fail(error)
        return chunk

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._abandon()
        log.warning("%s (the pass continues and writes nothing)", error)

    def _is_complete(self, limit: int) -> bool:
        if isinstance(self._feed, Inlet):
            return self._feed.is_at_end(limit)
        return self._count == self._total

    def _commit(self) -> None:
        """Commits the recording, if there is one."""
        if self._recorder is None or os.getpid() != self._pid:
            return
        try:
            self._recorder.commit()
        except Exception as error:
            self._fail(error)
        self._abandon()

    def _end(self) -> None:
        self._commit()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def finish(self) -> None:
        """Looks whether the input has ended, where the caller stopped without asking."""
        if self._recorder is not None and self._total == UNKNOWN and not self._looks_ahead:
            # A second call must find what the first one saw: an element, or a failure.
            if not isinstance(self._feed, Inlet):
                self._feed = Inlet(self.inputs[0])
            if self._feed.is_at_end(1):
                self._commit()
        super().finish()

    def _abandon(self) -> None:
        if self._recorder is not None:
            self._recorder = None
            self._finalizer()

    def save(self) -> State:
        return {"count": self._count, "input": self._feed.save()}

    def close(self) -> None:
        if self._recorder is not None and self._count:
            self._note_partial()
        self._abandon()
        super().close()

    def _note_partial(self) -> None:
        """Called when a pass is closed before its last element, so that nothing is committed."""


def warn_of_partial_passes(store: Store) -> None:
    """Logs a warning at the second pass that ended before it could fill the cache."""
    store.partial_passes += 1
    if store.partial_passes == 2:
        log.warning(
            "Dataset.cache: two passes ended before the last element, so nothing is cached and "
            "each pass computes its elements anew; put take() before cache(), or read to the end"
        )


def _sure_count(node: Node) -> int:
    """The cardinality, but UNKNOWN if it was asserted and is not checked yet."""
    if isinstance(node, AssertCardinality) and node.obstacle is not None:
        return UNKNOWN
    known = all(_sure_count(part) == part.cardinality for part in node.inputs)
    return node.cardinality if known else UNKNOWN


def _may_wait_for_caller(node: Node) -> bool:
    """Whether the next element may come only after the last one was used: do not look ahead."""
    return isinstance(node, Generator | Distribute) or any(map(_may_wait_for_caller, node.inputs))


# Caches

_CALL = "Dataset.cache"


class _MemoryRecorder:
    """Fills the store of a cache, unless another pass has done so: its order stays."""

    def __init__(self, store: Store, chunks: Sequence[Chunk] = ()) -> None:
        self._store = store
        self._chunks = store.recording = [*chunks]

    def write(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)

    def commit(self) -> bool:
        return self._store.fill(self._chunks)

    def abandon(self) -> None:
        if self._store.recording is self._chunks:
            self._store.recording = []
        self._chunks = []


class CacheWriter:
    """Fills the files of a cache; raises AlreadyExistsError while another writer does."""

    def __init__(self, name: str, plan: str, spec: Any = None) -> None:
        self._name, self._plan = name, plan
        self._pid = os.getpid()
        folder = os.path.dirname(name) or "."
        if not os.path.isdir(folder):
            raise NotFoundError(f"{_CALL}: the folder {folder!r} does not exist; make it first")
        self._lock = LockFile(f"{name}_0.lockfile", name, _CALL, self._clean)
        self._lock.acquire()
        self._partial = f"{name}_0.{self._lock.token}"
        try:
            self._writer = ChunkWriter(self._partial, call=_CALL, spec=spec)
        except BaseException:
            self._lock.release()
            raise

    def _clean(self, token: str) -> None:
        partial = f"{self._name}_0.{token}"
        for path in (partial, *glob.glob(f"{glob.escape(partial)}.*")):
            with contextlib.suppress(OSError):
                os.unlink(path)

    def write(self, chunk: Chunk) -> None:
        self._writer.write(chunk)

    def commit(self) -> bool:
        """Makes the cache complete; False if another writer has taken over filling it."""
        self._writer.close()
        if not self._lock.is_held():
            return False
        data = _data_file(self._name)
        with translate_write_errors(data, _CALL):
            self._writer.rename(data)
            with open(_index_file(self._name), "w", encoding="utf-8") as file:
                file.write(f"{self._writer.count}\n{self._plan}\n")
        return True

    def abandon(self) -> None:
        """Removes the incomplete file; a second call does nothing."""
        if os.getpid() == self._pid:  # In a forked child, the files belong to its parent.
            self._writer.abandon()
            self._lock.release()


def _data_file(name: str) -> str:
    return f"{name}.data-00000-of-00001"


def _index_file(name: str) -> str:
    return f"{name}.index"


class CacheStream(RecordingStream):
    """A cache: a complete pass fills it, a partial pass leaves it empty.

    A state from within a filling pass resumes with the input, because only that has the same order;
    the resumed pass does not fill, unless another process handed over what it had recorded.
    """

    def __init__(self, node: Cache, open_input: Open, state: State) -> None:
        count, begun = (0, None) if state is None else (state["count"], state["input"])
        super().__init__(node.input, count)
        self._node = node
        filled = _open_filled(node, count) if begun is None else None
        self._reads = filled is not None
        if begun is not None:
            self._resume(count, lambda: open_input(begun))
        elif filled is not None:
            self._read(filled)
        else:
            self._begin(_recorder(node), open_input)

    def _resume(self, count: int, open_rest: Callable[[], Stream]) -> None:
        known = self._node.store.begin_behind(count)
        if known is None:
            self._read(open_rest())
        else:
            self._record(_MemoryRecorder(self._node.store, known), open_rest)

    def _write(self, recorder: Recorder, chunk: Chunk) -> Chunk:
        # All passes over a memory cache hand out the same arrays, so they must be read-only.
        return super()._write(recorder, chunk if self._node.filename else chunk.as_read_only())

    def _note_partial(self) -> None:
        warn_of_partial_passes(self._node.store)

    def save(self) -> State:
        return {"count": self._count, "input": None} if self._reads else super().save()


def _open_filled(node: Cache, skip: int) -> Stream | None:
    """The elements of a complete cache without the first `skip`; None if it is not complete."""
    if not node.filename:
        chunks = node.store.chunks
        return None if chunks is None else ChunksStream(lambda: iter(chunks), skip)
    if "://" in node.filename:
        raise UnimplementedError(
            f"{_CALL}: a cache needs a local file, got {node.filename!r}; "
            "Dataset.save can write to other places"
        )
    data = _data_file(node.filename)
    if not os.path.exists(_index_file(node.filename)) or not os.path.exists(data):
        return None
    _compare_plans(node)
    return ChunksStream(lambda: _check_chunks(node, read_chunks(data, None, _CALL, skip)), None)


def _compare_plans(node: Cache) -> None:
    """Logs a warning if another plan filled the cache than the plan that reads it."""
    index = _index_file(node.filename)
    try:
        with open(index, encoding="utf-8") as file:
            count, *plan = file.read().splitlines()
        int(count)
    except ValueError:
        raise DataLossError(
            f"{_CALL}: {index!r} is damaged, or another program wrote it; {_remedy(node.filename)}"
        ) from None
    if plan and plan != [own := _plan_text(node.input)]:
        _warn_of_another_plan(node.filename, own)


@functools.cache
def _warn_of_another_plan(name: str, plan: str) -> None:
    """Logs a warning, once for each plan that reads the cache."""
    log.warning(
        f"{_CALL}: another pipeline has filled {name!r}, with other operators or functions; this "
        f"one gets the elements as they are; {_remedy(name)}"
    )


def _plan_text(node: Node) -> str:
    """A text that is equal for equal operators with equal functions, in every process."""
    digest = hashlib.sha256()
    for text in _function_texts(node):
        digest.update(text.encode())
    return f"{structure(node)}:{digest.hexdigest()[:12]}"


def _function_texts(node: Node) -> Iterator[str]:
    for field in dataclasses.fields(node):
        if isinstance(value := getattr(node, field.name), Function):
            yield fingerprint(value.call)
    for part in node.inputs:
        yield from _function_texts(part)


def _check_chunks(node: Cache, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """The chunks; InvalidArgumentError at the first that does not fit the spec of the plan."""
    spec = known_spec(node.input)
    for chunk in chunks:
        if spec is not None and not fits_spec(chunk, spec):
            raise InvalidArgumentError(
                f"{_CALL}: {node.filename!r} holds elements {spec_of_chunk(chunk)}, but this "
                f"dataset has elements {spec}; {_remedy(node.filename)}"
            )
        yield chunk


def _remedy(name: str) -> str:
    return (
        "give each dataset a file of its own, or delete "
        f"{_index_file(name)!r} to fill the cache again"
    )


def _recorder(node: Cache) -> Recorder | None:
    """What fills a cache; None if its elements never end and it would be in memory."""
    if node.filename:
        spec = known_spec(node.input)
        return CacheWriter(node.filename, _plan_text(node.input), spec)
    return None if node.input.cardinality == INFINITE else _MemoryRecorder(node.store)


# Snapshots


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
        return RunWriter(
            folder,
            compression=node.compression,
            shard=_shard(node),
            call="Dataset.snapshot",
            shapes=known_spec(node.input),
        )
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
    folder = join(node.path, f"{codec.fingerprint(source):020}")
    begun = state is not None and state["input"] is not None
    info = None if begun else find(folder, "Dataset.snapshot")
    if info is None:
        first = context.first_pass()
        return SnapshotStream(node, folder, lambda at: open_plan(source, at, first), state)
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
