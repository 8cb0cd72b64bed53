"""What a dispatcher counts for its metrics."""

from penstock.service.logic.dispatcher import decide, tick
from penstock.service.logic.status import Tally
from penstock.service.protocol.messages import (
    ClientHeartbeat,
    Leave,
    LeaveWorker,
    Request,
    WorkerHeartbeat,
    WorkStatus,
)
from tests.service.logic.world import SPLIT, World


def count(world: World, tally: Tally, request: Request) -> None:
    for fact in decide(world.state, request, world.now).facts:
        world.state.apply(fact, world.now)
        tally.count(fact)


def count_expired(world: World, tally: Tally) -> None:
    facts = tick(world.state, world.now)
    for fact in facts:
        world.state.apply(fact, world.now)
        tally.count(fact)
    tally.count_expired(facts)


def test_what_readers_and_workers_report_is_added_up() -> None:
    world, tally = World(), Tally()
    world.worker("w")
    world.open("a", world.dataset(SPLIT))
    for _ in range(2):
        count(world, tally, ClientHeartbeat("a", 0, elements=4, waited=0.5, seconds=2.0))
        count(world, tally, WorkerHeartbeat("w", (WorkStatus("d/0", 10, 1.5),)))
    count(world, tally, Leave("a", elements=3, waited=0.25, seconds=1.0))
    assert tally == Tally(
        elements_handed_out=11,
        reader_wait_seconds=1.25,
        reader_seconds=5.0,
        elements_made=20,
        making_seconds=3.0,
        readers_gone=1,
    )


def test_a_repeated_farewell_counts_once() -> None:
    world, tally = World(), Tally()
    world.worker("w")
    world.open("a", world.dataset(SPLIT))
    for _ in range(2):
        count(world, tally, Leave("a", elements=3))
    assert (tally.elements_handed_out, tally.readers_gone) == (3, 1)


def test_workers_that_leave_are_not_lost() -> None:
    world, tally = World(), Tally()
    for worker in "uv":
        world.worker(worker)
    count(world, tally, LeaveWorker("u"))
    assert (tally.workers_gone, tally.workers_lost) == (1, 0)
    world.now += 1000.0
    count_expired(world, tally)
    assert (tally.workers_gone, tally.workers_lost) == (2, 1)


def test_silent_readers_are_lost() -> None:
    world, tally = World(), Tally()
    world.worker("w")
    world.open("a", world.dataset(SPLIT))
    world.now += 1000.0
    count_expired(world, tally)
    assert (tally.readers_gone, tally.readers_lost) == (1, 1)
