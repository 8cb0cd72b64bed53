"""Arrays to serialized examples: the bytes are those of protobuf's deterministic serialization."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.element import strings
from penstock.element.columns import Array
from penstock.engine.formats.examples.reading import Kind, Values, read_feature
from penstock.engine.formats.examples.wire import FIRST, SECOND, encode_length
from penstock.errors import InvalidArgumentError, InvalidTypeError

_FEW = 24
"""Fewer integers are encoded one by one, which is faster."""

_TOGETHER = 1 << 14
"""So many integers are encoded together: their octets fit into a cache."""

_SHIFTS = np.arange(0, 70, 7, dtype=np.uint64)


def serialize_example(features: Mapping[str, Any]) -> bytes:
    """The bytes of a `tf.train.Example`, for instance to write them to a TFRecord file.

    Args:
      features: The value of each feature: a number, a string, or an array or list of them. Bools
        and integers become `int64`, floats `float32`. An array is stored row by row, without its
        shape. An empty list is a feature without a type.

    >>> from penstock.io import FixedLenFeature, parse_example
    >>> data = serialize_example({"label": 3, "name": "x", "pixels": [[0.5, 1.0], [2.0, 0.0]]})
    >>> parsed = parse_example([data], {"pixels": FixedLenFeature([2, 2], "float32")})
    >>> parsed["pixels"].tolist()
    [[[0.5, 1.0], [2.0, 0.0]]]
    """
    return encode_example(_features(features, "io.serialize_example"))


def serialize_sequence_example(
    context: Mapping[str, Any] | None = None,
    feature_lists: Mapping[str, Sequence[Any]] | None = None,
) -> bytes:
    """The bytes of a `tf.train.SequenceExample`.

    Args:
      context: The features of the whole example, as for `serialize_example`.
      feature_lists: For each name the values of its steps, each as for `serialize_example`.

    >>> serialize_sequence_example({"id": 1}, {"words": [["a", "b"], ["c"]]})[:2]
    b'\\n\\r'
    """
    call = "io.serialize_sequence_example"
    lists = {
        _name(name, call): [_values(step, f"{call}: {name!r}") for step in steps]
        for name, steps in (feature_lists or {}).items()
    }
    return encode_sequence_example(_features(context or {}, call) or None, lists or None)


def encode_example(features: Mapping[bytes, Values | None]) -> bytes:
    return _field(FIRST, encode_features(features))


def encode_sequence_example(
    context: Mapping[bytes, Values | None] | None,
    lists: Mapping[bytes, Sequence[Values | None]] | None,
) -> bytes:
    """The bytes of both parts; a part that is None is left out."""
    head = b"" if context is None else _field(FIRST, encode_features(context))
    return head + (b"" if lists is None else _field(SECOND, encode_lists(lists)))


def encode_lists(lists: Mapping[bytes, Sequence[Values | None]]) -> bytes:
    return _encode_map({name: encode_steps(steps) for name, steps in lists.items()})


def encode_steps(steps: Sequence[Values | None]) -> bytes:
    return b"".join(_field(FIRST, encode_feature(step)) for step in steps)


def encode_features(features: Mapping[bytes, Values | None]) -> bytes:
    return _encode_map({name: encode_feature(found) for name, found in features.items()})


def _encode_map(entries: Mapping[bytes, bytes]) -> bytes:
    return b"".join(
        _field(FIRST, _field(FIRST, name) + _field(SECOND, entries[name]))
        for name in sorted(entries)
    )


def encode_feature(found: Values | None) -> bytes:
    return b"" if found is None else _field(found.kind, encode_list(found))


def encode_list(found: Values) -> bytes:
    """The bytes of a `BytesList`, a `FloatList` or an `Int64List`."""
    if found.kind == Kind.BYTES:
        return b"".join([_field(FIRST, value) for value in found.values])
    if not len(found.values):
        return b""
    if found.kind == Kind.FLOAT:
        return _field(FIRST, found.values.astype("<f4", copy=False).tobytes())
    return _field(FIRST, encode_varints(found.values))


def decode_list(kind: Kind, data: bytes) -> Values | None:
    """The values of a list of one kind, of its bytes."""
    return read_feature(_field(kind, data), kind.name)


def _field(tag: int, body: bytes) -> bytes:
    length = len(body)
    return (_SHORT[tag][length] if length < 128 else _TAGS[tag] + encode_length(length)) + body


_SHORT = {tag: [bytes((tag, length)) for length in range(128)] for tag in (FIRST, SECOND, *Kind)}
"""The beginnings of fields of fewer than 128 bytes."""

_TAGS = {tag: bytes((tag,)) for tag in (FIRST, SECOND, *Kind)}


def encode_varints(values: Array) -> bytes:
    """The varints of 64-bit integers, one after another."""
    if len(values) < _FEW:
        return b"".join([encode_length(value & (1 << 64) - 1) for value in values.tolist()])
    rest = values.astype(np.int64, copy=False).view(np.uint64)
    top = int(rest.max())
    if top < 0x80:
        return rest.astype(np.uint8).tobytes()
    shifts = _SHIFTS[: -(-top.bit_length() // 7)]
    return b"".join(
        [
            _encode_varints(rest[at : at + _TOGETHER], shifts)
            for at in range(0, len(rest), _TOGETHER)
        ]
    )


def _encode_varints(rest: Array, shifts: Array) -> bytes:
    """Seven bits at each place up to the highest bit; all octets but the last have bit 8 set."""
    parts = rest[:, None] >> shifts
    octets: Array = (parts & np.uint64(0x7F)).astype(np.uint8)
    used = parts != 0
    used[:, 0] = True
    octets[:, :-1] |= used[:, 1:].view(np.uint8) << 7
    written: bytes = octets[used].tobytes()
    return written


def _features(features: Mapping[str, Any], call: str) -> dict[bytes, Values | None]:
    return {
        _name(name, call): _values(value, f"{call}: {name!r}") for name, value in features.items()
    }


def _name(name: Any, call: str) -> bytes:
    if not isinstance(name, str | bytes):
        raise InvalidTypeError(f"{call}: the name of a feature must be a string, got {name!r}")
    return strings.bytes_of(name)


def _values(value: Any, where: str) -> Values | None:
    """The values of a feature, flat; None for an empty list."""
    if isinstance(value, list | tuple) and not value:
        return None
    array = _array(value, where)
    if array.dtype == object:
        return Values(Kind.BYTES, array)
    if array.dtype.kind in "biu":
        return Values(Kind.INT64, _check_kept(array, array.astype(np.int64), where))
    with np.errstate(over="ignore"):
        floats = array.astype(np.float32)
    return Values(Kind.FLOAT, _check_finite(array, floats, where))


def _array(value: Any, where: str) -> Array:
    try:
        array = np.asarray(value).ravel()
    except ValueError:
        raise InvalidArgumentError(
            f"{where}: the rows of {reprlib.repr(value)} differ in length; flatten them"
        ) from None
    if array.dtype.kind in "SUO":
        # NumPy's own arrays of strings would drop zero bytes at their ends.
        array = array if isinstance(value, np.ndarray) else np.array(value, object).ravel()
        if all(isinstance(item, str | bytes) for item in array):
            return strings.from_array(array)
    elif array.dtype.kind in "biuf" or array.dtype.name == "bfloat16":
        return array
    raise InvalidTypeError(
        f"{where}: a feature holds numbers or strings, got {reprlib.repr(value)}; convert it first"
    )


def _check_kept(before: Array, after: Array, where: str) -> Array:
    if before.dtype.kind == "u" and (after < 0).any():
        raise InvalidArgumentError(
            f"{where}: {before[after < 0][0]} does not fit into int64, the integers of examples"
        )
    return after


def _check_finite(before: Array, after: Array, where: str) -> Array:
    lost = np.isinf(after) & ~np.isinf(before.astype(np.float64))
    if lost.any():
        raise InvalidArgumentError(
            f"{where}: {before[lost][0]} does not fit into float32, the floats of examples"
        )
    return after
