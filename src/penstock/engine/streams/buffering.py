"""Buffering operators: caches in memory and in files; prefetching is in `engine.prefetch`.

A cache passes its input through and keeps it; once it has seen all of it, later passes read the
cache and do not open the input.
"""

from __future__ import annotations

from functools import partial

from penstock.element.chunk import Chunk
from penstock.engine.contract import State
from penstock.engine.formats.cached import CacheFiles, CacheWriter
from penstock.engine.streams.recording import (
    Open,
    Recorder,
    RecordingStream,
    warn_of_partial_passes,
)
from penstock.engine.streams.sources import ChunksStream
from penstock.plan.nodes import INFINITE, Cache, Store


class _MemoryRecorder:
    """Fills the store of a cache, unless another pass has done so: its order stays."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._chunks: list[Chunk] = []

    def write(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)

    def commit(self) -> bool:
        return self._store.fill(self._chunks)

    def abandon(self) -> None:
        self._chunks = []


class CacheStream(RecordingStream):
    """A memory cache: a complete pass fills it, a partial pass leaves it empty.

    A state from within a filling pass resumes with the input, because only that has the same order;
    the resumed pass does not fill.
    """

    def __init__(self, node: Cache, open_input: Open, state: State) -> None:
        count, begun = (0, None) if state is None else (state["count"], state["input"])
        super().__init__(node.input, count)
        self._store = node.store
        chunks = node.store.chunks
        self._reads = begun is None and chunks is not None
        if begun is not None:
            self._read(open_input(begun))
        elif chunks is not None:
            self._read(ChunksStream(lambda: iter(chunks), count))
        else:
            endless = node.input.cardinality == INFINITE
            self._begin(None if endless else _MemoryRecorder(node.store), open_input)

    def _write(self, recorder: Recorder, chunk: Chunk) -> Chunk:
        # All passes hand out the same arrays, so they must be read-only.
        return super()._write(recorder, chunk.frozen())

    def _note_partial(self) -> None:
        warn_of_partial_passes(self._store)

    def save(self) -> State:
        return {"count": self._count, "input": None} if self._reads else super().save()


class FileCacheStream(RecordingStream):
    """A file cache: a complete pass fills it, and later passes read it.

    A state from within a filling pass resumes with the input, because only that has the same order;
    the resumed pass does not fill.
    """

    def __init__(self, node: Cache, open_input: Open, state: State) -> None:
        count, begun = (0, None) if state is None else (state["count"], state["input"])
        super().__init__(node.input, count)
        self._store = node.store
        files = CacheFiles(node.filename)
        self._reads = begun is None and files.complete
        if begun is not None:
            self._read(open_input(begun))
        elif self._reads:
            self._read(ChunksStream(partial(files.read, count), None))
        else:
            self._begin(CacheWriter(files), open_input)

    def _note_partial(self) -> None:
        warn_of_partial_passes(self._store)

    def save(self) -> State:
        return {"count": self._count, "input": None} if self._reads else super().save()
