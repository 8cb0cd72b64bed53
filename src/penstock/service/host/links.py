"""Links: the data connections of one reader, to as many workers as there are.

Connecting takes time, so it happens in threads; all else happens in the reader's own thread.
"""

from __future__ import annotations

import selectors
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from penstock.errors import OpError, UnavailableError
from penstock.service.host.data_connection import Connection
from penstock.service.host.runtime import MACHINE, Bell, Runtime
from penstock.service.protocol import timing
from penstock.service.protocol.fetches import CloseTask, Fetch, OpenTask
from penstock.service.protocol.messages import Work, WorkerInfo

_LATER = 4.0
"""The factor by which the pause grows if a connection is cut again before anything came from it."""

Connect = Callable[[WorkerInfo], Connection]


class Link:
    """A connection to one worker, what its tasks are called there, and what it owes."""

    def __init__(self, worker: str, connection: Connection, now: Callable[[], float]) -> None:
        self.worker = worker
        self.connection = connection
        self._now = now
        self.owed: set[int] = set()
        """Requests that are not answered yet."""
        self.heard = 0.0
        """When it last said something, or was asked when it owed nothing."""
        self.where = ""
        """The user's function that it was in when it last said so."""
        self._tasks: dict[Work, int] = {}
        self._opened = 0
        self._first: list[OpenTask | CloseTask] = []
        """What is said together with the next request: many streams are short."""
        self.damaged = 0
        """How many chunks in a row arrived damaged."""

    def fetch(self, request: int, work: Work, start: int, stop: int, mark: Any) -> None:
        if not self.owed:
            self.heard, self.where = self._now(), ""
        self.owed.add(request)
        if work not in self._tasks:
            self._opened += 1
            self._tasks[work] = self._opened
            self._first.append(OpenTask(self._opened, work))
        first, self._first = self._first, []
        self.connection.send(*first, Fetch(request, self._tasks[work], start, stop, mark))

    def silence(self, now: float) -> float:
        """For how long it has said nothing."""
        return now - self.heard

    def answered(self, request: int) -> None:
        """All of a request has come."""
        self.owed.discard(request)

    def close_task(self, work: Work) -> None:
        """The worker may forget a stream, which has come to its end."""
        task = self._tasks.pop(work, None)
        if task is not None:
            self._first.append(CloseTask(task))


class Links:
    """Who is connected, who should be, and who could not be reached."""

    def __init__(self, connect: Connect, bell: Bell, runtime: Runtime = MACHINE) -> None:
        self._connect = connect
        self._bell = bell
        self._runtime = runtime
        self._wanted: dict[str, WorkerInfo] = {}
        self._links: dict[str, Link] = {}
        self._busy: set[str] = set()
        self._again: dict[str, float] = {}
        self._cuts: dict[str, int] = {}
        """How often a worker's connection was cut since elements came from it."""
        self._looked = 0.0
        """No link had more to say at that time than it has said by now."""
        self._arrived: deque[tuple[str, Connection | OpError]] = deque()
        self._closed = False
        self._selector = runtime.selector()
        self._selector.register(bell, selectors.EVENT_READ)
        self.unreachable: dict[str, OpError] = {}
        self._reasons: dict[str, str] = {}
        """Why connections were given up, of workers that were not tried since then."""
        self.ever = False
        """Whether any worker was ever reached."""

    def __len__(self) -> int:
        return len(self._links)

    def __getitem__(self, worker: str) -> Link:
        return self._links[worker]

    def awaits(self, worker: str) -> bool:
        """Whether a worker is about to be connected, as far as anybody knows."""
        there = worker in self._links or worker in self.unreachable
        return worker in self._wanted and not there

    def pause(self, now: float) -> float:
        """Seconds until `dial` has something to do."""
        idle = [w for w in self._wanted if w not in self._links and w not in self._busy]
        return max(
            0.0, min((self._again.get(w, 0.0) for w in idle), default=now + timing.RECONNECT) - now
        )

    @property
    def expects(self) -> bool:
        """Whether somebody may be connected soon."""
        return any(w not in self._links and w not in self.unreachable for w in self._wanted)

    def want(self, workers: Iterable[WorkerInfo]) -> list[str]:
        """The workers there are; gives those that are connected and no longer among them."""
        self._wanted = {info.worker: info for info in workers}
        gone = [worker for worker in self._links if worker not in self._wanted]
        for worker in list(self.unreachable):
            if worker not in self._wanted:
                del self.unreachable[worker]
        self._reasons = {w: why for w, why in self._reasons.items() if w in self._wanted}
        self._cuts = {w: cuts for w, cuts in self._cuts.items() if w in self._wanted}
        return gone

    def dial(self) -> None:
        """Begins to connect to those who are wanted and not connected."""
        now = self._runtime.now()
        for worker, info in self._wanted.items():
            waits = worker in self._links or worker in self._busy
            if not waits and self._again.get(worker, 0.0) <= now:
                self._busy.add(worker)
                self._runtime.start(partial(self._dialled, info), "penstock-connect")

    def _dialled(self, info: WorkerInfo) -> None:
        try:
            self._arrived.append((info.worker, self._connect(info)))
        except OpError as error:
            self._arrived.append((info.worker, error))
        except Exception as error:
            self._arrived.append((info.worker, UnavailableError(f"{info.address}: {error}")))
        self._bell.ring()
        if self._closed:
            self._discard()

    def connected(self) -> list[str]:
        """Workers that were connected since the last call; the others are in `unreachable`."""
        made: list[str] = []
        while self._arrived:
            worker, connection = self._arrived.popleft()
            self._busy.discard(worker)
            if isinstance(connection, OpError):
                self.unreachable[worker] = connection
                self._again[worker] = self._runtime.now() + timing.RECONNECT
            elif worker not in self._wanted:
                connection.close()
            else:
                self.unreachable.pop(worker, None)
                self._reasons.pop(worker, None)
                self._links[worker] = Link(worker, connection, self._runtime.now)
                self._selector.register(connection, selectors.EVENT_READ, worker)
                made.append(worker)
                self.ever = True
        return made

    def missing(self) -> list[str]:
        """Why each of the workers that there are is not connected."""
        return [self._why(worker, info) for worker, info in self._wanted.items()]

    def _why(self, worker: str, info: WorkerInfo) -> str:
        if worker in self.unreachable:
            return self.unreachable[worker].message
        return self._reasons.get(worker, f"worker {info.address} has not answered yet")

    def drop(self, worker: str, reason: str = "") -> None:
        """Ends a connection; if the worker is still wanted, it is tried again: it may be alive."""
        link = self._links.pop(worker, None)
        if reason:
            self._reasons[worker] = reason
        pause = min(timing.RECONNECT, timing.FIRST_RECONNECT * _LATER ** self._cuts.get(worker, 0))
        self._again[worker] = self._runtime.now() + pause
        if link is not None:
            self._cuts[worker] = self._cuts.get(worker, 0) + 1
            self._selector.unregister(link.connection)
            link.connection.close()

    def received(self, link: Link) -> None:
        """Elements came from a worker."""
        link.damaged = 0
        self._cuts.pop(link.worker, None)

    def abort_others(self, workers: Iterable[WorkerInfo]) -> None:
        """Ends connections to all but `workers`, from another thread.

        One that was frozen within a message would hold up the reader's thread for ever.
        """
        there = {info.worker for info in workers}
        for worker, link in list(self._links.items()):
            if worker not in there:
                link.connection.abort()

    def ready(self, timeout: float) -> list[Link]:
        """Links that have something to read; none after `timeout` or when the bell rings."""
        found = [link for link in self._links.values() if link.connection.pending()]
        if not found:
            found = self._select(timeout)
        for link in found:
            link.heard = self._runtime.now()
        return found

    def _select(self, timeout: float) -> list[Link]:
        # Before: this process may be stopped for a while, and what came meanwhile is found then.
        looked, found = self._runtime.now(), []
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                self._bell.quiet()
            elif key.data in self._links:
                found.append(self._links[key.data])
        self._looked = looked
        return found

    def silent(self, seconds: float) -> list[Link]:
        """Links that owe something and have said nothing for so long, as of the last `ready`."""
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
