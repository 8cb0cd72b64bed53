"""`parse_example` and its relatives: serialized examples to arrays."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from penstock.element.columns import Array
from penstock.element.strings import bytes_of
from penstock.engine.formats.examples.feature_columns import Column, column_of, read_columns
from penstock.engine.formats.examples.features import Feature, check_kind
from penstock.engine.formats.examples.reading import (
    Kind,
    MalformedError,
    Values,
    read_example,
)
from penstock.engine.formats.examples.writing import encode_example
from penstock.engine.heap import keep_freed_memory
from penstock.errors import (
    InternalError,
    InvalidArgumentError,
    InvalidTypeError,
    UnfitTypeError,
)


def parse_example(serialized: Any, features: Mapping[str, Feature]) -> dict[str, Any]:
    """The features of a batch of serialized `tf.train.Example`s, as arrays.

    A batch is parsed as a whole, which is much faster than one example after another: batch the
    records first, then map this function over the batches.

    Args:
      serialized: An array or list of bytes, or the bytes of one example.
      features: How to read each feature: `FixedLenFeature`, `FixedLenSequenceFeature`,
        `VarLenFeature` or `RaggedFeature`.

    Returns:
      For each feature an array or a `Ragged`, with a row for each example.

    >>> from penstock.io import FixedLenFeature, VarLenFeature, serialize_example
    >>> data = [serialize_example({"label": i, "tags": ["a"] * i}) for i in range(3)]
    >>> parse_example(data, {"label": FixedLenFeature([], "int64"), "tags": VarLenFeature(str)})
    {'label': array([0, 1, 2]), 'tags': <Ragged [[], [b'a'], [b'a', b'a']]>}
    """
    call = "io.parse_example"
    # Of a list, NumPy would make an array of strings with the length of the longest.
    if not isinstance(serialized, list | tuple) and np.ndim(serialized) == 0:
        return parse_single_example(serialized, features)
    records = check_records(serialized, call)
    wanted = wanted_of(features, call)
    keep_freed_memory()
    columns, wrong = read_columns(records, wanted)
    if wrong.any():
        usual = encode_again(
            records, wrong, lambda record: encode_example(read_example(record, wanted)), call
        )
        columns, wrong = read_columns(usual, wanted)
        if wrong.any():
            raise InternalError(f"{call}: example {int(wrong.argmax())} was not read")
    return build(columns, features, wanted, call)


def parse_single_example(serialized: Any, features: Mapping[str, Feature]) -> dict[str, Any]:
    """The features of one serialized `tf.train.Example`; see `parse_example`.

    >>> from penstock.io import FixedLenFeature, serialize_example
    >>> parse_single_example(serialize_example({"x": [1, 2]}), {"x": FixedLenFeature([2], "int64")})
    {'x': array([1, 2])}
    """
    call = "io.parse_single_example"
    [record] = check_records([serialized], call)
    wanted = wanted_of(features, call)
    found: dict[bytes, Values] = {}
    try:
        found = read_example(record, wanted)
    except MalformedError as error:
        raise InvalidArgumentError(f"{call}: the example cannot be read: {error}") from None
    columns = {name: column_of(found.get(name), kind) for name, kind in wanted.items()}
    return {name: value[0] for name, value in build(columns, features, wanted, call).items()}


def check_records(serialized: Any, call: str) -> list[bytes]:
    """The examples of a batch."""
    records = serialized.tolist() if isinstance(serialized, np.ndarray) else list(serialized)
    if {*map(type, records)} <= {bytes}:
        return records
    for record in records:
        if not isinstance(record, bytes):
            raise InvalidTypeError(
                f"{call}: an example must be bytes, got {reprlib.repr(record)}; "
                "serialized must be bytes or a one-dimensional batch of them"
            )
    return records


def wanted_of(features: Mapping[str, Feature], call: str) -> dict[bytes, Kind]:
    """The names of the features to read, and which lists they must hold."""
    if not features:
        raise InvalidArgumentError(
            f"{call}: features must be a dict with at least one feature, got {features!r}"
        )
    wanted: dict[bytes, Kind] = {}
    for name, feature in features.items():
        if not isinstance(feature, Feature):
            raise UnfitTypeError(
                f"{call}: feature {name!r} must be a FixedLenFeature, FixedLenSequenceFeature, "
                f"VarLenFeature or RaggedFeature, got {feature!r}"
            )
        for key, kind in feature.keys(bytes_of(name)).items():
            if wanted.setdefault(key, kind) != kind:
                raise InvalidArgumentError(
                    f"{call}: feature {key.decode(errors='replace')!r} is declared with two dtypes"
                )
    return dict(sorted(wanted.items(), key=lambda item: item[1]))  # One kind after another.


def build(
    columns: Mapping[bytes, Column],
    features: Mapping[str, Feature],
    wanted: Mapping[bytes, Kind],
    call: str,
) -> dict[str, Any]:
    for name, kind in wanted.items():
        check_kind(name, columns[name], kind, call)
    return {
        name: feature.build(bytes_of(name), columns, call) for name, feature in features.items()
    }


def encode_again(
    records: list[bytes], wrong: Array, encode: Callable[[bytes], bytes], call: str
) -> list[bytes]:
    """The batch, with what is wanted of unusual examples encoded in the usual way."""
    usual = list(records)
    for row in np.flatnonzero(wrong).tolist():
        try:
            usual[row] = encode(records[row])
        except MalformedError as error:
            raise InvalidArgumentError(f"{call}: example {row} cannot be read: {error}") from None
    return usual
