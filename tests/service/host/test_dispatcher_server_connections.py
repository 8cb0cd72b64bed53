"""The server of control connections: which thread waits for the disk, and for which replies."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from penstock.errors import UnavailableError
from penstock.service.host.control_connection import ControlClient
from penstock.service.host.dispatcher_server import ControlServer
from penstock.service.host.security import Security
from penstock.service.protocol.messages import (
    GetPlan,
    GetPlanReply,
    Leave,
    Ok,
    Reply,
    Request,
)
from tests.integration.clusters import until

CLIENTS = 40
TOKEN = Security(b"token")


class Disk:
    """`settle` blocks until the test sets `is_free`."""

    def __init__(self) -> None:
        self.decided: list[Request] = []
        self.settled: list[int] = []
        """How many requests were decided before each call of `settle`."""
        self.is_free = threading.Event()
        self.failure: Exception | None = None

    def handle(self, request: Request) -> Reply:
        self.decided.append(request)
        return GetPlanReply(bytes(100_000), 100_000) if isinstance(request, GetPlan) else Ok()

    def settle(self) -> None:
        self.settled.append(len(self.decided))
        assert self.is_free.wait(60)
        if self.failure is not None:
            raise self.failure


@contextmanager
def calling(disk: Disk) -> Iterator[Callable[[Request], "Future[Reply]"]]:
    server = ControlServer(disk.handle, "localhost", 0, TOKEN, disk.settle)
    server.start()
    clients: list[ControlClient] = []

    def call(request: Request) -> "Future[Reply]":
        clients.append(ControlClient(f"localhost:{server.port}", TOKEN, timeout=60))
        return pool.submit(clients[-1].call, request)

    with ThreadPoolExecutor(CLIENTS) as pool:
        try:
            yield call
        finally:
            disk.is_free.set()
    for client in clients:
        client.close()
    server.stop()


def count_threads() -> int:
    return sum(thread.name == "penstock-control" for thread in threading.enumerate())


def test_requests_that_arrive_while_the_disk_is_busy_share_the_next_wait() -> None:
    disk = Disk()
    with calling(disk) as call:
        first = call(Leave("first"))
        until(lambda: disk.settled == [1])
        replies = [call(Leave("other")) for _ in range(CLIENTS - 1)]
        until(lambda: len(disk.decided) == CLIENTS)
        assert not any(reply.done() for reply in (first, *replies))
        assert count_threads() < 16  # They do not wait with the requests.
        disk.is_free.set()
        assert all(reply.result(60) == Ok() for reply in (first, *replies))
    assert disk.settled == [1, CLIENTS]


def test_a_large_reply_is_sent_by_its_own_thread_and_waits_for_the_disk_as_well() -> None:
    disk = Disk()
    with calling(disk) as call:
        reply = call(GetPlan("digest"))
        until(lambda: disk.settled == [1])
        assert not reply.done()
        disk.is_free.set()
        assert len(reply.result(60).data) == 100_000


@pytest.mark.parametrize("request_", [Leave("a"), GetPlan("digest")])
def test_a_disk_that_fails_is_an_error_of_all_requests_that_wait_for_it(request_: Request) -> None:
    disk = Disk()
    disk.failure = ValueError("the disk is broken")
    with calling(disk) as call:
        replies = [call(request_) for _ in range(3)]
        disk.is_free.set()
        for reply in replies:
            with pytest.raises(Exception, match="ValueError: the disk is broken"):
                reply.result(60)


def test_a_full_disk_is_asked_again() -> None:
    disk = Disk()
    disk.failure = UnavailableError("full")
    disk.is_free.set()
    with calling(disk) as call:
        reply = call(Leave("a"))
        until(lambda: len(disk.decided) > 2)
        disk.failure = None
        assert reply.result(60) == Ok()
