"""Portions: streams whose elements are steps, cut from the batches of one input.

An element of these streams is a tuple: `present`, then the leaves of replica 0's portion, then the
leaves of replica 1's, and so on for all replicas of this process. `present` is the number of
portions with data; the other portions are blank, because the data ended inside the step. Portions
are views, cut for many steps at once if all of them have the same shape.

A state holds the place in the *input*, so that it fits another number of replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.distribute.input.balancing import Balance, even_sizes
from penstock.distribute.input.portion_rules import Fill
from penstock.element import columns, nest
from penstock.element.chunk import Chunk
from penstock.element.columns import Column
from penstock.element.ragged import Ragged
from penstock.engine.collate import UnstackableError, collate_all, stack_rows
from penstock.engine.contract import State, Stream
from penstock.engine.inlets import FedStream, Place, discard
from penstock.engine.streams.batching import UnbatchStream
from penstock.errors import UnbatchedError


@dataclass(frozen=True)
class StepPlace:
    """Where a stream of steps is: `more` rows after row `row` of the input's next element.

    `step` is the number of steps before it, `failures` the number of failures after it that the
    caller has already seen. For even portions `row` counts portions, not rows.
    """

    at: State = None
    row: int = 0
    more: int = 0
    step: int = 0
    failures: int = 0

    @classmethod
    def restore(cls, saved: Mapping[str, Any]) -> StepPlace:
        """The place in what `PortionsStream.save` returned; the start if that is empty."""
        fields = {"at": "at", "row": "row", "more": "more", "step": "step", "told": "failures"}
        return cls(**{fields[name]: saved[name] for name in saved if name in fields})


@dataclass(frozen=True)
class PartialStep:
    """The first elements of a step, the place of the first one, and the failures since then."""

    rows: Chunk | None
    place: Place
    failures: int

    def __len__(self) -> int:
        return 0 if self.rows is None else len(self.rows)

    def with_rows(self, more: Chunk, place: Place) -> PartialStep:
        if self.rows is None:
            return PartialStep(more, place, 0)
        return PartialStep(Chunk.join([self.rows, more]), self.place, self.failures)

    def after_failure(self) -> PartialStep:
        return replace(self, failures=self.failures + 1)


class PortionsStream(FedStream):
    """What all rules do: reads elements from the input, and saves states of the input."""

    def __init__(self, source: Stream, replicas: int, start: StepPlace) -> None:
        super().__init__(source)
        self._replicas = replicas
        self._step = start.step
        self._known_failures = start.failures
        self._held: PartialStep | None = None

    def save(self) -> State:
        failures = 0 if self._held is None else self._held.failures
        return {**self._save_input(), "step": self._step, "told": failures}

    def _save_input(self) -> dict[str, Any]:
        return {"at": self._input_state(), "row": 0, "more": 0}

    def _input_state(self) -> State:
        """The state of the input before the elements of a partial step."""
        return self._feed.save() if self._held is None else self._held.place.state

    def _collect(self, least: int, most: int) -> Chunk:
        """At least `least` elements, unless the input ends before; StopIteration if it has none.

        If an element fails, the elements collected before it are kept for the next step, so that
        only the failed element is lost.
        """
        held, self._held = self._held or PartialStep(None, self._feed.place, 0), None
        while len(held) < least:
            try:
                self._last = self._feed.pull(least - len(held) if len(held) else most)
            except StopIteration:
                if not len(held):
                    raise
                break
            except Exception:
                held = held.after_failure()
                if self._known_failures:
                    self._known_failures -= 1
                    continue
                self._held = held if len(held) else None
                raise
            held = held.with_rows(self._last, self._feed.place)
        assert held.rows is not None
        return held.rows

    def _unread_rest(self, rows: Chunk, used: int) -> None:
        """Returns the rows after the first `used` ones to the input."""
        if used < len(rows):
            self._feed.unread(self._last, len(self._last) - (len(rows) - used))

    def _make_steps(self, portions: list[list[Column]], count: int) -> Chunk:
        self._step += count
        present = np.full(count, self._replicas)
        made = [present, *(column for portion in portions for column in portion)]
        return Chunk(nest.tuple_of(len(made)), made, count)

    def _make_last_step(self, found: list[list[Any]], blank: list[Any]) -> Chunk:
        """One step of the portions in `found` (lists of leaves), completed by blank portions."""
        self._step += 1
        missing = [blank] * (self._replicas - len(found))
        leaves = [leaf for portion in (*found, *missing) for leaf in portion]
        made = [np.array([len(found)]), *(columns.make([leaf]) for leaf in leaves)]
        return Chunk(nest.tuple_of(len(made)), made, 1)


class WholePortions(PortionsStream):
    """Each replica takes a whole element in turn."""

    def __init__(
        self, source: Stream, replicas: int, blank: Callable[[], list[Any]], start: StepPlace
    ) -> None:
        super().__init__(source, replicas, start)
        self._blank = blank

    def pull(self, limit: int) -> Chunk:
        each = self._replicas
        rows = self._collect(each, limit * each)
        count = len(rows) // each
        if not count:
            found = [list(leaves) for leaves in zip(*rows.columns, strict=True)]
            return self._make_last_step(found, self._blank())
        used = count * each
        self._unread_rest(rows, used)
        portions = [[column[i:used:each] for column in rows.columns] for i in range(each)]
        return self._make_steps(portions, count)


class EvenPortions(PortionsStream):
    """Cuts each batch into `total` equal portions; the last ones may be shorter or empty.

    A batch makes one step for each of `turns`, which lists the numbers of its portions.
    """

    def __init__(
        self,
        source: Stream,
        total: int,
        turns: tuple[tuple[int, ...], ...],
        fill: Fill | None,
        balance: Balance | None,
        start: StepPlace,
    ) -> None:
        super().__init__(source, len(turns[0]), start)
        self._total = total
        self._turns = turns
        self._fill = fill
        self._balance = balance
        self._skip = start.row
        self._waiting: Chunk | None = None

    def pull(self, limit: int) -> Chunk:
        if len(self._turns) == 1:
            return self._cut_turn(self._turns[0], self._pull_batches(limit))
        if self._waiting is None:
            step = self._step
            batch = self._pull_batches(1)
            made = Chunk.join([self._cut_turn(turn, batch) for turn in self._turns])
            self._step = step
            self._given, self._skip = self._skip, 0
            self._waiting = made
        chunk = self._waiting.rows(self._given, self._given + limit)
        self._given += len(chunk)
        self._step += len(chunk)
        if self._given >= len(self._waiting):
            self._waiting = None
        return chunk

    def _pull_batches(self, limit: int) -> Chunk:
        while True:
            chunk = self._feed.pull(limit)
            if (whole := self._arrange(chunk)) is not None:
                return whole

    def _arrange(self, chunk: Chunk) -> Chunk | None:
        """The batches as they are cut: filled and balanced; None if all of them are dropped."""
        if self._balance is None:
            return chunk if self._fill is None else self._fill.apply(chunk)
        made: list[Chunk] = []
        for number in range(len(chunk)):
            try:
                batch = self._deal_out(chunk.rows(number, number + 1))
            except Exception:
                self._feed.unread(chunk, max(number, 1))
                if not number:
                    raise
                break
            made += [] if batch is None else [batch]
        return Chunk.join(made) if made else None

    def _deal_out(self, batch: Chunk) -> Chunk | None:
        assert self._balance is not None
        costs, filled = self._balance.costs(batch), batch
        if self._fill is not None:
            whole = self._fill.apply(batch)
            if whole is None:
                return None
            filled, costs = whole, self._fill.apply_to_costs(costs)
        return self._balance.apply(filled, costs, even_sizes(len(costs), self._total))

    def _cut_turn(self, turn: tuple[int, ...], chunk: Chunk) -> Chunk:
        portions = [
            [even_rows(column, number, self._total) for column in chunk.columns] for number in turn
        ]
        return self._make_steps(portions, len(chunk))

    def _save_input(self) -> dict[str, Any]:
        if self._waiting is not None:
            return {"at": self._feed.place.state, "row": self._given, "more": 0}
        return {"at": self._feed.save(), "row": self._skip, "more": 0}


class SizedPortions(PortionsStream):
    """Cuts the rows of all batches, as one sequence, by a cycle of sizes, one entry per step."""

    def __init__(
        self,
        source: Stream,
        cycle: tuple[tuple[int, ...], ...],
        blank: Callable[[], list[Any]],
        start: StepPlace,
    ) -> None:
        rows = UnbatchStream("batch", source, start.row)
        discard(rows, start.more)
        super().__init__(rows, len(cycle[0]), start)
        self._cycle = cycle
        self._blank = blank
        self._over = False

    def pull(self, limit: int) -> Chunk:
        if self._over:
            raise StopIteration
        sizes = self._cycle[self._step % len(self._cycle)]
        total = sum(sizes)
        if not total:
            return self._make_last_step([self._blank()] * len(sizes), [])
        try:
            rows = self._collect(total, total * (limit if len(self._cycle) == 1 else 1))
        except StopIteration:
            return self._end_step(sizes)
        if len(rows) < total:
            return self._cut_short_step(rows, sizes)
        return self._cut_full_steps(rows, sizes, total)

    def _cut_full_steps(self, rows: Chunk, sizes: tuple[int, ...], total: int) -> Chunk:
        count = len(rows) // total
        try:
            whole = stack_rows(rows.rows(0, count * total), [total] * count)
        except UnstackableError:
            # Shapes differ within the step; within each portion they may still be equal.
            self._unread_rest(rows, total)
            return self._cut_short_step(rows.rows(0, total), sizes)
        self._unread_rest(rows, count * total)
        ends = np.cumsum(sizes).tolist()
        cuts = zip([0, *ends], ends, strict=False)
        portions = [[row_range(column, a, b) for column in whole.columns] for a, b in cuts]
        return self._make_steps(portions, count)

    def _cut_short_step(self, rows: Chunk, sizes: tuple[int, ...]) -> Chunk:
        """One step, cut portion by portion, as far as the rows reach."""
        found: list[list[Any]] = []
        start = 0
        for size in sizes:
            portion = rows.rows(start, start + size)
            # After a portion that is too short or missing, portions of size 0 are missing as well.
            self._over = len(portion) < size
            if len(portion) or not size:
                found.append(_stack_rows(portion) if size else self._blank())
            if self._over:
                break
            start += size
        return self._make_last_step(found, self._blank())

    def _end_step(self, sizes: tuple[int, ...]) -> Chunk:
        """The step at the end of the data: only its leading portions of size 0, if any."""
        empty = next(i for i, size in enumerate(sizes) if size)
        self._over = True
        if not empty:
            raise StopIteration
        return self._make_last_step([self._blank()] * empty, self._blank())

    def _save_input(self) -> dict[str, Any]:
        rows, more = self._input_state(), 0
        if "skip" in rows:
            rows, more = rows["from"], rows["skip"]
        return {"at": rows["inputs"][0], "row": rows["own"], "more": more}


def _stack_rows(rows: Chunk) -> list[Any]:
    return [column[0] for column in collate_all(stack_rows, rows, [len(rows)]).columns]


def even_rows(column: Column, number: int, total: int) -> Column:
    """Portion `number` of `total` equal portions of every leaf, along its leading axis."""
    if type(column) is np.ndarray and column.ndim > 1:
        each = -(-column.shape[1] // total)
        return column[:, number * each : (number + 1) * each]
    leaves = [_even_rows_of_leaf(leaf, number, total) for leaf in column]
    return columns.make(leaves)


def _even_rows_of_leaf(leaf: Any, number: int, total: int) -> Any:
    if leaf is None:
        return None
    if not isinstance(leaf, Ragged) and not np.ndim(leaf):
        raise UnbatchedError(
            "experimental_distribute_dataset: an element is a single value, which cannot be cut "
            "into portions; call batch(global_batch_size) first"
        )
    each = -(-len(leaf) // total)
    return leaf[number * each : (number + 1) * each]


def row_range(column: Column, start: int, stop: int) -> Column:
    """The rows from `start` to `stop` of every leaf."""
    if type(column) is np.ndarray and column.ndim > 1:
        return column[:, start:stop]
    return columns.make([leaf[start:stop] for leaf in column])
