"""How many workers a service should have, from how many its readers can use."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from penstock.service.protocol import timing


class WorkerRange(NamedTuple):
    """The fewest and the most workers of a service."""

    least: int
    most: int


def read_range(text: str) -> WorkerRange | None:
    """The range that `4` (from four to four) or `1..8` names; None if it names none."""
    first, dots, last = text.partition("..")
    try:
        least = int(first)
        most = int(last) if dots else least
    except ValueError:
        return None
    return WorkerRange(least, most) if 1 <= least <= most else None


class WorkerScaling:
    """Follows a load: grows at once, by no more than a doubling, and shrinks after a while.

    One high figure, such as that of a reader that has just begun to wait, costs at most a doubling
    for that while. A load that falls for a moment changes nothing.
    """

    def __init__(self, allowed: WorkerRange) -> None:
        self.allowed = allowed
        self._recent: deque[tuple[float, int]] = deque()
        """When readers could use how many workers, in the last `SHRINK_AFTER` seconds."""

    def choose(self, now: float, wanted: int, running: int) -> int:
        """The number of workers from now on: readers can use `wanted`, and `running` run."""
        self._recent.append((now, wanted))
        while self._recent[0][0] < now - timing.SHRINK_AFTER:
            self._recent.popleft()
        if wanted > running:
            target = min(wanted, max(2 * running, 1))
        else:
            target = min(running, max(count for _, count in self._recent))
        return min(max(target, self.allowed.least), self.allowed.most)
