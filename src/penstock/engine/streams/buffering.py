"""Buffering operators: the memory cache; file caches are in `files`, prefetching in `parallel`.

A cache passes its input through and keeps it; once it has seen all of it, it gives it again
without asking the input.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.element.chunk import Chunk
from penstock.engine.stream import State, Stream, discard
from penstock.engine.streams.sources import ChunksStream
from penstock.plan.nodes import Store


class CacheStream(Stream):
    """A memory cache: a complete pass fills it, a partial one is forgotten."""

    def __init__(self, store: Store, open_input: Callable[[State], Stream], state: State) -> None:
        self._store = store
        self._count = 0 if state is None else state["count"]
        self._kept: list[Chunk] | None = None
        self._filled = store.chunks is not None
        self.inputs = (self._open(open_input, state),)

    def _open(self, open_input: Callable[[State], Stream], state: State) -> Stream:
        chunks = self._store.chunks
        if state is not None and state["input"] is not None:
            # It was read from the input, whose order another pass may not have had.
            self._filled = False
            return open_input(state["input"])
        if chunks is not None:
            return ChunksStream(lambda: iter(chunks), self._count)
        return self._fill(open_input)

    def _fill(self, open_input: Callable[[State], Stream]) -> Stream:
        """From the start, even if only the rest is wanted.

        The cache that a saved state was reading is not there any more; this pass fills it again.
        """
        self._kept = []
        stream, count = open_input(None), self._count
        self.inputs, self._count = (stream,), 0
        discard(self, count)
        return stream

    def pull(self, limit: int) -> Chunk:
        try:
            chunk = self.inputs[0].pull(limit)
        except StopIteration:
            if self._kept is not None:
                self._store.chunks, self._kept = self._kept, None
            raise
        except Exception:
            self._kept = None
            raise
        self._count += len(chunk)
        if self._kept is not None:
            # Everybody is given the same arrays, so nobody may write to them.
            chunk = chunk.frozen()
            self._kept.append(chunk)
        return chunk

    def save(self) -> State:
        source = None if self._filled else self.inputs[0].save()
        return {"count": self._count, "input": source}
