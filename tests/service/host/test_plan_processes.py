"""Plan processes, as a worker sees them; real ones are in `tests/integration/test_isolation.py`."""

import contextlib
import functools
import os
import queue
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.engine.processes.descriptors import receive_descriptor
from penstock.engine.processes.fork_server import ProcessExit
from penstock.errors import AbortedError
from penstock.service.host import plan_processes
from penstock.service.host.admission import AcceptedClient
from penstock.service.host.plan_processes import (
    LARGEST,
    Begin,
    ClientLeft,
    Drain,
    DrainReply,
    PlanProcesses,
    TakeClient,
    TidyUp,
    TidyUpReply,
    decoder_of_process,
    encode,
    open_watch,
)
from penstock.service.host.runtime import MACHINE
from penstock.service.host.security import ProcessLoss
from penstock.service.protocol.messages import WorkStatus
from tests.integration.clusters import until

PLAN, OTHER = bytes(32), bytes(range(32))


class Ward:
    """A fake fork server. The test plays its processes."""

    def __init__(self) -> None:
        self.ends: dict[int, socket.socket] = {}
        self.descriptors: list[int] = []
        self.deaths: queue.Queue[ProcessExit | None] = queue.Queue()

    def start(self, number: int) -> socket.socket:
        near, self.ends[number] = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return near

    def wait_exit(self) -> ProcessExit | None:
        return self.deaths.get()

    def close(self) -> None:
        self.deaths.put(None)

    def die(self, number: int, code: int) -> None:
        self.ends[number].close()
        self.deaths.put(ProcessExit(number, code))

    def next_message(self, number: int) -> Any:
        """The next message to a process."""
        return self.next_passed(number)[0]

    def next_passed(self, number: int) -> tuple[Any, int]:
        data, descriptor = receive_descriptor(self.ends[number], LARGEST)
        self.descriptors.append(descriptor)
        return (decoder_of_process.decode(data) if data else None), descriptor

    def say(self, number: int, message: Any) -> None:
        self.ends[number].send(encode(message))


class Time:
    """A clock that the test sets."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


class House(PlanProcesses):
    """The processes of a ward, and their requests to the worker."""

    def __init__(self) -> None:
        self.ward = Ward()
        self.ends: list[socket.socket] = []
        self.given = queue.Queue[None]()
        self.hurried, self.failed = queue.Queue[None](), queue.Queue[None]()
        super().__init__(
            self.ward,  # type: ignore[arg-type]
            lambda: self.hurried.put(None),
            lambda: self.failed.put(None),
        )
        self.begin("w:1")

    def visit(self, plan: bytes = PLAN) -> socket.socket:
        """Connects a client; returns its end."""
        near, far = socket.socketpair()
        self.ends.append(near)
        client = AcceptedClient(far, "shm", "a client", 0, True, plan)
        MACHINE.start(lambda: self._visit(client), "client")
        self.given.get()
        return near

    def _hand_over(self, *arguments: Any) -> Any:
        try:
            return super()._hand_over(*arguments)
        finally:
            self.given.put(None)

    def _visit(self, client: AcceptedClient) -> None:
        with client.socket:
            self.serve(client)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(plan_processes, "time", made)
    return made


@pytest.fixture
def house() -> Iterator[House]:
    made = House()
    yield made
    for number in made.ward.ends:
        made.ward.die(number, 0)
    made.close()
    for client in made.ends:
        client.close()
    for descriptor in made.ward.descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def test_every_plan_has_one_process(house: House) -> None:
    clients = [house.visit(), house.visit(OTHER), house.visit()]
    assert list(house.ward.ends) == [1, 2]
    assert house.ward.next_message(1) == Begin("w:1")
    message, descriptor = house.ward.next_passed(1)
    assert message == TakeClient(1, "shm", "a client", 0, True)
    assert not os.get_inheritable(descriptor)
    os.write(descriptor, b"hello")
    assert clients[0].recv(9) == b"hello"
    assert house.ward.next_message(2) == Begin("w:1")
    assert house.ward.next_message(2).number == 2
    assert house.ward.next_message(1).number == 3
    assert len(house) == 3
    house.ward.say(1, ClientLeft(1))
    assert clients[0].recv(9) == b""
    until(lambda: len(house) == 2)


def test_clients_of_a_lost_process_learn_of_it_once_it_is_known_how(house: House) -> None:
    client, other = house.visit(), house.visit(OTHER)
    other.setblocking(False)
    house.ward.die(1, -11)
    assert client.recv(9) == b""
    assert house.last_loss(PLAN) == ProcessLoss(1, -11, is_traced=True)
    assert house.last_loss(OTHER) == ProcessLoss()
    assert house.restarts == 1
    house.hurried.get()
    with pytest.raises(BlockingIOError, match="temporarily unavailable"):
        other.recv(9)
    house.visit()
    assert list(house.ward.ends) == [1, 2, 3]


def test_a_client_that_comes_between_a_death_and_its_news_waits_for_them(house: House) -> None:
    first = house.visit()
    house.ward.ends[1].close()
    visiting = queue.Queue[socket.socket]()
    MACHINE.start(lambda: visiting.put(house.visit()), "client")
    until(lambda: house._clients == 2)
    house.ward.deaths.put(ProcessExit(1, 3))
    visiting.get()
    assert first.recv(9) == b""
    assert house.last_loss(PLAN) == ProcessLoss(1, 3, is_traced=True)
    assert house.ward.next_message(2) == Begin("w:1", watched=True)
    assert house.ward.next_message(2) == TakeClient(3, "shm", "a client", 0, True)


def test_after_many_losses_there_is_a_pause(
    house: House, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 2, 3, 4):
        client = house.visit()
        house.ward.die(number, 71)
        assert client.recv(9) == b""
    assert "another one in 0.5 s, because 4 of them ended soon after their start" in caplog.text
    assert house.last_loss(PLAN) == ProcessLoss(4, 71, pause=0.5)
    time.now += 0.5
    assert house.last_loss(PLAN) == ProcessLoss(4, 71)
    house.visit()
    assert len(house.ward.ends) == 5


def test_the_call_that_crashes_every_process_is_refused(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    def crash(number: int, client: socket.socket) -> None:
        house.ward.die(number, -11)
        assert client.recv(9) == b""  # By then the worker has read which calls were running.

    client = house.visit()
    assert house.ward.next_message(1) == Begin("w:1")
    crash(1, client)
    for number in (2, 3):
        client = house.visit()
        begin, descriptor = house.ward.next_passed(number)
        assert begin == Begin("w:1", watched=True)
        dying = functools.partial(crash, number, client)
        open_watch(os.dup(descriptor)).run("Dataset.map: f", lambda _, die=dying: die(), (1,), True)
        loss = ProcessLoss(number, -11, is_traced=True, function=b"Dataset.map: f")
        assert house.last_loss(PLAN) == loss
    assert "signal 11 (segmentation fault) in Dataset.map: f; they get another" in caplog.text
    house.visit()
    watch = open_watch(os.dup(house.ward.next_passed(4)[1]))
    assert watch.run("Dataset.map: f", abs, (-2,), True) == 2
    with pytest.raises(AbortedError, match="crashed in this call each time; the last one was kill"):
        watch.run("Dataset.map: f", abs, (1,), True)


def test_no_client_is_served_after_the_end(house: House) -> None:
    house.close()
    assert house.visit().recv(9) == b""


def test_a_process_that_does_not_listen_gets_no_more_clients(house: House) -> None:
    def is_refused() -> bool:
        before = len(house)
        house.visit()
        return len(house) == before

    while not is_refused():
        pass
    assert house.ends[-1].recv(9) == b""
    house.visit(OTHER)
    assert house.ward.next_message(2) == Begin("w:1")


def test_processes_report_what_they_did(house: House) -> None:
    house.visit(), house.visit(OTHER)
    house.ward.say(1, TidyUpReply((WorkStatus("a", 3, 0.5, 7),)))
    house.ward.say(1, TidyUpReply((WorkStatus("a", 4, 0.5, 9),)))
    house.ward.say(2, TidyUpReply((WorkStatus("b", 1, 1.0, 0),)))
    expected = {WorkStatus("a", 7, 1.0, 9), WorkStatus("b", 1, 1.0, 0)}
    one, two = (house._by_number[number] for number in (1, 2))
    until(lambda: two.work.buffered and one.work.buffered.get("a") == 9)
    assert set(house.statuses()) == expected
    assert set(house.statuses()) == {WorkStatus("a", 0, 0.0, 9), WorkStatus("b", 0, 0.0, 0)}
    house.ward.say(1, TidyUpReply((WorkStatus("c", 1, 1.0, 2),)))
    house.ward.say(1, TidyUpReply((WorkStatus("d", 1, 1.0, 3),), first=False))
    until(lambda: "d" in one.work.buffered)
    expected = {WorkStatus("c", 1, 1.0, 2), WorkStatus("d", 1, 1.0, 3)}
    assert set(house.statuses()) == {*expected, WorkStatus("b", 0, 0.0, 0)}


def test_idle_processes_end(house: House, time: Time) -> None:
    house.visit(), house.visit(OTHER)
    house.ward.say(1, ClientLeft(1))
    until(lambda: len(house) == 1)
    house.tidy(["a", "b"])
    assert [house.ward.next_message(1) for _ in range(3)][2] == TidyUp(("a", "b"))
    time.now += 31.0
    house.tidy([f"a job with number {number}" for number in range(10_000)])
    assert house.ward.next_message(1) is None
    assert [house.ward.next_message(2) for _ in range(4)][3] == TidyUp()
    house.ward.die(1, 0)
    house.visit()
    assert house.restarts == 0
    assert list(house.ward.ends) == [1, 2, 3]


def test_a_worker_drains_when_all_its_processes_have(house: House) -> None:
    house.visit(), house.visit(OTHER)
    done = queue.Queue[None]()
    MACHINE.start(lambda: done.put(house.drain(None)), "drain")
    assert [house.ward.next_message(1) for _ in range(3)][2] == Drain()
    house.ward.say(1, DrainReply())
    house.ward.die(2, -9)
    done.get()
    house.visit(OTHER)
    assert [house.ward.next_message(3) for _ in range(2)][1] == Drain()


def test_without_a_fork_server_a_worker_gives_up(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    client = house.visit()
    house.ward.deaths.put(None)
    house.failed.get()
    assert client.recv(9) == b""
    assert "lost the process that starts plan processes; it stops" in caplog.text
