"""Datasets and workers: who is known, under which name, and who is refused."""

import pytest

from penstock.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from penstock.plan.shape import Shape
from penstock.service.logic.dispatcher import Settings
from penstock.service.protocol.messages import (
    PROTOCOL,
    GetDataset,
    LeaveWorker,
    Ok,
    RegisterDataset,
    RegisterWorker,
    WorkerBeat,
    WorkerBeaten,
    WorkerInfo,
)
from tests.service.logic.world import SPLIT, World


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


def test_a_running_number_that_somebody_chose_is_left_out() -> None:
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"protocol": 99}, "w:1: it has protocol 99 and the dispatcher has 1"),
        ({"python": "3.9"}, "it has Python 3.9 and the dispatcher has 3.11; run the same"),
        ({"version": "0"}, "it has penstock 0 and the dispatcher has 1.0"),
    ],
)
def test_workers_of_other_versions_are_refused(change: dict, message: str) -> None:
    world = World(Settings(python="3.11", version="1.0"))
    given = {"protocol": PROTOCOL, "python": "3.11", "version": "1.0"}
    info = WorkerInfo("w", "w:1", "h")
    with pytest.raises(FailedPreconditionError, match=message):
        world.ask(RegisterWorker(info, **(given | change)))
    assert world.ask(RegisterWorker(info, **given)) == Ok()


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
    assert world.ask(WorkerBeat("old")) == WorkerBeaten(False)


def test_a_silent_worker_is_gone() -> None:
    world = World(Settings(worker_timeout=5.0))
    world.worker("w")
    world.worker("v")
    world.wait(4.0)
    world.ask(WorkerBeat("w"))
    world.wait(4.0)
    assert list(world.state.roster.workers) == ["w"]


def test_a_worker_may_leave_twice() -> None:
    world = World()
    world.worker("w")
    assert world.ask(LeaveWorker("w")) == Ok()
    assert world.ask(LeaveWorker("w")) == Ok()
    assert not world.state.roster.workers


def test_workers_learn_what_goes_on() -> None:
    world = World()
    world.worker("w")
    jobs = [world.open(name, world.dataset(), job=name).work.job for name in "ab"]
    assert world.ask(WorkerBeat("w")) == WorkerBeaten(True, tuple(jobs))
    world.wait(60.0)
    assert world.ask(WorkerBeat("w")) == WorkerBeaten(True, ())


def test_a_dispatcher_that_has_just_come_up_does_not_know_what_goes_on() -> None:
    world = World(Settings(started=95.0, worker_timeout=60.0))
    world.worker("w")
    assert world.ask(WorkerBeat("w")) == WorkerBeaten(True, None)
    world.wait(9.0)
    assert world.ask(WorkerBeat("w")) == WorkerBeaten(True, ())
