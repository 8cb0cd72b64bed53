"""Elements of several inputs come in the turns of `interleave`, from any worker."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import NotFoundError
from penstock.plan.shape import TURN_WIDTH, Shape
from penstock.service.logic.client import Reading
from penstock.service.logic.feeds import Ask, Failure, Limits
from penstock.service.logic.fetching import Fetcher
from penstock.service.logic.interleave_order import InputFeed, PlacedChunk
from penstock.service.protocol.data_messages import Done
from penstock.service.protocol.messages import OpenIterationReply, Work

Input = list[list[str]] | None
"""The rows of each place of an input; None for an input that cannot be opened."""


class Rows(list[str]):
    """A chunk of elements, as strings."""

    @property
    def nbytes(self) -> int:
        return 8 * len(self)

    def rows(self, start: int, stop: int) -> Rows:
        return Rows(self[start:stop])


def local(inputs: list[Input], cycle: int, block: int) -> list[str]:
    """The elements in the order of a local `interleave`."""
    waiting, found = iter(enumerate(inputs)), []
    slots: list[Any] = [None] * cycle
    turn, more = 0, True
    while more or any(slots):
        while slots[turn] is None and more:
            number, made = next(waiting, (-1, None))
            more = number >= 0
            if more and made is None:
                found.append(f"{number} failed")
            elif more:
                slots[turn] = iter(made or [])
        for _ in range(block if slots[turn] is not None else 0):
            rows = next(slots[turn], None)
            if rows is None:
                slots[turn] = None
                break
            found += rows
        turn = (turn + 1) % cycle
    return found


class Crew:
    """Workers that answer late, in parts, or get lost; a share of the chunks arrives `damaged`."""

    def __init__(
        self, streams: list[list[Input]], seed: int, damaged: float = 0.0, seconds: float = 0.0
    ) -> None:
        self.damaged = damaged
        self.seconds = seconds
        """The seconds per element that workers report."""
        self.streams = streams
        self.random = random.Random(seed)
        self.queues: dict[str, list[Ask]] = {"w0": [], "w1": [], "w2": []}
        self.names = 3

    def elements(self, feed: InputFeed) -> tuple[list[tuple[int, str]], tuple[int, ...]]:
        """Places and elements of a feed, and the lengths of its inputs."""
        first, count = feed.inputs
        found, lengths = [], []
        for index, made in enumerate(self.streams[feed.stream][first : first + count]):
            lengths.append(-1 if made is None else len(made))
            if made is None:
                number = sum(map(len, self.streams[: feed.stream])) + first + index
                found.append((index * TURN_WIDTH, f"{number} failed"))
            for place, rows in enumerate(made or ()):
                found += [(index * TURN_WIDTH + 2 * place + 1, row) for row in rows]
        return found, tuple(lengths)

    def step(self, reader: Fetcher) -> None:
        for ask in reader.asks():
            self.queues[ask.worker].append(ask)
        if self.random.random() < 0.03:
            victim = self.random.choice(list(self.queues))
            del self.queues[victim]
            reader.lose(victim)
            self.names += 1
            self.queues[f"w{self.names}"] = []
            reader.join(f"w{self.names}")
        worker = self.random.choice(list(self.queues))
        if self.queues[worker]:
            self.answer(reader, self.queues[worker])

    def answer(self, reader: Fetcher, queue: list[Ask]) -> None:
        ask = queue[0]
        assert isinstance(ask.feed, InputFeed)
        elements, lengths = self.elements(ask.feed)
        stop = min(ask.stop, len(elements), ask.at + self.random.randint(1, 4))
        damaged = self.random.random() < self.damaged
        if ask.at < stop and not damaged:
            self.send(reader, ask, elements[ask.at : stop])
            if self.random.random() < 0.5:
                return  # The worker may be lost before it sends the end of this request.
        if damaged or ask.at >= min(ask.stop, len(elements)):
            queue.pop(0)
            ends = len(elements) <= ask.stop
            length = len(elements) if ends else None
            reader.done(Done(ask.request, length, None, None, lengths if ends else None))

    def send(self, reader: Fetcher, ask: Ask, elements: list[tuple[int, str]]) -> None:
        """Sends rows up to a failure, or one failure."""
        good = [not row.endswith("failed") for _, row in elements]
        count = good.index(False) if not all(good) else len(good)
        rows: Any = Rows(row for _, row in elements[:count])
        if not count:
            rows, count = Failure(ValueError(elements[0][1])), 1
        places = np.array([place for place, _ in elements[:count]])
        reader.arrive(ask.request, ask.at, PlacedChunk(rows, places), count * self.seconds)


def reading_of(
    streams: list[list[Input]], turns: tuple[int, int, int], limits: Limits, state: Any = None
) -> Reading:
    work = Work("digest", "job", "split", 0, len(streams), 1, (0,))
    shape = Shape("split", len(streams), -2, turns)
    return Reading(OpenIterationReply(work, False, 1, (), ()), shape, limits, True, state)


def read(reading: Reading, crew: Crew, count: int = 1 << 30) -> list[str]:
    for worker in crew.queues:
        reading.fetcher.join(worker)
    got: list[str] = []
    pauses = 0
    while not reading.over and len(got) < count:
        parts = reading.take_turns(min(count - len(got), crew.random.randint(1, 9)))
        for part in parts:
            got += [str(part.error)] if isinstance(part, Failure) else part  # type: ignore[arg-type]
        pauses = 0 if parts else pauses + 1
        assert pauses < 10_000, "it waits for what it has not requested"
        if not parts:
            crew.step(reading.fetcher)
    return got


places = st.lists(st.lists(st.sampled_from("abc"), max_size=3), max_size=9)
inputs = st.one_of(st.none(), places, st.just([["x"]] * 60))


@settings(max_examples=100, deadline=None)
@given(
    streams=st.lists(st.lists(inputs, max_size=6), max_size=5),
    cycle=st.integers(2, 4),
    block=st.integers(1, 3),
    known=st.booleans(),
    limits=st.sampled_from([Limits(), Limits(elements=1), Limits(nbytes=200), Limits(elements=9)]),
    seed=st.integers(0, 1 << 30),
    data=st.data(),
)
def test_turns_are_those_of_the_local_dataset(
    streams: list[list[Input]],
    cycle: int,
    block: int,
    known: bool,
    limits: Limits,
    seed: int,
    data: st.DataObject,
) -> None:
    whole = [made for stream in streams for made in stream]
    expected = local(whole, cycle, block)
    streams = [whole] if known else streams
    turns = (cycle, block, len(whole) if known else -2)
    reading = reading_of(streams, turns, limits)
    count = data.draw(st.integers(0, len(expected)))
    before = read(reading, Crew(streams, seed, damaged=0.05), count)
    again = reading_of(streams, turns, limits, reading.state())
    assert before + read(again, Crew(streams, seed + 1, damaged=0.05)) == expected
    again.fetcher.asks()
    assert again.fetcher._here == again.fetcher._buffered == 0


def test_no_input_is_asked_for_twice() -> None:
    """The same holds if a group of inputs was split, and a later input was requested alone."""
    whole: list[Input] = [*[None] * 13, [["x"]] * 60, None]
    for seed in range(20):
        reading = reading_of([whole], (2, 1, len(whole)), Limits())
        assert read(reading, Crew([whole], seed)) == local(whole, 2, 1)
        reading.fetcher.asks()
        assert reading.fetcher._here == 0


def test_short_inputs_share_a_stream() -> None:
    whole: list[Input] = [[["a"], ["b"]]] * 2000
    crew = Crew([whole], 3)
    reading = reading_of([whole], (2, 1, len(whole)), Limits())
    asked = 0
    join = reading.fetcher.asks

    def count_asks() -> list[Ask]:
        nonlocal asked
        asks = join()
        asked += len(asks)
        return asks

    reading.fetcher.asks = count_asks  # type: ignore[method-assign]
    assert len(read(reading, crew)) == 4000
    assert asked < 200


@pytest.mark.parametrize(("seconds", "shares"), [(0.0001, True), (0.05, False)])
def test_inputs_of_slow_elements_do_not_share_a_stream(seconds: float, shares: bool) -> None:
    """No element of inputs that share a stream is handed out before all of them have arrived."""
    whole: list[Input] = [[["a"], ["b"]]] * 200
    reading = reading_of([whole], (2, 1, len(whole)), Limits())
    inputs, asks = set(), reading.fetcher.asks

    def note_inputs() -> list[Ask]:
        made = asks()
        inputs.update(ask.feed.inputs[1] for ask in made if isinstance(ask.feed, InputFeed))
        return made

    reading.fetcher.asks = note_inputs  # type: ignore[method-assign]
    assert len(read(reading, Crew([whole], 3, seconds=seconds))) == 400
    assert (max(inputs) > 1) == shares


def most_waiting(whole: list[Input], limits: Limits) -> int:
    """The most elements that were received or requested at any time."""
    crew = Crew([whole], 3)
    reading = reading_of([whole], (2, 1, len(whole)), limits)
    reader, asks, most = reading.fetcher, reading.fetcher.asks, 0

    def note_most() -> list[Ask]:
        nonlocal most
        made = asks()
        most = max(most, reader._here + reader._owed)
        return made

    reader.asks = note_most  # type: ignore[method-assign]
    assert read(reading, crew) == local(whole, 2, 1)
    return most


def test_short_inputs_of_large_elements_wait_within_limits() -> None:
    assert most_waiting([[["a"]]] * 500, Limits(nbytes=320)) <= 60


def test_elements_of_unknown_size_are_asked_for_one_by_one() -> None:
    empty: list[Input] = [[]]
    assert most_waiting(empty * 500 + [[["a"]] * 20], Limits(nbytes=320)) <= 60


def test_failures_do_not_make_elements_small() -> None:
    failing: Input = [["a"], *([["failed"]] * 6)]
    assert most_waiting([failing] * 100, Limits(nbytes=320)) <= 60


def test_endless_inputs_are_asked_for_while_there_is_room() -> None:
    endless = ((2, 1, -1), 1), ((2, 1, -2), -1)
    for turns, streams in endless:
        work = Work("digest", "job", "split", 0, streams, 1, (0,))
        shape = Shape("split", streams, -2, turns)
        opened = OpenIterationReply(work, False, 1, (), ())
        reading = Reading(opened, shape, Limits(elements=20), True, None)
        for number in range(9):
            reading.fetcher.join(f"w{number}")
        assert 2 <= len(reading.fetcher.asks()) <= 20


def test_an_input_that_no_worker_can_make_is_one_failure() -> None:
    reading = reading_of([[[["a"]], [["b"]]]], (2, 1, 2), Limits())
    reading.fetcher.join("w")
    asks = reading.fetcher.asks()
    reading.fetcher.refuse(asks[0].request, NotFoundError("gone"), elsewhere=False)
    (failure,) = reading.take_turns(5)
    assert isinstance(failure, Failure)
