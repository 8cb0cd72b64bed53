"""Batching operators that make datasets of elements: windows and groups."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock import errors
from penstock.element import nest
from penstock.element.chunk import Chunk
from penstock.element.values import as_element
from penstock.engine.contract import State, Stream
from penstock.engine.copies import copy_unowned
from penstock.engine.inlets import Demand, FedStream
from penstock.engine.streams.elementwise import check_state
from penstock.engine.user_calls import Calls
from penstock.errors import InvalidArgumentError, NotADatasetError, UnfitTypeError, kind_of
from penstock.plan.functions import Function
from penstock.plan.nodes import Data, GroupByReducer, GroupByWindow, Node, Slices, Window
from penstock.plan.seeds import derive, seed_scope

Wrap = Callable[[Node], Any]
OpenInner = Callable[[Node, State, int], Stream]


class WindowStream(FedStream):
    """Datasets of consecutive elements. It holds the elements that later windows need again.

    Failures are held as well, by their number: every window that has one of them fails.
    """

    def __init__(self, node: Window, source: Stream, wrap: Wrap, state: State) -> None:
        super().__init__(source)
        self._node = node
        self._wrap = wrap
        self._held: Chunk | None = None
        self._failed: dict[int, Exception] = {}
        self._gap = 0
        if state is not None:
            held, failed, self._gap = state
            self._held = Chunk.of(held) if held else None
            self._failed = {
                number: getattr(errors, kind, errors.UnknownError)(text)
                for number, kind, text in failed
            }

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
        """The rows of `_held` that have these numbers, which count failed elements, too."""
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
        """Drops what comes before the next window."""
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

    def _own_state(self) -> State:
        held = [] if self._held is None else self._held.elements()
        failed = [[i, kind_of(e).__name__, str(e)] for i, e in self._failed.items()]
        return [held, failed, self._gap]


_AT_ONCE = 64
"""So many elements are sorted into groups before others are made of the columns of a chunk."""


class _GroupsStream(FedStream):
    """Sorts elements into groups by a key."""

    def __init__(self, source: Stream, key: Calls) -> None:
        super().__init__(source)
        self._key = key
        self._demand = Demand()
        self._count, self._ended = 0, False

    def _collect(self, add: Callable[[Any], int | None]) -> int | None:
        """Adds elements until a group is full, whose key it returns, or the input has ended.

        `add` adds an element to its group; it returns the key if that group is now full.
        """
        try:
            rows = self._demand.pull(self._feed)
        except StopIteration:
            self._ended = True
            return None
        used, full = 0, None
        try:
            for element in rows.rows(0, _AT_ONCE).elements():
                used += 1
                if (full := add(element)) is not None:
                    break
        finally:
            self._feed.unread(rows, used)
        return full

    def _next_key(self, element: Any) -> tuple[int, int]:
        """Counts an element; returns its number and its key."""
        ordinal = self._count
        self._count += 1
        return ordinal, check_key(self._key.where, self._key.one(element, ordinal))


class GroupByWindowStream(_GroupsStream):
    """Windows of elements with one key, each reduced to a dataset, whose elements are handed on.

    What the function draws depends on `seed` and the number of the window, so that a resumed
    iteration gets the same dataset of a window again.
    """

    def __init__(
        self,
        node: GroupByWindow,
        source: Stream,
        wrap: Wrap,
        open_inner: OpenInner,
        state: State,
        seed: int,
    ) -> None:
        super().__init__(source, Calls("group_by_window", node.key))
        self._node, self._seed = node, seed
        self._wrap = wrap
        self._open_inner = open_inner
        self._reduce = Calls("group_by_window", node.reduce)
        self._groups: dict[int, list[Any]] = {}
        self._sizes: dict[int, int] = {}
        """The sizes of the windows of these groups, once they are known."""
        self._current: tuple[int, list[Any]] | None = None
        self._inner: Stream | None = None
        self._windows = 0
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
            elif (full := self._collect(self._add)) is not None:
                del self._sizes[full]
                self._emit(full, self._groups.pop(full), None)

    def _add(self, element: Any) -> int | None:
        _, key = self._next_key(element)
        held = self._groups.setdefault(key, [])
        held.append(element)
        if (size := self._sizes.get(key)) is None:
            size = self._sizes[key] = self._find_size(key)
        return key if len(held) >= size else None

    def _find_size(self, key: int) -> int:
        size = self._node.size
        if isinstance(size, Function):
            calls = Calls("group_by_window", size)
            size = check_size(calls.where, calls.plain(self._count, np.int64(key)))
        if size < 1:
            raise InvalidArgumentError(
                f"Dataset.group_by_window: window_size must be at least 1, got {size}"
            )
        return size

    def _emit(self, key: int, held: list[Any], state: State) -> None:
        # Read-only: the function may make several datasets of the window.
        window = self._wrap(Slices(Data(Chunk.of(held).as_read_only())))
        with seed_scope(derive(self._seed, self._windows)):
            made = self._reduce.plain(self._count, np.int64(key), window)
        self._inner = self._open_inner(plan_of(self._reduce.where, made), state, self._windows)
        self._current = (key, held)
        self._windows += 1

    def _own_state(self) -> State:
        inner = None if self._inner is None else self._inner.save()
        windows = self._windows - (self._inner is not None)
        return {
            "groups": [[key, list(held)] for key, held in self._groups.items()],
            "current": None if self._current is None else list(self._current),
            "inner": inner,
            "at": [self._count, windows, self._ended],
        }

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()
        super().close()


class GroupByReducerStream(_GroupsStream):
    """Reads its whole input first; then one element for each key, in the order of the keys."""

    def __init__(self, node: GroupByReducer, source: Stream, state: State) -> None:
        functions = node.key, node.init, node.reduce, node.finalize
        key, self._init, self._reduce, self._finalize = [
            Calls("group_by_reducer", function) for function in functions
        ]
        super().__init__(source, key)
        self._groups: dict[int, Any] = {}
        if state is not None:
            self._groups = {int(key): held for key, held in state["groups"]}
            self._count, self._ended = state["at"]

    def pull(self, limit: int) -> Chunk:
        while not self._ended:
            self._collect(self._add)
        if not self._groups:
            raise StopIteration
        key = min(self._groups)
        return Chunk.of([as_element(self._finalize.one(self._groups.pop(key), self._count))])

    def _add(self, element: Any) -> None:
        ordinal, key = self._next_key(element)
        held = self._groups.get(key)
        if key not in self._groups:
            held = as_element(self._init.plain(ordinal, np.int64(key)))
        made = self._reduce.plain(ordinal, held, element)
        self._groups[key] = check_state(self._reduce.where, held, made)

    def _own_state(self) -> State:
        groups = [[key, copy_unowned(held)] for key, held in self._groups.items()]
        return {"groups": groups, "at": [self._count, self._ended]}


def check_key(where: str, key: Any) -> int:
    """The key of a group, which must be one int64."""
    if isinstance(key, np.ndarray) and key.ndim == 0:
        key = key[()]
    if type(key) not in (int, np.int64):
        raise UnfitTypeError(
            f"{where} returned {key!r:.60} ({type(key).__name__}); a key must be one int64"
        )
    return int(key)


def check_size(where: str, size: Any) -> int:
    """The size of a window, as a function returned it."""
    try:
        return operator.index(size)
    except TypeError:
        raise UnfitTypeError(f"{where} returned {size!r:.60}; a size must be one int64") from None


def plan_of(where: str, made: Any) -> Node:
    """The plan of the dataset that a function returned."""
    plan = getattr(made, "__plan__", None)
    if not isinstance(plan, Node):
        raise NotADatasetError(f"{where} returned {type(made).__name__}; it must return a Dataset")
    return plan
