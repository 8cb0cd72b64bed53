"""Which datasets and workers the dispatcher accepts, and when it removes datasets and jobs."""

import msgspec
import pytest

from penstock.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from penstock.plan.shape import Shape
from penstock.service.logic.dispatcher import REPETITIONS, snapshot
from penstock.service.logic.state import Settings
from penstock.service.protocol import timing
from penstock.service.protocol.messages import (
    ForgetJobs,
    ForgetJobsReply,
    GetDataset,
    JobOptions,
    LastFact,
    Leave,
    LeaveWorker,
    Ok,
    OpenIteration,
    RegisterDataset,
    RegisterWorker,
    StreamRange,
    WorkerHeartbeat,
    WorkerHeartbeatReply,
    WorkerInfo,
)
from tests.service.logic.world import RANDOM, SPLIT, World


def registration(**changes: object) -> RegisterDataset:
    given: dict = {
        "digest": "a",
        "structure": "range",
        "spec": b"int",
        "shape": Shape("random", length=4),
        "cardinality": 4,
    }
    return RegisterDataset(**(given | changes))


def test_every_registration_gets_an_id_of_its_own() -> None:
    world = World()
    ids = [world.ask(registration(request=name)).dataset_id for name in ("x", "y", "x")]
    assert ids == ["1000", "1001", "1000"]
    assert world.ask(GetDataset("1001")).digest == "a"


def test_a_running_number_that_a_client_chose_is_left_out() -> None:
    world = World()
    world.ask(registration(dataset_id="1000"))
    ids = [world.ask(registration()).dataset_id for _ in range(2)]
    assert ids == ["1001", "1002"]


def test_an_empty_id_is_none() -> None:
    assert World().ask(registration(dataset_id="")).dataset_id == "1000"


@pytest.mark.parametrize("change", [{}, {"digest": "b"}, {"cardinality": 5, "request": "again"}])
def test_a_chosen_id_may_come_again(change: dict) -> None:
    world = World()
    world.ask(registration(dataset_id="mine"))
    assert world.ask(registration(dataset_id="mine", **change)).dataset_id == "mine"


@pytest.mark.parametrize(
    "change",
    [
        {"structure": "map"},
        {"spec": b"str"},
        {"digest": "b", "cardinality": 9},
        {"digest": "b", "shape": SPLIT},
    ],
)
def test_a_chosen_id_stays_with_its_dataset(change: dict) -> None:
    world = World()
    world.ask(registration(dataset_id="mine"))
    with pytest.raises(InvalidArgumentError, match="register_dataset: another dataset .* 'mine'"):
        world.ask(registration(dataset_id="mine", **change))


def test_an_unknown_dataset() -> None:
    with pytest.raises(NotFoundError, match="from_dataset_id: the dispatcher knows no .* 'zzz'"):
        World().ask(GetDataset("zzz"))
    with pytest.raises(NotFoundError, match="service.distribute: the dispatcher knows no"):
        World().open("c", "zzz")


def test_workers_with_another_python_are_refused() -> None:
    world = World(Settings(python="3.11"))
    info = WorkerInfo("w", "w:1", "h", version="0.9")
    message = "w:1: it has Python 3.9 and the dispatcher has 3.11; run the same"
    with pytest.raises(FailedPreconditionError, match=message):
        world.ask(RegisterWorker(info, "3.9"))
    assert world.ask(RegisterWorker(info, "3.11")) == Ok()


def test_a_worker_that_is_not_on_the_list_is_refused() -> None:
    world = World(Settings(worker_addresses=("a:1", "b:1")))
    world.worker("w", "a:1")
    with pytest.raises(FailedPreconditionError, match=r"x:1: this address is not .*\(a:1, b:1\)"):
        world.worker("v", "x:1")


@pytest.mark.parametrize("address", ["host:1", "host:%port%", "hosts:1", "[::1]:5", "host"])
def test_workers_must_be_at_listed_addresses_or_hosts(address) -> None:
    world = World(Settings(worker_addresses=("host", "[::1]")))
    if address in ("host:1", "host", "[::1]:5"):
        world.worker("w", address)
    else:
        with pytest.raises(FailedPreconditionError, match="is not among .* worker_addresses"):
            world.worker("w", address)


def test_a_worker_may_register_twice() -> None:
    world = World()
    world.worker("w")
    version = world.state.roster.version
    world.worker("w")
    assert world.state.roster.version == version


def test_a_worker_that_moves_keeps_its_name() -> None:
    world = World()
    world.worker("w", "a:1")
    world.worker("w", "b:1")
    assert world.state.roster.addresses == {"b:1": "w"}


def test_a_worker_replaces_the_one_at_its_address() -> None:
    world = World()
    world.worker("old", "a:1")
    world.worker("new", "a:1")
    assert list(world.state.roster.workers) == ["new"]
    assert world.ask(WorkerHeartbeat("old")) == WorkerHeartbeatReply(False)


def test_a_silent_worker_is_gone() -> None:
    world = World(Settings(worker_timeout=5.0))
    world.worker("w")
    world.worker("v")
    world.wait(4.0)
    world.ask(WorkerHeartbeat("w"))
    world.wait(4.0)
    assert list(world.state.roster.workers) == ["w"]


def test_a_worker_may_leave_twice() -> None:
    world = World()
    world.worker("w")
    assert world.ask(LeaveWorker("w")) == Ok()
    assert world.ask(LeaveWorker("w")) == Ok()
    assert not world.state.roster.workers


def test_workers_learn_which_jobs_are_read() -> None:
    world = World()
    world.worker("w")
    jobs = [world.open(name, world.dataset(), job=name).work.job for name in "ab"]
    assert world.ask(WorkerHeartbeat("w")) == WorkerHeartbeatReply(True, tuple(jobs))
    world.wait(60.0)
    assert world.ask(WorkerHeartbeat("w")) == WorkerHeartbeatReply(True, ())


def test_a_dispatcher_that_has_just_started_does_not_know_which_jobs_are_read() -> None:
    world = World(Settings(started=95.0, worker_timeout=60.0))
    world.worker("w")
    assert world.ask(WorkerHeartbeat("w")) == WorkerHeartbeatReply(True, None)
    world.wait(9.0)
    assert world.ask(WorkerHeartbeat("w")) == WorkerHeartbeatReply(True, ())


def register_dataset(world: World, digest: str = "digest", lasting: bool = False) -> str:
    request = RegisterDataset(digest, "s", b"spec", RANDOM, 100, request=digest, lasting=lasting)
    return world.ask(request).dataset_id


def read(world: World, client: str, data: str, repetition: int = 0, **more: object) -> None:
    world.open(client, data, repetition=repetition, **more)
    world.read(client, 100)
    world.ask(Leave(client))


def test_an_anonymous_job_goes_at_once_with_its_dataset() -> None:
    world = World()
    before = snapshot(world.state)
    for number in range(5):
        data = register_dataset(world, f"digest{number}")
        world.open(f"c{number}", data, job=None)
        assert not world.state.orphans
        world.ask(Leave(f"c{number}"))
        assert list(world.state.orphans) == [f"digest{number}"]
        world.state.orphans.clear()
    assert snapshot(world.state)[:-1] == before[:-1]
    assert not world.state.requests
    with pytest.raises(NotFoundError, match="knows no dataset '1004'"):
        world.open("late", data, job=None)


def test_a_dataset_stays_that_the_user_registered_or_another_one_reads() -> None:
    world = World()
    kept, shared = register_dataset(world, "kept", lasting=True), register_dataset(world, "shared")
    for client, data in (("a", kept), ("b", shared), ("c", shared)):
        world.open(client, data, job=None)
    world.ask(Leave("a"))
    world.ask(Leave("b"))
    assert {kept, shared} == set(world.state.datasets)
    world.compact()
    world.restart()
    assert {kept, shared} == set(world.state.datasets)
    world.ask(Leave("c"))
    assert {kept} == set(world.state.datasets)


def test_a_plan_goes_with_its_last_dataset() -> None:
    world = World()
    one, two = register_dataset(world, lasting=True), register_dataset(world, "other")
    again = world.ask(RegisterDataset("other", "s", b"spec", RANDOM, 100, lasting=False))
    world.open("a", two, job=None)
    world.ask(Leave("a"))
    assert not world.state.orphans
    world.wait(timing.UNREAD_DATASET)
    assert list(world.state.orphans) == ["other"]
    assert again.dataset_id not in world.state.datasets
    assert one in world.state.datasets


def test_a_dataset_that_was_never_read_expires() -> None:
    world = World()
    data = register_dataset(world)
    world.wait(timing.UNREAD_DATASET - 1)
    assert data in world.state.datasets
    world.wait(1)
    assert not world.state.datasets
    assert register_dataset(world) != data


def test_named_jobs_are_forgotten_some_time_after_they_were_read_to_their_end() -> None:
    world = World(Settings(forget_after=100.0, worker_timeout=1e6, lease_seconds=1e6))
    data = register_dataset(world)
    read(world, "a", data)
    world.open("b", data, job="unfinished")
    world.read("b", 50)
    world.ask(Leave("b"))
    world.open("c", data, job="slow")
    world.read("c", 100)
    world.wait(99.0)
    assert {name for name, _ in world.state.jobs} == {"job", "unfinished", "slow"}
    world.wait(1.0)
    assert {name for name, _ in world.state.jobs} == {"unfinished", "slow"}
    assert data in world.state.datasets


def many_repetitions() -> tuple[World, str]:
    world = World()
    data = world.dataset()
    for number in range(REPETITIONS + 3):
        read(world, f"a{number}", data, number, program="a")
        world.wait(0.1)
    return world, data


def test_of_many_repetitions_the_last_ones_are_remembered() -> None:
    world, _ = many_repetitions()
    [job] = world.state.jobs.values()
    assert sorted(job.iterations) == list(range(3, REPETITIONS + 3))
    assert list(job.over) == [(0, 3)]
    world.compact()
    world.restart()
    [job] = world.state.jobs.values()
    assert list(job.over) == [(0, 3)]


def test_a_repetition_that_was_forgotten_is_not_read_again() -> None:
    world, data = many_repetitions()
    with pytest.raises(FailedPreconditionError, match="repetition 1 of this job was read to its"):
        world.open("again", data, repetition=1, program="again")
    opened = world.open("late", data, repetition=1, program="a")
    assert "gets nothing of it" in opened.warning
    assert world.lease("late").finished
    assert world.open("endless", data, endless=True).repetition == REPETITIONS + 3


def test_a_state_of_a_repetition_that_was_forgotten_is_refused() -> None:
    world, data = many_repetitions()
    with pytest.raises(FailedPreconditionError, match="restore the state under another job_name"):
        world.open("b", data, repetition=2, resumes=("a2",), consumed=(StreamRange(0, 0, 10),))
    opened = world.open("b", data, "other", resumes=("a2",), consumed=(StreamRange(0, 0, 10),))
    assert opened.repetition == 0
    assert world.leases("b", 100) == [(0, 10, 100)]


def test_a_reader_that_was_away_for_very_long_does_not_begin_anew() -> None:
    world = World(Settings(forget_after=100.0))
    data = world.dataset()
    world.open("slept", data)
    world.wait(11.0)
    read(world, "b", data)
    world.wait(100.0)
    [life] = world.state.lives
    back = OpenIteration(
        *("back", "job", 0, data, JobOptions(1), 7, (1,)),
        resumes=("slept",),
        last=LastFact(life, 4),
    )
    with pytest.raises(FailedPreconditionError, match="job 'job' has been forgotten meanwhile"):
        world.ask(back)
    # A dispatcher that has lost the job learns of it again from its reader.
    lost = msgspec.structs.replace(back, last=LastFact(life, world.state.facts + 1))
    assert world.ask(lost).work.job


def test_users_have_jobs_forgotten() -> None:
    world = World()
    data = world.dataset()
    read(world, "a", data, job="one")
    world.open("b", data, job="two")
    read(world, "c", data, job="three")
    with pytest.raises(NotFoundError, match="no job 'four'; it knows 'one', 'three', 'two'"):
        world.ask(ForgetJobs("four"))
    with pytest.raises(FailedPreconditionError, match="1 clients read job 'two'; stop them first"):
        world.ask(ForgetJobs("two"))
    assert world.ask(ForgetJobs("one")) == ForgetJobsReply(("one",))
    read(world, "d", data, job="one", program="new")
    assert world.ask(ForgetJobs()) == ForgetJobsReply(("one", "three"), ("two",))
    assert {name for name, _ in world.state.jobs} == {"two"}
