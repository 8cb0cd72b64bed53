"""Plan processes: a worker runs every plan in a process of its own, and replaces crashed ones.

The worker listens and proves who it is; a connection then goes to the process of its plan. The
worker keeps the socket, too: when a process crashes, it first notes how, and only then shuts that
process's connections. So a client that reconnects learns what happened.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from penstock.service.host.authentication import ProcessLoss
from penstock.service.host.channels import relay
from penstock.service.host.fork_server import Nursery
from penstock.service.host.listener import AcceptedClient
from penstock.service.host.plan_process_main import LARGEST
from penstock.service.host.sockets import send_descriptors, tune_for_data
from penstock.service.logic.crashes import Losses, how_it_ended
from penstock.service.protocol import timing
from penstock.service.protocol.messages import WorkStatus
from penstock.service.protocol.plan_process_messages import (
    Begin,
    ClientLeft,
    Drain,
    Drained,
    Report,
    TakeClient,
    TidyUp,
    ToProcess,
    decoder_of_worker,
    encode,
)

_LOG = logging.getLogger("penstock.service")


_DEAD = {errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF}
"""Errors of the channel to a process that has ended; the nursery will say so soon."""


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


class PlanProcesses:
    """All processes of a worker, by the digests of their plans."""

    def __init__(self, nursery: Nursery, hurry: Callable[[], None], fail: Callable[[], None]):
        self.address = ""
        self._nursery, self._hurry, self._fail = nursery, hurry, fail
        self._changed = threading.Condition()
        """Guards everything below."""
        self._by_plan: dict[bytes, PlanRecord] = {}
        self._by_number: dict[int, PlanRecord] = {}
        self._losses = Losses()
        self._numbers = self._clients = 0
        self._draining = self._closed = False

    def begin(self, address: str) -> None:
        """From now on clients may come; `address` is the worker's."""
        self.address = address
        _start(self._watch)

    @property
    def restarts(self) -> int:
        """How many processes were lost."""
        return self._losses.count

    def __len__(self) -> int:
        """How many clients there are."""
        with self._changed:
            return sum(len(process.clients) for process in self._by_plan.values())

    # Clients

    def last_loss(self, plan: bytes) -> ProcessLoss:
        """How the last process of a plan was lost, if it was."""
        with self._changed:
            loss = self._losses.last(plan)
            return ProcessLoss() if loss is None else ProcessLoss(loss.number, loss.code)

    def serve(self, client: AcceptedClient) -> None:
        """Hands a client to the process of its plan; returns when the connection has ended."""
        if isinstance(client.socket, ssl.SSLSocket):
            self._relay(client, client.socket)
        elif (held := self._give(client, client.socket, client.socket.fileno())) is not None:
            held.over.wait()

    def _relay(self, client: AcceptedClient, secret: ssl.SSLSocket) -> None:
        near, far = map(tune_for_data, socket.socketpair())
        with near:
            with far:
                held = self._give(client, near, far.fileno())
            if held is not None:
                relay(secret, near)

    def _give(
        self, client: AcceptedClient, held: socket.socket, descriptor: int
    ) -> HeldClient | None:
        """A client that a process has taken, or None; `held` is shut when that process is lost."""
        with self._changed:
            while (process := self._process_of(client.plan)) is not None:
                self._clients += 1
                number = self._clients
                told = TakeClient(number, *client[1:-1])
                try:
                    process.tell(told, (descriptor,))
                except OSError as error:
                    if error.errno not in _DEAD:
                        return None  # It does not look at its channel; the client tries again.
                    self._changed.wait_for(partial(self._is_over, process))
                else:
                    return process.clients.setdefault(number, HeldClient(held))
        return None

    def _is_over(self, process: PlanRecord) -> bool:
        return self._closed or process.number not in self._by_number

    def _process_of(self, plan: bytes) -> PlanRecord | None:
        """The process of a plan, perhaps a new one, after a pause if there were too many."""
        while not self._closed:
            if plan in self._by_plan:
                return self._by_plan[plan]
            pause = self._losses.pause(plan, time.monotonic())
            if not pause:
                return self._start(plan)
            self._changed.wait(pause)
        return None

    def _start(self, plan: bytes) -> PlanRecord | None:
        self._numbers += 1
        try:
            channel = self._nursery.start(self._numbers)
        except OSError:
            return None  # The nursery is gone, and the worker will be soon.
        now = time.monotonic()
        process = PlanRecord(self._numbers, plan, channel, now, now)
        self._by_plan[plan] = self._by_number[process.number] = process
        with contextlib.suppress(OSError):  # Whoever is told next finds out.
            process.tell(Begin(self.address))
            if self._draining:
                process.tell(Drain())
        _start(partial(self._listen, process))
        return process

    # What processes say

    def _listen(self, process: PlanRecord) -> None:
        with process.channel, contextlib.suppress(OSError):
            while data := process.channel.recv(LARGEST):
                with self._changed:
                    process.note(decoder_of_worker.decode(data), time.monotonic())
                    self._changed.notify_all()

    # How processes end

    def _watch(self) -> None:
        while (death := self._nursery.death()) is not None:
            with self._changed:
                self._bury(death.number, death.code)
        with self._changed:
            for number in list(self._by_number):
                self._bury(number, -signal.SIGKILL)
            lost = not self._closed
        if lost:
            _LOG.error("worker %s: lost the process that starts others; it stops", self.address)
            self._fail()

    def _bury(self, number: int, code: int) -> None:
        """Notes how a process ended; its clients learn of it afterwards."""
        if (process := self._by_number.pop(number, None)) is None:
            return  # It ended as it was told to.
        del self._by_plan[process.plan]
        if not self._closed:
            self._regret(process, code)
        process.dismiss()
        self._changed.notify_all()
        self._hurry()

    def _regret(self, process: PlanRecord, code: int) -> None:
        loss = self._losses.add(process.plan, code, process.started, time.monotonic())
        later = f" in {loss.pause:g} s, because {loss.soon} of them ended soon after their start"
        _LOG.warning(
            "worker %s: a process with %d clients %s; they get another one%s",
            *(self.address, len(process.clients), how_it_ended(code)),
            later if loss.pause else "",
        )

    # What the worker's heartbeat needs

    def statuses(self) -> tuple[WorkStatus, ...]:
        """What was done for every job since the last time this was asked; each has one process."""
        with self._changed:
            return tuple(job for each in self._by_plan.values() for job in each.collect())

    def tidy(self, jobs: Collection[str] | None = None) -> None:
        """Ends processes that have had no clients for a while; the others close what is unused."""
        message = TidyUp(None if jobs is None else tuple(jobs))
        if len(encode(message)) > LARGEST:
            message = TidyUp()
        now = time.monotonic()
        with self._changed:
            for process in list(self._by_plan.values()):
                if not process.clients and now - process.idle_since > timing.PLAN_PROCESS_IDLE:
                    del self._by_plan[process.plan], self._by_number[process.number]
                    process.dismiss()
                else:
                    with contextlib.suppress(OSError):  # It is dead, or busy.
                        process.tell(message)
            self._losses.forget(now)

    def drain(self, timeout: float | None) -> None:
        """Has every process answer what it was asked, and nothing more; waits for that."""
        with self._changed:
            self._draining = True
            for process in self._by_plan.values():
                with contextlib.suppress(OSError):
                    process.tell(Drain())
            self._changed.wait_for(
                lambda: all(process.drained for process in self._by_plan.values()), timeout
            )

    def close(self) -> None:
        """Ends all processes; those that do not end soon are killed."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            for process in self._by_number.values():
                process.dismiss()
            self._changed.wait_for(lambda: not self._by_number, timing.PLAN_PROCESS_END)
        self._nursery.close()


def _start(task: Callable[[], None]) -> None:
    threading.Thread(target=task, name="penstock processes", daemon=True).start()
