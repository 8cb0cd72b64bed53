"""Capacity: what one dispatcher carries, measured on the real logic and codec.

Workers and clients send their usual messages. Times are CPU times of this machine, not virtual.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from penstock.plan.shape import Shape
from penstock.service.logic.state import Settings
from penstock.service.protocol.messages import (
    ClientHeartbeat,
    JobOptions,
    Lease,
    OpenIteration,
    RegisterDataset,
    RegisterWorker,
    StreamRange,
    WorkerHeartbeat,
    WorkerInfo,
    WorkStatus,
)
from tests.simulation.dispatchers import Dispatcher
from tests.simulation.kernel import Process, World
from tests.simulation.network import Network, Weather

CLIENT_BEAT, WORKER_BEAT = 0.5, 1.0
LEASES = 4.0
"""Per second and client."""


@dataclass
class Figures:
    """What a dispatcher did, and the CPU time that it needed."""

    requests: int = 0
    leased: int = 0
    elements: int = 0
    busy: float = 0.0
    """Seconds of CPU time of this machine."""
    virtual: float = 0.0
    kinds: dict[str, tuple[int, float]] = field(default_factory=dict)

    def add(self, kind: str, seconds: float) -> None:
        count, spent = self.kinds.get(kind, (0, 0.0))
        self.kinds[kind] = (count + 1, spent + seconds)
        self.requests += 1
        self.busy += seconds

    def __str__(self) -> str:
        lines = [
            f"  {kind:18} {count:8} requests, {1e6 * spent / count:8.1f} us each"
            for kind, (count, spent) in sorted(self.kinds.items())
        ]
        load = self.busy / self.virtual if self.virtual else 0.0
        return "\n".join(
            [
                f"{self.requests / self.busy:,.0f} requests per second "
                f"({self.leased:,} leases of {self.elements:,} elements)",
                f"{load:.1%} of one core for these workers and clients",
                *lines,
            ]
        )


def measure(workers: int = 1000, clients: int = 1000, seconds: float = 10.0) -> Figures:
    """One dispatcher, so many workers and clients of ten jobs, for so many virtual seconds."""
    world = World(0, most=1 << 40)
    network = Network(world, Weather())
    dispatcher = Dispatcher(network, Settings())
    figures = Figures()
    network.answer = _time_answers(dispatcher, figures)
    everybody = Process(world, "everybody")
    for number in range(workers):
        everybody.spawn(partial(_worker, network, f"w{number}", world.random.random()))
    for number in range(clients):
        everybody.spawn(partial(_client, network, f"c{number}", number % 10, figures))
    world.run(seconds, lambda: False)
    world.close()
    figures.virtual = seconds
    return figures


def _time_answers(dispatcher: Dispatcher, figures: Figures) -> Callable[[bytes, Any], None]:
    def answer(data: bytes, reply: Callable[[bytes], None]) -> None:
        started = time.thread_time()
        answered = dispatcher.handle(data)
        figures.add(_kind(data), time.thread_time() - started)
        reply(answered)

    return answer


def _kind(data: bytes) -> str:
    """The tag of a message: its first entry."""
    start = data.index(b"\xa1t") + 2
    head = data[start]
    size = head & 0x1F if head < 0xC0 else data[start + 1]
    first = start + (1 if head < 0xC0 else 2)
    return data[first : first + size].decode()


def _worker(network: Network, name: str, offset: float) -> None:
    info = WorkerInfo(name, f"{name}:1", "h", {"tcp": f"{name}:1"})
    network.world.wait(offset)
    network.call(RegisterWorker(info, ""))
    while True:
        network.world.wait(WORKER_BEAT)
        network.call(WorkerHeartbeat(name, (WorkStatus("d1/0", 100, 0.5),)))


def _client(network: Network, name: str, job: int, figures: Figures) -> None:
    shape = Shape("random", length=1 << 40) if job % 2 else Shape("split", streams=100_000)
    plan = f"plan{job}"
    network.world.wait(1.0 + network.world.random.random())
    network.call(RegisterDataset(plan, plan, b"", shape, -2, plan))
    opening = OpenIteration(name, f"job{job}", 0, plan, JobOptions(1), 7, (1,), "h")
    opened = network.call(opening)
    number, version, consumed, beaten = 0, opened.version, (), network.world.now
    while True:
        network.world.wait(1 / LEASES)
        number += 1
        leased = network.call(Lease(name, number, 64, consumed))
        consumed = tuple(grant.range for grant in leased.grants)
        figures.leased += bool(consumed)
        figures.elements += sum(_size(at) for at in consumed)
        if network.world.now - beaten >= CLIENT_BEAT:
            beaten = network.world.now
            version = network.call(ClientHeartbeat(name, version)).version


def _size(at: StreamRange) -> int:
    return at.stop - at.start
