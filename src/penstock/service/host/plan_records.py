"""Plan records: what a worker knows of one plan process, and of the clients that it serves."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from penstock.service.host.sockets import send_descriptors
from penstock.service.protocol.handovers import ClientLeft, Drained, Report, ToProcess, encode
from penstock.service.protocol.messages import WorkStatus


class HeldClient:
    """A client's socket, which the worker keeps to shut it when the process is lost."""

    def __init__(self, held: socket.socket) -> None:
        self._socket = held
        self.over = threading.Event()

    def shut(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.over.set()


@dataclass
class PlanRecord:
    """A process, its clients, and what it did since the last heartbeat.

    The lock of `PlanProcesses` guards all of it.
    """

    number: int
    plan: bytes
    channel: socket.socket
    started: float
    idle_since: float
    clients: dict[int, HeldClient] = field(default_factory=dict)
    drained: bool = False
    _done: dict[str, WorkStatus] = field(default_factory=dict)
    _buffered: dict[str, int] = field(default_factory=dict)

    def tell(self, message: ToProcess, descriptors: tuple[int, ...] = ()) -> None:
        """Never waits: a process that reads nothing must not hold up the others."""
        send_descriptors(self.channel, encode(message), descriptors, socket.MSG_DONTWAIT)

    def note(self, message: Any, now: float) -> None:
        """Takes notice of what the process says."""
        match message:
            case ClientLeft(number):
                if (left := self.clients.pop(number, None)) is not None:
                    left.shut()
                self.idle_since = now
            case Report(jobs, first):
                self._report(jobs, first)
            case Drained():
                self.drained = True

    def _report(self, jobs: Iterable[WorkStatus], first: bool) -> None:
        if first:
            self._buffered = {}
        for job in jobs:
            so_far = self._done.get(job.job, WorkStatus(job.job, 0, 0.0))
            elements, seconds = so_far.elements + job.elements, so_far.seconds + job.seconds
            self._done[job.job] = WorkStatus(job.job, elements, seconds)
            self._buffered[job.job] = job.buffered

    def collect(self) -> list[WorkStatus]:
        """What was done for every job since the last time this was asked."""
        done, self._done = self._done, {}
        found = {name: done.get(name, WorkStatus(name, 0, 0.0)) for name in self._buffered} | done
        return [
            WorkStatus(name, job.elements, job.seconds, self._buffered.get(name, 0))
            for name, job in found.items()
        ]

    def dismiss(self) -> None:
        """Ends the connections of all clients, and the channel: the process ends with that."""
        for held in self.clients.values():
            held.shut()
        self.clients.clear()
        with contextlib.suppress(OSError):
            self.channel.shutdown(socket.SHUT_RDWR)
