"""Forgetting: what goes when nobody reads it any more, and what stays for those who come back."""

import msgspec
import pytest

from penstock.errors import FailedPreconditionError, NotFoundError
from penstock.service.logic.dispatcher import Settings, snapshot
from penstock.service.logic.forgetting import REPETITIONS
from penstock.service.protocol import timing
from penstock.service.protocol.messages import (
    Address,
    Forget,
    JobOptions,
    JobsForgotten,
    LastFact,
    Leave,
    OpenIteration,
    RegisterDataset,
)
from tests.service.logic.world import RANDOM, World


def registered(world: World, digest: str = "digest", lasting: bool = False) -> str:
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
        data = registered(world, f"digest{number}")
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
    kept, shared = registered(world, "kept", lasting=True), registered(world, "shared")
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
    one, two = registered(world, lasting=True), registered(world, "other")
    again = world.ask(RegisterDataset("other", "s", b"spec", RANDOM, 100, lasting=False))
    world.open("a", two, job=None)
    world.ask(Leave("a"))
    assert not world.state.orphans
    world.wait(timing.UNREAD_DATASET)
    assert list(world.state.orphans) == ["other"]
    assert again.dataset_id not in world.state.datasets
    assert one in world.state.datasets


def test_a_dataset_that_nobody_began_to_read_goes_after_a_while() -> None:
    world = World()
    data = registered(world)
    world.wait(timing.UNREAD_DATASET - 1)
    assert data in world.state.datasets
    world.wait(1)
    assert not world.state.datasets
    assert registered(world) != data


def test_named_jobs_are_forgotten_some_time_after_they_were_read_to_their_end() -> None:
    world = World(Settings(forget_after=100.0, worker_timeout=1e6, lease_seconds=1e6))
    data = registered(world)
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
        world.open("b", data, repetition=2, resumes=("a2",), consumed=(Address(0, 0, 10),))
    opened = world.open("b", data, "other", resumes=("a2",), consumed=(Address(0, 0, 10),))
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
    # A dispatcher that has lost what it told the reader learns of the job again.
    lost = msgspec.structs.replace(back, last=LastFact(life, world.state.facts + 1))
    assert world.ask(lost).work.job


def test_users_have_jobs_forgotten() -> None:
    world = World()
    data = world.dataset()
    read(world, "a", data, job="one")
    world.open("b", data, job="two")
    read(world, "c", data, job="three")
    with pytest.raises(NotFoundError, match="no job 'four'; it knows 'one', 'three', 'two'"):
        world.ask(Forget("four"))
    with pytest.raises(FailedPreconditionError, match="1 clients read job 'two'; stop them first"):
        world.ask(Forget("two"))
    assert world.ask(Forget("one")) == JobsForgotten(("one",))
    read(world, "d", data, job="one", program="new")
    assert world.ask(Forget()) == JobsForgotten(("one", "three"), ("two",))
    assert {name for name, _ in world.state.jobs} == {"two"}
