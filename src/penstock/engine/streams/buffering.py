"""Buffering operators: the memory cache; file caches are in `files`, prefetching in `parallel`.

A cache passes its input through and keeps it; once it has seen all of it, it gives it again
without asking the input.
"""

from __future__ import annotations

from penstock.element.chunk import Chunk
from penstock.engine.stream import State
from penstock.engine.streams.keeping import Keeper, KeepingStream, Open, warn_of_partial_passes
from penstock.engine.streams.sources import ChunksStream
from penstock.plan.nodes import INFINITE, Cache, Store


class _MemoryKeeper:
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


class CacheStream(KeepingStream):
    """A memory cache: a complete pass fills it, a partial one is forgotten.

    A state from within a pass that filled goes on with the input, for only that has the same
    order; it does not fill.
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
            self._begin(None if endless else _MemoryKeeper(node.store), open_input)

    def _write(self, keeper: Keeper, chunk: Chunk) -> Chunk:
        # Everybody is given the same arrays, so nobody may write to them.
        return super()._write(keeper, chunk.frozen())

    def _note_partial(self) -> None:
        warn_of_partial_passes(self._store)

    def save(self) -> State:
        return {"count": self._count, "input": None} if self._reads else super().save()
