"""Batching operators: elements into batches, and back; windows and groups are in `windowing`."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.element import columns
from penstock.element.chunk import Chunk
from penstock.element.columns import Array
from penstock.element.reused import ReusedMemory, find_base
from penstock.engine.collate import Collate, UnstackableError, collate_all, stack_rows
from penstock.engine.contract import State, Stream, must_settle
from penstock.engine.inlets import FedStream, discard
from penstock.engine.processes.batch_memory import LARGE_BATCH
from penstock.engine.trail import WITH_TURNS, add_turns, drawing_numbers, put_turn
from penstock.errors import InvalidArgumentError
from penstock.plan.nodes import Batch, Rebatch
from penstock.plan.seeds import derive_array, numbers_from


class _JoinedRows:
    """The rows of one batch, from the chunks that they come in.

    Each chunk of a large batch is copied to its place at once: then its memory is free for the next
    chunk, and the batch is never in memory twice. Rows that call processes have written to their
    place in the batch stay there.
    """

    def __init__(self, size: int) -> None:
        self.count = 0
        self._size = size
        self._chunks: list[Chunk] = []
        self._batch: list[Any] = []
        """The columns of a large batch, of which the first `count` rows are there."""

    @property
    def are_copied(self) -> bool:
        return bool(self._batch)

    def add(self, rows: Chunk) -> None:
        if (joined := self._find_in_place(rows)) is not None:
            self._set_joined(rows, joined)
            self.count += rows.size
            return
        if not self._chunks and self._are_large(rows):
            arrays: list[Any] = rows.columns
            self._batch = [np.empty((self._size, *a.shape[1:]), a.dtype) for a in arrays]
        if self._batch and self._fit(rows):
            self._copy(rows)
        else:
            self._batch = []
            self._chunks.append(rows)
        self.count += rows.size

    def join(self) -> Chunk:
        return Chunk.join(self._chunks)

    def _are_large(self, rows: Chunk) -> bool:
        """Whether more rows like these will make a large batch."""
        plain = all(type(c) is np.ndarray and not c.dtype.hasobject for c in rows.columns)
        return (
            plain
            and rows.size < self._size
            and rows.nbytes // rows.size * self._size in LARGE_BATCH
        )

    def _fit(self, rows: Chunk) -> bool:
        pairs = zip(self._batch, rows.columns, strict=True)
        return self.count + rows.size <= self._size and all(
            type(new) is np.ndarray and (new.dtype, new.shape[1:]) == (old.dtype, old.shape[1:])
            for old, new in pairs
        )

    def _copy(self, rows: Chunk) -> None:
        stop = self.count + rows.size
        for old, new in zip(self._batch, rows.columns, strict=True):
            old[self.count : stop] = new
        self._set_joined(rows, [c[:stop] for c in self._batch])

    def _find_in_place(self, rows: Chunk) -> list[Array] | None:
        """The rows so far and these as one array for each column, if they lie so in memory."""
        if self._batch or len(self._chunks) > 1:
            return None
        before = self._chunks[0].columns if self._chunks else rows.columns
        if len(before) != len(rows.columns):
            return None
        found = []
        for old, new in zip(before, rows.columns, strict=True):
            if (joined := self._extend(old, new)) is None:
                return None
            found.append(joined)
        return found

    def _extend(self, before: Any, column: Any) -> Array | None:
        """The array of a batch, up to the rows of `column`, if these follow those of `before`.

        Only in memory that was filled for the elements of this stream: a batch must not show rows
        that other arrays show, or that may not be written to.
        """
        if type(column) is not np.ndarray or not column.flags.writeable:
            return None
        batch = column.base
        if type(batch) is not np.ndarray or batch.shape != (self._size, *column.shape[1:]):
            return None
        if type(before) is not np.ndarray or before.base is not batch:
            return None
        starts = batch.ctypes.data + self.count * batch.strides[0]
        if column.ctypes.data != starts or not isinstance(find_base(batch), ReusedMemory):
            return None
        return batch[: self.count + len(column)]

    def _set_joined(self, rows: Chunk, joined: list[Array]) -> None:
        found = [c.numbers for c in (*self._chunks, rows) if c.numbers is not None]
        numbers = np.concatenate(found) if len(found) > len(self._chunks) else None
        self._chunks = [Chunk(rows.tree, list(joined), self.count + rows.size, numbers)]


class BatchStream(FedStream):
    """Consecutive elements collated, `size` at a time. Between pulls it holds nothing back."""

    def __init__(self, node: Batch, source: Stream, collate: Collate) -> None:
        super().__init__(source)
        self._collate = collate
        self._size = node.size
        self._drop = node.drop_remainder

    def pull(self, limit: int) -> Chunk:
        rows = self._rows(limit)
        full, rest = divmod(rows.size, self._size)
        if self._drop and not full:
            raise StopIteration
        return self._collate_rows(rows, [self._size] * full or [rest])

    def _rows(self, limit: int) -> Chunk:
        """At least one batch of rows, unless the input ends earlier."""
        rows, want = _JoinedRows(self._size), limit * self._size
        while (missing := self._size - rows.count) > 0:
            try:
                self._last = self._feed.pull(missing if rows.are_copied else want, missing)
            except StopIteration:
                if not rows.count:
                    raise
                break
            except Exception:
                # The whole batch fails: its other elements are discarded.
                missing = discard(self._feed, missing - 1)
                if missing and self._drop:
                    raise StopIteration from None
                raise
            rows.add(self._last)
            want -= self._last.size
        return rows.join()

    def _collate_rows(self, rows: Chunk, sizes: list[int]) -> Chunk:
        """The batches before the first that cannot be made; takes back the rows behind them."""
        used = sum(sizes)
        try:
            batches = self._collate(rows.rows(0, used), sizes)
        except UnstackableError as failed:
            if failed.index:
                return self._collate_rows(rows, sizes[: failed.index])
            self._keep(rows, sizes[0])
            raise failed.error from None
        self._keep(rows, used)
        return batches

    def _keep(self, rows: Chunk, used: int) -> None:
        if used < rows.size:
            self._feed.unread(self._last, self._last.size - (rows.size - used))


class UnbatchStream(FedStream):
    """The rows of every element. The state is the place of an element and a row in it."""

    def __init__(self, label: str, source: Stream, row: State) -> None:
        super().__init__(source)
        self._label = label
        self._place = self._feed.place
        """Where the elements of `_rows` begin."""
        self._skip = row or 0
        self._rows: Chunk | None = None
        self._counts: list[Array] = []
        self._per_element = 1 << 30
        self._given = 0

    def pull_needed(self, needed: int, limit: int, rows: int = 0) -> Chunk:
        while self._rows is None or self._given >= self._rows.size:
            self._pull_rows(needed, limit)
        chunk = self._rows.rows(self._given, self._given + limit)
        self._given += chunk.size
        return chunk

    def _pull_rows(self, needed: int, limit: int) -> None:
        """Pulls elements until they have the rows that are needed; or until one fails."""
        opened = [self._unstack(self._pull(needed, limit))]
        self._place = self._feed.place
        rows, self._given, self._skip = opened[0][0].size, self._skip, 0
        # Other readers may take elements behind the first one; `_place` must find all again.
        while rows < needed and not must_settle(self.inputs[0]):
            try:
                opened.append(self._unstack(self._pull(needed - rows, limit - rows)))
            except StopIteration:
                break
            except Exception as error:
                self._feed.unraise(error)
                break
            rows += opened[-1][0].size
        self._rows = Chunk.join([rows for rows, _ in opened])
        self._counts = [counts for _, counts in opened]

    def _pull(self, needed: int, limit: int) -> Chunk:
        elements = self._feed.pull(
            1 if self._skip else max(1, limit // self._per_element), rows=needed
        )
        if not elements.columns:
            raise InvalidArgumentError(f"Dataset.{self._label}: elements must have components")
        return elements

    def _unstack(self, elements: Chunk) -> tuple[Chunk, Array]:
        """The rows of elements, and how many each has."""
        parts = columns.unstack_all(elements.columns)
        rows, counts = parts[0]
        if len(parts) > 1:
            uneven = np.any([other != counts for _, other in parts[1:]], axis=0)
            if uneven.any():
                return self._unstack_even(elements, int(np.argmax(uneven)), parts)
        numbers = None if elements.numbers is None else _row_numbers(elements.numbers, counts)
        self._per_element = max(1, len(rows) // len(elements))
        return Chunk(elements.tree, [rows for rows, _ in parts], len(rows), numbers), counts

    def _unstack_even(self, elements: Chunk, even: int, parts: list[Any]) -> tuple[Chunk, Array]:
        """The rows of the elements before an uneven one, or raises; takes back what follows."""
        used = max(even, 1)
        if used < len(elements):
            self._feed.unread(elements, used)
        if even:
            return self._unstack(elements.rows(0, even))
        sizes = sorted({int(counts[0]) for _, counts in parts})
        error = InvalidArgumentError(
            f"Dataset.{self._label}: the components of one element have {sizes} rows; "
            "they must have the same number"
        )
        raise put_turn(error, elements.numbers)

    def _find_row(self) -> tuple[int, int]:
        """The element that the next row belongs to, counted in the last chunk, and the row."""
        ends = np.cumsum(np.concatenate(self._counts))
        element = int(np.searchsorted(ends, self._given, side="right"))
        before = int(ends[element - 1]) if element else 0
        return element, self._given - before

    def _own_state(self) -> State:
        if self._rows is None or self._given >= len(self._rows):
            return self._skip
        return self._find_row()[1]

    def _input_states(self) -> list[State]:
        if self._rows is None or self._given >= len(self._rows):
            return super()._input_states()
        return [self._place.after(self._find_row()[0]).state]


def _row_numbers(numbers: Array, counts: Array) -> Array:
    """The numbers of the rows of elements with these numbers."""
    pairs = zip(drawing_numbers(numbers).tolist(), counts.tolist(), strict=True)
    made = np.concatenate([derive_array(number, numbers_from(0, n)) for number, n in pairs])
    return (
        add_turns(made, np.repeat(numbers["turn"], counts)) if numbers.dtype == WITH_TURNS else made
    )


class RebatchStream(FedStream):
    """Rows cut anew by a cycle of sizes.

    A size of 0 reads no rows, so its empty batch comes behind the last row as well. It is cut from
    the row before, which the state keeps: behind the last row there is no other row to look at.
    """

    def __init__(self, node: Rebatch, rows: Stream, state: State) -> None:
        super().__init__(rows)
        self._node = node
        self._has_empty = 0 in node.sizes
        turn, empty = state if isinstance(state, list) else (state or 0, None)
        self._turn: int = turn
        self._empty = None if empty is None else Chunk.of([empty])

    def pull(self, limit: int) -> Chunk:
        size = self._node.sizes[self._turn]
        if size == 0:
            return self._pull_empty()
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
        rows = Chunk.join(parts)
        if self._has_empty:
            self._empty = _empty_batch(rows)
        if count == size:  # A smaller batch is the last one: its turn stays, and finds no rows.
            self._advance()
        return collate_all(stack_rows, rows, [len(rows)])

    def _pull_empty(self) -> Chunk:
        if self._empty is None:
            row = self._feed.pull(1)
            self._feed.unread(row, 0)
            self._empty = _empty_batch(row)
        self._advance()
        return self._empty

    def _advance(self) -> None:
        self._turn = (self._turn + 1) % len(self._node.sizes)

    def _own_state(self) -> State:
        if not self._has_empty:
            return self._turn
        return [self._turn, None if self._empty is None else self._empty.elements()[0]]


def _empty_batch(rows: Chunk) -> Chunk:
    """A batch of no rows such as these."""
    return Chunk(rows.tree, [columns.make([_no_rows(column)]) for column in rows.columns], 1)


def _no_rows(column: Any) -> Any:
    if isinstance(column, list):
        return np.asarray(column[0])[None][:0]
    return column[:0]
