"""What servers log about events: never elements, messages of users' exceptions, or secrets.

Warnings are for what needs attention, and docs/operations.md explains each of them. What is
ordinary in a running service is logged for debugging only.
"""

from __future__ import annotations

import logging
import os
import threading
import traceback
from collections import Counter

from penstock.errors import OpError
from penstock.service.logic.timeline import Incident

_LOG = logging.getLogger("penstock.service")

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


def log_incident(incident: Incident) -> None:
    """Logs an entry of the time line of a dispatcher."""
    event = {"event": incident.kind, **incident.about}
    if incident.kind == "lost":
        _LOG.warning("dispatcher: counts as lost: %s", incident.text, extra=event)
    elif incident.kind == "unreachable":
        _LOG.warning("dispatcher: cannot be reached: %s", incident.text, extra=event)
    else:
        level = logging.DEBUG if _is_ordinary(incident) else logging.INFO
        _LOG.log(level, "dispatcher: %s: %s", incident.kind, incident.text, extra=event)


def _is_ordinary(incident: Incident) -> bool:
    """Whether it happens whenever a program reads, or every time: the start has its own line."""
    return incident.text.startswith(("reader of ", "anonymous job ", "dispatcher started"))


class FailureLog:
    """Logs errors of users' functions on a worker: the first, second, fourth, eighth... of each.

    The class and the place say enough. The message of an error may quote elements, so it goes to
    the reader only.
    """

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        """How often each class was raised at each place; guarded by `_lock`."""

    def note(self, error: BaseException, job: str) -> None:
        """Counts an error in place of an element of a job, and logs it if its turn has come."""
        cause = error.__cause__ if isinstance(error, OpError) and error.__cause__ else error
        name, place = type(cause).__name__, _place_of(cause)
        with self._lock:
            self._counts[name, place] += 1
            count = self._counts[name, place]
        if count & (count - 1) == 0:
            times = f" ({count} times so far)" if count > 1 else ""
            event = {"event": "failed", "worker": self._worker, "job": job}
            _LOG.info("worker %s: %s%s%s", self._worker, name, place, times, extra=event)

    def warn_of_state(self, reason: str, job: str) -> None:
        """Warns that a worker that leaves cannot hand over the state of a stream."""
        _LOG.warning(
            "worker %s: leaves a stream without its state (%s); another worker computes the "
            "stream again from an earlier state or from its start, and the reader waits meanwhile",
            self._worker,
            reason,
            extra={"event": "failed", "worker": self._worker, "job": job},
        )


def _place_of(error: BaseException) -> str:
    """` in f at train.py:12`: the innermost frame outside penstock; empty if there is none."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        code = frame.f_code
        if not code.co_filename.startswith(_PACKAGE):
            return f" in {code.co_name} at {os.path.basename(code.co_filename)}:{line}"
    return ""
