"""The main program of a plan process: serves all clients of one plan of a worker.

It does what the worker does where plans are not isolated, except that it does not listen, register
or send heartbeats. It ends when the worker closes its channel.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import threading
from collections.abc import Callable
from typing import Any

from penstock.engine.processes.descriptors import receive_descriptor
from penstock.errors import OpError
from penstock.service.host.data_connection import Connection
from penstock.service.host.fetch_server import FetchGate, serve
from penstock.service.host.listener import AcceptedClient
from penstock.service.host.tasks import Tasks
from penstock.service.protocol import timing
from penstock.service.protocol.plan_process_messages import (
    Begin,
    ClientLeft,
    Drain,
    DrainReply,
    TakeClient,
    TidyUp,
    TidyUpReply,
    decoder_of_process,
    encode,
)

LARGEST = 1 << 16
"""Bytes of the largest message between a worker and a plan process."""

_PART = 256
"""Statuses of jobs in one message."""


MakeTasks = Callable[[str], Tasks]


def run(make_tasks: MakeTasks, channel: socket.socket) -> None:
    """Runs a plan process until its channel ends; `make_tasks` gets the worker's address."""
    PlanProcessMain(make_tasks, channel).run()


class PlanProcessMain:
    """The process's side of its channel to the worker."""

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
                _start_thread(functools.partial(self._serve, number, client.connection()))
            case TidyUp(jobs):
                self._tasks.tidy(jobs)
                self._send_report()
            case Drain():
                self._gate.close()
                _start_thread(self._drain)

    def _send_report(self) -> None:
        jobs = self._tasks.statuses()
        for start in range(0, max(1, len(jobs)), _PART):
            self._send(TidyUpReply(jobs[start : start + _PART], first=not start))

    def _serve(self, number: int, connection: Connection) -> None:
        try:
            with connection, contextlib.suppress(OpError):
                serve(connection, self._tasks, self._gate)
        finally:
            self._send(ClientLeft(number))

    def _close(self) -> None:
        """Closes the streams, but does not wait long for users' functions to return."""
        if hasattr(self, "_tasks"):
            _start_thread(self._tasks.close).join(timing.PLAN_PROCESS_CLOSE)

    def _drain(self) -> None:
        self._gate.wait(None)
        self._send(DrainReply())

    def _send(self, message: ClientLeft | TidyUpReply | DrainReply) -> None:
        with contextlib.suppress(
            OSError
        ):  # The worker is gone; the kernel is about to kill this process.
            self._channel.send(encode(message))


def _start_thread(task: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=task, name="penstock data", daemon=True)
    thread.start()
    return thread
