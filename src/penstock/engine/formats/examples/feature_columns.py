"""The features of a batch of examples, as columns: each step is taken in all examples at once.

What is encoded in an unusual way is marked as wrong here, and left to `reading`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.element.columns import Array
from penstock.engine.formats.examples.heads import join_records
from penstock.engine.formats.examples.keys import Keys, keys_of
from penstock.engine.formats.examples.protobuf_lists import find_protobuf
from penstock.engine.formats.examples.reading import Kind, Values
from penstock.engine.formats.examples.varints import AFTER, BEFORE, decode_varints
from penstock.engine.formats.examples.wire import (
    FIRST,
    SECOND,
    Wire,
    are_all,
    is_any,
)

_LONG = 32
"""The columns of features with fewer bytes on average are decoded together."""

_STRINGS = range(100, 4 << 10)
"""Lists of strings with so many bytes on average are split by protobuf, if it is installed. Shorter
lists have few strings, and longer ones are not joined."""

_NOWHERE = np.zeros(1, np.int64)


class Column(NamedTuple):
    """One feature of all examples."""

    values: Array
    """Those of all examples, one after another."""
    counts: Array
    """How many values each example has."""
    kinds: Array
    """Which list each example has, as the tag of a `Kind`; 0 for none."""
    size: int
    """How many values every example has, in a list of the right kind; -1 if they differ."""


class FeaturePlaces(NamedTuple):
    """Where the values of names are in the wire: arrays with a row for each name."""

    found: Array
    starts: Array
    stops: Array


def read_columns(
    records: Sequence[bytes], wanted: Mapping[bytes, Kind]
) -> tuple[dict[bytes, Column], Array]:
    """The wanted features of `Example`s, and which examples are encoded in an unusual way."""
    keys = keys_of(tuple(wanted))
    wire = join_records(records, keys.longest)
    lengths, begin = wire.read_lengths(wire.starts + 1)
    regular = (wire.octets[wire.starts] == FIRST) & (begin + lengths == wire.stops)
    wrong = ~regular & (wire.starts < wire.stops)
    begin = np.where(regular, begin, wire.stops)
    places, other = find_entries(wire, keys, begin, wire.stops)
    columns, odd = decode_places(wire, wanted, places)
    return columns, wrong | other | odd


def column_of(found: Values | None, kind: Kind) -> Column:
    """The column of a feature in one example."""
    if found is None:
        return Column(_empty(kind), np.zeros(1, np.int64), np.zeros(1, np.uint8), -1)
    count = len(found.values)
    kinds = np.array([found.kind], np.uint8)
    return Column(found.values, np.array([count]), kinds, count if found.kind == kind else -1)


def find_entries(
    wire: Wire, keys: Keys, starts: Array, stops: Array
) -> tuple[FeaturePlaces, Array]:
    """Where each range, which is a map, has the values of the names; and which ranges are odd."""
    (owners, begin, end), wrong = wire.split(starts, stops)
    sizes, name = wire.read_lengths(begin + 1)
    after = wire.end_names(name, sizes, end)
    lengths, inside = wire.read_lengths(after + 1)
    regular = (wire.octets[begin] == FIRST) & (wire.octets[after] == SECOND)
    regular &= inside + lengths == end
    regular &= _is_shortest(sizes, name - begin - 1)
    if not are_all(regular):
        wrong[owners[~regular]] = True
        inside, end = np.where(regular, inside, wire.limit), np.where(regular, end, wire.limit)

    which = keys.find(wire, begin + 1, after)
    mine = (which >= 0).nonzero()[0]
    cells = which[mine] * len(starts) + owners[mine]
    where = np.full(len(keys) * len(starts), -1)
    where[cells] = mine
    twice = where[cells] != mine
    if is_any(twice):
        wrong[owners[mine[twice]]] = True
    table = where.reshape(len(keys), len(starts))
    # The last entry, at which -1 points, is an empty range.
    inside, end = np.concatenate((inside, _NOWHERE)), np.concatenate((end, _NOWHERE))
    return FeaturePlaces(table >= 0, inside[table], end[table]), wrong


def _is_shortest(lengths: Array, widths: Array) -> Any:
    """Whether lengths are encoded in as few bytes as possible; names are compared with them."""
    if lengths.dtype == np.uint8:
        return True
    return (widths == 1) | (lengths >> (7 * (widths - 1)) > 0)


def decode_places(
    wire: Wire, wanted: Mapping[bytes, Kind], places: FeaturePlaces
) -> tuple[dict[bytes, Column], Array]:
    """The columns of features, and which examples are encoded in an unusual way.

    Features of one kind should be neighbours in `wanted`, so that they are decoded together.
    """
    kinds = np.array(list(wanted.values()), np.uint8)[:, None]
    payloads, wrong = find_payloads(wire, kinds, places.starts, places.stops)
    counts = np.zeros(wrong.shape, np.int64)
    values: list[Array] = []
    for kind, group in _groups(kinds, payloads):
        found, some, odd = decode(wire, kind, payloads.part(group))
        counts[group] = some.reshape(counts[group].shape)
        if is_any(odd):
            wrong[group] |= odd.reshape(counts[group].shape)
        values += _cut(found, counts[group])
    even = ((counts == counts[:, :1]) & (payloads.tags == kinds)).all(axis=1)
    sizes = np.where(even, counts[:, 0], -1).tolist() if wrong.size else [-1] * len(wanted)
    columns = {
        name: Column(values[index], counts[index], payloads.tags[index], sizes[index])
        for index, name in enumerate(wanted)
    }
    return columns, np.logical_or.reduce(wrong, axis=0)


def _cut(values: Array, counts: Array) -> list[Array]:
    """The values of each feature of a group."""
    if len(counts) == 1:
        return [values]
    ends = np.cumsum(counts.sum(axis=1)).tolist()
    return [values[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


class Payloads(NamedTuple):
    """Where the values of features are in the wire."""

    tags: Array
    """Which list each feature has; 0 for none."""
    features: Array
    """Where the features begin."""
    lists: Array
    """Where the lists begin."""
    starts: Array
    """Where the packed numbers begin, or the only string."""
    stops: Array
    """Where both end; both are empty if there are no values, or none of the right kind."""
    single: bool
    """Whether every feature has packed numbers, or one string."""

    def part(self, group: slice) -> Payloads:
        """The features of a group, flat."""
        return self._replace(
            features=self.features[group].ravel(),
            lists=self.lists[group].ravel(),
            starts=self.starts[group].ravel(),
            stops=self.stops[group].ravel(),
        )


def find_payloads(wire: Wire, kinds: Array, starts: Array, stops: Array) -> tuple[Payloads, Array]:
    """Where features have values of their kinds; and which are encoded in an unusual way."""
    tags = wire.octets[starts]
    lengths, lists = wire.read_lengths(starts + 1)
    inner, begin = wire.read_lengths(lists + 1)
    usual = (tags == kinds) & (lists + lengths == stops)
    single = usual & (wire.octets[lists] == FIRST) & (begin + inner == stops)
    if are_all(single):
        return Payloads(tags, starts, lists, begin, stops, True), np.zeros(starts.shape, bool)
    tags = np.where(starts < stops, tags, np.uint8(0))
    usual &= tags != 0
    known = (tags == Kind.BYTES) | (tags == Kind.FLOAT) | (tags == Kind.INT64) | (tags == 0)
    several = usual & ((lists == stops) | (kinds == Kind.BYTES))
    wrong = ~known | (tags == kinds) & ~single & ~several
    features, lists = np.where(usual, starts, stops), np.where(usual, lists, stops)
    begin = np.where(single, begin, stops)
    return Payloads(tags, features, lists, begin, stops, False), wrong


def _groups(kinds: Array, payloads: Payloads) -> list[tuple[Kind, slice]]:
    """Features that are decoded together: neighbours of one kind; long lists of numbers alone."""
    sizes = (payloads.stops - payloads.starts).sum(axis=1).tolist()
    limit = _LONG * payloads.stops.shape[1]
    groups: list[tuple[Kind, slice]] = []
    before = None
    for index, kind in enumerate(kinds[:, 0].tolist()):
        alone = kind != Kind.BYTES and sizes[index] > limit
        if alone or kind != before:
            groups.append((Kind(kind), slice(index, index + 1)))
        else:
            groups[-1] = (Kind(kind), slice(groups[-1][1].start, index + 1))
        before = None if alone else kind
    return groups


def decode(wire: Wire, kind: Kind, payloads: Payloads) -> tuple[Array, Array, Array]:
    """The values of lists of one kind, how many each has, and which are unusual."""
    if kind == Kind.BYTES:
        return _decode_bytes(wire, payloads)
    sizes = payloads.stops - payloads.starts
    if kind == Kind.INT64:
        octets = wire.copy(payloads.starts, payloads.stops, before=BEFORE, after=AFTER)
        return decode_varints(octets, sizes.cumsum())
    octets = wire.copy(payloads.starts, payloads.stops)
    wrong = sizes % 4 != 0
    values = octets[: 0 if is_any(wrong) else None].view("<f4")
    return values, sizes // 4, wrong


def _decode_bytes(wire: Wire, payloads: Payloads) -> tuple[Array, Array, Array]:
    count = len(payloads.starts)
    if payloads.single:
        values = wire.strings(payloads.starts, payloads.stops)
        return values, np.ones(count, np.int64), np.zeros(count, bool)
    if found := _split_by_protobuf(wire, payloads):
        return *found, np.zeros(count, bool)
    ranges, wrong = wire.split(payloads.lists, payloads.stops)
    owners, starts, stops = ranges.in_order()
    return wire.strings(starts, stops), np.bincount(owners, minlength=count), wrong


def _split_by_protobuf(wire: Wire, payloads: Payloads) -> tuple[Array, Array] | None:
    """The strings of features, and how many each has; None if protobuf cannot say."""
    several = (payloads.features < payloads.stops) & (payloads.starts == payloads.stops)
    rows = several.nonzero()[0]
    begin, end = payloads.features[rows], payloads.stops[rows]
    size = int((end - begin).sum()) // max(len(rows), 1)
    if size not in _STRINGS or not (protobuf := find_protobuf()):
        return None
    lists = protobuf.split_strings(wire.copy(begin, end))
    if lists is None:
        return None
    counts = (payloads.starts < payloads.stops).astype(np.int64)
    single = counts.nonzero()[0]
    counts[rows] = np.fromiter(map(len, lists), np.int64, len(rows))
    total = int(counts.sum())
    strings = np.fromiter(itertools.chain.from_iterable(lists), object, total - len(single))
    if not len(single):
        return strings, counts
    values = np.empty(total, object)
    is_single = np.repeat(~several, counts)
    values[is_single] = wire.strings(payloads.starts[single], payloads.stops[single])
    values[~is_single] = strings
    return values, counts


def _empty(kind: Kind) -> Array:
    dtypes = {Kind.BYTES: object, Kind.FLOAT: np.float32, Kind.INT64: np.int64}
    return np.zeros(0, dtypes[kind])
