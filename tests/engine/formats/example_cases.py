"""Cases for `parse_example`: how they are drawn, and how they are written as JSON.

A case is a batch of serialized examples with declarations of features. Most messages are encoded
by hand here, because protobuf does not write the malformed messages that the parser may meet.
"""

from __future__ import annotations

import random
import struct
from typing import Any

NAMES = ["x", "y", "longer_name", "a name with more than fifteen letters", ""]
DTYPES = ["int64", "float32", "string"]
TAGS = {"string": 0x0A, "float32": 0x12, "int64": 0x1A}


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    octets = []
    while value >= 0x80:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*octets, value])


def field(number: int, body: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(body)) + body


def draw_values(draw: random.Random, dtype: str, count: int) -> list[Any]:
    if dtype == "string":
        return [draw.randbytes(draw.choice([0, 1, 3, 9, 9, 9, 130])) for _ in range(count)]
    if dtype == "float32":
        some = [draw.gauss(0, 1), 0.0, float("inf"), -1e-42, 3e38]
        return [struct.unpack("<f", struct.pack("<f", draw.choice(some)))[0] for _ in range(count)]
    some = [0, 1, 127, 128, 300, 16384, 1 << 20, 1 << 40, -1, -(1 << 63), (1 << 63) - 1]
    return [draw.choice([draw.choice(some), draw.randrange(100)]) for _ in range(count)]


def encode_list(dtype: str, values: list[Any], packed: bool = True) -> bytes:
    if dtype == "string":
        return b"".join(field(1, value) for value in values)
    if dtype == "float32":
        each = [struct.pack("<f", value) for value in values]
    else:
        each = [varint(value) for value in values]
    if packed:
        return field(1, b"".join(each)) if each else b""
    tag = b"\x0d" if dtype == "float32" else b"\x08"
    return b"".join(tag + one for one in each)


def encode_feature(dtype: str, values: list[Any], packed: bool = True) -> bytes:
    body = encode_list(dtype, values, packed)
    return bytes([TAGS[dtype]]) + varint(len(body)) + body


def entry(name: str, feature: bytes) -> bytes:
    return field(1, field(1, name.encode()) + field(2, feature))


def draw_declaration(draw: random.Random, dtype: str) -> dict[str, Any]:
    kind = draw.choice(["fixed", "fixed", "variable", "ragged", "sequence"])
    declared: dict[str, Any] = {"kind": kind, "dtype": dtype}
    if kind in ("fixed", "sequence"):
        declared["shape"] = draw.choice([[], [], [1], [2], [2, 3]])
        if draw.random() < 0.7:
            size = 1
            for dimension in declared["shape"] if kind == "fixed" else []:
                size *= dimension
            values = draw_values(draw, dtype, size)
            declared["default"] = [_plain(value) for value in values]
    return declared


def draw_case(draw: random.Random, oddness: float) -> dict[str, Any]:
    """A batch that one dataset could have; some features and bytes are odd."""
    names = draw.sample(NAMES, draw.randrange(1, len(NAMES)))
    dtypes = {name: draw.choice(DTYPES) for name in names}
    features = {name: draw_declaration(draw, dtypes[name]) for name in names}
    if draw.random() < 0.3:
        features.pop(names[-1]) if len(names) > 1 else None
    records = [_draw_record(draw, dtypes, features, oddness) for _ in range(draw.choice([1, 2, 5]))]
    return {"features": features, "records": [_plain(record) for record in records]}


def _draw_record(
    draw: random.Random, dtypes: dict[str, str], features: dict[str, Any], oddness: float
) -> bytes:
    entries = []
    for name, dtype in dtypes.items():
        declared = features.get(name, {"kind": "variable", "plain": True})
        if "default" in declared and draw.random() < 0.2:
            continue
        feature = _draw_feature(draw, dtype, declared, oddness)
        entries.append(entry(name, feature))
        # After an empty feature TensorFlow reads an earlier one, in some declarations.
        while feature and draw.random() < oddness:
            feature = _draw_feature(draw, dtype, declared, oddness) or b"\x1a\x00"
            entries.append(entry(name, feature))
    if draw.random() < 0.5:
        draw.shuffle(entries)
    record = field(1, b"".join(entries))
    if draw.random() < oddness:
        extra = [b"\x10\x05", field(5, b"more"), b"\x1d....", b"\x31........", field(1, b"")]
        record = draw.choice([record + draw.choice(extra), draw.choice(extra) + record])
    if draw.random() < oddness / 2:
        place = draw.randrange(len(record) + 1)
        flipped = bytes([draw.randrange(256)])
        record = draw.choice([record[:place], record[:place] + flipped + record[place + 1 :]])
    return record


def _draw_feature(
    draw: random.Random, dtype: str, declared: dict[str, Any], oddness: float
) -> bytes:
    size = 1
    for dimension in declared.get("shape", []):
        size *= dimension
    count = size if declared["kind"] == "fixed" else size * draw.randrange(4)
    if draw.random() < oddness / 3:
        count, dtype = draw.randrange(4), draw.choice(DTYPES)
    feature = encode_feature(dtype, draw_values(draw, dtype, count), draw.random() >= oddness)
    # In sequence examples TensorFlow refuses these, by another parser with rules of its own.
    if not declared.get("plain") and draw.random() < oddness / 3:
        other = encode_feature("int64", [7])
        feature = draw.choice([b"", feature + other, feature + b"\x22\x00", b"\x22\x01a"])
    return feature


def _plain(value: Any) -> Any:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def as_bytes(value: Any) -> Any:
    """The strings of a case are bytes."""
    if isinstance(value, list):
        return [as_bytes(item) for item in value]
    return value.encode("latin-1") if isinstance(value, str) else value


def declare(io: Any, features: dict[str, Any]) -> dict[str, Any]:
    """The declarations of a case, for `tf.io` or `penstock.io`."""
    return {name: _declare(io, declared) for name, declared in features.items()}


def _declare(io: Any, declared: dict[str, Any]) -> Any:
    dtype, default = declared["dtype"], as_bytes(declared.get("default"))
    match declared["kind"]:
        case "fixed":
            return io.FixedLenFeature(declared["shape"], dtype, default)
        case "sequence":
            default = None if default is None else default[0]
            return io.FixedLenSequenceFeature(declared["shape"], dtype, True, default)
        case "steps":
            return io.FixedLenSequenceFeature(declared["shape"], dtype, declared["missing"])
        case "variable":
            return io.VarLenFeature(dtype)
    partitions = [
        getattr(io.RaggedFeature, name)(argument)
        for name, argument in declared.get("partitions", [])
    ]
    return io.RaggedFeature(dtype, declared.get("value_key"), partitions)


def to_plain(value: Any) -> Any:
    """An array, a `Ragged` or a list, as lists that JSON can hold."""
    if hasattr(value, "to_list"):
        value = value.to_list()
    elif hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list):
        return [to_plain(item) for item in value]
    return _plain(value)


def draw_sequence_case(draw: random.Random, oddness: float) -> dict[str, Any]:
    """A batch of sequence examples."""
    dtypes = {name: draw.choice(DTYPES) for name in draw.sample(NAMES, 2)}
    context = {name: draw_declaration(draw, dtype) for name, dtype in dtypes.items()}
    context = {
        name: {**one, "plain": True} for name, one in context.items() if one["kind"] != "sequence"
    }
    list_dtypes = {name: draw.choice(DTYPES) for name in draw.sample(NAMES, 2)}
    sequence = {
        name: {"kind": draw.choice(["steps", "steps", "variable", "ragged"]), "dtype": dtype}
        for name, dtype in list_dtypes.items()
    }
    for declared in sequence.values():
        if declared["kind"] == "steps":
            declared["shape"] = draw.choice([[], [1], [2]])
            declared["missing"] = draw.random() < 0.6
    records = []
    for _ in range(draw.choice([1, 2, 4])):
        head = _draw_record(draw, dtypes, context, oddness)
        lists = [
            entry(name, _draw_steps(draw, dtype, sequence[name], oddness))
            for name, dtype in list_dtypes.items()
            if draw.random() < 0.8
        ]
        records.append(head + field(2, b"".join(lists)))
    return {"context": context, "sequence": sequence, "records": [_plain(one) for one in records]}


def _draw_steps(draw: random.Random, dtype: str, declared: dict[str, Any], oddness: float) -> bytes:
    steps = []
    for _ in range(draw.randrange(4)):
        kind = "fixed" if declared["kind"] == "steps" else "variable"
        plain = {**declared, "kind": kind, "plain": True}
        feature = _draw_feature(draw, dtype, plain, oddness)
        steps.append(field(1, feature))
    return b"".join(steps)
