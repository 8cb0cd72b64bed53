"""Random histories: readers that follow the rules get every element once, after any faults.

Elements count as read once they are reported. A reader that dies resumes from a state that
it saved, or never; elements that it read after that save are read again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.plan.shape import Shape
from penstock.service.logic.dispatcher import snapshot
from penstock.service.logic.leases import Ranges
from penstock.service.logic.state import Settings
from penstock.service.protocol.messages import (
    ClientHeartbeat,
    Lease,
    Leave,
    LeaveWorker,
    StreamRange,
    WorkerHeartbeat,
)
from tests.service.logic.world import DYNAMIC, OFF, World

LENGTHS = (5, 0, 12, 1, 7, 0)
"""The lengths of several streams; the workers know them, the dispatcher does not."""


@dataclass
class Plan:
    """What readers read: the shape, the mode, and the lengths of the streams."""

    shape: Shape
    mode: int = DYNAMIC

    def length(self, stream: int) -> int:
        return LENGTHS[stream] if self.shape.kind == "split" and self.mode else 23


PLANS = {
    "random": Plan(Shape("random", length=23)),
    "random of unknown length": Plan(Shape("random")),
    "single": Plan(Shape("single")),
    "split": Plan(Shape("split", len(LENGTHS))),
    "parallel epochs": Plan(Shape("split", len(LENGTHS)), OFF),
}


@dataclass(frozen=True)
class SavedState:
    """A reader's name, its consumed elements, and the lengths of streams that it knew."""

    name: str
    consumed: tuple[StreamRange, ...]
    ended: tuple[tuple[int, int], ...]


@dataclass
class SimulatedReader:
    """A reader that leases, reads a few elements, reports them, and sometimes saves its state."""

    name: str
    plan: Plan
    number: int = 0
    holds: list[list[int]] = field(default_factory=list)
    read: dict[int, Ranges] = field(default_factory=dict)
    """Elements that it has read, with those in the state that it resumed from."""
    ends: dict[int, int] = field(default_factory=dict)
    saved: SavedState | None = None
    """Its own latest state, or the state that it resumed from."""
    finished: bool = False
    last: Lease | None = None

    def take(self, count: int) -> tuple[StreamRange, ...]:
        """Reads up to `count` elements of what it holds."""
        taken = []
        while self.holds and count:
            stream, start, stop = self.holds[0]
            end = self.plan.length(stream)
            if stop > end:
                self.ends[stream] = end
            upto = min(start + count, stop, end)
            if start < upto:
                taken.append(StreamRange(stream, start, upto))
                self.read.setdefault(stream, Ranges()).add(start, upto)
                count -= upto - start
            self.holds[0][1] = upto
            if upto >= min(stop, end):
                self.holds.pop(0)
        return tuple(taken)

    def lease(self, world: World, want: int, count: int) -> None:
        self.number += 1
        report = (self.take(count), tuple(self.ends.items()))
        self.last = Lease(self.name, self.number, want, *report)
        leased = world.ask(self.last)
        self.finished = leased.finished
        self.holds += [[g.range.stream, g.range.start, g.range.stop] for g in leased.grants]

    def beat(self, world: World, count: int, lost: tuple[str, ...] = ()) -> None:
        report = {"consumed": self.take(count), "ended": tuple(self.ends.items())}
        world.ask(ClientHeartbeat(self.name, 0, lost, **report))

    def save(self, world: World) -> None:
        """Saves a state; it contains exactly the reported elements."""
        self.beat(world, 0)
        self.saved = SavedState(self.name, ranges(self.read), tuple(self.ends.items()))


def ranges(read: dict[int, Ranges]) -> tuple[StreamRange, ...]:
    return tuple(
        StreamRange(s, start, stop) for s, ranges in read.items() for start, stop in ranges
    )


class History:
    """A world with readers and workers, and a step for every number."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.world = World(Settings(worker_timeout=25.0))
        self.data = self.world.dataset(plan.shape)
        self.readers: dict[str, SimulatedReader] = {}
        self.over: list[SimulatedReader] = []
        """Readers that have left, or died and never resume."""
        self.dead: list[SimulatedReader] = []
        self.workers: list[str] = []
        self.names = 0
        self.steps = (
            *(self.join, self.lease, self.lease, self.lease, self.repeat, self.beat, self.save),
            *(
                self.leave,
                self.die,
                self.resume,
                self.add_worker,
                self.drop_worker,
                self.stop_worker,
            ),
            *(self.beat_workers, self.wait, self.restart, self.compact, self.resume_together),
        )

    def name(self, kind: str) -> str:
        self.names += 1
        return f"{kind}{self.names}"

    def some(self, number: int) -> SimulatedReader | None:
        readers = list(self.readers.values())
        return readers[number % len(readers)] if readers else None

    def join(self, number: int) -> None:
        reader = SimulatedReader(self.name("r"), self.plan)
        self.world.open(reader.name, self.data, mode=self.plan.mode)
        self.readers[reader.name] = reader

    def lease(self, number: int) -> None:
        if (reader := self.some(number)) is not None:
            reader.lease(self.world, 1 + number % 9, number % 7)

    def repeat(self, number: int) -> None:
        """Sends a request again that was answered before."""
        reader = self.some(number)
        if reader is not None and reader.last is not None:
            self.world.ask(reader.last)

    def beat(self, number: int) -> None:
        if (reader := self.some(number)) is not None:
            lost = (
                (self.workers[number % len(self.workers)],) if self.workers and number % 3 else ()
            )
            reader.beat(self.world, number % 5, lost)

    def save(self, number: int) -> None:
        if (reader := self.some(number)) is not None:
            reader.save(self.world)

    def leave(self, number: int) -> None:
        if (reader := self.some(number)) is not None:
            report = (reader.take(number % 5), tuple(reader.ends.items()))
            self.world.ask(Leave(reader.name, *report))
            self.over.append(self.readers.pop(reader.name))

    def die(self, number: int) -> None:
        if (reader := self.some(number)) is not None:
            self.dead.append(self.readers.pop(reader.name))

    def resume(self, number: int) -> None:
        """Resumes the state of a dead reader under another name."""
        saved = [reader for reader in self.dead if reader.saved is not None]
        if saved:
            self.go_on([saved[number % len(saved)]], 1)

    def resume_together(self, number: int) -> None:
        """Merges the states of several dead readers, and resumes them with some new readers."""
        saved = [reader for reader in self.dead if reader.saved is not None]
        if len({reader.saved.name for reader in saved}) == len(saved) > 1:
            self.go_on(saved, 1 + number % 3)

    def go_on(self, saved: list[SimulatedReader], readers: int) -> None:
        consumed: dict[int, Ranges] = {}
        ends: dict[int, int] = {}
        for old in saved:
            assert old.saved is not None
            self.dead.remove(old)
            ends |= dict(old.saved.ended)
            for at in old.saved.consumed:
                consumed.setdefault(at.stream, Ranges()).add(at.start, at.stop)
        options = {
            "resumes": tuple(old.saved.name for old in saved),
            "consumed": ranges(consumed),
            "finished": tuple(ends.items()),
        }
        for number in range(readers):
            # If states overlap, the overlap is counted for the first of them.
            read = {} if number else consumed
            new = SimulatedReader(self.name("r"), self.plan, read=read, ends=dict(ends))
            new.saved = saved[0].saved if len(saved) == 1 else None
            self.world.open(new.name, self.data, mode=self.plan.mode, **options)
            self.readers[new.name] = new

    def add_worker(self, number: int) -> None:
        name = self.name("w")
        address = f"host:{number % 4}"
        old = self.world.state.roster.addresses.get(address)
        if old in self.workers:
            self.workers.remove(old)
        self.world.worker(name, address)
        self.workers.append(name)

    def drop_worker(self, number: int) -> None:
        if self.workers:
            self.world.ask(LeaveWorker(self.workers.pop(number % len(self.workers))))

    def stop_worker(self, number: int) -> None:
        """Removes a worker that never sends a message again."""
        if self.workers:
            self.workers.pop(number % len(self.workers))

    def beat_workers(self, number: int) -> None:
        for i, worker in enumerate(self.workers):
            self.world.ask(WorkerHeartbeat(worker, draining=number % 5 == i))

    def wait(self, number: int) -> None:
        self.world.wait(number % 12)
        self.keep_awake()
        for reader in list(self.readers.values()):
            if self.world.state.clients[reader.name].standing != "here":
                self.dead.append(self.readers.pop(reader.name))

    def keep_awake(self) -> None:
        for worker in self.workers:
            self.world.ask(WorkerHeartbeat(worker))

    def restart(self, number: int) -> None:
        self.world.restart()

    def compact(self, number: int) -> None:
        self.world.compact()

    def finish(self) -> None:
        """Lets dead readers expire, and reads all remaining elements with one more reader."""
        self.add_worker(0)
        for _ in range(3):
            for reader in self.readers.values():
                reader.beat(self.world, 0)
            self.keep_awake()
            self.world.wait(9.0)
        self.join(0)
        for _ in range(400):
            readers = list(self.readers.values())
            if all(reader.finished and not reader.holds for reader in readers):
                return
            for reader in readers:
                self.world.now += 0.01
                reader.lease(self.world, 4, 100)
        raise AssertionError("the readers do not come to an end")

    def compute_expected(self) -> dict[int, list[tuple[int, int]]]:
        record = next(iter(self.world.state.iterations.values()))
        lengths = {stream: self.plan.length(stream) for stream in range(record.total)}
        return {stream: [(0, length)] for stream, length in lengths.items() if length}

    def count_ranges(self) -> dict[int, list[tuple[int, int]]]:
        """The elements that all readers have read; fails if two of them read the same one."""
        ways = [*self.readers.values(), *self.over, *self.dead]
        total: dict[int, Ranges] = {}
        for reader in ways:
            for stream, ranges in reader.read.items():
                seen = total.setdefault(stream, Ranges())
                before = seen.count
                for start, stop in ranges:
                    seen.add(start, stop)
                assert seen.count == before + ranges.count, f"{reader.name} read something again"
        return {stream: list(ranges) for stream, ranges in total.items() if ranges}


NUMBERS = st.lists(st.tuples(st.integers(0, 17), st.integers(0, 60)), max_size=60)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(numbers=NUMBERS)
def test_every_element_once(plan: Plan, numbers: list[tuple[int, int]]) -> None:
    history = History(plan)
    for step, number in numbers:
        history.steps[step](number)
        assert snapshot(history.world.replay_journal()) == snapshot(history.world.state)
    history.finish()
    assert history.count_ranges() == history.compute_expected()
    assert next(iter(history.world.state.iterations.values())).is_finished


def test_messages_and_facts_survive_the_wire() -> None:
    history = History(PLANS["split"])
    for step in range(18):
        history.steps[step](step)
    for fact in snapshot(history.world.state):
        kind = type(fact)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(fact), type=kind) == fact


def test_workers_and_readers_that_fall_silent_together() -> None:
    world = World(Settings(worker_timeout=10.0))
    for worker in "vw":
        world.worker(worker)
    world.open("a", world.dataset(), job=None, mode=OFF)
    world.wait(5.0)
    world.ask(WorkerHeartbeat("w"))
    world.wait(6.0)
    # The iteration ended with its reader, and no worker makes its streams.
    assert not world.state.iterations
    assert snapshot(world.replay_journal()) == snapshot(world.state)
