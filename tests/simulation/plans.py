"""Datasets that are known beforehand: how long every stream is, and which elements it has.

An element is its own address. What readers must get is written down here without a look at how
they get it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from penstock.service.protocol.messages import ENDLESS, Shape

BLOCK = 32
FOREVER = 1 << 40

_WIDTH = 1 << 41


def element(stream: int, ordinal: int) -> int:
    """The element at an address."""
    return stream * _WIDTH + ordinal


def address(value: int) -> tuple[int, int]:
    return divmod(value, _WIDTH)


@dataclass(frozen=True)
class Dataset:
    """A plan. `lengths` are those of its streams, taken in turns; `failing` ones cannot be made."""

    digest: str
    shape: Shape
    lengths: tuple[int, ...]
    seconds: float
    """What it takes to make an element."""
    failing: frozenset[int] = field(default_factory=frozenset)
    holds: bool = False
    """Whether its states hold elements, and do not travel."""
    unopened: float = 0.0
    """How often a state cannot be opened."""
    absent: str | None = None
    """Where a worker is that cannot make it."""
    wrong: frozenset[int] | None = None
    """Streams that begin at a wrong place if they guess; None if no stream has to guess."""

    def length(self, stream: int) -> int:
        return self.lengths[stream % len(self.lengths)]

    @property
    def endless(self) -> bool:
        """Whether there is always more."""
        return self.shape.streams == ENDLESS or max(self.lengths) >= FOREVER

    @property
    def cardinality(self) -> int:
        return -1 if self.endless else self.shape.length


def dataset(random: Random, name: str, kind: str, large: int = 120) -> Dataset:
    """A dataset of a kind: random, split or single; perhaps empty, perhaps endless."""
    failing = frozenset(random.sample(range(large), 2)) if random.random() < 0.2 else frozenset()
    ways = (
        random.choice((0.00005, 0.001, 0.01, 0.05)),
        failing,
        random.random() < 0.2,
        random.choice((0.0, 0.0, 0.3)),
    )
    endless = random.random() < 0.12
    size = random.choice((0, 1, 7, 33, large, large, large, 2 * large))
    if kind == "random":
        length = FOREVER if endless else size
        shape = Shape("random", 1, -1 if endless else length)
        return Dataset(name, shape, (length,), *ways)
    if kind == "single":
        length = FOREVER if endless else size
        shape = Shape("single", 1, -1 if endless else -2)
        return Dataset(name, shape, (length,), *ways)
    streams = random.choice((1, 2, 3, 5, 9, 20))
    most = max(1, 2 * size // streams)
    lengths = tuple(random.choice((0, random.randint(0, most), most)) for _ in range(streams))
    if endless and not max(lengths):
        lengths = (5,)
    shape = Shape("split", ENDLESS if endless else streams)
    guess = random.random() < 0.3
    wrong = frozenset(s for s in range(1, 20) if random.random() < 0.3) if guess else None
    return Dataset(name, shape, lengths, *ways, wrong=wrong)


def begins(stream: int) -> int:
    """Where in a file a stream begins, if it is part of one."""
    return 100 * stream


def in_sequence(plan: Dataset, streams: int) -> Iterator[int]:
    """One stream after the other."""
    stream = 0
    while streams == ENDLESS or stream < streams:
        yield from (element(stream, ordinal) for ordinal in range(plan.length(stream)))
        stream += 1


def in_turns(lengths: Iterator[tuple[int, int]], cycle: int, block: int) -> Iterator[int]:
    """`block` of each of `cycle` streams in turn; `lengths` gives streams with their length."""
    slots: list[list[int] | None] = []
    for stream, length in lengths:
        slots.append([stream, 0, length])
        if len(slots) == cycle:
            break
    turn, left = 0, block
    while any(slots):
        slot = slots[turn]
        if slot is not None and slot[1] >= slot[2]:
            fresh = next(lengths, None)
            slots[turn] = None if fresh is None else [fresh[0], 0, fresh[1]]
            if fresh is not None:
                continue
            slot = None
        if slot is not None:
            yield element(slot[0], slot[1])
            slot[1] += 1
            left -= 1
        if slot is None or not left:
            turn, left = (turn + 1) % len(slots), block


def lengths_of(plan: Dataset, streams: int) -> Iterator[tuple[int, int]]:
    stream = 0
    while streams == ENDLESS or stream < streams:
        yield stream, plan.length(stream)
        stream += 1


def share_of(length: int, consumers: int, consumer: int) -> int:
    """How many of `length` elements a consumer gets."""
    return len(range(consumer, length, consumers)) if consumers else length
