"""Light clients of a dispatcher: many readers and workers in one process, without any data.

They speak through the production classes: each has its own connection, each reader an `Agent` and
the `LeaseRequests` that decide what it leases, each worker a `RunningWorker`. A leased element
counts as arrived at once, and the user of a reader consumes elements at a constant pace.

One process runs `python -m benchmarks.light_clients ...` and prints a JSON object for each line
that it reads: what its clients have done so far.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import threading
import time
from collections import Counter, deque
from typing import Any

from penstock.data import Dataset
from penstock.data.experimental import service
from penstock.service.host.agent import Agent, LeasesLost
from penstock.service.host.control_connection import ControlClient
from penstock.service.host.runtime import MACHINE, Runtime
from penstock.service.host.security import Security
from penstock.service.host.services import Session
from penstock.service.host.telemetry import SentTotals
from penstock.service.host.worker_server import RunningWorker
from penstock.service.logic.client import LeaseRecord, LeaseRequests
from penstock.service.protocol.messages import (
    ClientHeartbeatReply,
    JobOptions,
    LeaseReply,
    OpenIteration,
    OpenIterationReply,
    Reply,
    Request,
    StreamRange,
    WorkerInfo,
    WorkStatus,
)

DATASET = "numbers"
DYNAMIC = 1
"""The sharding mode of a job whose readers share its elements."""
STEP = 0.1
"""Seconds between two steps of a user; each consumes the elements of that time."""


class Counts:
    """What the clients of this process have done. Threads add to it without a lock: each key has
    a value for each thread."""

    def __init__(self) -> None:
        self._of_threads: dict[int, Counter[str]] = {}

    def add(self, what: str, count: float = 1) -> None:
        mine = self._of_threads.setdefault(threading.get_ident(), Counter())
        mine[what] += count  # type: ignore[assignment]

    def total(self) -> dict[str, float]:
        return dict(sum(map(Counter, list(self._of_threads.values())), Counter()))


class CountedClient(ControlClient):
    """A client of the dispatcher, with connections of its own, whose calls are counted."""

    def __init__(self, address: str, counts: Counts) -> None:
        super().__init__(address, Security.of_client(address))
        self._counts = counts

    def call(self, request: Request, timeout: float | None = None) -> Reply:
        self._counts.add(type(request).__name__)
        started = time.monotonic()
        try:
            return super().call(request, timeout)
        finally:
            self._counts.add("waited", time.monotonic() - started)


class LightReader:
    """A reader of the job `job`, or of a job of its own if that is None.

    `rate` is how many elements per second its user consumes; `finished` is set at the end of the
    data. The simulation runs it with another `runtime`.
    """

    def __init__(self, name: str, job: str | None, rate: float, runtime: Runtime = MACHINE) -> None:
        self.finished = False
        self._runtime, self._now = runtime, runtime.now
        self._rate, self._opening = rate, _opening(name, job)
        self._record = LeaseRecord()
        self._workers = 0
        self._granted: deque[StreamRange] = deque()
        self.left = 0
        self._used_at = 0.0
        self._owed = 0.0

    def open(self, session: Session) -> None:
        opened: OpenIterationReply = session.call(self._opening)
        self._leased, self._workers = opened.leased, len(opened.workers)
        self._requests = LeaseRequests(opened.intervals)
        self._agent = Agent(
            session, self._opening, opened, lambda event: None, _never, self._runtime
        )
        self._used_at = self._now()

    def step(self) -> int:
        """Consumes the elements of the time since the last step, as far as they are leased.

        Returns how many there were.
        """
        while self._agent.events:
            self._process(self._agent.events.popleft())
        now = self._now()
        self._owed += self._rate * (now - self._used_at)
        self._used_at = now
        used = self._consume(int(self._owed)) if self._leased else int(self._owed)
        self._owed -= used
        # A user that had to wait does not catch up later.
        self._owed = min(self._owed, max(1.0, self._rate * STEP))
        self._report(used, now)
        return used

    def close(self) -> None:
        """Leaves, with a last report."""
        consumed, ended = self._record.report(everything=True, unused=0)
        self._agent.report(consumed, ended, 0, 0.0)
        self._agent.stop()

    def _process(self, event: Any) -> None:
        match event:
            case LeaseReply():
                self._requests.apply_reply(event, self.left, self._now())
                self.finished = event.finished
                self._granted.extend(grant.range for grant in event.grants)
                self.left += sum(g.range.stop - g.range.start for g in event.grants)
            case ClientHeartbeatReply() | OpenIterationReply():
                if event.workers is not None:
                    self._workers = len(event.workers)
            case LeasesLost():
                raise RuntimeError(f"{self._agent.client}: the dispatcher has expired its leases")
            case error:
                raise error

    def _consume(self, count: int) -> int:
        self._record.settle()
        count = left = min(count, self.left)
        while left:
            at = self._granted.popleft()
            stop = min(at.stop, at.start + left)
            self.hand_out(StreamRange(at.stream, at.start, stop))
            left -= stop - at.start
            if stop < at.stop:
                self._granted.appendleft(StreamRange(at.stream, stop, at.stop))
        self.left -= count
        if count:
            self._requests.pace.note(count, self._used_at)
        return count

    def hand_out(self, at: StreamRange) -> None:
        """Hands elements to the user."""
        self._record.hand_out(at)

    def _report(self, used: int, now: float) -> None:
        more = self._leased and not self.finished
        want = self._requests.want(self.left, self._workers, now) if more else 0
        consumed, ended = self._record.report(everything=False, unused=0)
        self._agent.report(consumed, ended, used, 0.0, want)


def _opening(name: str, job: str | None) -> OpenIteration:
    return OpenIteration(
        client=name,
        job=job,
        repetition=0,
        dataset_id=DATASET,
        options=JobOptions(DYNAMIC),
        key=1,
        epoch=(0,),
        host="here",
        program=name,
    )


def _never(*_: Any) -> Any:
    raise RuntimeError("the dispatcher does not know a reader any more")


class LightWorker:
    """A worker that registers and sends heartbeats; it also replaces `Tasks`."""

    restarts = 0
    sent = SentTotals()

    def __init__(self, name: str) -> None:
        self._info = WorkerInfo(name, f"{name}:1", "here", {"tcp": f"{name}:1"})

    def open(self, control: ControlClient, runtime: Runtime = MACHINE) -> RunningWorker:
        running = RunningWorker(threading.Event(), runtime=runtime)
        running.control, running.info = control, self._info
        running.tasks = self  # type: ignore[assignment]
        running.register(30.0)
        running.start_heartbeats()
        return running

    def statuses(self) -> tuple[WorkStatus, ...]:
        return (WorkStatus("a job", 100, 0.5),)

    def tidy(self, jobs: Any = None) -> None:
        """There is nothing to close."""

    close = tidy


def main() -> None:
    words = _words()
    counts = Counts()
    service.register_dataset(f"grpc://{words.address}", Dataset.range(1 << 50), dataset_id=DATASET)
    for number in range(words.workers):
        LightWorker(f"w{words.name}-{number}").open(CountedClient(words.address, counts))
    readers = [
        LightReader(f"r{words.name}-{number}", words.job or None, words.rate)
        for number in range(words.readers)
    ]
    print("registered", flush=True)
    sys.stdin.readline()
    for reader in readers:
        control = CountedClient(words.address, counts)
        reader.open(Session(words.address, Security.of_client(words.address), control.call))
    threading.Thread(target=_use, args=(readers, counts), daemon=True).start()
    print("reading", flush=True)
    for _ in sys.stdin:
        used = resource.getrusage(resource.RUSAGE_SELF)
        found = {**counts.total(), "cpu": used.ru_utime + used.ru_stime}
        print(json.dumps(found), flush=True)


def _use(readers: list[LightReader], counts: Counts) -> None:
    """The users of all readers, in turns."""
    while readers:
        started = time.monotonic()
        for reader in readers:
            try:
                counts.add("elements", reader.step())
            except Exception as error:
                counts.add("errors")
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                readers.remove(reader)
                break
        time.sleep(max(0.0, started + STEP - time.monotonic()))


def _words() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--name", default="0")
    parser.add_argument("--readers", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--job", default="")
    parser.add_argument("--rate", type=float, default=100.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
