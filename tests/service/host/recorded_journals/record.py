"""Records a journal of today's format, which all later versions of penstock must read.

`python -m tests.service.host.recorded_journals.record` writes `format-N.sqlite` and what a
dispatcher knows that has read it, `format-N.json`. Files of earlier formats are never written
again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from penstock.plan.shape import Shape
from penstock.service.host.journal import FORMAT, Journal
from penstock.service.logic.facts import Fact, StreamsEnded
from penstock.service.logic.status import status
from penstock.service.protocol import timing
from penstock.service.protocol.messages import Leave, RegisterDataset, StreamRange
from tests.service.logic.world import SINGLE, SPLIT, World

FOLDER = Path(__file__).parent
DURABLE = sorted(kind.__name__ for kind in Fact.__args__ if kind.durable)


def make_history() -> World:
    """A dispatcher that has journalled every kind of fact, half of them in a snapshot."""
    world = World()
    rows = world.dataset(Shape("random", length=100))
    files = world.dataset(SPLIT, cardinality=-2, structure="files")
    _read_to_the_end(world, rows)
    for name in ("first", "second", "third"):
        world.worker(name)
    _read_and_resume(world, rows)
    world.open("x", files, job="files")
    world.read("x", 10)
    world.beat("x", ended=((0, 12),))
    world.compact()
    world.restart()
    world.ask(RegisterDataset("other", "unread", b"spec", SINGLE, 5, lasting=False))
    world.wait(timing.UNREAD_DATASET + 1)
    for name in ("first", "second"):
        world.worker(name)
    world.commit((StreamsEnded(world.record("x").work.job, ((1, 7),)),))
    world.open("y", files, job="files")
    world.lease("y", 10)
    world.open("z", rows, job=None)
    world.ask(Leave("z"))
    _read_and_resume(world, world.dataset(Shape("random", length=80)), "second round")
    return world


def _read_and_resume(world: World, rows: str, job: str = "job") -> None:
    names = [f"{name} of {job}" for name in "abc"]
    world.open(names[0], rows, job=job)
    world.open(names[1], rows, job=job, program="p")
    for name in names[:2]:
        world.read(name, 20)
        world.lease(name, 5)
    saved, held = (StreamRange(0, 0, 10),), (StreamRange(0, 10, 12),)
    world.open(names[2], rows, job=job, resumes=(names[0],), consumed=saved, held=held)


def _read_to_the_end(world: World, rows: str) -> None:
    world.open("d", rows, job="over")
    while world.read("d", 30):
        pass
    world.ask(Leave("d"))
    world.open("e", rows, job="over", repetition=1)
    world.wait(world.settings.forget_after + 1)


def describe(found: dict[str, Any]) -> dict[str, Any]:
    """A status without what depends on the moment."""
    for worker in found["workers"]:
        del worker["last_seen"]
    return found


def main() -> None:
    world = make_history()
    path = FOLDER / f"format-{FORMAT}.sqlite"
    path.unlink(missing_ok=True)
    journal: Journal[bytes] = Journal(str(path), encode=bytes, decode=bytes)
    journal.compact(world.journal)
    journal.close()
    kinds = {msgspec.msgpack.decode(line)["t"] for line in world.journal}
    assert sorted(kinds) == DURABLE, f"not recorded: {set(DURABLE) - kinds}"
    text = json.dumps(describe(status(world.state, world.now)), indent=1)
    path.with_suffix(".json").write_text(f"{text}\n")


if __name__ == "__main__":
    main()
