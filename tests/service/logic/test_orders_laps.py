"""Workers join coordinated reads: all consumers agree on the lap in which a new stream begins."""

from __future__ import annotations

import random
from typing import Any

import pytest

from penstock.errors import DataLossError, FailedPreconditionError
from penstock.plan.shape import Shape
from penstock.service.logic.client import Reading, known_streams
from penstock.service.logic.dispatcher import snapshot
from penstock.service.logic.feeds import Limits
from penstock.service.logic.orders import Laps, RoundRobinOrder
from penstock.service.protocol.messages import (
    AT_END,
    UNDECIDED,
    ClientHeartbeatReply,
    Leave,
    OpenIterationReply,
    StreamInfo,
    Work,
)
from tests.service.logic.world import OFF, World


def build_world(**more: Any) -> World:
    """Two consumers that read from one worker."""
    world = World()
    world.worker("v")
    data = world.dataset()
    for consumer, client in enumerate("ab"):
        world.open(client, data, mode=OFF, consumer=consumer, consumers=2, **more)
    return world


def laps_of(world: World) -> list[int]:
    return [info.begins for info in world.record("a").streams()]


def promise(world: World, **limits: int) -> None:
    """Consumers confirm the dispatcher's latest version, each with its limit."""
    for client, limit in limits.items():
        world.beat(client, world.beat(client).version, limit=limit)


class TestAgreement:
    def test_a_stream_begins_behind_all_limits(self) -> None:
        world = build_world()
        assert not world.beat("a").joining
        world.worker("w")
        assert laps_of(world) == [0, UNDECIDED]
        assert world.beat("a").joining
        promise(world, a=5)
        assert laps_of(world) == [0, UNDECIDED]
        promise(world, b=8)
        assert laps_of(world) == [0, 8]
        assert world.places("a") == {0: "v", 1: "w"}
        told = world.beat("a")
        assert not told.joining
        assert told.streams == (StreamInfo(0, "v", 0), StreamInfo(1, "w", 8))

    def test_several_workers_may_join_at_once_and_later(self) -> None:
        world = build_world()
        world.worker("w")
        world.worker("x")
        promise(world, a=3, b=2)
        assert laps_of(world) == [0, 3, 3]
        world.worker("y")
        promise(world, a=9, b=9)
        assert laps_of(world) == [0, 3, 3, 9]

    def test_streams_without_an_owner_come_first(self) -> None:
        world = World()
        data = world.dataset()
        world.open("a", data, mode=OFF, consumer=0, consumers=1)
        world.worker("v")
        assert laps_of(world) == [0]
        world.worker("w")
        assert laps_of(world) == [0, UNDECIDED]

    def test_only_copies_are_added(self) -> None:
        world = World()
        world.worker("v")
        world.open("a", world.dataset(), consumer=0, consumers=1)
        before = laps_of(world)
        world.worker("w")
        assert laps_of(world) == before
        assert not world.beat("a").joining

    @pytest.mark.parametrize("late", ["before", "after"])
    def test_a_promise_is_void_when_a_consumer_was_away(self, late: str) -> None:
        world = build_world()
        world.worker("w")
        version = world.beat("a").version
        if late == "before":
            world.beat("a", version, limit=5)
        world.ask(Leave("b"))
        assert not world.beat("a").joining
        world.open("c", world.record("a").begun.dataset_id, mode=OFF, consumer=1, consumers=2)
        assert world.beat("a").joining
        if late == "after":
            world.beat("a", version, limit=5)
        promise(world, c=2)
        assert laps_of(world) == [0, UNDECIDED]
        promise(world, a=7)
        assert laps_of(world) == [0, 7]

    def test_nothing_is_agreed_on_without_all_consumers(self) -> None:
        world = build_world()
        world.ask(Leave("b"))
        world.worker("w")
        assert not world.beat("a").joining
        promise(world, a=4)
        assert laps_of(world) == [0, UNDECIDED]

    def test_no_stream_begins_after_the_end_of_a_consumer(self) -> None:
        world = build_world()
        world.worker("w")
        promise(world, a=4)
        promise(world, b=AT_END)
        assert not world.beat("a").joining
        promise(world, a=6)
        assert laps_of(world) == [0, UNDECIDED]

    def test_a_dispatcher_that_was_killed_knows_what_was_agreed_on(self) -> None:
        world = build_world()
        world.worker("w")
        promise(world, a=5)
        world.restart()
        promise(world, b=8)
        assert laps_of(world) == [0, UNDECIDED], "the promise of a was to one that is gone"
        promise(world, a=6)
        assert laps_of(world) == [0, 8]
        world.restart()
        assert laps_of(world) == [0, 8]
        world.compact()
        before = snapshot(world.state)
        assert snapshot(world.replay_journal()) == before

    def test_a_stream_keeps_its_lap_wherever_it_is_made(self) -> None:
        world = build_world()
        world.worker("w")
        promise(world, a=5, b=5)
        world.beat("a", lost=("w",))
        assert world.places("a") == {0: "v", 1: "v"}
        assert laps_of(world) == [0, 5]
        world.worker("x", address="w:1")
        assert world.places("a") == {0: "v", 1: "x"}
        assert laps_of(world) == [0, 5]

    def test_a_dispatcher_that_lost_its_state_gets_the_laps_again(self) -> None:
        """The first consumer that returns does not know the last stream."""
        world = World()
        world.worker("v")
        data = world.dataset()
        reads = {"mode": OFF, "consumers": 2}
        opened = world.open("a", data, consumer=0, begins=(0, 0), **reads)
        assert not opened.ready
        world.worker("w")
        opened = world.open("b", data, consumer=1, begins=(0, 0, 7), **reads)
        assert opened.ready
        assert [info.begins for info in opened.streams] == [0, 0, 7]
        assert laps_of(world) == [0, 0, 7]
        assert [info.begins for info in world.beat("a").streams] == [0, 0, 7]

    def test_what_waits_begins_where_a_consumer_says(self) -> None:
        world = build_world()
        data = world.record("a").begun.dataset_id
        world.worker("w")
        world.open("c", data, mode=OFF, consumer=1, consumers=2, begins=(0, 4))
        assert laps_of(world) == [0, 4]
        assert world.places("a") == {0: "v", 1: "w"}

    def test_states_of_different_runs_do_not_fit(self) -> None:
        world = build_world()
        data = world.record("a").begun.dataset_id
        world.worker("w")
        promise(world, a=5, b=5)
        with pytest.raises(FailedPreconditionError, match="stream 1 .* begins in lap 4, and in"):
            world.open("c", data, mode=OFF, consumer=1, consumers=2, begins=(0, 4))

    def test_a_restored_read_has_the_streams_of_its_state(self) -> None:
        """The same holds if there are more workers now than when the state was saved."""
        world = World()
        data = world.dataset()
        for name in "vwx":
            world.worker(name)
        world.open("a", data, mode=OFF, consumer=0, consumers=1, begins=(0, 7))
        assert laps_of(world) == [0, 7]
        world.ask(Leave("a"))
        world.worker("y")
        world.open("b", data, mode=OFF, consumer=0, consumers=1, begins=(0, 7))
        assert [info.begins for info in world.record("b").streams()] == [0, 7]


def open_reply(*begins: int, joining: bool = False) -> OpenIterationReply:
    streams = tuple(StreamInfo(i, f"w{i}", lap) for i, lap in enumerate(begins))
    work = Work("plan", "d/0", "whole", 0, 2, 7, (1,), consumers=2)
    return OpenIterationReply(work, False, 1, (), streams, joining=joining)


class TestLaps:
    def test_a_promise_holds_until_streams_join_no_more(self) -> None:
        laps = Laps(open_reply(0), 3)
        assert laps.enter(4)
        laps.apply_reply(ClientHeartbeatReply(2, joining=True))
        assert laps.limit == 5
        laps.release()
        assert not laps.enter(5)
        laps.apply_reply(ClientHeartbeatReply(3))
        assert not laps.enter(5), "the reader may not know yet what was agreed on"
        laps.release()
        assert laps.enter(5)

    def test_the_limit_is_two_beats_ahead(self) -> None:
        laps = Laps(open_reply(0), 0)
        laps.enter(10)
        laps.note_heartbeat()
        laps.enter(30)
        laps.note_heartbeat()
        laps.apply_reply(ClientHeartbeatReply(2, joining=True))
        assert laps.limit == 30 + 1 + 2 * 20

    def test_a_consumer_that_promised_does_not_end(self) -> None:
        laps = Laps(open_reply(0, joining=True), 3)
        assert not laps.try_end()
        laps.apply_reply(ClientHeartbeatReply(2))
        laps.release()
        assert laps.try_end()

    def test_a_consumer_that_ended_promises_nothing(self) -> None:
        laps = Laps(open_reply(0), 3)
        assert laps.try_end()
        laps.apply_reply(ClientHeartbeatReply(2, joining=True))
        laps.release()
        assert laps.limit == AT_END
        assert laps.try_end()


def reading(laps: tuple[int, ...], state: Any = None) -> Reading:
    return Reading(open_reply(*laps), Shape("single"), Limits(), state=state, consumer=0)


def order_of(made: Reading) -> RoundRobinOrder:
    assert isinstance(made.fetcher.order, RoundRobinOrder)
    return made.fetcher.order


def take(made: Reading, lengths: tuple[int, ...], most: int) -> list[tuple[int, int, int]]:
    """Lap, stream and ordinal of the next `count` elements."""
    order, found = order_of(made), []
    while len(found) < most and (feed := order.turn()) is not None:
        if feed.next == lengths[feed.stream]:
            feed.end(feed.next)
            continue
        found.append((order.lap, feed.stream, feed.next))
        feed.next += 1
        order.note_taken(feed, 1)
    return found


def list_expected(laps: tuple[int, ...], lengths: tuple[int, ...]) -> list[tuple[int, int, int]]:
    return [
        (lap, stream, lap - begins)
        for lap in range(100)
        for stream, begins in enumerate(laps)
        if 0 <= lap - begins < lengths[stream]
    ]


class TestTurns:
    @pytest.mark.parametrize("laps", [(0, 0, 2), (0, 3, 3), (0, 0, 20), (0, 1, 2, 9)])
    def test_a_stream_has_turns_from_its_lap_on(self, laps: tuple[int, ...]) -> None:
        lengths = (5, 3, 4, 2)
        whole = take(reading(laps), lengths, 100)
        assert whole == list_expected(laps, lengths)

    @pytest.mark.parametrize("seed", range(20))
    def test_streams_are_added_and_states_are_exact(self, seed: int) -> None:
        """Each place is restored from the last state before it, as prefetched elements are."""
        draw = random.Random(seed)
        laps = (0, *sorted(draw.choices(range(1, 9), k=2)))
        lengths = tuple(draw.choices(range(7), k=3))
        whole = list_expected(laps, lengths)
        made, told, place, saved, known = reading(laps[:1]), 1, 0, 0, None
        later: list[Any] = []
        while place < len(whole):
            while told < 3 and (laps[told] <= whole[place][0] or draw.random() < 0.2):
                told += 1
                made.set_streams(open_reply(*laps[:told]).streams)
            if draw.random() < 0.3:
                later.clear()
                known, saved = made.state(lambda make: later.append(make)), place
            assert take(made, lengths, 1) == [whole[place]]
            place += 1
            if known is not None:
                state = {"order": {**known["order"], "begins": later[0]()}}
                again = reading(laps[: len(state["order"]["begins"])], state)
                assert take(again, lengths, place - saved) == whole[saved:place]
                assert known_streams(state)["begins"] == laps[:told]

    def test_a_stream_may_begin_before_the_lap_that_comes_next(self) -> None:
        """All streams but one have ended, and that one begins later; a new stream joins."""
        laps, lengths = (0, 9, 6), (3, 4, 2)
        whole, made = list_expected(laps, lengths), reading(laps[:2])
        assert take(made, lengths, 3) == whole[:3]
        order = order_of(made)
        first = order.turn()
        assert first is not None
        first.end(3)
        assert order.turn() is not first
        assert made.lap == 9
        made.set_streams(open_reply(*laps).streams)
        assert take(made, lengths, 100) == whole[3:]

    def test_what_begins_later_is_asked_of_its_own_worker_only(self) -> None:
        made = reading((0, 0, 2))
        reader = made.fetcher
        reader.join("w0")
        reader.join("w1")
        assert {ask.feed.stream for ask in reader.asks()} == {0, 1}
        reader.join("w2")
        assert {(ask.worker, ask.feed.stream) for ask in reader.asks()} == {("w2", 2)}

    @pytest.mark.parametrize("news", [(0, 0), (0, 0, 3, 3), (0, 0, 2)])
    def test_what_was_agreed_on_is_not_lost_in_silence(self, news: tuple[int, ...]) -> None:
        made = reading((0, 0, 3))
        take(made, (9, 9, 9), 11)
        assert made.lap == 4
        with pytest.raises(DataLossError, match="has lost what the consumers agreed on"):
            made.set_streams(open_reply(*news).streams)


def test_elements_of_an_earlier_lap_are_needed_first() -> None:
    order = RoundRobinOrder(block=2)
    order.add(2, {})
    order.extend((0, 0, 3))
    first, _, late = order.upcoming()
    assert [order.find_turn(first, ordinal) for ordinal in range(5)] == [0, 0, 1, 1, 2]
    assert [order.find_turn(late, ordinal) for ordinal in range(3)] == [3, 3, 4]
