"""Batching operators: elements into batches, windows and groups, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock import errors
from penstock.element import columns, nest
from penstock.element.chunk import Chunk
from penstock.engine.calls import Calls
from penstock.engine.collate import Collate, UnstackableError, batched, stacked
from penstock.engine.stream import Feed, State, Stream, discard
from penstock.errors import InvalidArgumentError, NotADatasetError, kind_of
from penstock.plan.functions import Function
from penstock.plan.nodes import Batch, Data, GroupByWindow, Node, Rebatch, Slices, Window

Wrap = Callable[[Node], Any]
OpenInner = Callable[[Node, State, int], Stream]


class BatchStream(Stream):
    """Consecutive elements collated, `size` at a time. Between pulls it holds nothing back."""

    def __init__(self, node: Batch, source: Stream, collate: Collate) -> None:
        self.inputs = (source,)
        self._feed = Feed(source)
        self._collate = collate
        self._size = node.size
        self._drop = node.drop_remainder

    def pull(self, limit: int) -> Chunk:
        rows = self._rows(limit)
        full, rest = divmod(len(rows), self._size)
        if self._drop and not full:
            raise StopIteration
        return self._collated(rows, [self._size] * full or [rest])

    def _rows(self, limit: int) -> Chunk:
        """At least one batch of rows, unless the input ends before."""
        parts: list[Chunk] = []
        count, want = 0, limit * self._size
        while count < self._size:
            try:
                self._last = self._feed.pull(want)
            except StopIteration:
                if not parts:
                    raise
                break
            except Exception:
                # The batch is lost as a whole: the elements that belong to it go with it.
                missing = discard(self._feed, self._size - count - 1)
                if missing and self._drop:
                    raise StopIteration from None
                raise
            parts.append(self._last)
            count += len(self._last)
            want = self._size - count
        return Chunk.join(parts)

    def _collated(self, rows: Chunk, sizes: list[int]) -> Chunk:
        """The batches before the first that cannot be made; the rows that follow are kept."""
        used = sum(sizes)
        try:
            batches = self._collate(rows.rows(0, used), sizes)
        except UnstackableError as failed:
            if failed.index:
                return self._collated(rows, sizes[: failed.index])
            self._keep(rows, sizes[0])
            raise failed.error from None
        self._keep(rows, used)
        return batches

    def _keep(self, rows: Chunk, used: int) -> None:
        if used < len(rows):
            self._feed.unread(self._last, len(self._last) - (len(rows) - used))

    def input_states(self) -> list[State]:
        return [self._feed.save()]


class UnbatchStream(Stream):
    """The rows of every element. The state is the place of an element and a row in it."""

    def __init__(self, label: str, source: Stream, row: State) -> None:
        self.inputs = (source,)
        self._label = label
        self._feed = Feed(source)
        self._skip = row or 0
        self._rows: Chunk | None = None
        self._counts = np.zeros(0, np.int64)
        self._given = 0

    def pull(self, limit: int) -> Chunk:
        while self._rows is None or self._given >= len(self._rows):
            self._open(self._feed.pull(1 if self._skip else max(1, limit // self._per_element)))
        chunk = self._rows.rows(self._given, self._given + limit)
        self._given += len(chunk)
        return chunk

    @property
    def _per_element(self) -> int:
        return max(1, int(self._counts.mean())) if len(self._counts) else 1 << 30

    def _open(self, elements: Chunk) -> None:
        parts = [columns.unstack(column) for column in elements.columns]
        uneven = np.any([counts != parts[0][1] for _, counts in parts], axis=0)
        if uneven.any():
            self._open_even(elements, int(np.argmax(uneven)), [counts for _, counts in parts])
            return
        self._counts = parts[0][1]
        total = int(self._counts.sum())
        self._rows = Chunk(elements.tree, [column for column, _ in parts], total)
        self._given, self._skip = self._skip, 0

    def _open_even(self, elements: Chunk, even: int, counts: list[Any]) -> None:
        """The elements before the one whose components differ; what follows is kept."""
        used = max(even, 1)
        if used < len(elements):
            self._feed.unread(elements, used)
        if even:
            self._open(elements.rows(0, even))
            return
        self._rows = None
        sizes = sorted({int(count[0]) for count in counts})
        raise InvalidArgumentError(
            f"Dataset.{self._label}: the components of one element have {sizes} rows; "
            "they must have the same number"
        )

    def _at(self) -> tuple[int, int]:
        """The element that the next row belongs to, counted in the last chunk, and the row."""
        ends = np.cumsum(self._counts)
        element = int(np.searchsorted(ends, self._given, side="right"))
        before = int(ends[element - 1]) if element else 0
        return element, self._given - before

    def state(self) -> State:
        if self._rows is None or self._given >= len(self._rows):
            return self._skip
        return self._at()[1]

    def input_states(self) -> list[State]:
        if self._rows is None or self._given >= len(self._rows):
            return [self._feed.save()]
        return [self._feed.place.after(self._at()[0]).state]


class RebatchStream(Stream):
    """Rows cut anew by a cycle of sizes."""

    def __init__(self, node: Rebatch, rows: Stream, turn: State) -> None:
        self.inputs = (rows,)
        self._node = node
        self._feed = Feed(rows)
        self._turn = turn or 0

    def pull(self, limit: int) -> Chunk:
        size = self._node.sizes[self._turn]
        if size == 0:
            return self._nothing()
        parts = [self._feed.pull(size)]
        count = len(parts[0])
        while count < size:
            try:
                parts.append(self._feed.pull(size - count))
            except StopIteration:
                if self._node.drop_remainder:
                    raise
                break
            count += len(parts[-1])
        self._advance()
        rows = Chunk.join(parts)
        return batched(stacked, rows, [len(rows)])

    def _nothing(self) -> Chunk:
        """An empty batch, as long as there are rows to come."""
        row = self._feed.pull(1)
        self._feed.unread(row, 0)
        self._advance()
        empty = [_no_rows(column) for column in row.columns]
        return Chunk(row.tree, [columns.make([column]) for column in empty], 1)

    def _advance(self) -> None:
        self._turn = (self._turn + 1) % len(self._node.sizes)

    def state(self) -> State:
        return self._turn

    def input_states(self) -> list[State]:
        return [self._feed.save()]


def _no_rows(column: Any) -> Any:
    if isinstance(column, list):
        return np.asarray(column[0])[None][:0]
    return column[:0]


class WindowStream(Stream):
    """Datasets of consecutive elements. It holds the elements that later windows need again.

    Failures are held as well, by their number: every window that they belong to fails.
    """

    def __init__(self, node: Window, source: Stream, wrap: Wrap, state: State) -> None:
        self.inputs = (source,)
        self._node = node
        self._feed = Feed(source)
        self._wrap = wrap
        self._held: Chunk | None = None
        self._failed: dict[int, Exception] = {}
        self._gap = 0
        if state is not None:
            held, failed, self._gap = state
            self._held = Chunk.of(held) if held else None
            self._failed = {number: _rebuilt(*error) for number, *error in failed}

    def pull(self, limit: int) -> Chunk:
        node = self._node
        span = (node.size - 1) * node.stride + 1
        self._fill(span)
        count = min(span, self._count)
        if count == 0 or (node.drop_remainder and count < span):
            raise StopIteration
        numbers = np.arange(0, count, node.stride)
        failed = next((self._failed[i] for i in self._failed if i in numbers), None)
        held, rows = self._held, self._rows(numbers)
        self._shift()
        if failed is not None:
            raise failed
        assert held is not None
        return Chunk.of([self._windows(held.take(rows))])

    @property
    def _count(self) -> int:
        return len(self._failed) + (0 if self._held is None else len(self._held))

    def _rows(self, numbers: Any) -> Any:
        """Where elements with these numbers stand among those that did not fail."""
        return numbers - np.searchsorted(sorted(self._failed), numbers)

    def _fill(self, span: int) -> None:
        while self._gap or self._count < span:
            try:
                rows = self._feed.pull(self._gap or span - self._count)
            except StopIteration:
                return
            except Exception as error:
                if self._gap:
                    self._gap -= 1
                else:
                    self._failed[self._count] = error
                continue
            if self._gap:
                self._gap -= len(rows)
            else:
                self._held = rows if self._held is None else Chunk.join([self._held, rows])

    def _shift(self) -> None:
        """Forgets what comes before the next window."""
        gone = min(self._node.shift, self._count)
        first, held = int(self._rows(gone)), self._held
        self._held = None if held is None or first == len(held) else held.rows(first, len(held))
        self._failed = {i - gone: error for i, error in self._failed.items() if i >= gone}
        self._gap = self._node.shift - gone

    def _windows(self, members: Chunk) -> Any:
        """A dataset per leaf, in the structure of the element."""
        datasets = [
            self._wrap(Slices(Data(Chunk(nest.LEAF, [column], len(members)))))
            for column in members.columns
        ]
        return nest.unflatten(members.tree, datasets)

    def state(self) -> State:
        held = [] if self._held is None else self._held.elements()
        failed = [[i, kind_of(e).__name__, str(e)] for i, e in self._failed.items()]
        return [held, failed, self._gap]

    def input_states(self) -> list[State]:
        return [self._feed.save()]


def _rebuilt(kind: str, message: str) -> Exception:
    found: type[Exception] = getattr(errors, kind, errors.UnknownError)
    return found(message)


class GroupByWindowStream(Stream):
    """Windows of elements with one key, each reduced to a dataset whose elements come out."""

    def __init__(
        self, node: GroupByWindow, source: Stream, wrap: Wrap, open_inner: OpenInner, state: State
    ) -> None:
        self.inputs = (source,)
        self._node = node
        self._feed = Feed(source)
        self._wrap = wrap
        self._open_inner = open_inner
        self._key = Calls("group_by_window", node.key)
        self._reduce = Calls("group_by_window", node.reduce)
        self._groups: dict[int, list[Any]] = {}
        self._current: tuple[int, list[Any]] | None = None
        self._inner: Stream | None = None
        self._count, self._windows, self._ended = 0, 0, False
        if state is not None:
            self._restore(state)

    def _restore(self, state: State) -> None:
        self._groups = {int(key): list(held) for key, held in state["groups"]}
        self._count, self._windows, self._ended = state["at"]
        if state["current"] is not None:
            key, held = state["current"]
            self._emit(key, held, state["inner"])

    def pull(self, limit: int) -> Chunk:
        while True:
            if self._inner is not None:
                try:
                    return self._inner.pull(limit)
                except StopIteration:
                    self._inner.close()
                    self._inner = self._current = None
            if self._ended:
                if not self._groups:
                    raise StopIteration
                key = min(self._groups)
                self._emit(key, self._groups.pop(key), None)
            else:
                self._collect(limit)

    def _collect(self, limit: int) -> None:
        """Sorts elements into their groups until one is full, or the input has ended."""
        try:
            rows = self._feed.pull(limit)
        except StopIteration:
            self._ended = True
            return
        for used, element in enumerate(rows.elements(), 1):
            try:
                full = self._add(element)
            except Exception:
                self._feed_back(rows, used)
                raise
            if full is not None:
                self._feed_back(rows, used)
                self._emit(full, self._groups.pop(full), None)
                return

    def _feed_back(self, rows: Chunk, used: int) -> None:
        if used < len(rows):
            self._feed.unread(rows, used)

    def _add(self, element: Any) -> int | None:
        """Adds to a group; the key if that group is now full."""
        ordinal = self._count
        self._count += 1
        key = check_key(self._key.where, self._key.one(element, ordinal))
        held = self._groups.setdefault(key, [])
        held.append(element)
        return key if len(held) >= self._size(key) else None

    def _size(self, key: int) -> int:
        size = self._node.size
        if isinstance(size, Function):
            size = int(Calls("group_by_window", size).plain(self._count, np.int64(key)))
        if size < 1:
            raise InvalidArgumentError(
                f"Dataset.group_by_window: window_size must be at least 1, got {size}"
            )
        return size

    def _emit(self, key: int, held: list[Any], state: State) -> None:
        window = self._wrap(Slices(Data(Chunk.of(held))))
        made = self._reduce.plain(self._count, np.int64(key), window)
        self._inner = self._open_inner(plan_of(self._reduce.where, made), state, self._windows)
        self._current = (key, held)
        self._windows += 1

    def state(self) -> State:
        inner = None if self._inner is None else self._inner.save()
        windows = self._windows - (self._inner is not None)
        return {
            "groups": [[key, list(held)] for key, held in self._groups.items()],
            "current": None if self._current is None else list(self._current),
            "inner": inner,
            "at": [self._count, windows, self._ended],
        }

    def input_states(self) -> list[State]:
        return [self._feed.save()]

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()
        super().close()


def check_key(where: str, key: Any) -> int:
    """The key of a group, which must be one int64."""
    if isinstance(key, np.ndarray) and key.ndim == 0:
        key = key[()]
    if type(key) not in (int, np.int64):
        raise InvalidArgumentError(
            f"{where} returned {key!r:.60} ({type(key).__name__}); a key must be one int64"
        )
    return int(key)


def plan_of(where: str, made: Any) -> Node:
    """The plan of the dataset that a function returned."""
    plan = getattr(made, "__plan__", None)
    if not isinstance(plan, Node):
        raise NotADatasetError(f"{where} returned {type(made).__name__}; it must return a Dataset")
    return plan
