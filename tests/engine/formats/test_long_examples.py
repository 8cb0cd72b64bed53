"""Examples with long values, whose records are not joined as a whole."""

import random
import tracemalloc

import numpy as np
import pytest

from penstock import io
from penstock.engine.formats.examples import heads, sequences
from penstock.engine.formats.examples.feature_columns import read_columns
from penstock.engine.formats.examples.parsing import wanted_of
from penstock.engine.formats.examples.reading import Kind, count_fields
from penstock.errors import InvalidArgumentError
from tests.effort import times
from tests.engine.formats import example_cases as cases

SIZES = [0, 1, 100, 255, 256, 257, 350, 400, 480, 500, 511, 512, 513, 600, 1100, 5000, 20000]
NAMES = ["a", "image", "x" * 100, "y" * 127, "z" * 128, "w" * 300, "label"]
DTYPES = {"string": "string", "strings": "string", "floats": "float32", "integers": "int64"}


def draw_feature(draw, kind):
    """The bytes of a feature."""
    size, dtype = draw.choice(SIZES), DTYPES[kind]
    if kind == "string":
        values = [draw.randbytes(size)]
    elif kind == "strings":
        values = [draw.randbytes(draw.choice(SIZES)) for _ in range(draw.randrange(5))]
    elif kind == "floats":
        values = [draw.random() for _ in range(size // 4)]
    else:
        values = [draw.randrange(1 << draw.choice([7, 20, 60])) for _ in range(size // 4)]
    return cases.encode_feature(dtype, values)


def damage(draw, record):
    octets = bytearray(record)
    at = draw.randrange(min(len(octets), draw.choice([40, 600, 100_000])) + 1)
    octets[at : at + draw.randrange(10)] = draw.randbytes(draw.randrange(10))
    return bytes(octets) + draw.choice([b"", record[: draw.randrange(len(record) + 1)]])


def draw_batch(draw, damaged):
    """Records, and declarations of some of their features."""
    kinds = {name: draw.choice(list(DTYPES)) for name in draw.sample(NAMES, 4)}
    records = []
    for _ in range(draw.randrange(1, 6)):
        names = draw.sample(list(kinds), draw.randrange(5))
        features = [(name, draw_feature(draw, kinds[name])) for name in names]
        record = cases.field(1, b"".join(cases.entry(*feature) for feature in features))
        records.append(damage(draw, record) if draw.random() < damaged else record)
    wanted = draw.sample(list(kinds), draw.randrange(1, 5))
    return records, {name: io.VarLenFeature(DTYPES[kinds[name]]) for name in wanted}


def parse(records, features):
    """The result as text, or the message of an error."""
    try:
        found = io.parse_example(records, features)
    except InvalidArgumentError as error:
        return str(error)
    return repr({name: value.to_list() for name, value in found.items()})


@pytest.mark.parametrize("damaged", [0, 0.3])
@pytest.mark.parametrize("seed", range(times(60)))
def test_records_without_their_long_values_are_read_like_whole_ones(seed, damaged, monkeypatch):
    records, features = draw_batch(random.Random(seed), damaged)
    whole = parse(records, features)
    monkeypatch.setattr(heads, "_LONG_BATCH", 0)
    monkeypatch.setattr(heads, "_LONG_FIELD", 0)
    assert parse(records, features) == whole


def draw_sequences(draw, damaged):
    """Records of sequences, and declarations of their features."""
    kinds = {name: draw.choice(list(DTYPES)) for name in draw.sample(NAMES, 3)}
    records = []
    for _ in range(draw.randrange(1, 6)):
        context, lists = [], []
        for name, kind in kinds.items():
            if draw.random() < 0.7:
                context.append(cases.entry(name, draw_feature(draw, kind)))
            if draw.random() < 0.7:
                steps = [draw_feature(draw, kind) for _ in range(draw.randrange(4))]
                lists.append(cases.entry(name, b"".join(cases.field(1, step) for step in steps)))
        record = cases.field(1, b"".join(context)) if draw.random() < 0.9 else b""
        record += cases.field(2, b"".join(lists)) if draw.random() < 0.9 else b""
        damages = record and draw.random() < damaged
        records.append(damage(draw, record) if damages else record)
    return records, {name: io.VarLenFeature(DTYPES[kind]) for name, kind in kinds.items()}


def parse_sequences(records, features):
    """The result as text, or the message of an error."""
    try:
        parts = io.parse_sequence_example(records, features, features)
    except InvalidArgumentError as error:
        return str(error)
    return repr([{name: value.to_list() for name, value in part.items()} for part in parts])


@pytest.mark.parametrize("damaged", [0, 0.3])
@pytest.mark.parametrize("seed", range(times(60)))
def test_sequences_without_their_long_values_are_read_like_whole_ones(seed, damaged, monkeypatch):
    records, features = draw_sequences(random.Random(seed), damaged)
    whole = parse_sequences(records, features)
    monkeypatch.setattr(heads, "_LONG_BATCH", 0)
    monkeypatch.setattr(heads, "_LONG_FIELD", 0)
    assert parse_sequences(records, features) == whole


def test_long_steps_are_read_without_plain_python_and_without_a_copy_of_the_batch():
    frames = [[bytes((step,)) * 20_000] for step in range(20)]
    record = io.serialize_sequence_example({"title": "x" * 5000}, {"frames": frames})
    tracemalloc.start()
    _, lists, wrong = sequences._read([record] * 16, {}, {b"frames": Kind.BYTES})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not wrong.any()
    assert lists[b"frames"].steps.values.tolist() == [frame for [frame] in frames] * 16
    assert peak < 8 << 20, "the records and the result have 6.4 MB each"


EXAMPLE, STEPS = io.serialize_example, io.serialize_sequence_example


@pytest.mark.parametrize(
    ("record", "is_joined"),
    [
        (EXAMPLE({"image": bytes(100_000), "label": 1}), False),
        (EXAMPLE({f"text {number}": bytes(200) for number in range(500)}), True),
        (STEPS({"label": 1}, {"frames": [[bytes(20_000)]] * 10}), False),
        (STEPS({"label": 1}, {"frames": [np.zeros(80, np.float32)] * 300}), True),
        (STEPS({"image": bytes(100_000)}), False),
    ],
)
def test_records_are_joined_as_a_whole_if_their_fields_are_short(record, is_joined):
    wire = heads.join_records([record] * 100, 8)
    assert (len(wire.data) > 100 * len(record)) == is_joined


def test_damaged_records_have_at_least_one_field():
    for record in [b"", b"\x0a", b"\x0a\x05", b"\x12\x03\x0a\x01\x0a", b"\xff" * 30]:
        assert count_fields(record) >= 1


FEATURES = {
    "image": io.FixedLenFeature([], "string"),
    "label": io.FixedLenFeature([], "int64"),
    "views": io.VarLenFeature("string"),
    "audio": io.RaggedFeature("float32"),
}


def make_record(label):
    return io.serialize_example(
        {
            "image": bytes((label,)) * 100_000,
            "label": label,
            "views": [b"v" * 10_000] * label,
            "other": bytes(1 << 20),
            "audio": np.full(5000, label, np.float32),
        }
    )


def test_long_values_are_read_without_plain_python_and_without_a_copy_of_the_batch():
    records = [make_record(label) for label in range(8)]
    tracemalloc.start()
    columns, wrong = read_columns(records, wanted_of(FEATURES, "test"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not wrong.any()
    assert columns[b"label"].values.tolist() == list(range(8))
    assert columns[b"image"].values.tolist() == [bytes((label,)) * 100_000 for label in range(8)]
    assert columns[b"views"].counts.tolist() == list(range(8))
    assert columns[b"audio"].values.reshape(8, 5000).mean(axis=1).tolist() == list(range(8))
    assert peak < 3 << 20, "the records have 10 MB"


def test_a_list_of_records_is_not_made_an_array_of_the_longest():
    records = [io.serialize_example({"x": bytes(size)}) for size in [1 << 20] + [1] * 255]
    tracemalloc.start()
    parsed = io.parse_example(records, {"x": io.FixedLenFeature([], "string")})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [len(value) for value in parsed["x"]] == [1 << 20] + [1] * 255
    assert peak < 8 << 20
