"""Origins: which rows and records an element was made of, for errors that lead to the data.

Nothing is recorded while elements are made. When the text of an error is needed, the plan is run
once more for that one element, with sources whose elements are their own numbers, and without
functions; only functions that make datasets are called again. Where another function decides which
elements there are, sources are searched for an equal value, unless functions have changed it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from penstock.element import nest
from penstock.element.chunk import Chunk
from penstock.element.dtypes import int64
from penstock.engine.access import Epoch, access, leaf, pair
from penstock.engine.context import Context, OpenPlan, OriginSearch
from penstock.engine.contract import State, Stream, copy_state
from penstock.engine.formats import open_reader
from penstock.engine.formats.records import RecordReader
from penstock.engine.inlets import Place, discard
from penstock.engine.positions import first_number, states_of
from penstock.engine.streams.sources import RecordsStream
from penstock.errors import OpError
from penstock.plan import nodes
from penstock.plan.cuts import has_one_reader
from penstock.plan.functions import Function
from penstock.plan.nodes import Node
from penstock.plan.options import Options
from penstock.plan.traits import Trait

_SOURCE = 40
"""A number says in its bits from here on which source it is of."""

MOST_BYTES = 256 << 20
"""How many bytes of files are read again to find one record."""

_MOST_SOUGHT, _AT_ONCE = 1 << 22, 1024
"""How many elements are compared with an element, at most, and how many are read at once."""

_MOST = 3
"""An error names at most so many rows of a source."""


def find_origin(
    open_plan: OpenPlan,
    node: Node,
    context: Context,
    ordinal: int,
    place: Place | None,
    element: Any = None,
) -> str:
    """Says where an element of a plan comes from; empty if that is not known.

    Args:
        open_plan: Opens plans.
        node: The plan.
        context: What the plan was opened with.
        ordinal: How many elements came before, in the whole iteration.
        place: The place of the element, if it is known.
        element: Its value, if it is known.
    """
    near = [] if place is None else [copy_state(place.state)]
    if found := _find_by_number(open_plan, node, context, ordinal, near):
        return f"comes from {found}"
    if element is not None and (found := _find_by_value(open_plan, node, context, near, element)):
        return f"equals {found}"
    return ""


def _find_by_number(
    open_plan: OpenPlan, node: Node, context: Context, ordinal: int, near: list[State]
) -> str:
    if node.blocked is None:
        return describe_origin(node, ordinal - first_number(node), context.epoch)
    skips = [(state, 0) for state in near]
    for state, skip in [*skips, (None, ordinal - first_number(node))]:
        search = OriginSearch(MOST_BYTES)
        found = _run(open_plan, node, state, skip, _search_context(context, search))
        if found is not None and not search.has_failed:
            return _describe_all(search.sources, found)
    return ""


def describe_origin(node: Node, position: int, epoch: Epoch) -> str:
    """Where the element at a position of a plan comes from; empty without random access.

    >>> from penstock.data import Dataset
    >>> rows = Dataset.from_tensor_slices([7, 8, 9, 10]).shard(2, 1)
    >>> describe_origin(rows.__plan__, 1, (0,))
    'row 3 of from_tensor_slices'
    """
    if node.blocked is not None:
        return ""
    sources: list[Any] = []
    try:
        numbered = _number_rows(node, sources)
        found = access(numbered, lambda _: None)(np.array([position]), epoch)
    except OpError:
        return ""
    return _describe_all(sources, found)


def _find_by_value(
    open_plan: OpenPlan, node: Node, context: Context, near: list[State], element: Any
) -> str:
    """The first row or record that equals an element, from its place on, or else from the start."""
    for state in [*near, None]:
        search = OriginSearch(MOST_BYTES, with_values=True)
        found = _seek(open_plan, node, state, _search_context(context, search), element)
        if found is not None and not search.has_failed:
            return _describe_all(search.sources, found)
    return ""


def _seek(
    open_plan: OpenPlan, node: Node, state: State, context: Context, element: Any
) -> Chunk | None:
    """The number of the first equal element behind a state; None if there is none."""
    try:
        with closing(open_plan(node, state, context)) as stream:
            for _ in range(_MOST_SOUGHT // _AT_ONCE):
                for number, value in stream.pull(_AT_ONCE).elements():
                    if _is_equal(value, element):
                        return leaf(np.array([number]))
    except Exception:  # Also StopIteration, at the end.
        return None
    return None


def _is_equal(one: Any, two: Any) -> bool:
    if type(one) is bytes or type(two) is bytes:
        return bool(one == two)
    leaves, others = nest.flatten(one), nest.flatten(two)
    return leaves[1] == others[1] and all(
        np.array_equal(*pair) for pair in zip(leaves[0], others[0], strict=True)
    )


def _search_context(context: Context, search: OriginSearch) -> Context:
    return replace(
        context,
        search=search,
        options=context.options.merge(Options(executor="inline")),
        meters=context.meters.inner(),
        trail=None,
        numbered=False,
    )


def _run(
    open_plan: OpenPlan, node: Node, state: State, skip: int, context: Context
) -> Chunk | None:
    """The numbers of the element that follows `skip` elements behind a state; None if it fails."""
    try:
        with closing(open_plan(node, state, context)) as stream:
            return None if discard(stream, skip) else stream.pull(1)
    except Exception:  # The error of the user matters, and not that its origin is not found.
        return None


def simplify(
    node: Node, state: State, context: Context, search: OriginSearch
) -> tuple[Node, State, Context] | None:
    """What a search opens instead of a plan at a state; None if it opens the plan as it is."""
    if search.with_values:
        return _simplify_with_values(node, state, context, search)
    if node.blocked is None and not isinstance(state, dict):
        return _number_rows(node, search.sources), state, replace(context, search=None)
    if isinstance(node, nodes.Distribute):
        if state is not None or node.input is None or not _comes_in_order(node, context):
            search.fail()
        return node.input, None, context
    if node.loose or not _can_be_searched(node, state):
        search.fail()
    match node:
        case nodes.Cache():
            return node.input, states_of(node, state)[1][0], context.first_pass()
        case nodes.Map() | nodes.Scan() | nodes.Enumerate():
            own, below = states_of(node, state)
            if isinstance(node, nodes.Map) and isinstance(own, list) and any(own[1:]):
                search.fail()
            return node.input, below[0], context
        case nodes.Batch(source, size, drop_remainder) if type(node) is not nodes.Batch:
            return nodes.Batch(source, size, drop_remainder), state, context
        case nodes.Interleave():
            return _without_trial(node, state, context)
    return None


def _simplify_with_values(
    node: Node, state: State, context: Context, search: OriginSearch
) -> tuple[Node, State, Context] | None:
    """The same for a search for a value, which is in the source if operators only choose."""
    if node.blocked is None and node.pure and not isinstance(state, dict):
        numbers = _number_rows(node, search.sources)
        return nodes.Zip((numbers, node), nest.PAIR), state, replace(context, search=None)
    if isinstance(node, nodes.Interleave):
        return _without_trial(node, state, context)
    if isinstance(node, nodes.Records):
        return None
    if isinstance(node, nodes.IgnoreErrors):
        return _without_log(node, state, context)
    is_ahead = isinstance(node, nodes.Shuffle | nodes.Cache) and state is not None
    if Trait.SAMPLED_BY_INPUT not in node.traits or len(node.inputs) != 1 or is_ahead:
        search.fail()
    below = context.first_pass() if isinstance(node, nodes.Cache) else context
    return node.inputs[0], states_of(node, state)[1][0], below


def _without_trial(
    node: nodes.Interleave, state: State, context: Context
) -> tuple[Node, State, Context] | None:
    """The elements are numbers, and not what the function returned when it was tried."""
    if not node.function.trial and not node.parallel:
        return None
    return replace(node, function=Function(node.function.call), parallel=None), state, context


def _without_log(
    node: nodes.IgnoreErrors, state: State, context: Context
) -> tuple[Node, State, Context] | None:
    """The iteration has logged what it left out."""
    quiet = nodes.IgnoreErrors(node.input)
    return None if node == quiet else (quiet, state, context)


def _comes_in_order(node: nodes.Distribute, context: Context) -> bool:
    """Whether the elements of a service come in the order of the local dataset."""
    options = nodes.options_of(node).merge(context.options)
    return has_one_reader(node, context.options) and options.deterministic is not False


def _can_be_searched(node: Node, state: State) -> bool:
    """Whether elements and states do not depend on values, which a search does not have."""
    match node:
        case nodes.Shuffle() | nodes.Cache() | nodes.Rebatch() if state is not None:
            return False
        case nodes.IgnoreErrors():
            return not _calls_functions(node.input) and not _reads_tables(node.input)
        case nodes.Unbatch() | nodes.Rebatch():
            return not _calls_functions(node.input)
        case nodes.Map() | nodes.Scan() | nodes.Enumerate() | nodes.Batch() | nodes.Cache():
            return True
        case nodes.Records() | nodes.Interleave() | nodes.Zip() | nodes.Concatenate():
            return True
        case nodes.Mix() | nodes.Branch() | nodes.Tail():
            return True
    return Trait.BY_POSITION in node.traits


def _calls_functions(node: Node) -> bool:
    return hasattr(node, "function") or any(map(_calls_functions, node.inputs))


def _reads_tables(node: Node) -> bool:
    """Whether reading a row may fail, though its number, which a search has instead, does not."""
    return isinstance(node, nodes.TableRows) or any(map(_reads_tables, node.inputs))


class RecordNumbersStream(RecordsStream):
    """Numbers in place of the records of files."""

    def __init__(
        self, node: nodes.Records, source: Stream, position: State, search: OriginSearch
    ) -> None:
        super().__init__(node, source, position, numbered=False)
        self._search = search

    def _open_reader(self, position: int) -> RecordReader[Any]:
        reader = super()._open_reader(position)
        file = OpenedFile(self._node.format, reader.path, self._options, position)
        self._search.sources.append(file)
        self._next_number = (len(self._search.sources) - 1) << _SOURCE
        self._read_to = position if position or self._part is None else None
        return reader

    def _chunk(self, records: list[Any]) -> Chunk:
        assert self._reader is not None
        if self._read_to is not None:  # Else the reader has just found the first record of a part.
            self._search.bytes_left -= self._reader.position - self._read_to
        if self._search.bytes_left < 0:
            self._search.fail()
        self._read_to = self._reader.position
        first, self._next_number = self._next_number, self._next_number + len(records)
        numbers = leaf(np.arange(first, self._next_number))
        return pair(numbers, super()._chunk(records)) if self._search.with_values else numbers


def _describe_all(sources: list[Any], found: Chunk) -> str:
    columns: list[Any] = found.columns
    rows: dict[int, list[int]] = {}
    for number in (int(number) for column in columns for number in np.ravel(column)):
        rows.setdefault(number >> _SOURCE, []).append(number & ((1 << _SOURCE) - 1))
    return " and ".join(filter(None, (_describe(sources[key], rows[key]) for key in sorted(rows))))


def _number_rows(node: Node, sources: list[Any]) -> Node:
    """The plan with rows that are their own numbers; appends the sources."""
    match node:
        case nodes.Map() | nodes.Enumerate():
            return _number_rows(node.input, sources)
        case nodes.Select(source, positions):
            return nodes.Select(_number_rows(source, sources), positions)
        case nodes.Batch(source, size, drop_remainder):
            return nodes.Batch(_number_rows(source, sources), size, drop_remainder)
        case _ if node.inputs:
            return node.with_inputs(tuple(_number_rows(part, sources) for part in node.inputs))
    first = len(sources) << _SOURCE
    sources.append(node)
    if node.cardinality < 0:
        return nodes.Counter(np.int64(first), np.int64(1), int64)
    return nodes.Range(first, first + node.cardinality, 1, int64)


def _describe(source: Node | OpenedFile, rows: list[int]) -> str:
    """Rows of one source in words. A number of a range says itself where it comes from."""
    match source:
        case OpenedFile():
            places = [describe_record(source, row) for row in rows[:_MOST]]
        case nodes.TableRows(files=files) if files and files[0].path:
            places = [_place(files, row) for row in rows[:_MOST]]
        case nodes.TableRows() | nodes.Slices() if not isinstance(source, nodes.Tensors):
            places = [f"row {row} of {source.label}" for row in rows[:_MOST]]
        case _:
            return ""
    more = [f"{len(rows) - _MOST} more"] if len(rows) > _MOST else []
    return ", ".join(places + more)


def _place(files: Any, row: int) -> str:
    for file in files:
        length = sum(file.blocks)
        if row < length:
            return f"row {row} of {file.path}"
        row -= length
    raise AssertionError(f"row {row} is in none of the files")


# Where a record lies in its file, in words. The file is read again for this.

_Open = Callable[[int], RecordReader[Any]]
"""Opens a file reader at a position."""


class OpenedFile(NamedTuple):
    """A file as a file reader was opened on it: its format, path, options and first position."""

    format: str
    path: str
    options: dict[str, Any]
    position: int


class _FoundRecord(NamedTuple):
    """The bytes between which a record lies, and its number in the file, if it is known."""

    begin: int
    end: int
    place: str
    """In words; empty if the number says it well enough."""
    number: int | None = None


def describe_record(file: OpenedFile, index: int) -> str:
    """Where the record is that a file reader gives out as number `index`; empty if it has none.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "names.txt")
    >>> with open(path, "wb") as out:
    ...     _ = out.write(b"a\\nbc\\nd\\n")
    >>> describe_record(OpenedFile("text", path, {}, 2), 1).replace(path, "names.txt")
    'line 3 (byte 5) of names.txt'
    """
    found = _find_by_index(_opener(file), file.position, index)
    if found is None:
        return ""
    if file.position or file.options.get("part"):
        found = _find_by_end(_opener(file, whole=True), found.end) or found
    else:
        found = found._replace(number=index)
    return f"{_describe_place(file, found)} of {file.path}"


def _opener(file: OpenedFile, whole: bool = False) -> _Open:
    options = file.options
    if whole:
        options = {name: value for name, value in options.items() if name not in ("part", "begin")}
    return lambda position: open_reader(file.format, file.path, options, position)


def _describe_place(file: OpenedFile, found: _FoundRecord) -> str:
    if found.place:
        return found.place
    if found.number is None:
        return f"the record at byte {found.begin}"
    if file.format == "text":
        return f"line {found.number + 1} (byte {found.begin})"
    return f"record {found.number} (byte {found.begin})"


def _find_by_index(open_file: _Open, position: int, index: int) -> _FoundRecord | None:
    with closing(open_file(position)) as reader:
        while index > 0:
            records = _read(reader, min(index, _AT_ONCE))
            if not records:
                return None
            index -= len(records)
        begin, place = reader.position, reader.next_place
        return _FoundRecord(begin, reader.position, place) if _read(reader, 1) else None


def _find_by_end(open_file: _Open, end: int) -> _FoundRecord | None:
    """The record that ends at a byte; None if that is too far from the start of the file."""
    if end > MOST_BYTES:
        return None
    count, before = 0, 0
    with closing(open_file(0)) as reader:
        while records := _read(reader, _AT_ONCE):
            if reader.position >= end:
                return _find_near(open_file, before, end, count)
            count, before = count + len(records), reader.position
    return None


def _find_near(open_file: _Open, position: int, end: int, count: int) -> _FoundRecord | None:
    """The record that ends at a byte soon after a position, before which `count` records lie."""
    with closing(open_file(position)) as reader:
        begin, place = reader.position, reader.next_place
        while _read(reader, 1):
            if reader.position == end:
                return _FoundRecord(begin, end, place, count)
            count, begin, place = count + 1, reader.position, reader.next_place
    return None


def _read(reader: RecordReader[Any], limit: int) -> list[Any]:
    """The next records that can be read; [] at the end."""
    while not reader.has_ended:
        try:
            return reader.read(limit)
        except Exception:  # A damaged record was no element.
            continue
    return []
