"""Intervals follow the number of clients and workers, within what failure detection allows."""

import pytest

from penstock.service.logic.dispatcher import stamp_reply
from penstock.service.logic.state import Settings, intervals_of, worker_heartbeat
from penstock.service.protocol import timing
from penstock.service.protocol.messages import (
    FEW_CLIENTS,
    ClientHeartbeat,
    Intervals,
    Lease,
    OpenIteration,
    WorkerHeartbeat,
)
from tests.service.logic.world import World


def fleet(readers: int, workers: int = 1, settings: Settings | None = None) -> World:
    world = World(settings, checked=False)
    for number in range(workers):
        world.worker(f"w{number}")
    dataset = world.dataset()
    for number in range(readers):
        world.open(f"r{number}", dataset)
    return world


def intervals(world: World) -> Intervals:
    (record,) = world.state.iterations.values()
    return intervals_of(world.state, record)


def test_a_single_reader_has_the_shortest_intervals_which_cost_no_bytes() -> None:
    assert intervals(fleet(1)) is FEW_CLIENTS


def test_readers_of_a_small_service_call_as_often_as_one() -> None:
    assert intervals(fleet(50)) == Intervals(readers=50)


def test_a_thousand_readers_send_as_many_requests_as_one_dispatcher_handles() -> None:
    found = intervals(fleet(1000))
    assert 1000 / (found.heartbeat * timing.CLIENT_HEARTBEAT) == timing.HEARTBEATS
    assert 1000 / (found.leased_work * timing.LEASED_WORK) == timing.LEASES
    assert found.readers == 1000


def test_intervals_grow_no_longer_than_leases_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "HEARTBEATS", 0.001)
    monkeypatch.setattr(timing, "LEASES", 0.001)
    found = intervals(fleet(10))
    assert found.heartbeat * timing.CLIENT_HEARTBEAT == timing.LONGEST_CLIENT_HEARTBEAT
    assert found.leased_work * timing.LEASED_WORK == timing.LONGEST_LEASED_WORK
    found = intervals(fleet(10, settings=Settings(lease_seconds=5.0)))
    assert found.heartbeat * timing.CLIENT_HEARTBEAT == timing.LONGEST_CLIENT_HEARTBEAT / 2


def test_groups_that_share_a_cache_do_not_share_elements_among_each_other() -> None:
    world = World()
    world.worker("w")
    dataset = world.dataset()
    for number in range(6):
        world.open(f"r{number}", dataset, group=f"g{number % 2}", cached=True)
    assert intervals(world).readers == 3


def test_workers_learn_their_interval_with_each_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fleet(1, workers=10).ask(WorkerHeartbeat("w1")).heartbeat == 1.0
    monkeypatch.setattr(timing, "HEARTBEATS", 5.0)
    assert fleet(1, workers=10).ask(WorkerHeartbeat("w1")).heartbeat == 2.0
    monkeypatch.setattr(timing, "HEARTBEATS", 0.1)
    assert worker_heartbeat(fleet(1, workers=10).state) == timing.LONGEST_WORKER_HEARTBEAT
    soon = Settings(worker_timeout=timing.WORKER_TIMEOUT / 2)
    assert worker_heartbeat(fleet(1, 10, soon).state) == timing.LONGEST_WORKER_HEARTBEAT / 2


def test_every_reply_to_a_reader_has_its_intervals() -> None:
    world = fleet(2)
    (record,) = world.state.iterations.values()
    dataset, options = record.begun.dataset_id, record.options
    opening = OpenIteration("r2", "job", 0, dataset, options, 7, (1,), "h")
    for request, readers in (
        (Lease("r0", 1, 10), 2),
        (ClientHeartbeat("r0", 0), 2),
        (opening, 3),
    ):
        reply = stamp_reply(world.state, request, world.ask(request))
        assert reply.intervals.readers == readers
