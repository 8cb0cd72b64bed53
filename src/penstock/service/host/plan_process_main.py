"""The main program of a plan process, and the messages between it and its worker.

The process serves all clients of one plan. It does what the worker does where plans are not
isolated, except that it does not listen, register or send heartbeats. It ends when the worker
closes its channel.

The socket of a client goes to a process as a descriptor beside `TakeClient`. These messages never
leave the machine, and their sockets have no names, so they need no authentication.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from penstock.engine.call_watch import RECORD_SIZE, CallWatch, start_watch
from penstock.engine.processes.descriptors import receive_descriptor
from penstock.errors import OpError
from penstock.service.host import traces
from penstock.service.host.data_connection import Connection
from penstock.service.host.data_server import AcceptedClient
from penstock.service.host.fetch_server import FetchGate, serve
from penstock.service.host.tasks import Tasks
from penstock.service.host.worker_meters import Sent
from penstock.service.protocol import timing
from penstock.service.protocol.messages import Message, Plain, WorkStatus

LARGEST = 1 << 16
"""Bytes of the largest message between a worker and a plan process."""

_PART = 256
"""Statuses of jobs in one message."""

# From the worker


class Begin(Message, frozen=True):
    """The first message. `address` is the worker's, for error messages.

    `watched`: the process records its calls, in the memory whose descriptor comes with the message.
    """

    address: str
    watched: bool = False


class Watch(Plain, frozen=True):
    """How a process records its calls, if its predecessor crashed; see `CallWatch`.

    It is in the memory that `Begin` brings, behind the record (`engine/call_watch.py`).
    """

    seconds: float
    suspects: tuple[bytes, ...]
    refused: dict[bytes, str]


class TakeClient(Message, frozen=True):
    """Serve the client whose socket comes with this message."""

    number: int
    protocol: str
    name: str
    compression: int
    checks: bool = False


class TidyUp(Message, frozen=True):
    """Close streams without readers; `jobs` are still read, None if the worker does not know."""

    jobs: tuple[str, ...] | None = None


class Drain(Message, frozen=True):
    """Hand back all fetches; send `DrainReply` when the elements that are made are finished."""


# From the process


class ClientLeft(Message, frozen=True):
    """The connection of client `number` was closed."""

    number: int


class TidyUpReply(Message, frozen=True):
    """The reply to `TidyUp`: the work since the last one, in as many messages as needed."""

    jobs: tuple[WorkStatus, ...] = ()
    first: bool = True
    """Whether this is the first of these messages."""
    sent: Sent = Sent()
    """What was sent to clients meanwhile; only in the first of these messages."""


class DrainReply(Message, frozen=True):
    """The reply to `Drain`: every accepted fetch is answered or handed back."""


ToProcess = Begin | TakeClient | TidyUp | Drain
FromProcess = ClientLeft | TidyUpReply | DrainReply

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
decoder_of_process: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ToProcess)
"""Decodes what a process receives."""
decoder_of_worker: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromProcess)
"""Decodes what the worker receives."""

_watch_decoder = msgspec.msgpack.Decoder(Watch)

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
        while (received := self._receive())[0]:
            data, descriptor = received
            self._handle(decoder_of_process.decode(data), descriptor)
        self._close()

    def _receive(self) -> tuple[bytes, int]:
        try:
            return receive_descriptor(self._channel, LARGEST)
        except ConnectionResetError:  # The worker was killed before it had received all messages.
            return b"", -1

    def _handle(self, message: Any, descriptor: int) -> None:
        match message:
            case Begin(address, watched):
                if watched:
                    start_watch(open_watch(descriptor))
                traces.set_up()
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
        sent = self._tasks.traffic.take()
        for start in range(0, max(1, len(jobs)), _PART):
            part = jobs[start : start + _PART]
            self._send(TidyUpReply(part, first=not start, sent=Sent() if start else sent))

    def _serve(self, number: int, connection: Connection) -> None:
        try:
            with connection, contextlib.suppress(OpError):
                serve(connection, self._tasks, self._gate)
        finally:
            self._send(ClientLeft(number))

    def _close(self) -> None:
        """Closes the streams and sends the last spans, but does not wait long for users' functions
        to return, nor for a collector of spans."""
        if hasattr(self, "_tasks"):
            deadline = time.monotonic() + timing.PLAN_PROCESS_CLOSE
            for thread in [_start_thread(task) for task in (self._tasks.close, traces.flush)]:
                thread.join(max(0.0, deadline - time.monotonic()))

    def _drain(self) -> None:
        self._gate.wait(None)
        self._send(DrainReply())

    def _send(self, message: ClientLeft | TidyUpReply | DrainReply) -> None:
        # The worker may be gone; the kernel is then about to kill this process.
        with contextlib.suppress(OSError):
            self._channel.send(encode(message))


def open_watch(descriptor: int) -> CallWatch:
    """Returns the watch that records this process's calls in shared memory; closes `descriptor`."""
    memory = mmap.mmap(descriptor, 0)
    os.close(descriptor)
    watch = _watch_decoder.decode(memory[RECORD_SIZE:])
    return CallWatch(memory, watch.seconds, watch.suspects, watch.refused)


def _start_thread(task: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=task, name="penstock data", daemon=True)
    thread.start()
    return thread
