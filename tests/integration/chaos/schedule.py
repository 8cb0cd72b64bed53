"""Which fault happens when: a list of events that a seed determines.

Time is counted in elements that readers got, so that a schedule means the same on any machine.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

KINDS = (
    *("worker", "dispatcher", "everything", "freeze", "cut", "client", "sleep"),
    *("strangers", "crash", "full", "partition", "damage"),
)
"""kill -9 of a worker, of the dispatcher, of both and all workers; SIGSTOP of a worker for longer
than its timeout; all data connections cut; kill -9 of a client, which continues from its state;
SIGSTOP of a client for longer than its lease; crowds without the token on all ports, while all
data connections are cut; a function that kills the process it runs in; a dispatcher that may not
write to its disk; no data passes between clients and a worker that the dispatcher reaches; bits
of messages are flipped."""


@dataclass(frozen=True)
class Event:
    """A fault that begins at element `at`, for `length` elements; `which` worker or client."""

    at: int
    kind: str
    which: int = 0
    length: int = 0


def schedule(seed: int, elements: int, count: int, kinds: Sequence[str] = KINDS) -> list[Event]:
    """A number of events among a number of elements; one is over before the next begins."""
    dice = random.Random(seed)
    space = elements // (count + 1)
    return [
        Event(
            at=space * number + dice.randrange(space // 2),
            kind=dice.choice(kinds),
            which=dice.randrange(2),
            length=dice.randrange(1, max(2, space // 3)),
        )
        for number in range(count)
    ]
