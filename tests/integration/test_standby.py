"""A standby: two dispatchers share a folder, and one of them serves."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from penstock.data import Dataset
from penstock.data.experimental import service
from penstock.service.host.control_connection import DispatcherConnections, decode_reply, encode
from penstock.service.host.security import Security
from penstock.service.host.services import python_version
from penstock.service.protocol.messages import (
    ErrorReply,
    GetStatus,
    Hello,
    HelloReply,
    Reply,
    Request,
)
from tests.integration.chaos.cluster import Program, free_port
from tests.integration.chaos.programs import PENSTOCK
from tests.integration.clusters import until

COUNT = 400
EXPECTED = [3 * x for x in range(COUNT)]


class Pair:
    """A dispatcher, its standby, and two workers of this process that know both."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._ports = (free_port(), free_port())
        self.address = ",".join(f"localhost:{port}" for port in self._ports)
        self.first = self._program(self._ports[0])
        self.standby = self._program(self._ports[1], "--standby")
        for program in (self.first, self.standby):
            stack.callback(program.kill)
            program.start()
        security = Security.of_client(self.address)
        self._connections = DispatcherConnections([("localhost", self._ports[0])], security)
        stack.callback(self._connections.close)
        self._pool = stack.enter_context(ThreadPoolExecutor(1))
        for _ in range(2):
            stack.enter_context(service.WorkerServer(service.WorkerConfig(self.address)))

    def _program(self, port: int, *more: str) -> Program:
        command = PENSTOCK.dispatcher(port, self._folder / "work")
        return Program([*command, *more], self._folder / f"{port}.log")

    def ask_first(self, request: Request) -> Future[Reply | None]:
        """Sends a request to the first dispatcher alone, once, on a connection that stays open."""
        return self._pool.submit(self._call_first, encode(request))

    def _call_first(self, data: bytes) -> Reply | None:
        """The reply; None if the dispatcher closed the connection instead."""
        with contextlib.suppress(EOFError, ConnectionError):
            return decode_reply(self._connections.call(data, time.monotonic() + 60.0))
        return None

    def log(self, program: int) -> str:
        return (self._folder / f"{self._ports[program]}.log").read_text()

    def holders(self) -> list[str]:
        return sorted(name for name in os.listdir(self._folder / "work") if "hold-" in name)

    def read(self, **options: Any) -> Iterator[Any]:
        reading = service.distribute(
            "distributed_epoch", f"grpc://{self.address}", max_outstanding_requests=16, **options
        )
        return iter(Dataset.range(COUNT).map(lambda x: x * 3).apply(reading))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(tmp_path, stack)


def numbers(elements: Any) -> list[int]:
    return [int(element) for element in elements]


def test_the_dispatcher_is_killed(pair: Pair) -> None:
    ordered, shared = pair.read(), pair.read(job_name="shared")
    found = numbers(islice(ordered, 50)), numbers(islice(shared, 50))
    pair.first.kill()
    until(lambda: pair.holders() == ["hold-2"])
    assert found[0] + numbers(ordered) == EXPECTED
    assert sorted(found[1] + numbers(shared)) == EXPECTED
    assert "took" not in pair.log(1), "the lock was free"


def is_stopped(process: int) -> bool:
    """Whether a stopped process has no running thread: that takes a moment after the signal."""
    states = [path.read_text() for path in Path(f"/proc/{process}/task").glob("*/stat")]
    return all(text.rpartition(")")[2].split()[0] == "T" for text in states)


def test_the_dispatcher_is_stopped_and_wakes_up_again(pair: Pair) -> None:
    ordered = pair.read()
    shared = [pair.read(job_name="shared") for _ in range(2)]
    found = numbers(islice(ordered, 50))
    waiting = pair.ask_first(Hello(python_version()))
    assert isinstance(waiting.result(60), HelloReply)
    parts = [numbers(islice(each, 50)) for each in shared]
    pair.first.signal(signal.SIGSTOP)
    until(lambda: is_stopped(pair.first.process.pid))
    waiting = pair.ask_first(GetStatus())
    until(lambda: pair.holders() == ["hold-2"])
    for each, part in zip(shared, parts, strict=True):
        part += numbers(islice(each, 50))  # The former standby has leased these elements.
    pair.first.signal(signal.SIGCONT)
    assert pair.first.process.wait(60) == 1
    refusal = waiting.result(60)
    assert refusal is None or isinstance(refusal, ErrorReply), "it answered what it may not"
    assert refusal is None or "lost work_dir" in refusal.message

    rest = [threading.Thread(target=part.extend, args=(map(int, each),))
            for each, part in zip(shared, parts, strict=True)]  # fmt: skip
    for thread in rest:
        thread.start()
    assert found + numbers(ordered) == EXPECTED
    for thread in rest:
        thread.join()
    assert sorted(parts[0] + parts[1]) == EXPECTED
    assert "took work_dir" in pair.log(1)
    assert "lost work_dir" in pair.log(0)
    assert service.status(f"grpc://{pair.address}")["workers"]
