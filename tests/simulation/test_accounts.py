"""Accounts: which histories they accept, and which faults they find."""

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import FailedPreconditionError
from penstock.plan.shape import Shape
from penstock.service.logic.feeds import Limits
from penstock.service.logic.leases import Group, Ranges, Track
from penstock.service.protocol.messages import JobOptions
from tests.simulation.accounts import settle
from tests.simulation.clients import Client
from tests.simulation.kernel import Violation
from tests.simulation.plans import Dataset
from tests.simulation.trainers import DEAD, LEFT, MERGED, READING, Job, SavedState, Trainer

JOB = Job("job", Dataset("plan", Shape("random", 1, 9), (9,), 0.0), JobOptions(1), True, Limits())


def dispatcher(**consumed: list[int]) -> Any:
    """A dispatcher that knows these consumed elements of clients, and no other leases."""
    group = Group({})
    reached = max(value + 1 for values in consumed.values() for value in values)
    group.tracks[0] = Track(reached)
    members = {
        client: SimpleNamespace(consumed={0: Ranges((value, value + 1) for value in values)})
        for client, values in consumed.items()
    }
    work = SimpleNamespace(job="d/0")
    record = SimpleNamespace(groups={"": group}, members=members, work=work)
    jobs = {("job", ""): SimpleNamespace(iterations={0: "d/0"})}
    state = SimpleNamespace(jobs=jobs, iterations={"d/0": record}, clients={})
    return SimpleNamespace(state=state, late={})


def lives(name: str, status: str, history: list[int], **more: Any) -> Trainer:
    return Trainer(name, JOB, enough=9, status=status, history=history, clients=[name], **more)


def readings(doubtful: set[int]) -> tuple[Any, list[Trainer]]:
    """A reader counts as dead and another gets its elements; a third resumes from its state."""
    first = lives("first", MERGED, [0, 1], doubtful=doubtful)
    other = lives("other", LEFT, [1, 2])
    third = lives("third", LEFT, [3], merged=SavedState({}, (0, 1)))
    known = dispatcher(first=[0, 1], other=[1, 2], third=[3])
    return known, [first, other, third]


def test_what_a_lost_reader_had_got_may_be_in_a_merged_state_and_elsewhere() -> None:
    settle(*readings({1}))


def test_nothing_else_is_in_a_merged_state_and_elsewhere() -> None:
    with pytest.raises(Violation, match=r"delivered twice: \[\(0, 1\)\]"):
        settle(*readings(set()))


def test_only_readers_that_outlived_lost_facts_may_be_refused() -> None:
    error = FailedPreconditionError("repetition 0 was begun anew, with other random numbers")
    reader: Any = SimpleNamespace(
        name="first#0", trainer=lives("first", READING, [], outlived=True)
    )
    assert Client._judge_refusal(reader, None, error) == DEAD
    reader.trainer.outlived = False
    with pytest.raises(Violation, match="first#0 fails with .*begun anew"):
        Client._judge_refusal(reader, None, error)
