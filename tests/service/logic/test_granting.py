"""Leases: which reader gets which elements next, and when a job is finished."""

import pytest

from penstock.errors import AbortedError, DataLossError
from penstock.plan.shape import ENDLESS, Shape
from penstock.service.logic.granting import MOST_GRANTS
from penstock.service.protocol import timing
from penstock.service.protocol.messages import (
    ClientHeartbeatReply,
    Lease,
    LeaseReply,
    Leave,
    StreamRange,
)
from tests.service.logic.world import OFF, SINGLE, SPLIT, World


def reading(shape: Shape, *clients: str, workers: int = 1, **options: object) -> World:
    world = World()
    for number in range(workers):
        world.worker(f"w{number}")
    data = world.dataset(shape)
    for client in clients:
        world.open(client, data, **options)
    return world


def test_readers_get_disjoint_ranges() -> None:
    world = reading(Shape("random", length=25), "a", "b", workers=0)
    assert world.leases("a") == [(0, 0, 10)]
    assert world.leases("b") == [(0, 10, 20)]
    assert world.leases("a") == [(0, 20, 25)]


def test_the_same_number_gets_the_same_answer() -> None:
    world = reading(SPLIT, "a", workers=2)
    first = world.ask(Lease("a", 1, 10))
    assert world.ask(Lease("a", 1, 10)) == first
    assert world.ask(Lease("a", 2, 10)).grants != first.grants
    assert world.ask(Lease("a", 1, 10)) == LeaseReply(retry=timing.LEASE_RETRY)
    world.restart()
    assert world.ask(Lease("a", 2, 10)).grants


def test_an_empty_answer_stays_empty() -> None:
    world = reading(Shape("random", length=10), "a", "b")
    world.lease("a")
    assert world.ask(Lease("b", 1, 10)).retry
    world.ask(Leave("a"))
    assert world.ask(Lease("b", 1, 10)) == LeaseReply(retry=timing.LEASE_RETRY)
    assert world.ask(Lease("b", 2, 10)).grants


def test_at_least_one_element() -> None:
    assert reading(Shape("random"), "a").leases("a", 0) == [(0, 0, 1)]


def test_what_was_given_back_goes_first() -> None:
    world = reading(Shape("random", length=100), "a", "b")
    world.lease("a")
    world.ask(Leave("a", consumed=(StreamRange(0, 2, 4),)))
    assert world.leases("b", 5) == [(0, 0, 2), (0, 4, 7)]
    assert world.leases("b", 5) == [(0, 7, 10), (0, 10, 12)]


def test_not_too_many_pieces_at_once() -> None:
    world = reading(Shape("random", length=100), "a", "b")
    world.lease("a", 50)
    even = tuple(StreamRange(0, at, at + 1) for at in range(0, 50, 2))
    world.ask(Leave("a", consumed=even))
    assert world.leases("b", 50) == [(0, at, at + 1) for at in range(1, 2 * MOST_GRANTS, 2)]


def test_a_silent_reader_gives_back() -> None:
    world = reading(Shape("random", length=10), "a", "b")
    world.lease("a")
    world.wait(6.0)
    world.beat("b")
    world.wait(6.0)
    assert world.leases("b") == [(0, 0, 10)]


def test_an_empty_dataset_is_finished() -> None:
    world = reading(Shape("random", length=0), "a")
    assert world.lease("a") == LeaseReply(finished=True)
    assert world.record("a").is_finished
    world = reading(Shape("split", streams=0), "a")
    assert world.lease("a").finished
    assert world.record("a").is_finished


def test_one_reader_is_finished_with_all_in_its_hands() -> None:
    world = reading(Shape("random", length=10), "a")
    world.lease("a")
    assert world.lease("a").finished
    assert not world.record("a").is_finished


def test_other_readers_may_yet_give_elements_back() -> None:
    world = reading(Shape("random", length=10), "a", "b")
    world.lease("a")
    world.now += 0.1
    assert world.lease("b") == LeaseReply(retry=timing.LEASE_RETRY)
    world.now += 0.1
    assert world.lease("b") == LeaseReply(retry=timing.LEASE_RETRY)
    world.lives("a")
    assert world.lease("b") == LeaseReply(finished=True, shared=True)
    # "a" can still return its lease.
    world.ask(Leave("a"))
    assert world.leases("b") == [(0, 0, 10)]


def test_every_holder_must_have_been_heard_of() -> None:
    world = reading(Shape("random", length=20), "a", "b", "c")
    world.lease("a")
    world.lease("b")
    world.now += 0.1
    world.lease("c")
    world.now += 0.1
    world.lives("a")
    assert not world.lease("c").finished
    world.lives("b")
    assert world.lease("c").finished


def test_a_late_message_of_a_dead_reader_is_no_sign_of_life() -> None:
    world = reading(Shape("random", length=20), "a", "b")
    world.lease("a")
    version = world.beat("a").version
    assert world.leases("b") == [(0, 10, 20)]
    assert not world.lease("b").finished
    world.now += 0.1
    # All of these could have been sent before any reader waited.
    world.beat("a", version, consumed=(StreamRange(0, 0, 3),))
    world.ask(Lease("a", 1, 10))
    world.ask(Lease("a", 2, 10))
    assert not world.lease("b").finished
    world.beat("a", world.beat("a").version)
    assert world.lease("b").finished


def test_a_reader_that_knows_of_a_wait_does_not_get_the_lists_again() -> None:
    world = reading(Shape("random", length=10), "a", "b")
    world.lease("a")
    version = world.beat("a").version
    world.lease("b")
    called = world.beat("a", version)
    assert called.version > version
    assert called == ClientHeartbeatReply(called.version)
    assert world.beat("a", called.version) == called
    world.lease("b")
    assert world.beat("a", called.version) == called


def test_signs_of_life_of_before_a_restart_do_not_count() -> None:
    world = reading(Shape("random", length=10), "a", "b")
    world.lease("a")
    world.lease("b")
    version = world.beat("a").version
    world.restart()
    assert not world.lease("b").finished
    world.beat("a", version)
    assert not world.lease("b").finished
    world.lives("a")
    assert world.lease("b").finished


def test_a_repeated_request_may_report_more() -> None:
    world = reading(Shape("random", length=20), "a")
    world.lease("a")
    first = world.ask(Lease("a", 2, 10))
    assert world.ask(Lease("a", 2, 10, (StreamRange(0, 0, 10),))) == first
    assert world.state.group(world.state.clients["a"]).holders == {"a": 10}


def test_what_a_lost_reader_used_is_its_own_when_it_leaves() -> None:
    world = reading(Shape("random", length=20), "a", "b")
    world.lease("a")
    world.beat("a", consumed=(StreamRange(0, 0, 2),))
    world.wait(11.0)
    world.open("c", "1000")
    assert world.leases("c", 3) == [(0, 2, 5)]
    for _ in range(2):
        world.ask(Leave("a", consumed=(StreamRange(0, 0, 7),)))
        assert [list(ranges) for ranges in world.record("a").members["a"].consumed.values()] == [
            [(0, 2), (5, 7)]
        ]
    assert world.leases("c", 20) == [(0, 7, 10), (0, 10, 20)]
    with pytest.raises(AbortedError, match="reader a has left"):
        world.beat("a")


def test_a_reader_that_was_superseded_and_leaves_has_nothing() -> None:
    world = reading(Shape("random", length=20), "a")
    world.lease("a")
    world.wait(11.0)
    world.open("b", "1000", resumes=("a",))
    world.ask(Leave("a", consumed=(StreamRange(0, 0, 7),)))
    assert world.leases("b", 20) == [(0, 0, 10), (0, 10, 20)]


def test_the_end_of_a_stream_voids_what_lies_behind() -> None:
    world = reading(SINGLE, "a", "b")
    assert world.leases("a") == [(0, 0, 10)]
    assert world.leases("b") == [(0, 10, 20)]
    assert world.lease("b", ended=((0, 13),)) == LeaseReply(retry=timing.LEASE_RETRY)
    assert world.state.group(world.state.clients["b"]).holders == {"a": 10, "b": 3}
    world.beat("a", consumed=(StreamRange(0, 0, 10),))
    world.beat("b", consumed=(StreamRange(0, 10, 20),))
    assert world.record("a").is_finished
    assert world.lease("a").finished


def test_a_stream_has_one_length() -> None:
    world = reading(SINGLE, "a", "b")
    world.lease("a", ended=((0, 13),))
    world.beat("b", ended=((0, 13),))
    with pytest.raises(
        DataLossError, match="stream 0 of d/0 ended after 12 .* another reader got 13"
    ):
        world.beat("b", ended=((0, 12),))


def test_a_stream_does_not_end_before_what_was_consumed() -> None:
    world = reading(SINGLE, "a", "b")
    world.lease("a")
    world.beat("a", consumed=(StreamRange(0, 3, 8),))
    with pytest.raises(DataLossError, match="ended after 7 elements, but another reader got 8;"):
        world.beat("b", ended=((0, 7),))
    world.beat("b", ended=((0, 8),))


def test_what_is_consumed_behind_the_end_never_was() -> None:
    world = reading(SINGLE, "a")
    world.lease("a")
    world.beat("a", consumed=(StreamRange(0, 0, 10),), ended=((0, 8),))
    assert world.record("a").is_finished


def test_no_reader_consumes_what_other_readers_hold() -> None:
    world = reading(Shape("random", length=20), "a", "b")
    world.lease("a")
    world.beat("b", consumed=(StreamRange(0, 0, 10), StreamRange(5, 0, 10)))
    assert world.state.group(world.state.clients["b"]).holders == {"a": 10}


def test_pieces_are_leased_one_after_the_other() -> None:
    world = reading(SPLIT, "a")
    # One element of each later piece: workers begin them early.
    assert world.leases("a", 4) == [(0, 0, 4), (1, 0, 1), (2, 0, 1), (3, 0, 1)]
    assert world.leases("a", 4) == [(0, 4, 8)]
    assert world.leases("a", 4, ended=((0, 5),)) == [(1, 1, 5)]
    world.lease("a", 4, ended=((1, 0), (2, 0), (3, 0)))
    world.beat("a", consumed=(StreamRange(0, 0, 8),))
    assert world.lease("a").finished
    assert world.record("a").is_finished


def test_a_lease_continues_behind_streams_that_end() -> None:
    world = reading(SPLIT, "a")
    world.lease("a", 1)
    assert world.leases("a", 9, ended=((0, 3), (1, 2))) == [(0, 1, 3), (1, 1, 2), (2, 1, 7)]


def test_workers_have_a_stream_each_and_readers_one_of_their_own() -> None:
    world = reading(Shape("split", streams=20), "a", workers=2)
    grants = world.lease("a", 9).grants
    assert [(g.range.stream, g.worker) for g in grants] == [
        (stream, f"w{stream % 2}") for stream in range(MOST_GRANTS)
    ]
    world.open("b", "1000")
    assert world.leases("b", 4) == [(8, 0, 4), (9, 0, 1), (10, 0, 1), (11, 0, 1)]
    assert world.leases("a", 4) == [(0, 9, 13)]
    assert world.leases("b", 4, ended=((8, 2),)) == [(9, 1, 5), (12, 0, 1)]


def test_a_reader_takes_over_what_another_has_not_come_to() -> None:
    world = reading(SPLIT, "a", "b", "c")
    world.lease("a", 5)
    assert world.leases("b", 5) == [(1, 1, 6)]
    assert world.leases("c", 5, ended=((1, 6),)) == [(2, 1, 6)]
    assert world.leases("a", 5) == [(0, 5, 10)]
    assert world.leases("a", 5, ended=((0, 10),)) == [(2, 6, 11)]


def test_what_is_given_back_is_leased_in_its_place() -> None:
    world = reading(SPLIT, "a", "b")
    world.lease("a", 5)
    world.ask(Leave("a", consumed=(StreamRange(0, 0, 2), StreamRange(1, 0, 1)), ended=((2, 1),)))
    assert world.leases("b", 9) == [(0, 2, 5), (0, 5, 11), (1, 1, 2), (2, 0, 1), (3, 0, 1)]


def test_endless_streams() -> None:
    world = reading(Shape("split", ENDLESS), "a")
    assert world.leases("a", 1) == [(stream, 0, 1) for stream in range(MOST_GRANTS)]
    for stream in range(5):
        ahead = (stream + MOST_GRANTS, 0, 1)
        assert world.leases("a", 1, ended=((stream, 1),)) == [(stream + 1, 1, 2), ahead]
    assert not world.record("a").is_finished


def test_a_stream_that_all_have_read_is_no_load() -> None:
    world = reading(SINGLE, "a")
    world.read("a", 10)
    assert world.places("a") == {0: "w0"}
    world.lease("a", ended=((0, 10),))
    assert world.places("a") == {}
    assert not world.state.roster.workers["w0"].streams


def test_without_workers_nothing_of_a_stream_is_handed_out() -> None:
    world = reading(SINGLE, "a", workers=0)
    assert world.lease("a") == LeaseReply(retry=timing.LEASE_RETRY)
    world.worker("w")
    assert world.lease("a").grants[0].worker == "w"


def test_parallel_epochs_without_workers_are_not_finished() -> None:
    world = reading(Shape("random", length=10), "a", workers=0, mode=OFF)
    assert world.lease("a") == LeaseReply(retry=timing.LEASE_RETRY)
    world.worker("w")
    assert world.leases("a") == [(0, 0, 10)]


def test_parallel_epochs_are_shared() -> None:
    world = reading(SINGLE, "a", "b", workers=2, mode=OFF)
    grants = world.lease("a", 4).grants
    assert [(g.range, g.worker) for g in grants] == [
        (StreamRange(0, 0, 2), "w0"),
        (StreamRange(1, 0, 2), "w1"),
    ]
    assert world.leases("b", 4) == [(0, 2, 4), (1, 2, 4)]


def test_groups_of_a_cached_job_get_everything_each() -> None:
    world = World()
    world.worker("w")
    data = world.dataset(SINGLE)
    for client, group in (("a", "x"), ("b", "x"), ("c", "y")):
        world.open(client, data, cached=True, group=group)
    assert [world.leases(client) for client in "abc"] == [[(0, 0, 10)], [(0, 10, 20)], [(0, 0, 10)]]
    world.beat("c", ended=((0, 5),))
    assert world.state.group(world.state.clients["a"]).holders == {"a": 5}
    world.beat("c", consumed=(StreamRange(0, 0, 5),))
    assert world.places("a") == {0: "w"}
    assert world.lease("c").finished
    assert world.beat("a", consumed=(StreamRange(0, 0, 5),)).version
    assert world.places("a") == {}


def test_groups_do_not_matter_without_a_cache() -> None:
    world = World()
    data = world.dataset(Shape("random", length=20))
    world.open("a", data, group="x")
    world.open("b", data, group="y")
    assert [world.leases("a"), world.leases("b")] == [[(0, 0, 10)], [(0, 10, 20)]]


def test_where_streams_have_moved_is_news() -> None:
    world = reading(SPLIT, "a", workers=2)
    world.lease("a", 2)
    version = world.beat("a").version
    assert world.beat("a", version) == ClientHeartbeatReply(version)
    world.beat("a", version, lost=("w0",))
    news = world.beat("a", version)
    assert [(info.stream, info.worker) for info in news.streams] == [(at, "w1") for at in range(4)]
