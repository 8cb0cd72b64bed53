"""`parse_example` and `serialize_example`, beside what TensorFlow returned for the same bytes."""

import json
import pathlib
import random
import sys

import numpy as np
import pytest
from google.protobuf.internal import api_implementation

from penstock import io
from penstock.data import TFRecordDataset
from penstock.data.experimental import service
from penstock.element.ragged import Ragged
from penstock.engine.formats.examples import feature_columns, protobuf_lists, varints
from penstock.engine.formats.examples.feature_columns import read_columns
from penstock.engine.formats.examples.parsing import wanted_of
from penstock.engine.formats.examples.protobuf_lists import find_protobuf
from penstock.engine.formats.examples.writing import encode_varints
from penstock.errors import InvalidArgumentError, InvalidTypeError
from tests.effort import times
from tests.engine.formats import example_cases as cases

CASES = pathlib.Path(__file__).parent / "cases"
RECORDED = json.loads((CASES / "examples.json").read_text())
SEQUENCES = json.loads((CASES / "sequences.json").read_text())
SERIALIZED = json.loads((CASES / "serialized.json").read_text())


@pytest.fixture(params=["numpy", "protobuf"])
def decoder(request, monkeypatch):
    """Decodes lists with NumPy alone, or as many of them as possible with protobuf."""
    if request.param == "numpy":
        monkeypatch.setattr(varints, "find_protobuf", lambda: None)
        monkeypatch.setattr(feature_columns, "find_protobuf", lambda: None)
    else:
        monkeypatch.setattr(varints, "_suits_protobuf", lambda ends, count: count > 0)
        monkeypatch.setattr(feature_columns, "_STRINGS", range(1 << 30))


def parse(function, records, features):
    """The result as plain lists, None for an error."""
    try:
        found = function(records, cases.declare(io, features))
    except InvalidArgumentError:
        return None
    return {name: cases.to_plain(value) for name, value in found.items()}


def text(value):
    return json.dumps(value, sort_keys=True)


CUT_OFF = 61
"""TensorFlow accepts an example of this case that ends before its length does."""


def test_a_length_that_exceeds_the_example_is_refused():
    case = RECORDED[CUT_OFF]
    with pytest.raises(InvalidArgumentError, match="by their length, but the bytes end before"):
        io.parse_example(cases.as_bytes(case["records"]), cases.declare(io, case["features"]))


@pytest.mark.parametrize("number", [n for n in range(len(RECORDED)) if n != CUT_OFF])
def test_a_batch_is_parsed_as_tensorflow_parses_it(number, decoder):
    case = RECORDED[number]
    records = cases.as_bytes(case["records"])
    assert text(parse(io.parse_example, records, case["features"])) == text(case["batch"])


@pytest.mark.parametrize(
    "case", [case for case in RECORDED if "single" in case], ids=lambda case: None
)
def test_one_example_is_parsed_as_tensorflow_parses_it(case):
    record = cases.as_bytes(case["records"][0])
    assert text(parse(io.parse_single_example, record, case["features"])) == text(case["single"])
    assert text(parse(io.parse_example, record, case["features"])) == text(case["single"])


@pytest.mark.parametrize("case", SERIALIZED, ids=range(len(SERIALIZED)))
def test_serialized_examples_are_those_of_protobuf(case):
    assert io.serialize_example(case["values"]) == cases.as_bytes(case["data"])


def parse_sequences(case, rows=slice(None)):
    records = cases.as_bytes(case["records"])[rows]
    declared = [cases.declare(io, case[part]) for part in ("context", "sequence")]
    try:
        found = io.parse_sequence_example(records, *declared)
    except InvalidArgumentError:
        return None
    return [{name: cases.to_plain(value) for name, value in part.items()} for part in found]


@pytest.mark.parametrize("case", SEQUENCES, ids=range(len(SEQUENCES)))
def test_sequences_are_parsed_as_tensorflow_parses_them(case, decoder):
    assert text(parse_sequences(case)) == text(case["batch"])


@pytest.mark.parametrize(
    "case", [case for case in SEQUENCES if case["batch"] is not None], ids=lambda case: None
)
def test_one_sequence_example_equals_a_batch_of_one(case):
    declared = [cases.declare(io, case[part]) for part in ("context", "sequence")]
    single = io.parse_single_sequence_example(cases.as_bytes(case["records"][0]), *declared)
    batch = parse_sequences(case, slice(1))[:2]
    expected = [{name: value[0] for name, value in part.items()} for part in batch]
    found = [{name: cases.to_plain(value) for name, value in part.items()} for part in single]
    assert text(found) == text(expected)


def test_sequences_are_serialized_and_parsed():
    data = io.serialize_sequence_example(
        {"id": 7, "name": "x"}, {"frames": [[1.0, 2.0], [3.0, 4.0]], "words": [["a"], []]}
    )
    short = io.serialize_sequence_example({"id": 8, "name": "y"}, {"frames": [[5.0, 6.0]]})
    context, lists, lengths = io.parse_sequence_example(
        [data, short],
        {"id": io.FixedLenFeature([], "int64"), "name": io.VarLenFeature("string")},
        {"frames": io.FixedLenSequenceFeature([2], "float32"), "words": io.VarLenFeature("string")},
    )
    assert context["id"].tolist() == [7, 8]
    assert lists["frames"].tolist() == [[[1, 2], [3, 4]], [[5, 6], [0, 0]]]
    assert lists["words"].to_list() == [[[b"a"], []], []]
    assert lengths["frames"].tolist() == [2, 1]


def test_a_step_with_two_lists_and_an_empty_context_feature_are_read():
    """A deliberate deviation: TensorFlow refuses both (docs/deviations.md)."""
    two = cases.encode_feature("int64", [1]) + cases.encode_feature("int64", [2])
    steps = cases.field(1, cases.field(1, b"x") + cases.field(2, cases.field(1, two)))
    sequence = {"x": io.FixedLenSequenceFeature([], "int64")}
    _, lists, _ = io.parse_sequence_example([cases.field(2, steps)], None, sequence)
    assert lists["x"].tolist() == [[1]]
    empty = cases.field(1, cases.entry("x", b""))
    context, _, _ = io.parse_sequence_example([empty], {"x": io.FixedLenFeature([], "int64", 9)})
    assert context["x"].tolist() == [9]


STEPS = {"x": io.FixedLenSequenceFeature([2], "int64")}


@pytest.mark.parametrize(
    ("lists", "features", "message"),
    [
        ({}, STEPS, "'x' of example 1 has no list; give it allow_missing=True"),
        ({"x": [[1, 2], [3]]}, STEPS, r"example 1 has a step with 1 values, but shape \[2\] has 2"),
        ({"x": [[0.5, 1.5]]}, STEPS, "of example 1 has float32 values, but its dtype was given as"),
    ],
)
def test_lists_that_do_not_fit_name_the_example(lists, features, message):
    good = io.serialize_sequence_example({}, {"x": [[1, 2]]})
    bad = io.serialize_sequence_example({}, lists)
    with pytest.raises(InvalidArgumentError, match=message):
        io.parse_sequence_example([good, bad], sequence_features=features)


# Without its last 17 bytes, the example is a whole one without feature lists.
@pytest.mark.parametrize("cut", [*range(1, 17), 18, 19, 20])
def test_truncated_sequence_examples_are_refused_with_their_index(cut, decoder):
    whole = io.serialize_sequence_example({"a": 1}, {"x": [[1, 2]]})
    with pytest.raises(InvalidArgumentError, match="parse_sequence_example: example 1 cannot be"):
        io.parse_sequence_example([whole, whole[:-cut]], sequence_features=STEPS)


@pytest.mark.parametrize(
    ("context", "sequence", "error", "message"),
    [
        (None, None, InvalidArgumentError, "needs context_features or sequence_features, got nei"),
        (STEPS, None, InvalidTypeError, "context feature 'x' must be a FixedLenFeature, VarLen"),
        (
            None,
            {"x": io.RaggedFeature("int64", "y")},
            InvalidTypeError,
            "sequence feature 'x' must be .* RaggedFeature without value_key and partitions",
        ),
    ],
)
def test_wrong_declarations_of_sequences_are_refused(context, sequence, error, message):
    with pytest.raises(error, match=message):
        io.parse_sequence_example([b""], context, sequence)


@pytest.mark.parametrize("seed", range(40))
def test_a_batch_equals_its_examples_one_by_one(seed, decoder):
    """Batches are read by NumPy, single examples by plain Python."""
    draw = random.Random(seed)
    case = cases.draw_case(draw, draw.choice([0, 0.3]))
    features = {
        name: declared if declared["kind"] != "sequence" else {**declared, "kind": "variable"}
        for name, declared in case["features"].items()
    }
    records = cases.as_bytes(case["records"])
    each = [parse(io.parse_single_example, record, features) for record in records]
    batch = parse(io.parse_example, records, features)
    refused = None in each
    joined = None if refused else {name: [one[name] for one in each] for name in features}
    assert text(batch) == text(joined)


EXAMPLE = {"number": 3, "name": "x", "vector": [0.5, 1.5], "words": ["a", b"\0b\0"], "none": []}
FEATURES = {
    "number": io.FixedLenFeature([], "int64"),
    "name": io.FixedLenFeature([], "string"),
    "vector": io.FixedLenFeature([2], "float32"),
    "words": io.VarLenFeature("string"),
    "none": io.VarLenFeature("float32"),
}


def test_usual_batches_are_read_without_plain_python():
    records = [io.serialize_example(EXAMPLE | {"number": number}) for number in (1, 1000, -1)]
    _, wrong = read_columns(records, wanted_of(FEATURES, "test"))
    assert not wrong.any()


@pytest.mark.parametrize("cut", range(1, len(io.serialize_example(EXAMPLE))))
def test_truncated_examples_are_refused_with_their_index(cut, decoder):
    whole = io.serialize_example(EXAMPLE)
    with pytest.raises(InvalidArgumentError, match="io.parse_example: example 2 cannot be read"):
        io.parse_example([whole, whole, whole[:-cut], whole], FEATURES)


def test_results_have_the_dtypes_and_shapes_that_were_declared():
    parsed = io.parse_example(np.array([io.serialize_example(EXAMPLE)] * 3, object), FEATURES)
    assert parsed["number"].dtype == np.int64
    assert parsed["number"].shape == (3,)
    assert parsed["vector"].dtype == np.float32
    assert parsed["vector"].shape == (3, 2)
    assert parsed["name"].tolist() == [b"x"] * 3
    assert isinstance(parsed["words"], Ragged)
    assert parsed["words"][2].tolist() == [b"a", b"\0b\0"]
    assert parsed["none"].values.dtype == np.float32
    single = io.parse_single_example(io.serialize_example(EXAMPLE), FEATURES)
    assert single["name"] == b"x"
    assert single["number"] == 3
    assert single["words"].tolist() == [b"a", b"\0b\0"]


def test_many_examples_of_different_sizes_are_parsed(decoder):
    draw = random.Random(7)
    examples = [
        {
            "text": draw.randbytes(draw.choice([3, 120, 127, 130, 20_000])),
            "ids": [draw.randrange(1 << draw.randrange(63)) for _ in range(draw.randrange(50))],
            "score": draw.random(),
        }
        for _ in range(300)
    ]
    parsed = io.parse_example(
        [io.serialize_example(example) for example in examples],
        {
            "text": io.FixedLenFeature([], "string"),
            "ids": io.VarLenFeature("int64"),
            "score": io.FixedLenFeature([], "float32"),
        },
    )
    assert parsed["text"].tolist() == [example["text"] for example in examples]
    assert parsed["ids"].to_list() == [example["ids"] for example in examples]
    np.testing.assert_array_equal(
        parsed["score"], np.array([example["score"] for example in examples], np.float32)
    )


@pytest.fixture
def parsed_dataset(tmp_path):
    """A dataset that parses batches of records from two files."""
    paths = [str(tmp_path / f"{number}.tfrecord") for number in range(2)]
    for number, path in enumerate(paths):
        with io.TFRecordWriter(path) as writer:
            for row in range(10 * number, 10 * number + 10):
                writer.write(io.serialize_example({"number": row, "tags": ["x"] * (row % 4)}))
    features = {
        "number": io.FixedLenFeature([], "int64"),
        "tags": io.VarLenFeature("string"),
    }
    records = TFRecordDataset(paths).batch(3)
    return records.map(lambda batch: io.parse_example(batch, features))


def plain(elements):
    return [{name: cases.to_plain(value) for name, value in one.items()} for one in elements]


def test_workers_parse_what_is_parsed_locally(parsed_dataset):
    remote = parsed_dataset.apply(service.distribute("distributed_epoch", "local://2"))
    assert plain(remote) == plain(parsed_dataset)
    assert [number for one in plain(parsed_dataset) for number in one["number"]] == list(range(20))


def test_parsed_batches_can_be_resumed_from_every_one(parsed_dataset):
    expected, iterator = plain(parsed_dataset), iter(parsed_dataset)
    for number in range(len(expected) + 1):
        resumed = iter(parsed_dataset)
        resumed.load_state_dict(iterator.state_dict())
        assert plain(resumed) == expected[number:]
        next(iterator, None)


def decode_varints(data, stops):
    octets = np.frombuffer(varints.BEFORE + data + varints.AFTER, np.uint8)
    return varints.decode_varints(octets, np.array(stops))


def test_varints_keep_every_integer(decoder):
    draw = random.Random(3)
    values = np.array(
        [draw.randrange(-(1 << 63), 1 << 63) >> draw.randrange(64) for _ in range(99)]
    )
    data = encode_varints(values)
    assert data == b"".join(cases.varint(int(value)) for value in values)
    decoded, counts, wrong = decode_varints(data, [len(data)])
    assert decoded.tolist() == values.tolist()
    assert counts.tolist() == [99]
    assert not wrong.any()


@pytest.mark.parametrize("count", [0, 1, 23, 24, (1 << 14) + 3])
@pytest.mark.parametrize("bits", [3, 7, 8, 14, 28, 63])
def test_varints_of_any_number_and_width_are_those_of_one_after_another(count, bits):
    values = np.random.default_rng(bits).integers(0, 1 << bits, count)
    assert encode_varints(values) == b"".join(map(cases.varint, values.tolist()))


NEARLY_NEGATIVE = [
    (1 << 63) - 100,
    -(1 << 62),
    -(1 << 20),
    -(1 << 13) - 1,
    -(1 << 56) - 1,
    ((1 << 63) - 1) ^ (1 << 30),
    ~(1 << 21),
    ~(1 << 60),
]


@pytest.mark.parametrize("seed", range(times(12)))
def test_negative_integers_of_few_bits_among_others(seed, decoder):
    draw = random.Random(seed)
    limit = draw.choice([1, 100, 5000, 1 << 20])
    rare = draw.choice([0, 0.001, 0.3])
    numbers = [
        draw.choice(NEARLY_NEGATIVE) if draw.random() < rare else draw.randrange(-limit, limit + 1)
        for _ in range(draw.randrange(4_000, 12_000))
    ]
    data = encode_varints(np.array(numbers))
    values, counts, wrong = decode_varints(data, [len(data)])
    assert values.tolist() == numbers
    assert (counts.tolist(), wrong.tolist()) == ([len(numbers)], [False])


@pytest.mark.parametrize("last", [0, 2, 3, 0x7F])
def test_the_tenth_byte_of_an_integer_is_read_also_behind_ones(last, decoder):
    one = b"\x9c" + 8 * b"\xff" + bytes([last])
    data = one + 8_000 * cases.varint(-100)
    values, _, _ = decode_varints(data, [len(data)])
    assert values.tolist() == [*decode_varints(one, [10])[0], *8_000 * [-100]]


def test_an_integer_of_eleven_bytes_is_found_among_negative_ones(decoder):
    data = 3_000 * cases.varint(-100) + 10 * b"\xff" + b"\1" + 3_000 * cases.varint(7)
    assert decode_varints(data, [len(data)])[2].tolist() == [True]


def decode_one_by_one(data, stops):
    """What `decode_varints` should return, but with None for integers that are too long."""
    values, counts, wrong, start = [], [0] * len(stops), [False] * len(stops), 0
    for end, octet in enumerate(data):
        if octet < 0x80:
            bits = sum(
                (value & 0x7F) << 7 * place for place, value in enumerate(data[start : end + 1])
            )
            value = int(np.uint64(bits % (1 << 64)).astype(np.int64))
            values.append(value if end - start < 10 else None)
            counts[next(row for row, stop in enumerate(stops) if end < stop)] += 1
            if end - start >= 10:
                wrong[next(row for row, stop in enumerate(stops) if start < stop)] = True
            start = end + 1
    for row, (begin, stop) in enumerate(zip([0, *stops[:-1]], stops, strict=True)):
        wrong[row] |= stop > begin and data[stop - 1] >= 0x80
    return values, counts, wrong


@pytest.mark.parametrize("widths", [(1, 10), (9, 9), (10, 10), (9, 10), (8, 10), (5, 5), (2, 3)])
@pytest.mark.parametrize("block", [7, 1 << 16])
def test_varints_of_any_widths_are_decoded_in_blocks(widths, block, monkeypatch, decoder):
    monkeypatch.setattr(varints, "_BLOCK", block)
    monkeypatch.setattr(protobuf_lists, "_BLOCK", 2 * block)
    draw = random.Random(5)
    for count in [0, 1, 2, 7, 8, 60, 61]:
        data, ends = b"", [0]
        for _ in range(count):
            width = draw.randint(*widths) if draw.random() < 0.99 else 11
            data += bytes(draw.randrange(128, 256) for _ in range(width - 1))
            data += bytes((draw.randrange(128),))
            ends.append(len(data))
        data += draw.choice([b"", b"", b"\x80\xff"])
        places = draw.choice([ends, range(len(data) + 1)])
        stops = [*sorted(draw.choices(places, k=4)), len(data)]
        values, counts, wrong = decode_varints(data, stops)
        expected = decode_one_by_one(data, stops)
        found = [value for value, known in zip(values.tolist(), expected[0], strict=True) if known]
        assert found == [value for value in expected[0] if value]
        assert (counts.tolist(), wrong.tolist()) == expected[1:]


def make(**value):
    return lambda: io.serialize_example(value)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (make(x=1 << 70), InvalidTypeError, "io.serialize_example: 'x': a feature holds numbers"),
        (make(x=1j), InvalidTypeError, "a feature holds numbers or strings, got 1j"),
        (make(x=[[1], [2, 3]]), InvalidArgumentError, "rows of .* differ in length; flatten"),
        (make(x=[["a"], ["b", "c"]]), InvalidArgumentError, "rows of .* differ in length"),
        (make(x=np.uint64((1 << 64) - 1)), InvalidArgumentError, "does not fit into int64"),
        (make(x=1e300), InvalidArgumentError, "1e\\+300 does not fit into float32"),
        (lambda: io.serialize_example({1: 2}), InvalidTypeError, "name of a feature must be a str"),
        (lambda: io.FixedLenFeature([None], "int64"), InvalidArgumentError, "every dimension of"),
        (lambda: io.FixedLenFeature([], "int32"), InvalidTypeError, "dtype must be float32, int64"),
        (
            lambda: io.FixedLenFeature([2], "int64", 1),
            InvalidArgumentError,
            r"default_value has 1 values, but shape \[2\] has 2",
        ),
        (lambda: io.FixedLenFeature([], "int64", "a"), InvalidTypeError, "default_value: "),
        (
            lambda: io.FixedLenSequenceFeature([], "int64", True, [1, 2]),
            InvalidArgumentError,
            "default_value must be one value",
        ),
        (
            lambda: io.FixedLenSequenceFeature([0], "int64"),
            InvalidArgumentError,
            "shape .* has no values, so steps cannot be counted",
        ),
        (
            lambda: io.RaggedFeature("int64", row_splits_dtype="float32"),
            InvalidArgumentError,
            "row_splits_dtype must be int32 or int64",
        ),
        (
            lambda: io.RaggedFeature("int64", partitions=["x"]),
            InvalidTypeError,
            "partitions must be RaggedFeature.RowSplits",
        ),
        (
            lambda: io.RaggedFeature.UniformRowLength(0),
            InvalidArgumentError,
            "length must be at least 1, got 0",
        ),
        (
            lambda: io.parse_example(["text"], FEATURES),
            InvalidTypeError,
            "an example must be bytes, got 'text'",
        ),
        (lambda: io.parse_example(3, FEATURES), InvalidTypeError, "must be bytes, got 3"),
        (lambda: io.parse_example([b""], {}), InvalidArgumentError, "at least one feature"),
        (
            lambda: io.parse_example([b""], {"x": "int64"}),
            InvalidTypeError,
            "feature 'x' must be a FixedLenFeature, .*, got 'int64'",
        ),
        (
            lambda: io.parse_example(
                [b""], {"x": io.VarLenFeature("int64"), "y": io.RaggedFeature("float32", "x")}
            ),
            InvalidArgumentError,
            "feature 'x' is declared with two dtypes",
        ),
        (
            lambda: io.parse_example([b""], {"x": io.FixedLenSequenceFeature([], "int64")}),
            InvalidArgumentError,
            "feature 'x' is a FixedLenSequenceFeature and needs allow_missing=True",
        ),
    ],
)
def test_wrong_arguments_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        (io.FixedLenFeature([], "float32"), "int64 values, but its dtype was given as float32"),
        (io.FixedLenFeature([3], "int64"), r"2 values, but shape \[3\] has 3"),
        (io.FixedLenSequenceFeature([4], "int64", True), "2 values, which is no multiple of the 4"),
    ],
)
def test_features_that_do_not_fit_name_the_example(feature, message):
    good = {"float32": {"x": 0.5}, "int64": {"x": [1] * 12}}[feature.dtype.name]
    count = {(): 1, (3,): 3, (4,): 4}[feature.shape]
    good = {"x": [good["x"]] if feature.dtype == "float32" else good["x"][:count]}
    records = [io.serialize_example(good), io.serialize_example({"x": [1, 2]})]
    with pytest.raises(InvalidArgumentError, match=f"feature 'x' of example 1 has {message}"):
        io.parse_example(records, {"x": feature})


def test_a_missing_feature_names_the_example():
    records = [io.serialize_example({"x": 1}), io.serialize_example({})]
    with pytest.raises(InvalidArgumentError, match="'x' of example 1 has no value, and the f"):
        io.parse_example(records, {"x": io.FixedLenFeature([], "int64")})


@pytest.mark.parametrize(
    ("partition", "values"),
    [
        ("RowLengths", [1, 1]),
        ("RowLengths", [4, -1]),
        ("RowSplits", [0, 2]),
        ("RowSplits", [1, 3]),
        ("RowStarts", [1]),
        ("RowStarts", [0, 2, 1]),
        ("RowLimits", [4, 3]),
        ("ValueRowIds", [0, 1]),
        ("ValueRowIds", [1, 0, 1]),
        ("ValueRowIds", [-1, 0, 0]),
    ],
)
def test_partitions_that_do_not_fit_are_refused(partition, values):
    records = [
        io.serialize_example({"v": []}),
        io.serialize_example({"v": [1, 2, 3], "p": values}),
    ]
    feature = io.RaggedFeature("int64", "v", [getattr(io.RaggedFeature, partition)("p")])
    message = f"'p' of example 1 has {partition} that do not fit the 3 values"
    with pytest.raises(InvalidArgumentError, match=message):
        io.parse_example(records, {"r": feature})


def test_values_that_cannot_be_divided_are_refused():
    feature = io.RaggedFeature("int64", "v", [io.RaggedFeature.UniformRowLength(2)])
    with pytest.raises(InvalidArgumentError, match="of example 0 has 3 values, which cannot be"):
        io.parse_example([io.serialize_example({"v": [1, 2, 3]})], {"r": feature})


@pytest.mark.parametrize("between", [b"", b"\x1a\x01x", b"\x0a\x81\x00x"])
def test_protobuf_splits_only_strings_with_nothing_between_them(between):
    body = b"\x0a\x01a" + between + b"\x0a\x02bc"
    features = np.frombuffer(2 * (b"\x0a" + bytes([len(body)]) + body), np.uint8)
    protobuf = find_protobuf()
    assert protobuf.split_strings(features) == (None if between else 2 * [[b"a", b"bc"]])
    assert protobuf.split_strings(features[:-1]) is None


def test_a_program_without_the_c_parser_parses_with_numpy(monkeypatch):
    with monkeypatch.context() as old:
        old.delattr("google.protobuf.message_factory.GetMessageClass")
        assert find_protobuf.__wrapped__() is None
    monkeypatch.setattr(api_implementation, "Type", lambda: "python")
    assert find_protobuf.__wrapped__() is None
    monkeypatch.setitem(sys.modules, "google.protobuf.internal", None)
    assert find_protobuf.__wrapped__() is None
