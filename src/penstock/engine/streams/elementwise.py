"""Elementwise operators: one element in, one (or none) out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.element import nest
from penstock.element.chunk import Chunk, leaf_kind
from penstock.element.columns import Array
from penstock.element.values import as_value
from penstock.engine.access import Epoch, call_vectorized, leaf, pair
from penstock.engine.contract import State, Stream
from penstock.engine.copies import copy_unowned
from penstock.engine.formats.bad_files import BAD_FILE, SkipLog
from penstock.engine.inlets import BUDGET, FedStream, Place
from penstock.engine.results import Results
from penstock.engine.trail import drawing_numbers, put_turn
from penstock.engine.user_calls import Calls, FailedCall, Origin, SeededFunction
from penstock.errors import InvalidArgumentError, InvalidTypeError, OpError, UnfitTypeError
from penstock.plan.nodes import Filter, IgnoreErrors, Map, Scan, TakeWhile
from penstock.plan.seeds import numbers_from

log = logging.getLogger("penstock")

_FIRST_ROWS = 32
_ARGUMENT_BYTES = 4 << 20
"""Large elements are read as the function needs them, so that few of them are in memory."""


class MapStream(FedStream):
    """A function of every element, in the caller's thread."""

    def __init__(self, node: Map, source: Stream, calls: Calls, ordinal: State) -> None:
        super().__init__(source, ordinal or 0)
        self._node = node
        self._calls = calls
        self._results = Results(self._calls)
        self._used = 0
        self._most_rows = _FIRST_ROWS

    def pull_needed(self, needed: int, limit: int, rows: int = 0) -> Chunk:
        if self._node.vectorized:
            return self._columns(self._feed.pull(limit, needed))
        if not len(self._results):
            self._work(self._feed.pull(min(limit, self._most_rows), needed))
        return self._results.hand_on(limit)

    def _work(self, rows: Chunk) -> None:
        self._most_rows = 1 + _ARGUMENT_BYTES * len(rows) // max(rows.nbytes, 1)
        ordinal = self._results.ordinal = self._feed.count - len(rows)
        made, error = self._calls.many(arguments(self._node, rows, ordinal), ordinal)
        self._used = len(made) + (error is not None)
        self._feed.unread(rows, self._used)
        if error is not None:
            self._results.add([*made, FailedCall(error)], 1, rows.numbers, self._feed.place)
        else:
            self._results.add(made, numbers=rows.numbers)

    def _columns(self, rows: Chunk) -> Chunk:
        try:
            made = call_vectorized(self._calls, rows, self._feed.count - len(rows))
        except Exception as error:
            if len(rows) > 1:
                # Halves the rows until only the element remains that the function fails on.
                self._feed.unread(rows, 0)
                return self._columns(self._feed.pull(len(rows) // 2))
            put_turn(error, rows.numbers)
            self._calls.add_origin(error, self._feed.count - 1, self._feed.place)
            raise
        return made if rows.numbers is None else made.with_numbers(rows.numbers)

    def _own_state(self) -> State:
        return self._feed.count - len(self._results)

    def _input_states(self) -> list[State]:
        if not len(self._results):
            return super()._input_states()
        return [self._feed.place.after(self._used - len(self._results)).state]


def map_calls(node: Map, epoch: Epoch, origin: Origin) -> Calls:
    call = None
    if node.random is not None:
        call = SeededFunction(node.function.call, node.random, epoch)
    return Calls("map", node.function, call, node.signature, origin, node)


def arguments(node: Map, rows: Chunk, ordinal: int) -> Chunk:
    """The arguments of the function: the elements, with their numbers if it is random."""
    if node.random is None:
        return rows
    numbers = (
        numbers_from(ordinal, len(rows)) if rows.numbers is None else drawing_numbers(rows.numbers)
    )
    return pair(leaf(numbers), rows)


class FilterStream(FedStream):
    """The elements for which a predicate holds."""

    def __init__(
        self, node: Filter | TakeWhile, source: Stream, ordinal: State, origin: Origin
    ) -> None:
        super().__init__(source, ordinal or 0)
        self._calls = Calls(node.label, node.function, origin=origin, node=node)
        self._failed: OpError | None = None

    def pull_needed(self, needed: int, limit: int, rows: int = 0) -> Chunk:
        while True:
            tried, keep = self._decide(needed, limit)
            if keep.any():
                return tried if keep.all() else tried.take(np.flatnonzero(keep))

    def _decide(self, needed: int, limit: int) -> tuple[Chunk, Array]:
        """The next elements on which the predicate did not fail, and which of them pass."""
        if self._failed is not None:
            error, self._failed = self._failed, None
            raise error
        rows = self._feed.pull(limit, needed)
        first = self._feed.count - len(rows)
        made, failed = self._calls.many(rows, first)
        keep, misfit = self._flags(made, first)
        self._failed = misfit or failed
        self._failed_at = self._feed.place.after(len(keep))
        if self._failed is not None:
            put_turn(self._failed, None if rows.numbers is None else rows.numbers[len(keep) :])
            self._calls.add_origin(self._failed, first + len(keep), self._failed_at)
        self._feed.unread(rows, len(keep) + (self._failed is not None))
        return rows.rows(0, len(keep)), keep

    def _flags(self, made: list[Any], first: int) -> tuple[Array, OpError | None]:
        if set(map(type, made)) <= {bool, np.bool_}:
            return np.array(made, bool), None
        for index, value in enumerate(made):
            is_flag = getattr(value, "dtype", None) == np.bool_ and np.ndim(value) == 0
            if not isinstance(value, bool) and not is_flag:
                error = InvalidArgumentError(
                    f"{self._calls.where} returned {value!r:.60} for element "
                    f"{first + index}; a predicate must return a single bool"
                )
                return np.array(made[:index], bool), error
        return np.array(made, bool), None

    def _own_state(self) -> State:
        return self._feed.count - (self._failed is not None)

    def _input_states(self) -> list[State]:
        return super()._input_states() if self._failed is None else [self._failed_at.state]


class TakeWhileStream(FilterStream):
    """The elements before the first for which the predicate does not hold."""

    def __init__(self, node: TakeWhile, source: Stream, state: State, origin: Origin) -> None:
        super().__init__(node, source, None if state is None else state[0], origin)
        self._ended: bool = state is not None and state[1]

    def pull_needed(self, needed: int, limit: int, rows: int = 0) -> Chunk:
        while not self._ended:
            tried, keep = self._decide(needed, limit)
            passed = len(keep) if keep.all() else int(np.argmin(keep))
            self._ended = passed < len(keep)
            if passed:
                return tried.rows(0, passed)
        raise StopIteration

    def _own_state(self) -> State:
        return [super()._own_state(), self._ended]


_SCANNED = 1024
"""The most elements that `scan` pulls at once."""


class ScanStream(FedStream):
    """A function of (state, element) that gives (state, element)."""

    def __init__(self, node: Scan, source: Stream, state: State, origin: Origin) -> None:
        ordinal, begin = state or (0, node.initial.chunk.elements()[0])
        super().__init__(source, ordinal)
        self._calls = Calls("scan", node.function, origin=origin, node=node)
        self._state = copy_unowned(begin)
        self._results = Results(self._calls)

    def pull_needed(self, needed: int, limit: int, rows: int = 0) -> Chunk:
        if not len(self._results):
            # Few enough that `elements` takes only a small part of the budget.
            most = 1 if self._calls.on_trial else min(limit, _SCANNED)
            self._work(self._feed.pull(most, needed))
        return self._results.hand_on(limit)

    def _work(self, rows: Chunk) -> None:
        """Calls the function until it fails or the budget is used up; takes back the rest."""
        ordinal = self._results.ordinal = self._feed.count - len(rows)
        self._begin = [ordinal, copy_unowned(self._state)]
        made: list[Any] = []
        failed: list[Any] = []
        started = time.perf_counter()
        for number, element in enumerate(rows.elements(), ordinal):
            try:
                made.append(self._step(element, number))
            except OpError as error:
                failed = [FailedCall(error)]
                break
            if time.perf_counter() - started > BUDGET:
                break
        used = len(made) + len(failed)
        self._feed.unread(rows, used)
        self._results.add(made + failed, len(failed), place=self._feed.place)

    def _step(self, element: Any, number: int) -> Any:
        result = self._calls.plain(number, self._state, element)
        self._state, output = check_scan(self._calls.where, self._state, result)
        return output

    def _own_state(self) -> State:
        return [self._feed.count, copy_unowned(self._state)]

    def save(self) -> State:
        """With results waiting, a place from before them: the function's state is behind them."""
        if not len(self._results):
            return super().save()
        begin = {"own": self._begin, "inputs": [self._feed.place.state]}
        return Place(begin, self._results.ordinal - self._begin[0]).state


def check_scan(where: str, state: Any, result: Any) -> tuple[Any, Any]:
    """(new state, output), or an error that says what a scan function must give."""
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise InvalidTypeError(f"{where} returned {result!r:.60}; it must return (state, output)")
    return check_state(where, state, result[0]), result[1]


def check_state(where: str, state: Any, new: Any) -> Any:
    """The new state; its structure and dtypes must be those of the old one."""
    old_leaves, tree = nest.flatten(state)
    if type(new) is list and tree != nest.LEAF:  # Else it is an array.
        new = tuple(new)
    leaves = nest.flatten(new)[0]
    if len(leaves) != len(old_leaves):
        raise UnfitTypeError(f"{where} changed the structure of its state; got {new!r:.60}")
    values = [as_value(leaf) for leaf in leaves]
    for old, value in zip(old_leaves, values, strict=True):
        if leaf_kind(old) != leaf_kind(value):
            raise InvalidTypeError(
                f"{where} changed the dtype of its state from {leaf_kind(old)} to "
                f"{leaf_kind(value)}; keep it, e.g. with numpy.int64(...) as the initial state"
            )
    return nest.unflatten(tree, values)


class IgnoreErrorsStream(Stream):
    """The elements that could be made; for a reader, the records that could be read.

    `skip_failing` replaces the input, after a failure, by one without the elements that fail with
    the last one, and counts them. A damaged block would otherwise raise an error for each row.
    """

    def __init__(
        self,
        source: Stream,
        node: IgnoreErrors,
        skip_failing: Callable[[Stream], tuple[Stream, int]],
    ) -> None:
        self.inputs = (source,)
        self._skip_failing = skip_failing
        self._dropped = BAD_FILE if node.reader else Exception
        call = node.reader or "Dataset.ignore_errors"
        what = "records, rows or files" if node.reader else "elements"
        self._log = SkipLog(call, what) if node.reader or node.log_warning else None

    def pull_needed(self, needed: int, limit: int, rows: int = 0) -> Chunk:
        while True:
            try:
                return self.inputs[0].pull_needed(needed, limit, rows)
            except StopIteration:
                self._report()
                raise
            except self._dropped as error:
                if isinstance(error, OpError) and not error.takes_element:
                    raise
                source, skipped = self._skip_failing(self.inputs[0])
                self.inputs = (source,)
                if self._log is not None:
                    self._log.add(error, 1 + skipped)

    def _report(self) -> None:
        if self._log is not None:
            self._log.report()

    def close(self) -> None:
        self._report()
        super().close()
