"""Readers of a named job, and the dispatcher that leases: in which order elements come."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.plan.shape import Shape
from penstock.service.logic.client import Reading, claims_of
from penstock.service.logic.feeds import Limits
from penstock.service.protocol.data_messages import Done
from penstock.service.protocol.messages import (
    Grant,
    LeaseReply,
    OpenIterationReply,
    StreamRange,
    Work,
)
from tests.effort import examples
from tests.service.logic.test_client import Crew, Elements
from tests.service.logic.world import World

LENGTHS = st.lists(st.integers(0, 25), min_size=1, max_size=12)
LIMITS = st.sampled_from([Limits(), Limits(elements=1), Limits(elements=7), Limits(nbytes=2000)])


class Member:
    """One reader, and workers of its own."""

    def __init__(
        self, world: World, name: str, lengths: list[int], seed: int, limits: Limits, state: Any
    ) -> None:
        self.world, self.name = world, name
        data = world.dataset(Shape("split", streams=len(lengths)))
        claims = claims_of(state) if state is not None else {}
        claims.pop("merged", None)
        opened = world.open(name, data, **claims)
        self.reading = Reading(opened, Shape("split", len(lengths)), limits, state=state)
        self.crew = Crew(lengths, seed)
        for worker in self.crew.queues:
            self.reading.fetcher.join(worker)
        self.got: list[tuple[int, int]] = []

    def step(self, chance: random.Random) -> None:
        piece = self.reading.take(chance.randint(1, 9), self.world.now)
        if piece is None:
            self.wait()
        else:
            self.got += piece.addresses  # type: ignore[attr-defined]

    def wait(self) -> None:
        self.lease()
        self.crew.ask(self.reading.fetcher.asks())
        self.crew.step(self.reading.fetcher)
        self.world.now += 0.01

    def save(self) -> Any:
        """A state that determines the next element."""
        while not self.reading.over and not self.reading.sure():
            self.wait()
        return self.reading.state()

    def lease(self) -> None:
        want = self.reading.want(self.world.now)
        if not want:
            return
        consumed, ended = self.reading.report()
        told = {"consumed": tuple(consumed), "ended": tuple(ended.items())}
        self.reading.add_grants(self.world.lease(self.name, want, **told), self.world.now)

    def finish(self) -> None:
        consumed, ended = self.reading.report(everything=True)
        self.world.beat(self.name, consumed=tuple(consumed), ended=tuple(ended.items()))


def everything(lengths: list[int]) -> list[tuple[int, int]]:
    return [(stream, at) for stream, length in enumerate(lengths) for at in range(length)]


def world_of(workers: int) -> World:
    world = World(checked=False)
    for number in range(workers):
        world.worker(f"w{number}")
    return world


@examples(40)
@given(LENGTHS, LIMITS, st.integers(0, 1 << 30), st.integers(1, 12), st.data())
def test_a_single_reader_gets_the_local_order(
    lengths: list[int], limits: Limits, seed: int, workers: int, data: st.DataObject
) -> None:
    world, chance = world_of(workers), random.Random(seed)
    expected = everything(lengths)
    stop = data.draw(st.integers(0, len(expected)))
    member = Member(world, "a", lengths, seed, limits, None)
    while not member.reading.over and len(member.got) < stop:
        member.step(chance)
    count = len(member.got)
    state = member.save()
    again = Member(world_of(workers), "b", lengths, seed + 1, limits, state)
    for going in (again, member):
        while not going.reading.over:
            going.step(chance)
    assert member.got == expected
    assert expected[:count] + again.got == expected


@examples(40)
@given(LENGTHS, LIMITS, st.integers(0, 1 << 30), st.integers(2, 4))
def test_several_readers_get_every_element_once(
    lengths: list[int], limits: Limits, seed: int, readers: int
) -> None:
    world, chance = world_of(3), random.Random(seed)
    members = [Member(world, f"c{i}", lengths, seed + i, limits, None) for i in range(readers)]
    while going := [member for member in members if not member.reading.over]:
        chance.choice(going).step(chance)
        for member in members:
            world.lives(member.name)
    for member in members:
        member.finish()
        for stream in range(len(lengths)):
            positions = [at for other, at in member.got if other == stream]
            assert positions == sorted(positions)
    assert sorted(address for member in members for address in member.got) == everything(lengths)
    assert world.record("c0").is_finished


def leased_reading() -> Reading:
    opened = OpenIterationReply(Work("digest", "job", "split", 0, 9, 1, (0,)), True, 1, (), ())
    reading = Reading(opened, Shape("split", 9), Limits())
    reading.fetcher.join("w")
    return reading


def lease(reading: Reading, *spans: tuple[int, int, int]) -> None:
    reading.add_grants(LeaseReply(tuple(Grant(StreamRange(*span)) for span in spans)), 0.0)


def answer(reading: Reading, stream: int, count: int, length: int | None = None) -> None:
    """A worker makes `count` elements of a stream, whether they were requested or not."""
    for ask in reading.fetcher.asks():
        stop = min(ask.stop, count)
        if ask.feed.stream == stream and ask.at < stop:
            reading.fetcher.arrive(ask.request, ask.at, Elements(stream, ask.at, stop))
        reading.fetcher.done(Done(ask.request, length if ask.feed.stream == stream else None))


def test_what_follows_a_lease_is_made_but_not_handed_out() -> None:
    reading = leased_reading()
    lease(reading, (0, 0, 1), (1, 0, 1))
    answer(reading, 0, 1)
    assert len(reading.take(9, 0.0) or ()) == 1
    answer(reading, 0, 2)
    assert reading.take(9, 0.0) is None
    # It may not continue with stream 1: stream 0 may have more elements.
    answer(reading, 1, 1, 1)
    assert reading.take(9, 0.0) is None
    assert reading.state()["held"] == [[1, 0, 1]]
    lease(reading, (0, 1, 2))
    taken = reading.take(9, 0.0)
    assert isinstance(taken, Elements)
    assert taken.addresses == [(0, 1)]


def test_what_another_reader_got_is_dropped() -> None:
    reading = leased_reading()
    lease(reading, (0, 0, 1), (1, 0, 1))
    for _ in range(3):
        answer(reading, 0, 5)
    assert len(reading.take(9, 0.0) or ()) == 1
    lease(reading, (0, 7, 9))
    reading.fetcher.asks()
    assert reading.fetcher._here == reading.fetcher._buffered == 0
    assert reading.state()["held"] == [[0, 7, 9], [1, 0, 1]]
