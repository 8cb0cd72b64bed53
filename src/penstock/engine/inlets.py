"""Inlets: how an operator reads its input, counts what it used, and finds the place of an element.

A place is a state that the input saved earlier (a mark) and the number of elements since then, so
an operator has the place of each element without saving a state for each.
"""

from __future__ import annotations

import time

from penstock.element.chunk import Chunk
from penstock.engine.contract import State, Stream, must_settle

BUDGET = 0.001
"""Seconds of work that may go into a chunk before it is handed on."""

_MOST_ROWS = 8192
"""The most elements to ask for at once."""


class ElementCounter:
    """Pulls from a stream and counts the elements that it handed on; a failure is one, too."""

    def __init__(self, stream: Stream, count: int = 0) -> None:
        self.stream = stream
        self.count = count

    def pull(self, limit: int, needed: int = 1, rows: int = 0) -> Chunk:
        try:
            chunk = self.stream.pull_needed(needed, limit, rows)
        except StopIteration:
            raise
        except Exception:
            self.count += 1
            raise
        self.count += chunk.size
        return chunk


class Place:
    """A point in a stream: a saved state, and how many elements (or failures) follow it."""

    __slots__ = ("count", "mark")

    def __init__(self, mark: State, count: int = 0) -> None:
        self.mark = mark
        self.count = count

    def after(self, count: int) -> Place:
        return Place(self.mark, self.count + count)

    @property
    def state(self) -> State:
        if not self.count:
            return self.mark
        if isinstance(self.mark, int):
            return self.mark + self.count
        if "skip" in self.mark:
            return {"from": self.mark["from"], "skip": self.mark["skip"] + self.count}
        return {"from": self.mark, "skip": self.count}


class MarkedInput(ElementCounter):
    """Pulls from a stream and has the place of everything that it pulled.

    Saving a state may be expensive (a shuffle's buffer), so a mark is set only as often as that
    takes at most a twentieth of the time, and at most once for each `BUDGET` of work.
    """

    def __init__(self, stream: Stream, count: int = 0) -> None:
        super().__init__(stream, count)
        self._set_mark()
        self._cost = 0.0

    def _set_mark(self) -> None:
        started = time.perf_counter()
        self._mark, self._mark_count = self.stream.save(), self.count
        self._marked = time.perf_counter()
        self._cost = self._marked - started

    def place(self) -> Place:
        """The place of what the next pull will give."""
        if self._is_due():
            self._set_mark()
        return Place(self._mark, self.count - self._mark_count)

    def _is_due(self) -> bool:
        """Whether to set a mark here."""
        if self.count == self._mark_count or isinstance(self._mark, int):
            return False
        since = time.perf_counter() - self._marked
        return since >= max(20 * self._cost, BUDGET) or must_settle(self.stream)

    def pull(self, limit: int, needed: int = 1, rows: int = 0) -> Chunk:
        remote = self.stream.remote
        if remote is None:
            return super().pull(limit, needed, rows)
        return super().pull(remote.sure(limit))


class Inlet:
    """An operator's input that takes back what was not needed."""

    def __init__(self, stream: Stream, count: int = 0) -> None:
        self._marked = MarkedInput(stream, count)
        self._rest: Chunk | None = None
        self._error: Exception | None = None
        self.place = self._marked.place()
        """The place of the chunk that was pulled last."""

    @property
    def count(self) -> int:
        """How many elements it handed on, from `count` at the start, and did not take back.

        An element that failed is one of them.
        """
        held = 0 if self._rest is None else len(self._rest)
        return self._marked.count - held - (self._error is not None)

    @property
    def holds(self) -> bool:
        """Whether a pull would give what was taken back."""
        return self._rest is not None or self._error is not None

    def pull(self, limit: int, needed: int = 1, rows: int = 0) -> Chunk:
        """1 to `limit` elements, of which the caller needs `needed` before it can continue.

        If `rows` is given, it needs as many as have that number of rows together.
        """
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._rest is None:
            self.place = self._marked.place()
            return self._marked.pull(limit, needed, rows)
        rest, self.place = self._rest, self._rest_place
        chunk = rest.rows(0, limit)
        used = chunk.size
        self._keep(rest.rows(used, rest.size) if used < rest.size else None, used)
        return chunk

    def unread(self, chunk: Chunk, used: int) -> None:
        """Takes back the elements of the last chunk behind the first `used`, if there are any."""
        if used == chunk.size:
            return
        rest = chunk.rows(used, chunk.size)
        self._keep(rest if self._rest is None else Chunk.join([rest, self._rest]), used)

    def unraise(self, error: Exception) -> None:
        """Takes back the failure that the last pull ended with."""
        self._error = error

    def is_at_end(self, limit: int) -> bool:
        """Whether nothing follows; pulls up to `limit` elements, which the next pull gives."""
        if self.holds:
            return False
        try:
            self.unread(self.pull(limit), 0)
        except StopIteration:
            return True
        except Exception as error:
            self.unraise(error)
        return False

    def _keep(self, rest: Chunk | None, used: int) -> None:
        self._rest = rest
        self._rest_place = self.place.after(used)

    def save(self) -> State:
        if self._error is not None:
            return self.place.state
        return self._rest_place.state if self._rest is not None else self._marked.stream.save()


class FedStream(Stream):
    """An operator with one input, which it reads through an inlet: `_feed`."""

    def __init__(self, source: Stream, count: int = 0) -> None:
        self.inputs = (source,)
        self._feed = Inlet(source, count)

    def count_used(self) -> int:
        """How many elements of its input it has used; a failure is one, too."""
        return self._feed.count

    def _input_states(self) -> list[State]:
        return [self._feed.save()]


class Demand:
    """How much to ask for: little at first, more while it costs little time and memory."""

    def __init__(self, nbytes: int = 1 << 20) -> None:
        self.nbytes = nbytes
        self.limit = 1

    def record(self, chunk: Chunk, seconds: float) -> None:
        fits = min(
            _MOST_ROWS,
            chunk.size * self.nbytes // max(chunk.nbytes, 1),
            int(self.limit * BUDGET / max(seconds, 1e-7)),
        )
        self.limit = max(1, min(fits, 2 * self.limit))

    def pull(self, feed: Inlet, least: int = 1) -> Chunk:
        """What was taken back, or else as many elements as are made in a short time."""
        if feed.holds:
            return feed.pull(max(least, _MOST_ROWS))
        started = time.perf_counter()
        chunk = feed.pull(max(least, self.limit))
        self.record(chunk, time.perf_counter() - started)
        return chunk


def discard(stream: Stream | Inlet, count: int) -> int:
    """Pulls `count` elements (a failed one counts as well); returns how many were missing."""
    while count > 0:
        try:
            count -= len(stream.pull(count))
        except StopIteration:
            break
        except Exception:
            count -= 1
    return count
