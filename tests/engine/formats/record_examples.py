"""Records what TensorFlow's parsers return for the cases of `example_cases`.

Run it from the repository's root with a Python that has TensorFlow 2.21:

    python -m tests.engine.formats.record_examples
"""

from __future__ import annotations

import json
import pathlib
import random
from typing import Any

import tensorflow as tf

from tests.engine.formats import example_cases as cases

CASES = pathlib.Path(__file__).parent / "cases"


def describe_fixed(dtype: str, shape: list[int], **more: Any) -> dict[str, Any]:
    return {"kind": "fixed", "dtype": dtype, "shape": shape, **more}


def describe_ragged(*partitions: tuple[str, Any], dtype: str = "int64") -> dict[str, Any]:
    return {"kind": "ragged", "dtype": dtype, "value_key": "v", "partitions": partitions}


def example(**features: list[Any]) -> bytes:
    """An example of integers, by protobuf itself."""
    message = tf.train.Example()
    for name, values in features.items():
        message.features.feature[name].int64_list.value.extend(values)
    return bytes(message.SerializeToString(deterministic=True))


def invent_records() -> list[tuple[dict[str, Any], list[bytes]]]:
    entry, feature, field = cases.entry, cases.encode_feature, cases.field
    one = {"x": describe_fixed("int64", [])}
    ragged_x = {"x": {"kind": "ragged", "dtype": "int64"}}
    x = entry("x", feature("int64", [5]))
    name = "n" * 200
    values = {"v": [1, 2, 3, 4, 5, 6]}
    return [
        (one, [field(1, x), field(1, x)]),
        (one, []),
        (ragged_x, []),
        ({"x": describe_fixed("string", [2])}, []),
        ({"x": describe_fixed("float32", [0])}, [field(1, entry("x", feature("float32", [])))]),
        ({"x": describe_fixed("int64", [0], default=[])}, [b""]),
        (one, [b""]),
        (ragged_x, [b"", field(1, x), b""]),
        ({"x": describe_fixed("int64", [], default=[9])}, [b"", field(1, x)]),
        ({"x": describe_fixed("int64", [2], default=[9, 8])}, [b"", field(1, x)]),
        ({name: describe_fixed("int64", [])}, [field(1, entry(name, feature("int64", [5])))] * 3),
        (one, [field(1, entry(name, feature("int64", [5])) + x)] * 3),
        (one, [field(1, x) + field(1, entry("x", feature("int64", [6])))]),
        (one, [field(1, x + field(2, b"in the map"))]),
        (one, [field(1, field(1, field(1, b"x") + field(2, feature("int64", [5])) + b"\x18\x01"))]),
        (one, [field(1, field(1, field(2, feature("int64", [5])) + field(1, b"x")))]),
        (one, [field(1, field(1, field(2, feature("int64", [5]))) + x)]),
        (one, [field(1, field(1, field(1, b"x")))]),
        (ragged_x, [field(1, entry("x", b"\x1a\x06\n\x01\x05\n\x01\x06"))]),
        (ragged_x, [field(1, entry("x", b"\x1a\x05\n\x01\x05\x08\x06"))]),
        (ragged_x, [field(1, entry("x", b"\x1a\x05\x08\x06\n\x01\x05"))]),
        (ragged_x, [field(1, entry("x", b"\x1a\x04\n\x02\x85\x80"))]),
        (ragged_x, [field(1, entry("x", b"\x1a\x0d\n\x0b" + b"\x80" * 10 + b"\x01"))]),
        (ragged_x, [field(1, entry("x", b"\x1a\x0c\n\x0a" + b"\xff" * 9 + b"\x7f"))]),
        (ragged_x, [field(1, entry("x", b"\x1a\x05\n\x03\x80\x80\x00"))]),
        (
            {"x": {"kind": "ragged", "dtype": "float32"}},
            [field(1, entry("x", b"\x12\x08\n\x06" + b"\0\0\x80\x3f\0\0"))],
        ),
        (
            {"r": describe_ragged(("RowLengths", "p"))},
            [example(**values, p=[2, 0, 4]), example(p=[]), example(v=[7], p=[1])],
        ),
        (
            {"r": describe_ragged(("RowSplits", "p"))},
            [example(**values, p=[0, 2, 2, 6]), example(p=[0])],
        ),
        (
            {"r": describe_ragged(("RowStarts", "p"))},
            [example(**values, p=[0, 1]), example(v=[7], p=[0])],
        ),
        (
            {"r": describe_ragged(("RowLimits", "p"))},
            [example(**values, p=[1, 6]), example(v=[7], p=[1])],
        ),
        (
            {"r": describe_ragged(("ValueRowIds", "p"))},
            [example(**values, p=[0, 0, 2, 2, 2, 3])] * 2,
        ),
        ({"r": describe_ragged(("UniformRowLength", 2))}, [example(**values), example(v=[7, 8])]),
        (
            {"r": describe_ragged(("RowLengths", "p"), ("RowLengths", "q"))},
            [example(**values, p=[1, 2], q=[3, 2, 1]), example(v=[7], p=[1], q=[1])],
        ),
        (
            {"r": describe_ragged(("RowLengths", "p"), ("UniformRowLength", 3))},
            [example(**values, p=[2, 0]), example(v=[7, 8, 9], p=[1])],
        ),
        (
            {"r": describe_ragged(("UniformRowLength", 2), ("RowSplits", "p"))},
            [example(**values, p=[0, 1, 6]), example(v=[7], p=[0, 0, 1])],
        ),
    ]


def answer(parse: Any, records: Any, features: dict[str, Any]) -> Any:
    """What TensorFlow returns, as plain lists; None if it raises."""
    try:
        found = parse(records, cases.declare(tf.io, features))
    except (tf.errors.InvalidArgumentError, UnicodeDecodeError):
        return None
    return {name: plain(value) for name, value in found.items()}


def plain(value: Any) -> Any:
    if isinstance(value, tf.SparseTensor) and len(value.shape) == 1:
        value = value.values
    elif isinstance(value, tf.SparseTensor):
        value = tf.RaggedTensor.from_sparse(value)
    return cases.to_plain(value if hasattr(value, "to_list") else value.numpy())


def record(features: dict[str, Any], records: list[bytes]) -> dict[str, Any]:
    batch = tf.constant(records, tf.string, shape=[len(records)])
    case = {
        "features": features,
        "records": [cases.to_plain(one) for one in records],
        "batch": answer(tf.io.parse_example, batch, features),
    }
    if records:
        case["single"] = answer(tf.io.parse_single_example, tf.constant(records[0]), features)
    return case


def record_sequences(case: dict[str, Any]) -> dict[str, Any]:
    """TensorFlow's answer for a batch of sequence examples. `VarLenFeature` is a ragged one."""
    parts = [
        {name: {**one, "kind": one["kind"].replace("variable", "ragged")} for name, one in part}
        for part in (case["context"].items(), case["sequence"].items())
    ]
    records = tf.constant(cases.as_bytes(case["records"]))
    try:
        found = tf.io.parse_sequence_example(records, *(cases.declare(tf.io, one) for one in parts))
    except (tf.errors.InvalidArgumentError, UnicodeDecodeError):
        return {**case, "batch": None}
    return {**case, "batch": [{name: plain(one) for name, one in part.items()} for part in found]}


def write(name: str, recorded: list[dict[str, Any]]) -> None:
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in recorded)
    (CASES / name).write_text(f"[\n{lines}\n]\n")


def serialize_examples() -> list[dict[str, Any]]:
    """Examples as protobuf serializes them."""
    several = [
        {"a": [1, -1, 1 << 40], "b": [0.5], "c": ["x", ""]},
        {"z": [], "longer": list(range(300)), "a": ["y" * 200]},
        {"": [0]},
        {},
    ]
    recorded = []
    for values in several:
        message = tf.train.Example(features=tf.train.Features())
        for name, some in values.items():
            feature = message.features.feature[name]
            match some:
                case [str(), *_]:
                    feature.bytes_list.value.extend(one.encode() for one in some)
                case [float(), *_]:
                    feature.float_list.value.extend(some)
                case [int(), *_]:
                    feature.int64_list.value.extend(some)
        data = message.SerializeToString(deterministic=True)
        recorded.append({"values": values, "data": cases.to_plain(data)})
    return recorded


def main() -> None:
    recorded = [record(features, records) for features, records in invent_records()]
    for seed in range(110):
        draw = random.Random(seed)
        case = cases.draw_case(draw, draw.choice([0, 0.2, 0.4]))
        recorded.append(record(case["features"], cases.as_bytes(case["records"])))
    CASES.mkdir(exist_ok=True)
    write("examples.json", recorded)
    sequences = []
    for seed in range(50):
        draw = random.Random(seed)
        case = cases.draw_sequence_case(draw, draw.choice([0, 0.2, 0.4]))
        sequences.append(record_sequences(case))
    write("sequences.json", sequences)
    write("serialized.json", serialize_examples())


if __name__ == "__main__":
    main()
