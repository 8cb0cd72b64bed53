"""Plan processes: a worker runs every plan in a process of its own, and replaces crashed ones.

The worker listens and authenticates itself; it then hands the connection to the process of the
client's plan, as a descriptor beside `TakeClient`. The messages between both never leave the
machine, and their sockets have no names, so they need no authentication.

The worker keeps the socket of a client, too. When a process crashes, the worker first records how,
and only then shuts that process's connections. So a client that reconnects learns what happened.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import mmap
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from penstock.engine.call_watch import (
    RECORD_SIZE,
    CallWatch,
    RecordedCall,
    read_record,
    start_watch,
)
from penstock.engine.processes.descriptors import receive_descriptor, send_descriptors
from penstock.engine.processes.fork_server import ForkServer, describe_exit
from penstock.errors import OpError
from penstock.service.host import telemetry
from penstock.service.host.admission import AcceptedClient
from penstock.service.host.data_connection import Connection
from penstock.service.host.fetch_server import FetchGate, serve
from penstock.service.host.runtime import MACHINE
from penstock.service.host.security import ProcessLoss
from penstock.service.host.sockets import on_error, relay, shut, tune_for_data
from penstock.service.host.tasks import Tasks
from penstock.service.host.telemetry import ReportedWork, SentTotals
from penstock.service.logic.worker import Crash, Crashes, Search
from penstock.service.protocol import timing
from penstock.service.protocol.messages import Message, Plain, WorkStatus

_LOG = logging.getLogger("penstock.service")

LARGEST = 1 << 16
"""Bytes of the largest message between a worker and a plan process."""

_PART = 256
"""Statuses of jobs in one message."""

# Messages from the worker


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
    """Hand back all fetches; send `DrainReply` when the elements that are made are finished.

    `seconds`: the grace period, if there is one.
    """

    seconds: float | None = None


# Messages from the process


class ClientLeft(Message, frozen=True):
    """The connection of client `number` was closed."""

    number: int


class TidyUpReply(Message, frozen=True):
    """The reply to `TidyUp`: the work since the last one, in as many messages as needed."""

    jobs: tuple[WorkStatus, ...] = ()
    first: bool = True
    """Whether this is the first of these messages."""
    sent: SentTotals = SentTotals()
    """What was sent to clients meanwhile; only in the first of these messages."""


class DrainReply(Message, frozen=True):
    """The reply to `Drain`: every accepted fetch is answered or handed back."""


ToProcess = Begin | TakeClient | TidyUp | Drain
FromProcess = ClientLeft | TidyUpReply | DrainReply

encode = msgspec.msgpack.Encoder().encode
decoder_of_process: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ToProcess)
"""Decodes what a process receives."""
decoder_of_worker: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromProcess)
"""Decodes what the worker receives."""

_watch_decoder = msgspec.msgpack.Decoder(Watch)

# In the process: it serves all clients of one plan. It does what the worker does where plans are
# not isolated, except that it does not listen, register or send heartbeats. It ends when the worker
# closes its channel.


MakeTasks = Callable[[str], Tasks]

_SERVING = "penstock data"
"""The name of the threads of a plan process."""


def run_process(make_tasks: MakeTasks, channel: socket.socket) -> None:
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
                telemetry.set_up()
                self._tasks = self._make_tasks(address)
            case TakeClient(number, protocol, name, compression, checks):
                connected = socket.socket(fileno=descriptor)
                client = AcceptedClient(
                    connected,
                    protocol,
                    name,
                    compression=compression,
                    checks=checks,
                    plan=b"",
                )
                MACHINE.start(partial(self._serve, number, client.connection()), _SERVING)
            case TidyUp(jobs):
                self._tasks.tidy(jobs)
                self._send_report()
            case Drain(seconds):
                self._gate.close(seconds)
                MACHINE.start(self._drain, _SERVING)

    def _send_report(self) -> None:
        jobs = self._tasks.statuses()
        sent = self._tasks.traffic.take()
        for start in range(0, max(1, len(jobs)), _PART):
            part = jobs[start : start + _PART]
            self._send(TidyUpReply(part, first=not start, sent=SentTotals() if start else sent))

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
            ends = (self._tasks.close, telemetry.flush)
            for thread in [MACHINE.start(end, _SERVING) for end in ends]:
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


# In the worker

_WATCHING = "penstock processes"
"""The name of the worker's threads that watch plan processes."""

_DEAD = {errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF}
"""Errors of the channel to a process that has ended; the fork server will report its exit."""


class CallRecord:
    """The memory in which a plan process records its calls, for the worker to read after a crash.

    The worker makes it and passes its descriptor to the process with `Begin`.
    """

    def __init__(self, crash: Crash, search: Search) -> None:
        refused = {key: _explain(code) for key, code in search.refused.items()}
        watch = Watch(crash.watch, tuple(search.suspects), refused)
        wanted = encode(watch)
        self.descriptor = os.memfd_create("penstock calls", os.MFD_CLOEXEC)
        with on_error(self.release_descriptor):
            os.pwrite(self.descriptor, wanted, RECORD_SIZE)
            self._memory = mmap.mmap(self.descriptor, RECORD_SIZE + len(wanted))

    def release_descriptor(self) -> None:
        """Closes the descriptor, once the process has it; the memory stays."""
        os.close(self.descriptor)

    def read(self) -> list[RecordedCall]:
        """Returns the calls that were running when the process ended, and frees the memory."""
        calls = read_record(self._memory)
        self._memory.close()
        return calls


def _explain(code: int) -> str:
    """The error of a call that is refused, from the exit code of the last process that made it."""
    hint = "; the kernel does that when memory runs out" if code == -signal.SIGKILL else ""
    return (
        "plan processes crashed in this call each time; the last one "
        f"{describe_exit(code)}{hint}; see what the worker printed"
    )


class ClientSocket:
    """A client's socket, which the worker keeps to shut it when the plan process ends."""

    def __init__(self, kept: socket.socket) -> None:
        self._socket = kept
        self.over = threading.Event()
        """Set when the connection has ended."""

    def shut(self) -> None:
        """Ends the connection, which the process and the client then notice."""
        shut(self._socket)
        self.over.set()


@dataclass
class PlanProcess:
    """A process, its clients, and the work that it did since the last heartbeat.

    The lock of `PlanProcesses` guards all fields.
    """

    number: int
    plan: bytes
    channel: socket.socket
    started: float
    idle_since: float
    record: CallRecord | None = None
    """The calls that it makes, if its predecessor crashed."""
    clients: dict[int, ClientSocket] = field(default_factory=dict)
    drained: bool = False
    work: ReportedWork = field(default_factory=ReportedWork)

    def send(self, message: ToProcess, descriptors: tuple[int, ...] = ()) -> None:
        """Sends without blocking: a process that reads nothing must not delay other processes.

        Raises OSError if the process has ended, or its channel is full.
        """
        send_descriptors(self.channel, encode(message), descriptors, socket.MSG_DONTWAIT)

    def handle(self, message: Any, now: float) -> None:
        """Records a message of the process."""
        match message:
            case ClientLeft(number):
                if (left := self.clients.pop(number, None)) is not None:
                    left.shut()
                self.idle_since = now
            case TidyUpReply(jobs, first):
                self.work.add(jobs, first)
            case DrainReply():
                self.drained = True

    def dismiss(self) -> None:
        """Shuts the connections of all clients, and the channel, which ends the process."""
        for held in self.clients.values():
            held.shut()
        self.clients.clear()
        shut(self.channel)


class PlanProcesses:
    """All processes of a worker, by the digests of their plans."""

    def __init__(
        self, fork_server: ForkServer, hurry: Callable[[], None], fail: Callable[[], None]
    ) -> None:
        self.address = ""
        self._fork_server, self._hurry, self._fail = fork_server, hurry, fail
        self._changed = threading.Condition()
        """Guards all fields below, and those of every `PlanProcess`."""
        self._by_plan: dict[bytes, PlanProcess] = {}
        self._by_number: dict[int, PlanProcess] = {}
        self._crashes = Crashes()
        self._sent = SentTotals()
        self._numbers = self._clients = 0
        self._draining = self._closed = False

    def begin(self, address: str) -> None:
        """Starts to watch for exits; must be called before the first client comes."""
        self.address = address
        MACHINE.start(self._watch_exits, _WATCHING)

    @property
    def restarts(self) -> int:
        """How many processes crashed."""
        with self._changed:
            return self._crashes.count

    @property
    def sent(self) -> SentTotals:
        """What all processes have reported that they sent to clients."""
        with self._changed:
            return self._sent

    def count_processes(self) -> int:
        with self._changed:
            return len(self._by_plan)

    def __len__(self) -> int:
        """Counts the clients."""
        with self._changed:
            return sum(len(process.clients) for process in self._by_plan.values())

    # Clients

    def last_loss(self, plan: bytes) -> ProcessLoss:
        """Returns how the last process of a plan crashed, if one did."""
        with self._changed:
            crash = self._crashes.last(plan)
            if crash is None:
                return ProcessLoss()
            return ProcessLoss(
                number=crash.number,
                code=crash.code,
                pause=self._crashes.pause(plan, time.monotonic()),
                is_traced=crash.is_traced,
                function=crash.function.encode(),
            )

    def serve(self, client: AcceptedClient) -> None:
        """Hands a client to the process of its plan; returns when the connection has ended."""
        if isinstance(client.socket, ssl.SSLSocket):
            self._relay(client, client.socket)
        elif (kept := self._hand_over(client, client.socket, client.socket.fileno())) is not None:
            kept.over.wait()

    def _relay(self, client: AcceptedClient, encrypted: ssl.SSLSocket) -> None:
        """Serves a client of TLS: this process decrypts, because a plan process has no keys."""
        near, far = map(tune_for_data, socket.socketpair())
        with near:
            with far:
                kept = self._hand_over(client, near, far.fileno())
            if kept is not None:
                relay(encrypted, near)

    def _hand_over(
        self, client: AcceptedClient, kept: socket.socket, descriptor: int
    ) -> ClientSocket | None:
        """Sends `descriptor` to the process of the client's plan.

        Returns `kept`, which is shut when that process ends; None if no process took the client.
        """
        with self._changed:
            while (process := self._process_of(client.plan)) is not None:
                self._clients += 1
                number = self._clients
                message = TakeClient(
                    number=number,
                    protocol=client.protocol,
                    name=client.name,
                    compression=client.compression,
                    checks=client.checks,
                )
                try:
                    process.send(message, (descriptor,))
                except OSError as error:
                    if error.errno not in _DEAD:
                        return None  # Its channel is full; the client reconnects.
                    self._changed.wait_for(partial(self._has_ended, process))
                else:
                    return process.clients.setdefault(number, ClientSocket(kept))
        return None

    def _has_ended(self, process: PlanProcess) -> bool:
        return self._closed or process.number not in self._by_number

    def _process_of(self, plan: bytes) -> PlanProcess | None:
        """Returns the process of a plan; starts one, after a pause if its predecessors crashed."""
        while not self._closed:
            if plan in self._by_plan:
                return self._by_plan[plan]
            pause = self._crashes.pause(plan, time.monotonic())
            if not pause:
                return self._start(plan)
            self._changed.wait(pause)
        return None

    def _start(self, plan: bytes) -> PlanProcess | None:
        self._numbers += 1
        try:
            channel = self._fork_server.start(self._numbers)
        except OSError:
            return None  # The fork server is gone, so the worker is about to stop.
        now = time.monotonic()
        process = PlanProcess(
            number=self._numbers, plan=plan, channel=channel, started=now, idle_since=now
        )
        self._by_plan[plan] = self._by_number[process.number] = process
        with contextlib.suppress(OSError):  # The next message finds out that it has ended.
            self._send_begin(process)
            if self._draining:
                process.send(Drain())
        MACHINE.start(partial(self._receive, process), _WATCHING)
        return process

    def _send_begin(self, process: PlanProcess) -> None:
        """Sends the first message, with the memory for its calls if its predecessor crashed."""
        crash = self._crashes.last(process.plan)
        if crash is None:
            process.send(Begin(self.address))
            return
        record = process.record = CallRecord(crash, self._crashes.search(process.plan))
        try:
            process.send(Begin(self.address, watched=True), (record.descriptor,))
        finally:
            record.release_descriptor()

    # Messages of processes

    def _receive(self, process: PlanProcess) -> None:
        with process.channel, contextlib.suppress(OSError):
            while data := process.channel.recv(LARGEST):
                message: FromProcess = decoder_of_worker.decode(data)
                with self._changed:
                    process.handle(message, time.monotonic())
                    if isinstance(message, TidyUpReply):
                        self._sent += message.sent
                    self._changed.notify_all()

    # Exits of processes

    def _watch_exits(self) -> None:
        while (ended := self._fork_server.wait_exit()) is not None:
            with self._changed:
                self._record_exit(ended.number, ended.code)
        with self._changed:
            for number in list(self._by_number):
                self._record_exit(number, -signal.SIGKILL)
            lost = not self._closed
        if lost:
            _LOG.error(
                "worker %s: lost the process that starts plan processes; it stops",
                self.address,
                extra={"worker": self.address},
            )
            self._fail()

    def _record_exit(self, number: int, code: int) -> None:
        """Records how a process ended, then shuts its clients' connections, in this order."""
        if (process := self._by_number.pop(number, None)) is None:
            return  # `tidy` or `close` ended it.
        del self._by_plan[process.plan]
        if not self._closed:
            self._record_crash(process, code)
        process.dismiss()
        self._changed.notify_all()
        self._hurry()

    def _record_crash(self, process: PlanProcess, code: int) -> None:
        calls = None if process.record is None else process.record.read()
        crash = self._crashes.add(process.plan, code, process.started, time.monotonic(), calls)
        later = f" in {crash.pause:g} s, because {crash.early} of them ended soon after their start"
        _LOG.warning(
            "worker %s: a process with %d clients %s%s; they get another one%s",
            self.address,
            len(process.clients),
            describe_exit(code),
            f" in {crash.function}" if crash.function else "",
            later if crash.pause else "",
            extra={"worker": self.address},
        )

    # For the worker's heartbeats and its end

    def statuses(self) -> tuple[WorkStatus, ...]:
        """Returns the work that was done for every job since the last call.

        A job has one process, so no two of them have the same job.
        """
        with self._changed:
            return tuple(job for each in self._by_plan.values() for job in each.work.take())

    def tidy(self, jobs: Collection[str] | None = None) -> None:
        """Ends processes that had no clients for a while; asks the rest to close idle streams."""
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
                    with contextlib.suppress(OSError):  # It has ended, or its channel is full.
                        process.send(message)
            self._crashes.forget(now)

    def drain(self, timeout: float | None) -> None:
        """Blocks until every process has answered its fetches or handed them back, or `timeout`."""
        with self._changed:
            self._draining = True
            for process in self._by_plan.values():
                with contextlib.suppress(OSError):
                    process.send(Drain(timeout))
            self._changed.wait_for(
                lambda: all(process.drained for process in self._by_plan.values()), timeout
            )

    def close(self) -> None:
        """Ends all processes; kills the processes that do not end soon."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            for process in self._by_number.values():
                process.dismiss()
            self._changed.wait_for(lambda: not self._by_number, timing.PLAN_PROCESS_END)
        self._fork_server.close()
