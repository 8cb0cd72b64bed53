"""A plan process: serves all clients of one plan on a worker, in a process of its own.

It does what the worker itself does where plans are not isolated, except to listen, to register and
to say that it lives. It ends when the worker closes its channel.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import threading
from collections.abc import Callable
from typing import Any

from penstock.errors import OpError
from penstock.service.host.data_connection import Connection
from penstock.service.host.fetch_server import FetchGate, serve
from penstock.service.host.listener import AcceptedClient
from penstock.service.host.sockets import receive_descriptor
from penstock.service.host.tasks import Tasks
from penstock.service.protocol import timing
from penstock.service.protocol.plan_process_messages import (
    Begin,
    ClientLeft,
    Drain,
    Drained,
    Report,
    TakeClient,
    TidyUp,
    decoder_of_process,
    encode,
)

LARGEST = 1 << 16
"""Bytes of the largest message between a worker and a plan process."""

_PART = 256
"""Jobs in one message."""


MakeTasks = Callable[[str], Tasks]


def run(make_tasks: MakeTasks, channel: socket.socket) -> None:
    """The life of a plan process; `make_tasks` needs the address of the worker."""
    PlanProcess(make_tasks, channel).run()


class PlanProcess:
    """The process's side of its channel."""

    def __init__(self, make_tasks: MakeTasks, channel: socket.socket) -> None:
        self._make_tasks, self._channel = make_tasks, channel
        self._gate = FetchGate()
        self._tasks: Tasks

    def run(self) -> None:
        while True:
            data, descriptor = receive_descriptor(self._channel, LARGEST)
            if not data:
                return self._close()
            self._handle(decoder_of_process.decode(data), descriptor)

    def _handle(self, message: Any, descriptor: int) -> None:
        match message:
            case Begin(address):
                self._tasks = self._make_tasks(address)
            case TakeClient(number, protocol, name, compression, checks):
                connected = socket.socket(fileno=descriptor)
                client = AcceptedClient(connected, protocol, name, compression, checks, b"")
                _in_thread(functools.partial(self._serve, number, client.connection()))
            case TidyUp(jobs):
                self._tasks.tidy(jobs)
                self._report()
            case Drain():
                self._gate.close()
                _in_thread(self._drain)

    def _report(self) -> None:
        jobs = self._tasks.statuses()
        for start in range(0, max(1, len(jobs)), _PART):
            self._say(Report(jobs[start : start + _PART], first=not start))

    def _serve(self, number: int, connection: Connection) -> None:
        try:
            with connection, contextlib.suppress(OpError):
                serve(connection, self._tasks, self._gate)
        finally:
            self._say(ClientLeft(number))

    def _close(self) -> None:
        """A stream cannot be closed before the function that it has called returns."""
        if hasattr(self, "_tasks"):
            _in_thread(self._tasks.close).join(timing.PLAN_PROCESS_CLOSE)

    def _drain(self) -> None:
        self._gate.wait(None)
        self._say(Drained())

    def _say(self, message: ClientLeft | Report | Drained) -> None:
        with contextlib.suppress(OSError):  # The worker is gone, and this process soon, too.
            self._channel.send(encode(message))


def _in_thread(task: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=task, name="penstock data", daemon=True)
    thread.start()
    return thread
