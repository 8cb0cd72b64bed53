"""How many elements a client asks for in one request: as many as arrive soon and fit in memory."""

from __future__ import annotations

from dataclasses import dataclass

DEPTH = 4
"""Requests that wait at a worker, so that it always has the next one to work on."""

KEPT_BLOCK = 64
"""Elements that several trainers read are requested in blocks; all trainers request a block from
the same worker."""

AHEAD = 3
"""Elements for each worker that a client may hold, whatever their size: two that are under way, and
one that has arrived and waits for its turn."""

LEAST_AHEAD = 2
"""Elements for each worker without which some workers are idle."""

SHORT = 1 << 11
"""The most elements that inputs of one request have together, if elements are small."""


@dataclass(frozen=True)
class Limits:
    """How much may be requested and not handed out, in all and in one request.

    `nbytes` keep workers busy if elements are small. If elements are large, it may be more, so that
    every worker has elements to compute, within the `budget`.
    """

    elements: int | None = None
    nbytes: int = 64 << 20
    budget: int = 64 << 20
    request_bytes: int = 8 << 20
    request_rows: int = 1 << 15
    request_seconds: float = 0.01

    def count_bytes(self, workers: int, element_bytes: float) -> int:
        """The bytes that may be requested and not handed out, by so many workers."""
        return min(self.budget, max(self.nbytes, int(AHEAD * workers * element_bytes)))

    def is_short(self, workers: int, element_bytes: float) -> bool:
        """Whether the budget leaves workers idle."""
        return self.elements is None and LEAST_AHEAD * workers * element_bytes > self.budget


class Sizes:
    """How large elements are and how long they take; how many to request at once."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._nbytes = min(limits.nbytes, limits.budget)
        self.most = 1
        """The most elements of one request; it doubles while requests are answered in full."""
        self.element_bytes = 0.0
        self.element_seconds = 0.0
        self._length: float | None = None
        """A moving average of the lengths of streams that have ended."""

    def record(self, count: int, nbytes: int, seconds: float) -> None:
        weight = 0.5 if self.element_bytes else 1.0
        self.element_bytes += weight * (nbytes / count - self.element_bytes)
        self.element_seconds += weight * (seconds / count - self.element_seconds)

    def grow(self, count: int) -> None:
        """A request for `count` elements was answered: the next may be for twice as many."""
        self.most = max(self.most, min(2 * count, self._limits.request_rows))

    def shrink(self) -> None:
        """A chunk arrived damaged: the next requests are smaller, and may arrive undamaged."""
        self.most = max(1, self.most // 2)

    def note_length(self, length: int) -> None:
        """A stream ended after `length` elements; other streams may be about as long."""
        before = length if self._length is None else self._length
        self._length = before + (length - before) / 8

    @property
    def usual(self) -> int | None:
        """The length that most streams do not exceed; None until one has ended."""
        return None if self._length is None else int(self._length * 9 / 8) + 1

    @property
    def request(self) -> int:
        limits = self._limits
        fits = min(limits.request_bytes, limits.budget / DEPTH) / max(self.element_bytes, 1)
        soon = limits.request_seconds / max(self.element_seconds, 1e-9)
        return max(1, int(min(self.most, limits.request_rows, fits, soon)))

    def count_small(self, workers: int) -> int:
        """Below this count elements need so little memory that a request may exceed the stream."""
        if self._limits.elements is not None:
            return 1
        requests = 4 * DEPTH * workers
        return int(self._nbytes / (requests * max(self.element_bytes, 1)))

    @property
    def whole(self) -> int:
        """How many elements to request of several inputs at once, within the memory limit. Before
        the first element has arrived, its size is unknown and may be large."""
        if not self.element_bytes:
            return DEPTH
        fits = self._nbytes / (2 * max(self.element_bytes, 1))
        return max(1, min(2 * SHORT, int(fits)))

    def fill_block(self, start: int, count: int) -> int:
        """Up to the end of a block, so that other trainers wait for it and do not compute parts."""
        block = KEPT_BLOCK - start % KEPT_BLOCK
        limits, nbytes = self._limits, block * self.element_bytes
        # Before the first element has arrived, its size is unknown and may be large.
        small = limits.elements is None and 0 < nbytes <= limits.request_bytes
        return block if small else min(count, block)
