"""`parse_sequence_example`: examples whose features are lists of steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.element.columns import Array
from penstock.element.ragged import Ragged
from penstock.element.strings import bytes_of
from penstock.engine.formats.examples.feature_columns import (
    Column,
    FeaturePlaces,
    decode,
    decode_places,
    find_entries,
    find_payloads,
)
from penstock.engine.formats.examples.features import (
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    VarLenFeature,
    check_kind,
    fail_at,
    splits_of,
)
from penstock.engine.formats.examples.heads import join_records
from penstock.engine.formats.examples.keys import keys_of
from penstock.engine.formats.examples.parsing import build, check_records, encode_again, wanted_of
from penstock.engine.formats.examples.ragged_features import RaggedFeature
from penstock.engine.formats.examples.reading import Kind, read_sequence_example
from penstock.engine.formats.examples.wire import FIRST, SECOND, Wire
from penstock.engine.formats.examples.writing import encode_sequence_example
from penstock.engine.heap import keep_freed_memory
from penstock.errors import InternalError, InvalidArgumentError, InvalidTypeError

Features = Mapping[str, Feature]
Kinds = Mapping[bytes, Kind]


class Lists(NamedTuple):
    """One feature list of all examples."""

    steps: Column
    """Has an entry for each step, those of one example after those of another."""
    counts: Array
    """How many steps each example has."""
    found: Array
    """Whether each example has the list."""

    def example_of(self, steps: Array) -> Array:
        """Which examples have one of the marked steps."""
        marks = np.repeat(np.arange(len(self.counts)), self.counts)[steps]
        return np.bincount(marks, minlength=len(self.counts)) > 0


def parse_sequence_example(
    serialized: Any,
    context_features: Features | None = None,
    sequence_features: Features | None = None,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The features of a batch of serialized `tf.train.SequenceExample`s, as arrays.

    Args:
      serialized: An array or list of bytes.
      context_features: How to read features of the whole example: `FixedLenFeature`,
        `VarLenFeature` or `RaggedFeature`.
      sequence_features: How to read feature lists: `FixedLenSequenceFeature`, `VarLenFeature`, or
        `RaggedFeature` without partitions.

    Returns:
      The context features; the feature lists, as arrays that are filled up to the longest list of
      the batch, or as `Ragged`s of examples, steps and values; and the number of steps of each
      list of a `FixedLenSequenceFeature`.

    >>> from penstock.io import VarLenFeature, serialize_sequence_example
    >>> data = [serialize_sequence_example({}, {"words": [["a", "b"], ["c"]]})]
    >>> parse_sequence_example(data, sequence_features={"words": VarLenFeature("string")})
    ({}, {'words': <Ragged [[[b'a', b'b'], [b'c']]]>}, {})
    """
    call = "io.parse_sequence_example"
    records = check_records(serialized, call)
    context, sequence = _check(context_features or {}, sequence_features or {}, call)
    keep_freed_memory()
    columns, lists, wrong = _read(records, context, sequence)
    if wrong.any():
        usual = encode_again(
            records,
            wrong,
            lambda record: encode_sequence_example(
                *read_sequence_example(record, context, sequence)
            ),
            call,
        )
        columns, lists, wrong = _read(usual, context, sequence)
        if wrong.any():
            raise InternalError(f"{call}: example {int(wrong.argmax())} was not read")
    for name, kind in sequence.items():
        _check_kinds(name, lists[name], kind, call)
    values, lengths = {}, {}
    for key, feature in (sequence_features or {}).items():
        found = lists[bytes_of(key)]
        values[key] = _build(bytes_of(key), feature, found, call)
        if isinstance(feature, FixedLenSequenceFeature):
            lengths[key] = found.counts
    return build(columns, context_features or {}, context, call), values, lengths


def parse_single_sequence_example(
    serialized: Any,
    context_features: Features | None = None,
    sequence_features: Features | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The features of one serialized `tf.train.SequenceExample`; see `parse_sequence_example`.

    >>> from penstock.io import FixedLenFeature, serialize_sequence_example
    >>> data = serialize_sequence_example({"id": 7})
    >>> parse_single_sequence_example(data, {"id": FixedLenFeature([], "int64")})
    ({'id': np.int64(7)}, {})
    """
    context, sequence, _ = parse_sequence_example([serialized], context_features, sequence_features)
    first = ({name: value[0] for name, value in part.items()} for part in (context, sequence))
    return next(first), next(first)


def _check(context: Features, sequence: Features, call: str) -> tuple[Kinds, Kinds]:
    """Which features and lists are wanted."""
    if not context and not sequence:
        raise InvalidArgumentError(
            f"{call}: needs context_features or sequence_features, got neither"
        )
    for name, feature in context.items():
        if not isinstance(feature, FixedLenFeature | VarLenFeature | RaggedFeature):
            raise InvalidTypeError(
                f"{call}: context feature {name!r} must be a FixedLenFeature, VarLenFeature or "
                f"RaggedFeature, got {feature!r}"
            )
    for name, feature in sequence.items():
        if isinstance(feature, RaggedFeature):
            fits = not feature.partitions and feature.value_key is None
        else:
            fits = isinstance(feature, FixedLenSequenceFeature | VarLenFeature)
        if not fits:
            raise InvalidTypeError(
                f"{call}: sequence feature {name!r} must be a FixedLenSequenceFeature, "
                f"VarLenFeature, or RaggedFeature without value_key and partitions, got {feature!r}"
            )
    wanted = wanted_of(context, call) if context else {}
    return wanted, wanted_of(sequence, call) if sequence else {}


def _read(
    records: Sequence[bytes], context: Kinds, sequence: Kinds
) -> tuple[dict[bytes, Column], dict[bytes, Lists], Array]:
    """Context features and lists, and which examples are encoded in an unusual way."""
    names, list_names = keys_of(tuple(context)), keys_of(tuple(sequence))
    wire = join_records(records, max(names.longest, list_names.longest))
    start, middle, odd_context = _field(wire, FIRST, wire.starts, wire.stops)
    behind, stops = wire.reach(middle)
    list_start, stop, odd_lists = _field(wire, SECOND, behind, stops)
    wrong = odd_context | odd_lists | (stop != stops)
    places, odd = find_entries(wire, names, start, middle)
    columns, other = decode_places(wire, context, places)
    wrong |= odd | other
    places, odd = find_entries(wire, list_names, list_start, stop)
    lists, other = _decode_lists(wire, sequence, places)
    return columns, lists, wrong | odd | other


def _field(wire: Wire, tag: int, at: Array, stops: Array) -> tuple[Array, Array, Array]:
    """The range of the field at each position, if there is one, and which fields are too long."""
    has = (wire.octets[at] == tag) & (at < stops)
    lengths, begin = wire.read_lengths(at + 1)
    wrong = has & (begin + lengths > stops)
    has &= ~wrong
    return np.where(has, begin, at), np.where(has, begin + lengths, at), wrong


def _decode_lists(
    wire: Wire, sequence: Kinds, places: FeaturePlaces
) -> tuple[dict[bytes, Lists], Array]:
    """The feature lists, and which examples are encoded in an unusual way."""
    lists, rows = {}, places.starts.shape[1]
    wrong = np.zeros(rows, bool)
    for index, (name, kind) in enumerate(sequence.items()):
        ranges, odd = wire.split(places.starts[index], places.stops[index])
        owners, starts, stops = ranges.in_order()
        wrong |= odd
        payloads, odd = find_payloads(wire, np.full(len(starts), kind, np.uint8), starts, stops)
        values, counts, other = decode(wire, kind, payloads)
        wrong[owners[odd | other]] = True
        column = Column(values, counts, payloads.tags, -1)
        lists[name] = Lists(column, np.bincount(owners, minlength=rows), places.found[index])
    return lists, wrong


def _check_kinds(name: bytes, lists: Lists, kind: Kind, call: str) -> None:
    """Raises if an example has a step of another kind."""
    odd = (lists.steps.kinds != 0) & (lists.steps.kinds != kind)
    if odd.any():
        examples = np.zeros(len(lists.counts), np.uint8)
        examples[lists.example_of(odd)] = lists.steps.kinds[odd.argmax()]
        check_kind(name, lists.steps._replace(kinds=examples), kind, call)


def _build(name: bytes, feature: Feature, lists: Lists, call: str) -> Any:
    """The result for a feature list."""
    if not isinstance(feature, FixedLenSequenceFeature):
        splits = splits_of(lists.steps.counts), splits_of(lists.counts)
        if isinstance(feature, RaggedFeature):
            dtype = feature.row_splits_dtype.dtype
            splits = splits[0].astype(dtype), splits[1].astype(dtype)
        return Ragged(Ragged(lists.steps.values, splits[0]), splits[1])
    if not feature.allow_missing and not lists.found.all():
        text = "no list; give it allow_missing=True if that is right"
        fail_at(~lists.found, name, call, text)
    size = math.prod(feature.shape)
    odd = lists.steps.counts != size
    if odd.any():
        count = lists.steps.counts[odd.argmax()]
        text = f"a step with {count} values, but shape {list(feature.shape)} has {size}"
        fail_at(lists.example_of(odd), name, call, text)
    return feature.pad(lists.steps.values, lists.counts)
