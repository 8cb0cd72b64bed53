"""JSON lines: types of columns, errors with line numbers, parts of files."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.data import Dataset
from penstock.data.experimental.service import distribute
from penstock.errors import DataLossError, InvalidArgumentError, InvalidTypeError
from penstock.plan import parts
from penstock.plan.shape import Form
from penstock.plan.splits import piece, shape_of
from tests.engine.formats.table_samples import plain


def write(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def values(dataset: Any, name: str = "x") -> list[Any]:
    return [plain(row[name]) for row in dataset]


def outcomes(dataset: Any) -> Iterator[Any]:
    """Elements, and the messages of failures in their places."""
    iterator = iter(dataset)
    while True:
        try:
            yield plain(next(iterator))
        except StopIteration:
            return
        except InvalidArgumentError as error:
            yield str(error)


def test_a_bad_line_is_named_and_costs_only_itself(tmp_path: Path) -> None:
    good = [f'{{"x": {i}}}' for i in range(40)]
    path = write(
        tmp_path / "a.jsonl", *good[:7], "", "{oops", *good[8:30], '{"x": "a"}', *good[31:]
    )
    found = list(outcomes(Dataset.from_json_lines(path, columns={"x": "int64"})))
    assert [row["x"] for row in found if isinstance(row, dict)] == [
        *range(7),
        *range(8, 30),
        *range(31, 40),
    ]
    places = [text.split(":")[1] for text in found if isinstance(text, str)]
    assert places == [f" {path!r}, line {n} (after byte {b})" for n, b in ((9, 63), (32, 288))]
    assert [row["x"] for row in found[:7]] == list(range(7))


def test_the_number_of_a_line_in_a_compressed_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"x": 1}\n' * 5 + b'{"x": null}\n' + b'{"x": 2}\n'))
    with pytest.raises(
        InvalidArgumentError, match="line 6 .after byte 45.: column 'x' has no value .null."
    ):
        list(Dataset.from_json_lines(path))
    assert values(Dataset.from_json_lines(path, fill=0)) == [1, 1, 1, 1, 1, 0, 2]


@pytest.mark.parametrize("cut", [0, 4, 9, 14])
def test_the_members_of_a_gzip_file_are_one_text(tmp_path: Path, cut: int) -> None:
    text = b'{"x": 1}\n{"x": 1.5}\n'
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(b"".join(map(gzip.compress, (text[:cut], text[cut:], b'{"x": 2}'))))
    assert values(Dataset.from_json_lines(path)) == [1.0, 1.5, 2.0]


def test_lines_before_a_wrong_checksum_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    packed = bytearray(gzip.compress(b'{"x": 1}\n{"x": 2}\n'))
    packed[-8] ^= 1
    path.write_bytes(packed)
    iterator = iter(Dataset.from_json_lines(path))
    assert [next(iterator)["x"] for _ in range(2)] == [1, 2]
    with pytest.raises(DataLossError, match="a.jsonl.gz' is not a complete GZIP file"):
        next(iterator)
    assert values(Dataset.from_json_lines(path, on_error="skip")) == [1, 2]
    path.write_bytes(packed[:12])
    with pytest.raises(DataLossError, match="a.jsonl.gz' is not a complete GZIP file"):
        Dataset.from_json_lines(path)


def test_lines_must_have_the_columns_of_the_first(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", '{"x": 1, "s": "2020-01-01"}')
    second = write(
        tmp_path / "b.jsonl", '{"x": 2, "s": "text", "z": 1}', '{"s": "b"}', '{"x": 1.5}'
    )
    found = list(outcomes(Dataset.from_json_lines([first, second])))
    assert found[0] == {"x": 1, "s": b"2020-01-01"}
    assert "line 1 (after byte 0): it is not a row of the columns x, s" in found[1]
    assert "line 2 (after byte 30): column 'x' has no value" in found[2]
    assert "line 3 (after byte 41): it is not a row of the columns" in found[3]
    assert values(Dataset.from_json_lines([first, second], columns=["s"], fill="?"), "s") == [
        b"2020-01-01",
        b"text",
        b"b",
        b"?",
    ]


def test_types_can_be_stated(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        '{"x": 1, "v": [1, 2], "p": {"a": 1}}',
        '{"x": 2.5, "v": [], "p": {"a": 2}}',
    )
    columns = {"x": "float32", "v": ["float64"], "p": {"a": "int32"}}
    dataset = Dataset.from_json_lines(path, columns=columns)
    assert [plain(row) for row in dataset] == [
        {"x": 1.0, "v": [1.0, 2.0], "p": {"a": 1}},
        {"x": 2.5, "v": [], "p": {"a": 2}},
    ]
    assert dataset.element_spec["p"]["a"].dtype.name == "int32"
    with pytest.raises(InvalidTypeError, match="from_json_lines: columns: 'number' is not"):
        Dataset.from_json_lines(path, columns={"x": "number"})
    with pytest.raises(InvalidTypeError, match="columns: JSON has no bfloat16; read float32"):
        Dataset.from_json_lines(path, columns={"x": "bfloat16"})
    with pytest.raises(InvalidTypeError, match="columns must have names as keys, got 1"):
        Dataset.from_json_lines(path, columns={1: "int64"})
    with pytest.raises(InvalidArgumentError, match="column 'p' of .* cannot be read: its type is"):
        Dataset.from_json_lines(path, columns={"p": [{"a": "int64"}]})
    with pytest.raises(InvalidArgumentError, match="chooses no columns to read"):
        Dataset.from_json_lines(path, columns={})


def test_a_bad_line_among_the_first_costs_only_itself(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"x": 1}', '{"x": "text"}', "{oops", '{"x": 4}')
    found = list(outcomes(Dataset.from_json_lines(path)))
    assert [found[0], found[3]] == [{"x": 1}, {"x": 4}]
    assert "line 2 (after byte 9): it is not a row of the columns x" in found[1]
    assert "line 3 (after byte 23): it is not a row of the columns x" in found[2]
    assert values(Dataset.from_json_lines(path, on_error="skip")) == [1, 4]


ODD = {
    "column": ('{"x": 3}', '{"x": 3, "note": "a"}', "unexpected field"),
    "field": ('{"x": {"a": 3}}', '{"x": {"a": 3, "note": 1}}', "unexpected field"),
    "text": ('{"x": 3}', '{"x": "a"}', "changed from number to string"),
    "list": ('{"x": [3]}', '{"x": 3}', "changed from array to number"),
    "null": ('{"x": 3}', '{"x": null}', "column 'x' has no value"),
    "missing": ('{"x": 3, "y": 3}', '{"y": 3}', "column 'x' has no value"),
    "no object": ('{"x": 3}', "[3]", "changed from object to array"),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("place", [1, 2, 60, 98])
def test_an_odd_line_among_the_first_does_not_change_the_columns(
    tmp_path: Path, kind: str, place: int
) -> None:
    usual, odd, problem = ODD[kind]
    path = write(tmp_path / "a.jsonl", *[usual] * place, odd, *[usual] * (99 - place))
    dataset = Dataset.from_json_lines(path)
    assert [plain(row) for row in dataset.ignore_errors()] == [json.loads(usual)] * 99
    with pytest.raises(InvalidArgumentError, match=rf"line {place + 1} \(.*{problem}"):
        list(dataset)


def test_lines_behind_an_odd_one_decide_the_types_as_well(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl", '{"x": 1}', '{"x": "a"}', "{oops", '{"x": 1.5}', '{"x": [1]}'
    )
    assert values(Dataset.from_json_lines(path).ignore_errors()) == [1.0, 1.5]


def test_a_column_that_most_lines_have_may_be_missing_in_the_first(tmp_path: Path) -> None:
    for first in ("{}", '{"x": 1}', '{"x": 1, "y": null}'):
        path = write(tmp_path / "a.jsonl", first, *['{"x": 2, "y": 3}'] * 3)
        dataset = Dataset.from_json_lines(path)
        assert [plain(row) for row in dataset.ignore_errors()] == [{"x": 2, "y": 3}] * 3
        with pytest.raises(InvalidArgumentError, match="line 1 .* has no value"):
            list(dataset)
    path = write(tmp_path / "b.jsonl", "{}", '{"x": 1}', '{"y": 1}')
    assert list(Dataset.from_json_lines(path).element_spec) == ["x", "y"]


def test_columns_that_few_lines_have_can_be_filled_or_selected(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl", *['{"x": 1}'] * 3, '{"x": 1, "y": 5, "z": "a"}', '{"x": 1, "y": 6}'
    )
    assert values(Dataset.from_json_lines(path).ignore_errors()) == [1, 1, 1]
    filled = Dataset.from_json_lines(path, fill={"y": 0, "z": "-"})
    assert [plain(row) for row in filled][2:4] == [
        {"x": 1, "y": 0, "z": b"-"},
        {"x": 1, "y": 5, "z": b"a"},
    ]
    filled = Dataset.from_json_lines(path, fill=0)  # It fits no text, so z is no column.
    assert values(filled.ignore_errors(), "y") == [0, 0, 0, 6]
    selected = Dataset.from_json_lines(path, columns=["y"])
    assert values(selected.ignore_errors(), "y") == [5, 6]
    nested = write(tmp_path / "b.jsonl", *['{"p": {"a": 1}}'] * 3, '{"p": {"a": 1, "b": 2}}')
    assert values(Dataset.from_json_lines(nested, columns=["p"]), "p") == [{"a": 1}] * 4
    assert values(Dataset.from_json_lines(nested, fill=0), "p")[2:] == [
        {"a": 1, "b": 0},
        {"a": 1, "b": 2},
    ]


@pytest.mark.parametrize("compressed", [False, True])
def test_every_bad_line_of_many_has_its_number(tmp_path: Path, compressed: bool) -> None:
    lines = ["{oops" if n % 7 in (2, 3) or n > 280 else f'{{"x": {n}}}' for n in range(1, 301)]
    lines[99] = ""
    path = tmp_path / ("a.jsonl.gz" if compressed else "a.jsonl")
    content = "\n".join(lines).encode()
    path.write_bytes(gzip.compress(content) if compressed else content)
    found = list(outcomes(Dataset.from_json_lines(path, columns={"x": "int64"})))
    assert [row["x"] for row in found if isinstance(row, dict)] == [
        n for n, line in enumerate(lines, 1) if line.startswith('{"')
    ]
    numbers = [int(text.partition(", line ")[2].split()[0]) for text in found if "line" in text]
    assert numbers == [n for n, line in enumerate(lines, 1) if line == "{oops"]


def test_bad_lines_before_the_first_good_one_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", "{oops", "", "[1]", '{"x": 1}', '{"x": 2}')
    with pytest.raises(DataLossError, match="a.jsonl', line 1: it cannot be read as JSON lines"):
        Dataset.from_json_lines(path)
    assert values(Dataset.from_json_lines(path, on_error="skip")) == [1, 2]
    with pytest.raises(DataLossError, match="b.jsonl', line 1: it cannot be read as JSON lines"):
        Dataset.from_json_lines(write(tmp_path / "b.jsonl", "text", "text"), on_error="skip")


def test_an_empty_file_says_nothing_about_the_columns(tmp_path: Path) -> None:
    empty = write(tmp_path / "a.jsonl", "")
    with pytest.raises(InvalidArgumentError, match="a.jsonl' has no lines; state the columns"):
        Dataset.from_json_lines([empty, empty])
    assert values(Dataset.from_json_lines([empty, write(tmp_path / "b.jsonl", '{"x": 1}')])) == [1]
    assert values(Dataset.from_json_lines(empty, columns={"x": "int64"})) == []


@pytest.mark.parametrize(
    ("content", "remedy"),
    [
        (b'[{"x": 1}, {"x": 2}]', "it is an array; write each object in a line of its own"),
        (b'{\n  "x": 1\n}\n', "an object has several lines; write each in one line"),
        (gzip.compress(b'{"x": 1}\n'), "it is compressed by gzip; its name must end in .gz or"),
        ('{"x": 1}\n'.encode("utf-16"), "it is UTF-16; write it as UTF-8"),
        (b"1\n2\n", "each line must be a complete object"),
        (b'{"x": 1, "x": 2}\n', "was specified twice .* each line must be"),
    ],
    ids=["array", "pretty", "gzip", "utf-16", "numbers", "twice"],
)
def test_other_files_are_refused_with_a_remedy(content: bytes, remedy: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataLossError, match=f"a.jsonl', line 1: .*{remedy}"):
        Dataset.from_json_lines(path)


def test_marks_and_line_ends_of_other_systems_are_no_part_of_values(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"x": "a"}\r\n{"x": "b"}\r\n')
    assert values(Dataset.from_json_lines(path)) == [b"a", b"b"]


def test_a_large_file_is_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 300)
    path = write(
        tmp_path / "a.jsonl", *(json.dumps({"x": i, "pad": "y" * (i % 50)}) for i in range(90))
    )
    dataset = Dataset.from_json_lines(path)
    plan = parts.with_parts(dataset.__plan__)
    shape = shape_of(plan)
    assert shape.kind == Form.SPLIT
    assert shape.streams > 5
    pieces = [
        values(Dataset(piece(plan, Form.SPLIT, i, shape.streams))) for i in range(shape.streams)
    ]
    assert [x for part in pieces for x in part] == list(range(90))
    served = dataset.apply(distribute("distributed_epoch", "local://2"))
    assert values(served) == list(range(90))


def test_a_compressed_file_among_others_is_not_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 10)
    plain_path = write(tmp_path / "a.jsonl", '{"x": 1}', '{"x": 2}')
    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress(b'{"x": 3}\n{"x": 4}\n'))
    dataset = Dataset.from_json_lines([plain_path, packed])
    assert parts.with_parts(dataset.__plan__) == dataset.__plan__
    assert values(dataset) == [1, 2, 3, 4]
