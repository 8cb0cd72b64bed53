"""Spans: what each operator, thread, worker and device copy did when, for a file of a trace.

Nothing is recorded, and nothing costs time, unless a recorder is active when an iterator opens its
streams. The file has the format of Chrome's trace viewer, which Perfetto reads.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from typing import Any

MOST = 1_000_000
"""Spans that a recorder keeps; of more, the earliest are dropped."""

OPERATORS, THREADS, WORKERS, DEVICES = "operators", "threads", "workers", "device copies"
_GROUPS = (OPERATORS, THREADS, WORKERS, DEVICES)

active: SpanRecorder | None = None
"""The recorder of this process; None most of the time."""


class SpanRecorder:
    """Collects spans from all threads."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._spans: deque[tuple[str, str, str, float, float, int]] = deque(maxlen=MOST)
        """Group, track, name, start, seconds and elements. Appending is atomic."""
        self._count = 0
        """Threads count without a lock: a lost count only makes `dropped_count` too small."""

    def add(self, group: str, track: str, name: str, seconds: float, elements: int) -> None:
        """Adds a span that ends now."""
        self._count += 1
        start = time.perf_counter() - seconds - self._began
        self._spans.append((group, track, name, start, seconds, elements))

    def add_pull(self, name: str, seconds: float, elements: int) -> None:
        """Adds the pull of an operator, in its own track and in that of the thread."""
        self.add(OPERATORS, name, name, seconds, elements)
        self.add_call(name, seconds, elements)

    def add_call(self, name: str, seconds: float, elements: int) -> None:
        """Adds what the current thread did, in the track of the thread."""
        thread = threading.current_thread()
        self.add(THREADS, f"{thread.name} {thread.native_id}", name, seconds, elements)

    @property
    def dropped_count(self) -> int:
        """How many spans were dropped because there were more than `MOST`."""
        return max(self._count - len(self._spans), 0)

    def events(self) -> list[dict[str, Any]]:
        """The spans as events of Chrome's format, after the names of their tracks."""
        spans = list(self._spans)
        tracks = list(dict.fromkeys((span[0], span[1]) for span in spans))
        numbers = {track: number for number, track in enumerate(tracks, 1)}
        names = [
            *(_describe("process_name", _GROUPS.index(group) + 1, 0, group) for group in _GROUPS),
            *(
                _describe("thread_name", _GROUPS.index(track[0]) + 1, number, track[1])
                for track, number in numbers.items()
            ),
        ]
        return names + [
            {
                "name": name,
                "ph": "X",
                "ts": start * 1e6,
                "dur": seconds * 1e6,
                "pid": _GROUPS.index(group) + 1,
                "tid": numbers[group, track],
                "args": {"elements": elements},
            }
            for group, track, name, start, seconds, elements in spans
        ]

    def write(self, path: str | os.PathLike[str]) -> None:
        content = {"displayTimeUnit": "ms", "traceEvents": self.events()}
        with open(path, "w", encoding="utf-8") as file:
            json.dump(content, file)


def _describe(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
