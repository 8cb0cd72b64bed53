"""Traffic: what a worker has made and sent to clients, for its metrics and heartbeats.

A plan process counts what it sends, and reports it to its worker with its other work. A process
that crashes has not reported what it sent since the last heartbeat.
"""

from __future__ import annotations

import threading

from penstock.service.protocol.messages import Plain, WorkStatus


class Sent(Plain, frozen=True):
    """What was sent to clients."""

    elements: int = 0
    nbytes: int = 0
    """Bytes of the elements, before they are compressed."""
    failures: int = 0
    """Elements that could not be computed: their clients got the error."""

    def __add__(self, other: Sent) -> Sent:
        return Sent(
            elements=self.elements + other.elements,
            nbytes=self.nbytes + other.nbytes,
            failures=self.failures + other.failures,
        )


def add_work(one: WorkStatus, other: WorkStatus) -> WorkStatus:
    """What was made for an iteration in both."""
    return WorkStatus(
        job=one.job,
        elements=one.elements + other.elements,
        seconds=one.seconds + other.seconds,
        buffered=one.buffered + other.buffered,
        nbytes=one.nbytes + other.nbytes,
    )


class Traffic:
    """Adds up what the threads of a process send."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = Sent()  #: guarded by _lock
        self._taken = Sent()  #: guarded by _lock

    def add(self, elements: int = 0, nbytes: int = 0, failures: int = 0) -> None:
        with self._lock:
            self._total += Sent(elements, nbytes, failures)

    @property
    def total(self) -> Sent:
        """All that was sent."""
        with self._lock:
            return self._total

    def take(self) -> Sent:
        """Returns what was sent since the last call."""
        with self._lock:
            last, self._taken = self._taken, self._total
            return Sent(
                elements=self._total.elements - last.elements,
                nbytes=self._total.nbytes - last.nbytes,
                failures=self._total.failures - last.failures,
            )
