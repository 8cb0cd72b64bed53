"""Places: which worker makes which stream, as workers join, leave, and cannot be reached."""

import pytest

from penstock.errors import InvalidArgumentError
from penstock.service.logic.state import Settings
from penstock.service.protocol.messages import Leave, LeaveWorker, StreamRange, WorkerHeartbeat
from tests.service.logic.world import DATA, OFF, SINGLE, SPLIT, World

EPOCHS = {"mode": OFF, "job": None}


def parallel(*workers: str, **options: object) -> World:
    world = World(Settings(worker_timeout=5.0))
    for worker in workers:
        world.worker(worker)
    world.open("c", world.dataset(), **(EPOCHS | options))
    return world


def test_every_worker_has_a_stream() -> None:
    assert parallel("u", "v").places("c") == {0: "u", 1: "v"}


def test_workers_that_join_add_one() -> None:
    world = parallel()
    for worker in "uvw":
        world.worker(worker)
    assert world.places("c") == {0: "u", 1: "v", 2: "w"}


def hosts(*listed: str, **workers: str) -> World:
    """A world with these workers; only the addresses of `listed` may serve, if it is given."""
    world = World(Settings(worker_addresses=listed, worker_timeout=5.0))
    for worker, address in workers.items():
        world.worker(worker, address)
    world.open("c", world.dataset(), mode=DATA, job=None)
    return world


def test_a_host_without_a_port_means_any_worker_there() -> None:
    world = hosts("h", "g", "h:%port%", "h:7", u="h:1", v="h:2", w="g:5", x="h:7")
    assert world.places("c") == {0: "u", 1: "w", 2: "v", 3: "x"}


def test_a_worker_of_a_listed_host_may_come_back_at_another_port() -> None:
    world = hosts("h", "g", u="h:1", w="g:5")
    world.ask(LeaveWorker("u"))
    assert world.places("c") == {0: "w", 1: "w"}
    world.worker("again", "h:2")
    assert world.places("c") == {0: "again", 1: "w"}


def test_a_listed_host_without_workers_is_stood_in_for() -> None:
    world = hosts("h", "g", w="g:5")
    assert world.places("c") == {0: "w", 1: "w"}
    world.worker("late", "h:3")
    assert world.places("c") == {0: "late", 1: "w"}


def test_no_streams_are_added_to_what_is_finished() -> None:
    world = parallel("u", job="job")
    world.read("c", 10)
    world.beat("c", ended=((0, 10),))
    assert world.record("c").is_finished
    world.worker("v")
    assert world.places("c") == {0: "u"}


def test_a_worker_that_leaves_hands_over() -> None:
    world = parallel("u", "v", "w")
    world.ask(LeaveWorker("u"))
    assert world.places("c") == {0: "v", 1: "v", 2: "w"}
    # Streams without an owner are adopted, and none is added.
    world.worker("x")
    assert world.places("c") == {0: "x", 1: "v", 2: "w"}
    world.worker("y")
    assert world.places("c") == {0: "x", 1: "v", 2: "w", 3: "y"}


def test_a_worker_that_comes_back_takes_what_was_its() -> None:
    world = parallel("u", "v")
    world.ask(LeaveWorker("u"))
    world.worker("u2", "u:1")
    assert world.places("c") == {0: "u2", 1: "v"}


def test_a_worker_that_replaces_another_makes_all_that_it_made() -> None:
    world = parallel("u", "v")
    world.ask(LeaveWorker("u"))
    world.worker("v2", "v:1")
    assert world.places("c") == {0: "v2", 1: "v2"}


def test_streams_wait_when_no_worker_is_left() -> None:
    world = parallel("u", "v")
    world.wait(6.0)
    world.beat("c")
    assert world.places("c") == {0: None, 1: None}
    world.worker("x")
    assert world.places("c") == {0: "x", 1: "x"}
    world.worker("y")
    assert world.places("c") == {0: "x", 1: "y"}


def test_workers_that_time_out_together_do_not_inherit_from_each_other() -> None:
    world = parallel("u", "v")
    world.wait(4.0)
    world.worker("w")
    world.beat("c")
    world.wait(4.0)
    assert world.places("c") == {0: "w", 1: "w", 2: "w"}


def test_a_worker_that_a_client_cannot_reach_gets_nothing_new() -> None:
    world = parallel("u", "v")
    world.beat("c", lost=("u", "nobody"))
    assert world.places("c") == {0: "v", 1: "v"}
    world.open("d", world.dataset(SINGLE), job="job")
    assert world.lease("d").grants[0].worker == "v"
    world.beat("c", lost=("u",))
    world.ask(WorkerHeartbeat("u"))
    world.open("e", world.dataset(SINGLE), job="other")
    assert world.lease("e").grants[0].worker == "u"


def test_the_only_worker_keeps_its_streams_though_it_is_suspected() -> None:
    world = parallel("u")
    world.beat("c", lost=("u",))
    assert world.places("c") == {0: "u"}
    world.open("d", world.dataset(SPLIT), job=None, mode=OFF)
    assert world.places("d") == {0: "u"}


def test_a_draining_worker_hands_over_and_is_offered_no_more() -> None:
    world = parallel("u", "v")
    world.ask(WorkerHeartbeat("u", draining=True))
    world.ask(WorkerHeartbeat("u", draining=True))
    assert world.places("c") == {0: "v", 1: "v"}
    assert [info.worker for info in world.beat("c").workers] == ["v"]
    world.ask(LeaveWorker("v"))
    # A worker that will leave is better than none.
    assert [info.worker for info in world.beat("c").workers] == ["u"]


def test_leased_streams_move_with_their_workers() -> None:
    world = World()
    for worker in "uvw":
        world.worker(worker)
    world.open("a", world.dataset(SPLIT))
    world.lease("a", 3)
    assert world.places("a") == {0: "u", 1: "v", 2: "w", 3: "u"}
    world.ask(LeaveWorker("u"))
    assert world.places("a") == {0: "v", 1: "v", 2: "w", 3: "w"}
    world.ask(LeaveWorker("v"))
    world.ask(LeaveWorker("w"))
    assert world.places("a") == {}
    world.worker("x")
    assert world.lease("a").grants[0].worker == "x"


def test_an_iteration_without_readers_is_no_load() -> None:
    world = parallel("u", "v", job="job")
    world.ask(Leave("c"))
    assert not world.state.roster.workers["u"].streams
    world.ask(LeaveWorker("u"))
    world.worker("w")
    world.open("d", "1000", mode=OFF)
    assert world.places("d") == {0: "w", 1: "v"}


def test_slots_of_a_saved_state_exist_with_fewer_workers_too() -> None:
    world = World()
    world.worker("u")
    data = world.dataset(SINGLE)
    world.open("c", data, mode=OFF, consumed=(StreamRange(2, 0, 5),))
    assert world.places("c") == {0: "u", 1: "u", 2: "u"}
    world.worker("v")
    assert world.places("c") == {0: "u", 1: "v", 2: "u"}
    world.open("d", data, mode=OFF, finished=((4, 9),))
    assert world.places("c") == {0: "u", 1: "v", 2: "u", 3: "v", 4: "u"}


def test_shares_are_as_many_as_there_were_workers() -> None:
    world = World()
    world.worker("u")
    world.worker("v")
    world.open("c", world.dataset(SPLIT), job=None, per_worker=True)
    world.worker("w")
    assert world.places("c") == {0: "u", 1: "v"}
    world.ask(LeaveWorker("u"))
    world.worker("x")
    assert world.places("c") == {0: "x", 1: "v"}


def local(world: World, client: str, host: str, **more: object) -> None:
    world.open(client, "1000", host=host, target="LOCAL", **more)


def test_local_readers_have_local_streams() -> None:
    world = World()
    for worker in "uvw":
        world.worker(worker, host=worker)
    world.dataset(SINGLE)
    local(world, "a", "u", mode=OFF)
    assert world.places("a") == {0: "u"}
    world.worker("x", host="v")
    assert world.places("a") == {0: "u"}
    local(world, "b", "v", mode=OFF)
    assert world.places("a") == {0: "u", 1: "v", 2: "x"}
    world.ask(LeaveWorker("x"))
    assert world.places("a") == {0: "u", 1: "v", 2: "u"}


def test_local_readers_get_leases_of_local_workers() -> None:
    world = World()
    for worker in "uv":
        world.worker(worker, host=worker)
    world.dataset(SINGLE)
    local(world, "a", "u")
    local(world, "b", "v")
    assert world.lease("a").grants[0].worker == "u"
    assert world.lease("b").grants[0].worker == "v"


def test_a_local_stream_does_not_leave_its_host() -> None:
    world = World()
    for worker, host in (("u", "here"), ("v", "there"), ("w", "here")):
        world.worker(worker, host=host)
    world.dataset(SINGLE)
    local(world, "a", "here", mode=OFF)
    world.open("b", "1000", job=None, mode=OFF)
    # The worker on the other host has less to do, but is not chosen.
    world.ask(LeaveWorker("u"))
    assert world.places("a") == {0: "w", 1: "w"}
    world.ask(LeaveWorker("w"))
    assert world.places("a") == {0: None, 1: None}


def shares(*workers: tuple[str, str, str]) -> World:
    """Workers by name, address and host; the dispatcher lists two on `h` and one on `g`."""
    world = World(Settings(worker_addresses=("h", "g", "h"), worker_timeout=5.0))
    for worker, address, host in workers:
        world.worker(worker, address, host=host)
    world.dataset()
    return world


def test_a_local_reader_of_parts_has_the_parts_of_its_host() -> None:
    world = shares(("u", "h:1", "here"), ("v", "g:1", "there"), ("w", "h:2", "here"))
    local(world, "a", "here", mode=DATA, job=None)
    local(world, "b", "there", mode=DATA, job=None)
    assert world.places("a") == {0: "u", 2: "w"}
    assert world.places("b") == {1: "v"}
    world.ask(LeaveWorker("u"))
    assert world.places("a") == {0: "w", 2: "w"}
    world.worker("again", "h:1", host="here")
    assert world.places("a") == {0: "again", 2: "w"}


def test_local_readers_of_one_job_share_all_parts() -> None:
    world = shares(("u", "h:1", "here"), ("v", "g:1", "there"))
    local(world, "a", "here", mode=DATA)
    assert set(world.places("a")) == {0, 1, 2}


def test_a_local_reader_of_parts_that_resumes_has_the_parts_of_its_state() -> None:
    world = shares(("u", "h:1", "here"), ("v", "g:1", "there"))
    local(world, "a", "there", mode=DATA, job=None, begins=(0,))
    assert world.places("a") == {0: "v"}
    world.worker("late", "h:2", host="there")
    assert world.places("a") == {0: "late"}


def test_a_local_reader_of_parts_needs_a_listed_worker_on_its_host() -> None:
    world = shares()
    with pytest.raises(InvalidArgumentError, match=r"\"LOCAL\" reads .* none of the 3 listed"):
        local(world, "a", "here", mode=DATA, job=None)
