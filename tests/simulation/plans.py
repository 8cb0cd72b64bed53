"""Datasets that are known beforehand: how long every stream is, and which elements it has.

An element is its own address. This file says what readers must get, independent of the code
that serves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from random import Random

from penstock.plan.shape import ENDLESS, Shape

BLOCK = 32
UNKNOWN = -2
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
    """Seconds that making an element takes."""
    failing: frozenset[int] = field(default_factory=frozenset)
    holds: bool = False
    """Whether its states hold objects, so that they cannot be sent."""
    buffers: bool = False
    """Whether its states are so large that they are sent only when their worker leaves."""
    unopened: float = 0.0
    """The probability that a state cannot be opened."""
    absent: str | None = None
    """The address of a worker that cannot make it."""
    wrong: frozenset[int] | None = None
    """Streams that begin at a wrong place if they guess; None if no stream has to guess."""
    inputs: tuple[int, ...] = ()
    """How many inputs streams have, taken in turns, if it is not known beforehand."""
    unmade: frozenset[int] = field(default_factory=frozenset)
    """Inputs that cannot be opened: each of them is one failure."""

    def length(self, stream: int) -> int:
        return self.lengths[stream % len(self.lengths)]

    def inputs_of(self, stream: int) -> range:
        """The numbers of a stream's inputs, where turns are taken between them."""
        assert self.shape.turns is not None
        known = self.shape.turns[2]
        if known != UNKNOWN:
            return range(FOREVER if known == ENDLESS else known)
        widths = [self.inputs[at % len(self.inputs)] for at in range(stream + 1)]
        return range(sum(widths[:-1]), sum(widths))

    @property
    def endless(self) -> bool:
        """Whether it never ends."""
        return self.shape.streams == ENDLESS or max(self.lengths) >= FOREVER

    @property
    def cardinality(self) -> int:
        return -1 if self.endless else self.shape.length


def dataset(random: Random, name: str, kind: str, large: int = 120) -> Dataset:
    """A dataset of a kind: random, split or single; perhaps empty, perhaps endless."""
    failing = frozenset(random.sample(range(large), 2)) if random.random() < 0.2 else frozenset()
    seconds, held = random.choice((0.00005, 0.001, 0.01, 0.05)), random.random()
    ways = (
        seconds,
        failing,
        held < 0.1,
        0.1 <= held < 0.3,
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
    streams = ENDLESS if endless else streams
    if random.random() < 0.3:
        turns = (random.choice((2, 3, 7)), random.choice((1, 3, 16)), streams)
        return _in_turns(random, Dataset(name, Shape("split", streams, -2, turns), lengths, *ways))
    shape = Shape("split", streams)
    guess = random.random() < 0.3
    wrong = frozenset(s for s in range(1, 20) if random.random() < 0.3) if guess else None
    return Dataset(name, shape, lengths, *ways, wrong=wrong)


def _in_turns(random: Random, plan: Dataset) -> Dataset:
    """The plan with inputs that cannot be opened, or with an unknown number of inputs."""
    unmade = frozenset(i for i in range(20) if random.random() < 0.1)
    inputs = tuple(random.choice((0, 1, 2, 5)) for _ in range(3))
    if random.random() < 0.5 or not any(inputs):
        return replace(plan, unmade=unmade)
    assert plan.shape.turns is not None
    shape = Shape("split", plan.shape.streams, -2, (*plan.shape.turns[:2], UNKNOWN))
    return replace(plan, shape=shape, inputs=inputs, unmade=unmade)


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


def in_laps(streams: list[tuple[int, int]]) -> Iterator[int]:
    """One element of each stream in every lap; `streams` are the laps in which they begin, and how
    many elements they have."""
    for lap in range(max((begins + length for begins, length in streams), default=0)):
        for stream, (begins, length) in enumerate(streams):
            if begins <= lap < begins + length:
                yield element(stream, lap - begins)


def interleave_inputs(plan: Dataset) -> Iterator[int]:
    """The elements of inputs in turn, as the local dataset has them; failures do not count."""
    assert plan.shape.turns is not None
    cycle, block, known = plan.shape.turns
    streams = 1 if known != UNKNOWN else plan.shape.streams
    every = count() if streams == ENDLESS else range(streams)
    waiting = (number for stream in every for number in plan.inputs_of(stream))
    slots: list[Iterator[int] | None] = [None] * cycle
    turn, more = 0, True
    while more or any(slots):
        while slots[turn] is None and more:
            number = next(waiting, -1)
            more = number >= 0
            if number in plan.unmade:
                yield element(number, 0)
            elif more:
                slots[turn] = map(partial(element, number), range(plan.length(number)))
        left = block if slots[turn] is not None else 0
        while left:
            value = next(slots[turn] or iter(()), -1)
            if value < 0:
                slots[turn] = None
                break
            left -= value not in plan.failing
            yield value
        turn = (turn + 1) % cycle


def lengths_of(plan: Dataset, streams: int) -> Iterator[tuple[int, int]]:
    stream = 0
    while streams == ENDLESS or stream < streams:
        yield stream, plan.length(stream)
        stream += 1


def share_of(length: int, consumers: int, consumer: int) -> int:
    """How many of `length` elements a consumer gets."""
    return len(range(consumer, length, consumers)) if consumers else length
