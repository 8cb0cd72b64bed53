"""Slices of bodies with checksums: the network carries one slice while the next one is checked.

Every slice costs a system call, which releases the GIL. If another thread runs Python, this thread
then waits for the GIL up to `sys.getswitchinterval()`. So bodies are not cut while slices are slow.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator

from penstock.service.host.sockets import Part

SLICE = 512 << 10
"""Bytes that stay in a core's cache between the checksum and the copy of the system call."""

_LARGEST = SLICE + SLICE // 2
"""Bodies of more bytes are cut."""

_TIMED = 3
"""Slices whose time is measured together: the system takes several at once from a full buffer."""

_SLOW = 0.003
"""Seconds for one of them. Slices take longer if this thread waits for the GIL, or if the network
is so slow that the time of a checksum does not matter."""

_UNCUT = 64
"""Bodies that are not cut after slow slices."""


class BodySlices:
    """Decides into which slices the bodies of one direction of a connection are cut."""

    def __init__(self) -> None:
        self._uncut = 0
        """How many of the next bodies are not cut."""
        self._count, self._seconds = 0, 0.0
        """Slices since the last decision, and their time."""

    def sizes(self, size: int) -> Iterator[int]:
        """The sizes of consecutive slices of a body. The caller sends or receives a slice before
        it asks for the next size: that is how slow slices are noticed.
        """
        while size > _LARGEST and not self._uncut:
            began = time.perf_counter()
            yield SLICE
            size -= SLICE
            self._record(time.perf_counter() - began)
        self._uncut = max(0, self._uncut - 1)
        yield size

    def _record(self, seconds: float) -> None:
        self._count, self._seconds = self._count + 1, self._seconds + seconds
        if self._count == _TIMED:
            if self._seconds > _TIMED * _SLOW:
                self._uncut = _UNCUT
            self._count, self._seconds = 0, 0.0


def take_first(parts: deque[Part], size: int) -> list[Part]:
    """Removes the first `size` bytes from `parts`, and parts without bytes behind them."""
    taken: list[Part] = []
    while parts and len(parts[0]) <= size:
        size -= len(parts[0])
        taken.append(parts.popleft())
    if size:
        first = memoryview(parts[0])
        taken.append(first[:size])
        parts[0] = first[size:]
    return taken
