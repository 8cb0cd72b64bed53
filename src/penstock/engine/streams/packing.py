"""Batching operators that put several sequences into one row: `pack`.

Which row a sequence goes to depends on the lengths of the sequences before it and on nothing else,
so that every cut into chunks gives the same rows. Lengths are handled one by one, as Python ints;
tokens are copied a sequence at a time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from penstock.element import columns, nest
from penstock.element.chunk import Chunk
from penstock.element.columns import Array, Column
from penstock.element.ragged import Ragged
from penstock.engine.contract import LazyState, State, Stream, copy_state
from penstock.engine.inlets import FedStream
from penstock.errors import InvalidArgumentError, OpError
from penstock.plan.nodes import Pack
from penstock.plan.packed import (
    MASK,
    POSITIONS,
    SEGMENTS,
    TOKENS,
    WHERE,
    check_dtypes,
    values_for,
)

_MOST_ELEMENTS = 8192
"""The most elements to ask for at once."""

_LEAST_TOKENS = 1 << 15
"""How many tokens are worth the cost of a chunk."""

_MOST_VIEWED = 4 << 20
"""How many bytes of chunks the open rows may keep in memory."""

_NO_ROOM = 1 << 62
"""More room than any row has."""

_UNFIT = -1
"""Instead of a length: this leaf is not a 1-D array."""


class _Row:
    """A row of the output while sequences are put into it."""

    __slots__ = ("counts", "room", "views")

    def __init__(self, length: int, features: int) -> None:
        self.views: list[list[Array]] = [[] for _ in range(features)]
        """The tokens of each feature, as views of chunks."""
        self.counts: list[int] = []
        """The number of tokens of each segment."""
        self.room = length

    def put(self, tokens: list[Array], start: int, stop: int, counts: Sequence[int]) -> None:
        """Appends segments of `counts` tokens, which together are those from `start` to `stop`."""
        for views, flat in zip(self.views, tokens, strict=False):
            views.append(flat[start:stop])
        self.counts += counts
        self.room -= stop - start

    def copy_views(self) -> None:
        """Copies the tokens, so that the memory of chunks can be reused."""
        self.views = [[np.concatenate(views)] for views in self.views]


Find = Callable[[list[_Row], int], "_Row | None"]
"""Finds the row for a sequence of a length, among the open rows in the order of their opening."""


def _find_first(rows: list[_Row], size: int) -> _Row | None:
    for row in rows:
        if row.room >= size:
            return row
    return None


def _find_best(rows: list[_Row], size: int) -> _Row | None:
    """The fullest row; the first opened of several that are as full."""
    best, least = None, _NO_ROOM
    for row in rows:
        if size <= row.room < least:
            best, least = row, row.room
    return best


class _Features:
    """The features of the elements, and the values that separate and fill them."""

    def __init__(self, node: Pack, tree: nest.Tree, kinds: list[Any]) -> None:
        names = nest.unflatten(tree, range(len(kinds)))
        if type(names) is not dict:
            names = {TOKENS: names}
        found = {name: kinds[place] for name, place in names.items() if type(place) is int}
        if len(found) < len(kinds):
            raise InvalidArgumentError(
                f"{WHERE}: elements must be one array or a dict of arrays; map them to that"
            )
        self.dtypes = check_dtypes({name: np.dtype(kind) for name, kind in found.items()})
        self._order = [names[name] for name in self.dtypes]
        self._length = node.length
        fill = values_for("padding", node.padding, self.dtypes, 0)
        self._fill = {
            name: np.full(node.length, fill[name], dtype) for name, dtype in self.dtypes.items()
        }
        self.separators: list[Any] = []
        if node.separator is not None:
            values = values_for("separator", node.separator, self.dtypes, None)
            self.separators = list(values.values())

    def columns_of(self, chunk: Chunk) -> list[Column]:
        return [chunk.columns[place] for place in self._order]

    def tokens(self, chunk: Chunk, lengths: Array) -> list[Array]:
        """The tokens of all elements of each feature, with a separator behind each element."""
        flat: list[Any] = [columns.unstack(column)[0] for column in self.columns_of(chunk)]
        if not self.separators:
            return flat
        ends = np.cumsum(lengths)
        pairs = zip(flat, self.separators, strict=True)
        return [np.insert(tokens, ends, separator) for tokens, separator in pairs]

    def open_row(self) -> _Row:
        return _Row(self._length, len(self.dtypes))

    def chunk_of(self, rows: list[_Row]) -> Chunk:
        """Complete rows as elements."""
        made = {
            name: self._column(rows, place, fill)
            for place, (name, fill) in enumerate(self._fill.items())
        }
        made[SEGMENTS], made[POSITIONS] = _segments(rows, self._length)
        mask = made[POSITIONS] > 0
        made[MASK] = mask & made[MASK] if MASK in made else mask
        names, tree = nest.keys_of(tuple(made))
        return Chunk(tree, [made[name] for name in names], len(rows))

    def _column(self, rows: list[_Row], feature: int, fill: Array) -> Array:
        views = [view for row in rows for view in (*row.views[feature], fill[: row.room])]
        return np.concatenate(views).reshape(len(rows), self._length)


def _segments(rows: list[_Row], length: int) -> tuple[Array, Array]:
    """The number of the segment of each token, from 1, and its position there; 0 in padding."""
    counts = np.array([count for row in rows for count in (*row.counts, row.room)])
    numbers = [n for row in rows for n in (*range(1, len(row.counts) + 1), 0)]
    shape = (len(rows), length)
    segments = np.repeat(np.array(numbers, np.int32), counts).reshape(shape)
    begins = ((np.cumsum(counts) - counts) % length).astype(np.int32)
    positions = np.repeat(begins, counts).reshape(shape)
    np.subtract(np.arange(length, dtype=np.int32), positions, out=positions)
    for row, places in zip(rows, positions, strict=True):
        if row.room:
            places[-row.room :] = 0
    return segments, positions


class _Sequences:
    """The elements of one chunk, of which the first `used` are in rows."""

    __slots__ = ("at", "ends", "starts", "tokens", "used")

    def __init__(self, tokens: list[Array], sizes: Array, most: int, begun: int) -> None:
        ends = np.cumsum(sizes)
        self.tokens = tokens
        self.starts: list[int] = [0, *ends.tolist()]
        self.ends: list[int] = (ends - np.maximum(sizes - most, 0)).tolist()
        """Where the tokens end that are packed: at most `most` of each element."""
        self.used = 0
        self.at = begun
        """The next token to be packed."""


class PackStream(FedStream):
    """Sequences in rows of one length. It holds the rows that are not complete yet."""

    def __init__(self, node: Pack, source: Stream, state: State) -> None:
        super().__init__(source)
        self._node = node
        self._features: _Features | None = None
        self._next: _Sequences | None = None
        self._open: list[_Row] = []
        self._begun = 0
        """How many tokens of the next element are in rows already, if it is not in `_next`."""
        self._viewed = 0
        """How many bytes of chunks the open rows may refer to."""
        self._average = float(max(node.length, _LEAST_TOKENS))
        """How many tokens an element had in the last chunk; at first, so many that one is read."""
        if state is not None:
            self._restore(state)

    def _restore(self, state: State) -> None:
        self._begun, rows = copy_state(state)
        for counts, element in rows:
            held = Chunk.of([element])
            self._features = self._features or _Features(self._node, *held.kind)
            row = self._features.open_row()
            tokens = [np.asarray(column[0]) for column in self._features.columns_of(held)]
            row.put(tokens, 0, sum(counts), counts)
            self._open.append(row)

    def pull_needed(self, needed: int, limit: int, rows: int = 0) -> Chunk:
        made: list[_Row] = []
        while len(made) < min(needed, limit):
            try:
                self._next = self._next or self._read(limit - len(made))
            except StopIteration:
                if not made:
                    made, self._open = self._open[:limit], self._open[limit:]
                break
            except Exception as error:
                if not made:
                    raise
                self._feed.unraise(error)
                break
            made += self._pack(self._next, limit - len(made))
        if not made or self._features is None:
            raise StopIteration
        return self._features.chunk_of(made)

    def _read(self, limit: int) -> _Sequences:
        """About as many elements as fill `limit` rows, and some more if rows are short."""
        node = self._node
        wanted = int(max(limit * node.length, _LEAST_TOKENS) / max(self._average, 1.0)) + 1
        features, chunk, lengths = self._cut_fitting(self._feed.pull(min(wanted, _MOST_ELEMENTS)))
        tokens = features.tokens(chunk, lengths)
        sizes = lengths + 1 if features.separators else lengths
        self._average = float(sizes.mean())
        begun, self._begun = self._begun, 0
        return _Sequences(tokens, sizes, node.length if node.drops else _NO_ROOM, begun)

    def _pack(self, sequences: _Sequences, limit: int) -> list[_Row]:
        """Puts sequences into rows until `limit` rows are complete."""
        if self._node.strategy == "concat_split":
            complete, done = self._concatenate(sequences, limit)
        else:
            find = _find_best if self._node.strategy == "best_fit" else _find_first
            complete, done = self._fit(sequences, limit, find)
        if done:
            self._next = None
            self._release(sum(flat.nbytes for flat in sequences.tokens))
        return complete

    def _release(self, nbytes: int) -> None:
        """Copies what open rows hold, after chunks of many bytes were put into them."""
        self._viewed += nbytes
        if self._viewed > _MOST_VIEWED:
            self._viewed = 0
            for row in self._open:
                row.copy_views()

    def _fit(self, sequences: _Sequences, limit: int, find: Find) -> tuple[list[_Row], bool]:
        """Puts each sequence into the row that `find` returns; also says whether none is left."""
        rows, most, complete = self._open, self._node.open_rows, list[_Row]()
        tokens, at, starts, ends = sequences.tokens, sequences.at, sequences.starts, sequences.ends
        for number in range(sequences.used, len(ends)):
            end = ends[number]
            while at < end:
                if len(complete) == limit:
                    sequences.used, sequences.at = number, at
                    return complete, False
                row = find(rows, end - at)
                if row is None and len(rows) == most:
                    complete.append(rows.pop(0))
                    continue
                row = row or self._open_row()
                count = min(end - at, row.room)
                row.put(tokens, at, at + count, (count,))
                at += count
                if not row.room:
                    rows.remove(row)
                    complete.append(row)
            at = starts[number + 1]
        return complete, True

    def _concatenate(self, sequences: _Sequences, limit: int) -> tuple[list[_Row], bool]:
        """Fills one row after the other, each with one copy; also says whether none is left."""
        ends, complete = sequences.ends, list[_Row]()
        while sequences.at < ends[-1] and len(complete) < limit:
            row = self._open[0] if self._open else self._open_row()
            stop = min(sequences.at + row.room, ends[-1])
            after = bisect_left(ends, stop, sequences.used)
            bounds = [sequences.at, *ends[sequences.used : after], stop]
            counts = [end - start for start, end in pairwise(bounds) if start < end]
            row.put(sequences.tokens, sequences.at, stop, counts)
            sequences.used, sequences.at = bisect_right(ends, stop, after), stop
            if not row.room:
                complete.append(self._open.pop())
        return complete, sequences.at == ends[-1]

    def _open_row(self) -> _Row:
        assert self._features is not None
        row = self._features.open_row()
        self._open.append(row)
        return row

    def _cut_fitting(self, chunk: Chunk) -> tuple[_Features, Chunk, Array]:
        """The elements before the first that cannot be packed; raises if that is the first.

        Also returns their features and their lengths.
        """
        try:
            features = self._features = self._features or _Features(self._node, *chunk.kind)
        except OpError:
            self._feed.unread(chunk, 1)
            raise
        lengths = [_lengths(column) for column in features.columns_of(chunk)]
        count = self._count_fitting(features, lengths)
        if count == len(chunk):
            return features, chunk, lengths[0]
        self._feed.unread(chunk, max(count, 1))
        if not count:
            raise self._explain(features, [int(of_feature[0]) for of_feature in lengths])
        return features, chunk.rows(0, count), lengths[0][:count]

    def _count_fitting(self, features: _Features, lengths: list[Array]) -> int:
        """How many elements come before the first that cannot be packed."""
        most = self._node.length - bool(features.separators)
        wrong = lengths[0] == _UNFIT
        if self._node.too_long == "error":
            wrong |= lengths[0] > most
        for other in lengths[1:]:
            wrong |= other != lengths[0]
        return int(wrong.argmax()) if wrong.any() else len(wrong)

    def _explain(self, features: _Features, lengths: list[int]) -> OpError:
        """What is wrong with an element whose features have these lengths."""
        if _UNFIT in lengths:
            name = list(features.dtypes)[lengths.index(_UNFIT)]
            return InvalidArgumentError(f"{WHERE}: the feature {name!r} must be a 1-D array")
        if len(set(lengths)) > 1:
            shown = dict(zip(features.dtypes, lengths, strict=True))
            return InvalidArgumentError(
                f"{WHERE}: the features of one element have different lengths, {shown}; "
                "they must have the same"
            )
        more = " and a separator" if features.separators else ""
        return InvalidArgumentError(
            f"{WHERE}: an element has {lengths[0]} tokens{more}, more than the length "
            f'{self._node.length}; too_long="split" puts it into several rows, '
            '"truncate" drops the rest'
        )

    def _own_state(self) -> State:
        """Tokens are copied when the state is: the views of a row never change."""
        begun, following = self._begun, self._next
        if following is not None:
            begun = following.at - following.starts[following.used]
        rows = [
            [list(row.counts), LazyState(partial(self._copy_tokens, list(map(list, row.views))))]
            for row in self._open
        ]
        return [begun, rows]

    def _input_states(self) -> list[State]:
        if self._next is None:
            return super()._input_states()
        return [self._feed.place.after(self._next.used).state]

    def _copy_tokens(self, views: list[list[Array]]) -> dict[str, Array]:
        """A copy of the tokens in a row, by feature."""
        assert self._features is not None
        pairs = zip(self._features.dtypes, views, strict=True)
        return {name: np.concatenate(parts) for name, parts in pairs}


def _lengths(column: Column) -> Array:
    """The length of each leaf, `_UNFIT` where it is not a 1-D array."""
    if isinstance(column, Ragged):
        flat = isinstance(column.values, np.ndarray) and column.values.ndim == 1
        return column.row_lengths if flat else np.full(len(column), _UNFIT)
    if isinstance(column, np.ndarray):
        return np.full(len(column), column.shape[1] if column.ndim == 2 else _UNFIT)
    sizes = (
        len(leaf) if isinstance(leaf, np.ndarray) and leaf.ndim == 1 else _UNFIT for leaf in column
    )
    return np.fromiter(sizes, np.int64, len(column))
