"""Memory to receive into: aligned, and used again once nobody looks at it any more.

The first use of fresh memory costs as much as filling it, so large pieces go round. A piece is
given out only when no array, anywhere, is left that shows a part of it.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
import weakref

import numpy as np

from penstock.element.buffers import ALIGN
from penstock.element.columns import Array

_SMALL = 96 << 10  # Below that, the allocator has memory that was used before.
_HUGE = 4 << 20


def rounded(size: int) -> int:
    """The next of the sizes in which memory is cut: 2 and 3 times the powers of two."""
    power = 1 << max(size - 1, 1).bit_length()
    return power * 3 // 4 if size <= power * 3 // 4 else power


class BufferRef(weakref.ref[Array]):
    """Knows when the last array that shows a buffer has died; a lighter `weakref.finalize`."""

    __slots__ = ("memory", "room")
    memory: mmap.mmap
    room: int
    __hash__ = object.__hash__  # What it refers to has none.
    __eq__ = object.__eq__


class ReceiveBuffers:
    """Buffers for what comes; those that come back are kept, up to `limit` bytes of them."""

    def __init__(self, limit: int = 128 << 20) -> None:
        self._limit = limit
        self._idle = 0
        self._free: dict[int, list[mmap.mmap]] = {}
        self._shown: set[BufferRef] = set()
        self._lock = threading.Lock()

    def take(self, size: int) -> memoryview:
        """A buffer of this size, for as long as anything refers to it."""
        if size < _SMALL:
            raw: Array = np.empty(size + ALIGN, np.uint8)
            start = -raw.__array_interface__["data"][0] % ALIGN
            return raw[start : start + size].data
        room = rounded(size)
        memory = self._reuse(room) or _fresh(room)
        buffer: Array = np.frombuffer(memory, np.uint8, size)
        shown = BufferRef(buffer, self._back)
        shown.memory, shown.room = memory, room
        self._shown.add(shown)
        return buffer.data

    def _reuse(self, room: int) -> mmap.mmap | None:
        # Neither here nor in `_back` does anybody wait for the lock: the collector may call
        # `_back` at any time, also in the thread that holds it.
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if not (kept := self._free.get(room)):
                return None
            self._idle -= room
            return kept.pop()
        finally:
            self._lock.release()

    def _back(self, shown: BufferRef) -> None:
        self._shown.discard(shown)
        memory, room = shown.memory, shown.room
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._idle + room > self._limit:
                self._free.clear()
                self._idle = 0
            if room <= self._limit:
                self._free.setdefault(room, []).append(memory)
                self._idle += room
        finally:
            self._lock.release()


def _fresh(room: int) -> mmap.mmap:
    memory = mmap.mmap(-1, room)
    if room >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


BUFFERS = ReceiveBuffers()
"""Those of this process."""
