"""What the status of a dispatcher contains."""

import json
import re
from pathlib import Path

import pytest

from penstock.plan.shape import ENDLESS, Shape
from penstock.service.logic.dispatcher_records import Roster
from penstock.service.logic.facts import WorkerGone
from penstock.service.logic.status import STATUS_VERSION, Timeline, status
from penstock.service.protocol.messages import (
    ClientHeartbeat,
    StreamRange,
    WorkerHeartbeat,
    WorkerInfo,
    WorkStatus,
)
from tests.service.logic.world import DYNAMIC, OFF, RANDOM, SINGLE, SPLIT, World


def test_a_status_is_plain_data() -> None:
    world = World()
    world.worker("w", host="here")
    world.open("a", world.dataset(SPLIT))
    world.lease("a", 10)
    world.ask(
        ClientHeartbeat(
            "a", 0, consumed=(StreamRange(0, 0, 4),), elements=4, waited=0.5, seconds=2.0
        )
    )
    world.now += 5.0
    done = WorkStatus("d/0", 10, 1.0, buffered=77, nbytes=5000)
    world.ask(WorkerHeartbeat("w", (done,), restarts=3))
    world.now += 3.0
    told = status(world.state, world.now)
    assert json.loads(json.dumps(told)) == told
    assert told["workers"] == [
        {
            "worker": "w",
            "address": "w:1",
            "host": "here",
            "transfers": {},
            "tags": [],
            "version": "",
            "streams": 4,
            "rate": 2.0,
            "byte_rate": 1000.0,
            "busy": pytest.approx(0.2),
            "buffered": 77,
            "restarts": 3,
            "last_seen": 3.0,
            "state": "here",
        }
    ]
    job = told["jobs"][0]
    assert (job["name"], job["repetition"], job["mode"], job["clients"]) == ("job", 0, "DYNAMIC", 1)
    assert (job["streams"], job["leased"], job["consumed"]) == (4, 9, 4)
    assert (job["rate"], job["lag"], job["finished"]) == (2.0, 0.25, False)
    assert (job["byte_rate"], job["limit"]) == (1000.0, "wire")
    assert told["readers"] == [
        {
            "client": "a",
            "job": "d/0",
            "host": "h",
            "consumer": -1,
            "consumed": 4,
            "rate": 2.0,
            "held": 0,
            "budget": 0,
            "lag": 0.25,
            "last_seen": 8.0,
        }
    ]
    assert told["datasets"][0]["dataset_id"] == "1000"


TYPES = {
    "boolean": bool,
    "integer": int,
    "list": list,
    "object": dict,
    "number": float,
    "string": str,
    "string or null": str | None,
}


def test_workers_that_were_idle_before_a_reader_came_are_not_taken_for_a_slow_network():
    world = World()
    world.worker("w")
    for _ in range(5):
        world.now += 1.0
        world.ask(WorkerHeartbeat("w", ()))
    world.open("a", world.dataset(SPLIT))
    limits = []
    for _ in range(6):
        world.now += 1.0
        world.ask(WorkerHeartbeat("w", (WorkStatus("d/0", 10, 0.5, buffered=0, nbytes=5000),)))
        world.ask(ClientHeartbeat("a", 0, elements=10, waited=1.0, seconds=1.0))
        limits.append(status(world.state, world.now)["jobs"][0]["limit"])
    assert limits == ["unknown"] * 4 + ["wire"] * 2


def test_the_page_describes_every_field() -> None:
    page = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z_]+(?:\[\]\.[a-z_]+)?)` \| ([a-z ]+) \|", page, re.MULTILINE)
    world = World()
    world.worker("w")
    world.open("a", world.dataset(SPLIT))
    world.ask(ClientHeartbeat("a", 0, elements=4, waited=0.5, seconds=2.0))
    world.ask(WorkerHeartbeat("w", (WorkStatus("d/0", 10, 1.0),)))
    line = Timeline()
    line.record(world.state, WorkerGone("w"), 0.5)
    told = status(world.state, world.now) | {"events": line.as_rows()}
    fields = dict(told)
    for table in ("workers", "jobs", "readers", "datasets", "events"):
        (row,) = told[table]
        fields |= {f"{table}[].{name}": value for name, value in row.items()}
    assert told["status_version"] == STATUS_VERSION == 1
    assert sorted(name for name, _ in rows) == sorted(fields)
    wrong = [(name, kind) for name, kind in rows if not isinstance(fields[name], TYPES[kind])]
    assert wrong == []


def test_states_of_workers() -> None:
    world = World()
    for worker in "uvw":
        world.worker(worker)
    world.open("a", world.dataset(), None, OFF)
    world.beat("a", lost=("v",))
    world.ask(WorkerHeartbeat("w", draining=True))
    states = [worker["state"] for worker in status(world.state, world.now)["workers"]]
    assert states == ["here", "suspected", "draining"]


@pytest.mark.parametrize(
    ("elements", "seconds", "waited", "wanted"),
    [
        (0, 0.0, 0.0, 1),  # nothing is known yet
        (10, 10.0, 0.0, 1),  # never waits, and one worker makes 2 in a second
        (60, 10.0, 0.0, 3),  # what is used now must be made
        (60, 10.0, 5.0, 6),  # half of the time it waits
        (60, 10.0, 10.0, 150),  # it does nothing but wait
    ],
)
def test_how_many_workers_could_be_used(elements, seconds, waited, wanted) -> None:
    world = World()
    world.worker("w")
    assert status(world.state, world.now)["wanted_workers"] == 0
    world.open("a", world.dataset(RANDOM))
    assert status(world.state, world.now)["wanted_workers"] == 1
    world.ask(WorkerHeartbeat("w", (WorkStatus("d/0", 20, 10.0), WorkStatus("d/7", 1, 1.0))))
    world.ask(ClientHeartbeat("a", 0, elements=elements, waited=waited, seconds=seconds))
    assert status(world.state, world.now)["wanted_workers"] == wanted


@pytest.mark.parametrize(
    ("shape", "mode", "most"),
    [
        (SINGLE, DYNAMIC, 1),  # one worker makes all of it
        (SPLIT, DYNAMIC, 4),  # each of the four streams is made by one worker
        (Shape("split", streams=ENDLESS), DYNAMIC, 50),
        (RANDOM, DYNAMIC, 50),
        (SINGLE, OFF, 50),  # every worker makes all of it
    ],
)
def test_no_more_workers_are_wanted_than_can_divide_a_job(shape, mode, most) -> None:
    world = World()
    world.worker("w")
    world.open("a", world.dataset(shape), None, mode)
    world.now += 10.0
    world.ask(WorkerHeartbeat("w", (WorkStatus("d/0", 10, 10.0),)))
    world.ask(ClientHeartbeat("a", 0, elements=10, waited=10.0, seconds=10.0))
    assert status(world.state, world.now)["wanted_workers"] == most


@pytest.mark.parametrize(("busy", "wanted"), [(9.0, 18), (4.0, 2)])
def test_no_more_workers_are_wanted_while_those_that_are_here_are_idle(busy, wanted) -> None:
    """The clients do not wait for workers, but for the network, for example."""
    world = World()
    world.open("a", world.dataset(RANDOM))
    for worker in "uvwxyz":
        world.worker(worker)
    world.now += 10.0
    for worker in "uv":
        world.ask(WorkerHeartbeat(worker, (WorkStatus("d/0", 18, busy),)))
    for worker in "wxyz":
        world.ask(WorkerHeartbeat(worker, draining=True))
    world.ask(ClientHeartbeat("a", 0, elements=36, waited=9.0, seconds=10.0))
    assert status(world.state, world.now)["wanted_workers"] == wanted


def test_old_measurements_fade() -> None:
    world = World()
    world.open("a", world.dataset(SPLIT))
    for elements in (1000, *(10,) * 40):
        world.ask(ClientHeartbeat("a", 0, elements=elements, seconds=1.0))
    rate = status(world.state, world.now)["jobs"][0]["rate"]
    assert rate == pytest.approx(10.0, rel=0.01)


def test_the_rate_of_an_idle_worker_falls() -> None:
    roster = Roster()
    roster.join(WorkerInfo("w", "localhost:1", "host", {}), 0.0)
    for second in range(1, 6):
        roster.apply_heartbeat(WorkerHeartbeat("w", (WorkStatus("job", 100, 0.1),)), float(second))
    pace = roster.workers["w"].pace
    assert pace.rate == pytest.approx(100)
    for second in range(6, 16):
        roster.apply_heartbeat(WorkerHeartbeat("w"), float(second))
    assert pace.rate < 5
