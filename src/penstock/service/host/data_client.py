"""The client's side of data connections: makes them, and keeps one to each worker for a reader.

A connection uses shared memory where possible, else TCP. A worker must prove that it has the token
before one of its messages is decoded.

Connecting takes time, so `Links` does it in threads. The reader's thread alone calls all other
methods of `Links`, except `abort_others`.
"""

from __future__ import annotations

import logging
import select
import selectors
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from penstock.engine.processes.chunk_memory import MappedSlabs, can_share
from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
    UnauthenticatedError,
    UnavailableError,
)
from penstock.service.host.data_connection import Connection, compression_mode
from penstock.service.host.runtime import MACHINE, Bell, Runtime
from penstock.service.host.security import ClientHandshake, Security, Terms, client_handshake
from penstock.service.host.sockets import (
    Channel,
    DescriptorChannel,
    TlsChannel,
    connect_tcp,
    connect_unix,
    limit_silence,
    on_error,
    split_address,
)
from penstock.service.logic.feeds import Ask, Feed
from penstock.service.protocol import timing
from penstock.service.protocol.data_messages import MOST_STATE, CloseTask, Fetch, OpenTask
from penstock.service.protocol.messages import Work, WorkerInfo


def connect_data(
    info: WorkerInfo,
    security: Security,
    protocol: str | None,
    own_host: str,
    compression: str | None,
    plan: bytes = bytes(32),
    patience: float = timing.WORKER_TIMEOUT,
) -> Connection:
    """A connection to a worker: by `protocol`, or else by shared memory if possible, else TCP.

    `plan` is the digest of the plan that will be read: a worker runs each plan in a process of its
    own. `own_host` is the `host_id` of this process. The connection fails when the network carries
    nothing for `patience` seconds.
    """
    terms = Terms(compression_mode(compression), plan=plan)
    if protocol not in (None, "tcp", "shm"):
        raise InvalidArgumentError(
            f'data_transfer_protocol must be None, "tcp" or "shm", got {protocol!r}'
        )
    shared = can_share() and info.host == own_host and "shm" in info.transfers
    if protocol == "shm" and not shared:
        raise UnavailableError(
            f"worker {info.address} shares no memory with this process ({info.host} and "
            f'{own_host}); use data_transfer_protocol "tcp" or None'
        )
    if shared and protocol != "tcp":
        try:
            return _connect(info, "shm", security, terms=Terms(plan=plan), patience=patience)
        except UnavailableError:
            if protocol == "shm":
                raise
    return _connect(
        info, "tcp", security, terms=terms, patience=patience, same_host=info.host == own_host
    )


def _connect(
    info: WorkerInfo,
    protocol: str,
    security: Security,
    *,
    terms: Terms,
    patience: float,
    same_host: bool = False,
) -> Connection:
    address = info.transfers.get(protocol)
    if address is None:
        raise UnavailableError(f"worker {info.address} hands out no data by {protocol}")
    try:
        channel, handshake = _open_channel(
            protocol, address, security, terms=terms, patience=patience, same_host=same_host
        )
    except UnauthenticatedError as error:
        raise UnauthenticatedError(
            f"worker {info.address} at {protocol} {address} {error.message}; all processes "
            f"of a service need one token, and this one comes from {security.origin}"
        ) from None
    except FailedPreconditionError as error:
        raise FailedPreconditionError(f"worker {info.address} {error.message}") from None
    except (OSError, InvalidArgumentError) as error:  # Errors of the handshake are OSErrors, too.
        raise UnavailableError(
            f"worker {info.address}: no data from {protocol} {address} ({error}); is the worker "
            "running, and can this machine reach that address? If not, start the worker with a "
            "worker_address or data_transfer_address that can be reached from here"
        ) from None
    channel.set_receive_timeout(patience)
    mapped = MappedSlabs() if protocol == "shm" else None
    connection = Connection(
        channel, f"worker {info.address} ({protocol})", client=True, mapped=mapped
    )
    connection.process_loss, connection.protocol = handshake.process_loss, handshake.protocol
    return connection


def _open_channel(
    protocol: str,
    address: str,
    security: Security,
    *,
    terms: Terms,
    patience: float,
    same_host: bool,
) -> tuple[Channel, ClientHandshake]:
    deadline = time.monotonic() + timing.HANDSHAKE
    connect = connect_unix if protocol == "shm" else connect_tcp
    connected = connect(address, timing.HANDSHAKE)
    with on_error(lambda: connected.close()):
        limit_silence(connected, patience)
        if same_host:
            own_port, other_port = connected.getsockname()[1], connected.getpeername()[1]
            terms = terms._replace(own_port=own_port, other_port=other_port)
        context = security.client_context() if protocol == "tcp" else None
        if context is not None:
            connected = context.wrap_socket(connected, server_hostname=split_address(address)[0])
        handshake = client_handshake(connected, security.token, terms, deadline)
        if isinstance(connected, ssl.SSLSocket):
            return TlsChannel(connected), handshake
        kind = DescriptorChannel if protocol == "shm" else Channel
        return kind(connected), handshake


_LOG = logging.getLogger("penstock.service")

_LATER = 4.0
"""The factor by which the pause grows if a connection is cut again before anything came from it."""

Connect = Callable[[WorkerInfo], Connection]


class Link:
    """A connection to one worker, the numbers of its tasks there, and which requests it owes."""

    def __init__(self, worker: str, connection: Connection, now: Callable[[], float]) -> None:
        self.worker = worker
        self.connection = connection
        self._now = now
        self.owed: set[int] = set()
        """Requests that are not answered yet."""
        self.heard = 0.0
        """When the worker last sent something, or got a request while it owed nothing."""
        self.where = ""
        """The user's function that the worker was running when it last reported progress."""
        self.element: int | None = None
        """The element that this function was called for, as errors of the function count."""
        self._tasks: dict[Work, int] = {}
        self.feeds: dict[int, Feed] = {}
        """By task: what was requested of it last."""
        self._successor: WorkerInfo | None = None
        """The worker that was named in the last request that named one."""
        self._opened = 0
        self._first: list[OpenTask | CloseTask] = []
        """What is sent together with the next request, to save messages: many streams are short."""
        self.damaged = 0
        """How many chunks in a row arrived damaged."""
        self.leaves = False
        """Whether the worker has said that it is about to stop."""
        self.in_use = False
        """Whether the reader's thread may be blocked, sending or receiving."""

    def fetch(
        self, ask: Ask, work: Work, *, trace: str = "", successor: WorkerInfo | None = None
    ) -> None:
        """Sends a request; `successor` continues the stream if this worker leaves."""
        if not self.owed:
            self.heard, self.where, self.element = self._now(), "", None
        self.owed.add(ask.request)
        if work not in self._tasks:
            self._opened += 1
            self._tasks[work] = self._opened
            self._first.append(OpenTask(self._opened, work))
        task = self._tasks[work]
        first, self._first = self._first, []
        new = None if successor == self._successor else successor
        fetch = Fetch(
            request=ask.request,
            task=task,
            start=ask.start,
            stop=ask.stop,
            mark=ask.mark,
            trace=trace,
            turn=ask.turn,
            most_state=MOST_STATE,
            successor=new,
        )
        self.in_use = True
        self.connection.send(*first, fetch)
        self.in_use = False
        self.feeds[task] = ask.feed
        self._successor = new or self._successor

    def silence(self, now: float) -> float:
        """Seconds since the worker last sent something."""
        return now - self.heard

    @property
    def is_finishing(self) -> bool:
        """Whether the worker is about to stop, and makes last elements for this reader."""
        feeds = list(self.feeds.values())  # The agent's thread may ask, too.
        moving = any(feed.marks.moving_from == self.worker for feed in feeds)
        return self.leaves and (moving or bool(self.owed))

    def close_task(self, work: Work) -> None:
        """Closes the worker's task of a stream that has ended, with the next request."""
        task = self._tasks.pop(work, None)
        if task is not None:
            self.feeds.pop(task, None)
            self._first.append(CloseTask(task))


class Links:
    """The workers that are connected, that should be, and that could not be reached."""

    def __init__(self, connect: Connect, bell: Bell, runtime: Runtime = MACHINE) -> None:
        self._connect = connect
        self._bell = bell
        self._runtime = runtime
        self._wanted: dict[str, WorkerInfo] = {}
        self._links: dict[str, Link] = {}
        """Changed by the reader's thread alone; `abort_others` reads a copy."""
        self._busy: set[str] = set()
        """Workers that a thread is connecting to."""
        self._again: dict[str, float] = {}
        """When to connect to a worker again."""
        self._cuts: dict[str, int] = {}
        """How often a worker's connection was cut since elements came from it."""
        self._looked = 0.0
        """When `ready` last looked; everything that had arrived by then was read."""
        self._arrived: deque[tuple[str, Connection | OpError]] = deque()
        """Results of the connecting threads; appending and popping are atomic."""
        self._closed = False
        self._selector = runtime.selector()
        self._selector.register(bell, selectors.EVENT_READ)
        self._hangups: dict[str, select.poll] = {}
        """By worker: polls whether the worker has closed its connection."""
        self.unreachable: dict[str, OpError] = {}
        self._reasons: dict[str, str] = {}
        """Why connections were closed, for workers that were not connected since then."""
        self.ever = False
        """Whether any worker was ever reached."""

    def __len__(self) -> int:
        return len(self._links)

    def __getitem__(self, worker: str) -> Link:
        return self._links[worker]

    def awaits(self, worker: str) -> bool:
        """Whether a worker may still be connected: it is wanted, and no attempt has failed."""
        there = worker in self._links or worker in self.unreachable
        return worker in self._wanted and not there

    def pause(self, now: float) -> float:
        """Seconds until `dial` has something to do."""
        idle = [w for w in self._wanted if w not in self._links and w not in self._busy]
        return max(
            0.0, min((self._again.get(w, 0.0) for w in idle), default=now + timing.RECONNECT) - now
        )

    @property
    def expected(self) -> list[str]:
        """Workers that may be connected soon."""
        return [worker for worker in self._wanted if self.awaits(worker)]

    def want(self, workers: Iterable[WorkerInfo]) -> list[str]:
        """Sets the workers to connect to; returns connected workers that are no longer wanted."""
        self._wanted = {info.worker: info for info in workers}
        self.unreachable = {w: why for w, why in self.unreachable.items() if w in self._wanted}
        self._reasons = {w: why for w, why in self._reasons.items() if w in self._wanted}
        self._cuts = {w: cuts for w, cuts in self._cuts.items() if w in self._wanted}
        return self.unwanted

    @property
    def unwanted(self) -> list[str]:
        """Connected workers that the dispatcher has removed and that have nothing to finish."""
        links = self._links.items()
        return [w for w, link in links if w not in self._wanted and not link.is_finishing]

    def find_info(self, worker: str | None) -> WorkerInfo | None:
        """How to reach a worker that is wanted."""
        return None if worker is None else self._wanted.get(worker)

    def dial(self) -> None:
        """Starts threads that connect to workers that are wanted and not connected."""
        now = self._runtime.now()
        for worker, info in self._wanted.items():
            waits = worker in self._links or worker in self._busy
            if not waits and self._again.get(worker, 0.0) <= now:
                self._busy.add(worker)
                self._runtime.start(partial(self._dial_worker, info), "penstock-connect")

    def _dial_worker(self, info: WorkerInfo) -> None:
        """Runs in a thread of its own."""
        try:
            self._arrived.append((info.worker, self._connect(info)))
        except OpError as error:
            self._arrived.append((info.worker, error))
        except Exception as error:
            self._arrived.append((info.worker, UnavailableError(f"{info.address}: {error}")))
        self._bell.ring()
        # `close` may have emptied the queue before this connection was appended.
        if self._closed:
            self._discard()

    def take_connected(self) -> list[str]:
        """Adds new connections, and failures to `unreachable`; returns the connected workers."""
        made: list[str] = []
        while self._arrived:
            worker, connection = self._arrived.popleft()
            self._busy.discard(worker)
            if isinstance(connection, OpError):
                is_new = worker not in self.unreachable
                if is_new and isinstance(connection, FailedPreconditionError):
                    # Too old or too new: other workers may hide that for long.
                    _LOG.warning(
                        "distribute: %s; this reader uses other workers", connection.message
                    )
                self.unreachable[worker] = connection
                self._again[worker] = self._runtime.now() + timing.RECONNECT
            elif worker not in self._wanted:
                connection.close()
            else:
                self.unreachable.pop(worker, None)
                self._reasons.pop(worker, None)
                self._links[worker] = Link(worker, connection, self._runtime.now)
                self._selector.register(connection, selectors.EVENT_READ, worker)
                self._hangups[worker] = self._runtime.poll()
                self._hangups[worker].register(connection, getattr(select, "POLLRDHUP", 0))
                made.append(worker)
                self.ever = True
        return made

    def missing(self) -> list[str]:
        """Why each wanted worker is not connected."""
        return [self._explain(worker, info) for worker, info in self._wanted.items()]

    def _explain(self, worker: str, info: WorkerInfo) -> str:
        if worker in self.unreachable:
            return self.unreachable[worker].message
        return self._reasons.get(worker, f"worker {info.address} has not answered yet")

    def drop(self, worker: str, reason: str = "") -> None:
        """Closes a connection; if the worker is still wanted, `dial` connects to it again."""
        link = self._links.pop(worker, None)
        if reason:
            self._reasons[worker] = reason
        pause = min(timing.RECONNECT, timing.FIRST_RECONNECT * _LATER ** self._cuts.get(worker, 0))
        self._again[worker] = self._runtime.now() + pause
        if link is not None:
            self._cuts[worker] = self._cuts.get(worker, 0) + 1
            self._selector.unregister(link.connection)
            del self._hangups[worker]
            link.connection.close()

    def note_chunk(self, link: Link) -> None:
        """Notes that an undamaged chunk came from a worker."""
        link.damaged = 0
        self._cuts.pop(link.worker, None)

    def abort_others(self, workers: Iterable[WorkerInfo]) -> None:
        """Aborts the connections to all but `workers`; called by the agent's thread.

        A worker that froze in the middle of a message would block the reader's thread. A worker
        that leaves is not in the list either; it may finish the element that it is making, and the
        reader has yet to read where its streams continue.
        """
        there = {info.worker for info in workers}
        for worker, link in list(self._links.items()):
            if worker not in there and link.in_use and not link.is_finishing:
                link.connection.abort()

    def has_ended(self, link: Link) -> bool:
        """Whether the worker has closed a connection."""
        return bool(self._hangups[link.worker].poll(0))

    def is_readable(self, link: Link) -> bool:
        """Whether something has arrived from a worker."""
        if link.connection.pending():
            return True
        return any(key.data == link.worker for key, _ in self._selector.select(0))

    def ready(self, timeout: float) -> list[Link]:
        """Blocks until links have data; returns none after `timeout` or if the bell rings."""
        found = [link for link in self._links.values() if link.connection.pending()]
        if not found:
            found = self._select(timeout)
        for link in found:
            link.heard = self._runtime.now()
        return found

    def _select(self, timeout: float) -> list[Link]:
        # Read the clock first: if this process is suspended in between, the time of its suspension
        # must not count as silence of workers whose messages have arrived meanwhile.
        looked, found = self._runtime.now(), []
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                self._bell.quiet()
            elif key.data in self._links:
                found.append(self._links[key.data])
        self._looked = looked
        return found

    def silent(self, seconds: float) -> list[Link]:
        """Links that owe replies and sent nothing for `seconds`, as of the last `ready`."""
        links = self._links.values()
        return [link for link in links if link.owed and link.silence(self._looked) > seconds]

    def close(self) -> None:
        self._closed = True
        self._wanted = {}
        for worker in list(self._links):
            self.drop(worker)
        self._discard()
        self._selector.close()

    def _discard(self) -> None:
        while self._arrived:
            connection = self._arrived.popleft()[1]
            if not isinstance(connection, OpError):
                connection.close()
