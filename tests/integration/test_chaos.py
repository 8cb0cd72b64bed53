"""A short chaos run: a service that is killed, frozen and cut off loses and repeats no element.

`scripts/chaos` runs many more of these.
"""

from itertools import pairwise
from pathlib import Path

import pytest

from tests.integration.chaos.__main__ import arguments
from tests.integration.chaos.client import EVERY
from tests.integration.chaos.plans import PLANS
from tests.integration.chaos.programs import PENSTOCK
from tests.integration.chaos.scenario import Scenario
from tests.integration.chaos.schedule import KINDS, Event, schedule

PACE = 0.005

LATE = 2 * EVERY
"""Elements for which an event may wait: a client that will be restarted needs a state."""

SCENARIOS = {
    "batches": (Event(20, "worker", 0, 10), Event(50, "cut"), Event(70, "crash"),
                Event(90, "dispatcher", 0, 10)),
    "files": (Event(20, "worker", 1, 60), Event(120, "client"), Event(180, "everything", 0, 20)),
    "generator": (
        *(Event(20, "worker", 0, 40), Event(100, "crash")),
        *(Event(200, "client"), Event(240, "partition", 0, 40)),
    ),
    "parallel_epochs": (
        *(Event(20, "worker", 0, 60), Event(120, "strangers", 0, 150)),
        *(Event(300, "everything", 0, 20), Event(400, "damage", 0, 100)),
    ),
    "shared": (Event(15, "client", 0), Event(40, "worker", 1, 5), Event(50, "dispatcher", 0, 5),
               Event(60, "crash")),
    "shared_unseeded": (Event(40, "sleep", 1, 60), Event(200, "client", 1)),
    "shared_files": (Event(30, "full", 0, 40), Event(60, "client", 1), Event(120, "freeze", 1, 30)),
}  # fmt: skip


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_is_lost_and_nothing_comes_twice(name: str, tmp_path: Path) -> None:
    events = SCENARIOS[name]
    outcome = Scenario(PENSTOCK, tmp_path, PLANS[name], events, n=480, pace=PACE).run()
    assert (outcome.missing, outcome.problem) == ((), "")
    assert outcome.once, f"{outcome.duplicated} came twice"
    assert outcome.ended
    assert outcome.in_order
    assert outcome.happened == len(events)
    assert outcome.late <= LATE


def test_a_schedule_follows_from_its_seed() -> None:
    first, again, other = (schedule(seed, 1000, 5) for seed in (1, 1, 2))
    assert first == again != other
    assert all(early.at < late.at for early, late in pairwise(first))
    assert {event.kind for event in schedule(3, 10_000, 100)} == set(KINDS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nothing", "no plan 'nothing'; there are batches, shuffled, files"),
        ("batches --kinds fire", "--kinds: no kind 'fire'; there are worker, dispatcher"),
    ],
)
def test_nonsense_is_refused(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        arguments(words.split())
    assert message in capsys.readouterr().err
