"""Counting operators: which elements, by their number."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.element.chunk import Chunk
from penstock.engine.access import leaf, pair
from penstock.engine.contract import State, Stream
from penstock.engine.inlets import ElementCounter, discard
from penstock.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from penstock.plan.nodes import INFINITE


class _CountedStream(Stream):
    """An operator with one input, whose state is the number of the next element of the input."""

    def __init__(self, source: Stream, number: State = None) -> None:
        self.inputs = (source,)
        self._feed = ElementCounter(source, number or 0)

    def _own_state(self) -> State:
        return self._feed.count


class TakeStream(_CountedStream):
    """The first elements. The state is how many of them are left."""

    def __init__(self, source: Stream, left: int) -> None:
        super().__init__(source)
        self._count = left

    def pull_needed(self, needed: int, limit: int, rows: int = 0) -> Chunk:
        left = self._count - self._feed.count
        if left <= 0:
            raise StopIteration
        return self._feed.pull(min(limit, left), needed, rows)

    def _own_state(self) -> State:
        return self._count - self._feed.count


class SkipStream(Stream):
    """All but the first elements."""

    def __init__(self, source: Stream, left: int) -> None:
        self.inputs = (source,)
        self._left = left

    def pull_needed(self, needed: int, limit: int, rows: int = 0) -> Chunk:
        left, self._left = self._left, 0
        discard(self.inputs[0], left)
        return self.inputs[0].pull_needed(needed, limit, rows)

    def _own_state(self) -> State:
        return self._left


class ShardStream(_CountedStream):
    """Every n-th element."""

    def __init__(self, source: Stream, shards: int, index: int, number: State) -> None:
        super().__init__(source, number)
        self._shards = shards
        self._index = index

    def pull(self, limit: int) -> Chunk:
        while True:
            start = (self._index - self._feed.count) % self._shards
            want = start + (limit - 1) * self._shards + 1
            try:
                rows = self._feed.pull(want)
            except StopIteration:
                raise
            except Exception:
                if start == 0:
                    raise
                continue  # An element of another shard failed.
            if len(rows) > start:
                return rows.take(np.arange(start, len(rows), self._shards))


class EnumerateStream(_CountedStream):
    """Pairs of (number, element)."""

    def pull_needed(self, needed: int, limit: int, rows: int = 0) -> Chunk:
        elements = self._feed.pull(limit, needed, rows)
        stop = self._feed.count
        return pair(leaf(np.arange(stop - len(elements), stop)), elements)


class UniqueStream(Stream):
    """Every value once. It holds all values so far."""

    def __init__(self, source: Stream, seen: State) -> None:
        self.inputs = (source,)
        self._seen: dict[Any, None] = dict.fromkeys(seen or ())

    def pull_needed(self, needed: int, limit: int, rows: int = 0) -> Chunk:
        while True:
            found = self.inputs[0].pull_needed(needed, limit)
            if len(found.columns) != 1:
                raise InvalidArgumentError(
                    f"Dataset.unique: elements must have one component, got {len(found.columns)}"
                )
            new = []
            for index, value in enumerate(found.columns[0]):
                key = self._key(value)
                if key not in self._seen:
                    self._seen[key] = None
                    new.append(index)
            if new:
                return found.take(np.array(new))

    def _key(self, value: Any) -> Any:
        """What identifies a value: itself, or the text of an array."""
        if isinstance(value, bytes):
            return value
        dtype = getattr(value, "dtype", None)
        if dtype not in (np.int32, np.int64) and getattr(dtype, "kind", "") != "O":
            raise InvalidTypeError(
                f"Dataset.unique: elements must be int32, int64 or strings, got {value!r:.60}"
            )
        return repr(value.tolist()) if np.ndim(value) else int(value)

    def _own_state(self) -> State:
        return list(self._seen)


class AssertCardinalityStream(_CountedStream):
    """The elements, with an error where they are too few or too many.

    The count is -1 after an error, which ends the stream.
    """

    def __init__(self, source: Stream, expected: int, count: State) -> None:
        super().__init__(source, count)
        self._expected = expected

    def pull_needed(self, needed: int, limit: int, rows: int = 0) -> Chunk:
        if self._feed.count < 0:
            raise StopIteration
        left = self._expected - self._feed.count
        most = limit if self._expected < 0 else min(limit, max(left, 1))
        try:
            found = self._feed.pull(most, needed, rows)
        except StopIteration:
            if left > 0 or self._expected == INFINITE:
                raise self._error(f"has only {self._feed.count}") from None
            raise
        except Exception:
            if self._expected >= 0 and left <= 0:
                raise self._error("has more") from None
            raise
        if self._expected >= 0 and len(found) > left:
            raise self._error("has more")
        return found

    def _error(self, what: str) -> Exception:
        self._feed.count = -1
        expected = "endless" if self._expected == INFINITE else self._expected
        return FailedPreconditionError(
            f"assert_cardinality: expected {expected} elements, but the dataset {what}; "
            "give the true number"
        )
