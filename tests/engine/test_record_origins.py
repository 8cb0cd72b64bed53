"""Errors name the file and the record that an element was made of.

Every record holds the name of its file and its own number there, so the failing element says itself
where it comes from.
"""

import gzip
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import Dataset
from penstock.data import FixedLengthRecordDataset, Options, TextLineDataset, TFRecordDataset
from penstock.data.experimental import CsvDataset
from penstock.engine import origins
from penstock.errors import InvalidArgumentError
from penstock.io import TFRecordWriter

COUNT = 40
NAMES = ["a", "b", "c"]


def record(name: str, number: int) -> str:
    return f"{name}:{number:03}"


def records(name: str) -> list[str]:
    return [record(name, number) for number in range(COUNT)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        lines = "".join(line + "\n" for line in records(name))
        (tmp_path / f"{name}.txt").write_text(lines, encoding="utf-8")
    return tmp_path


def texts(folder: Path) -> list[str]:
    return [str(folder / f"{name}.txt") for name in NAMES]


def fail_on(wanted: str) -> Callable[..., Any]:
    def check(*arguments: Any) -> int:
        for argument in arguments:
            if wanted.encode() in np.ravel(argument).tolist():
                raise ValueError("this one")
        return 0

    return check


def lines_of(folder: Path) -> Dataset:
    return TextLineDataset(texts(folder))


def interleave_lines(folder: Path, **options: Any) -> Dataset:
    names = Dataset.from_tensor_slices(texts(folder)).shuffle(3, seed=5)
    return names.interleave(TextLineDataset, cycle_length=2, block_length=3, **options)


PLANS: dict[str, Callable[[Path], Dataset]] = {
    "lines": lines_of,
    "prefetch, skip, take": lambda folder: lines_of(folder).skip(7).prefetch(2).take(200),
    "shard": lambda folder: lines_of(folder).shard(3, 1),
    "map": lambda folder: lines_of(folder).map(lambda x: x, num_parallel_calls=2),
    "shuffle": lambda folder: lines_of(folder).shuffle(16, seed=3),
    "map, shuffle": lambda folder: lines_of(folder).map(lambda x: x).shuffle(16, seed=3),
    "repeat": lambda folder: lines_of(folder).shuffle(16, seed=3).repeat(2),
    "cache": lambda folder: lines_of(folder).cache().shuffle(9, seed=1),
    "interleave": interleave_lines,
    "interleave, parallel": lambda folder: interleave_lines(folder, num_parallel_calls=2),
    "interleave, shuffle": lambda folder: interleave_lines(folder).shuffle(11, seed=2),
    "flat_map": lambda folder: Dataset.list_files(texts(folder), seed=2).flat_map(
        lambda name: TextLineDataset(name).shuffle(8, seed=4)
    ),
    "enumerate": lambda folder: lines_of(folder).enumerate(),
    "zip": lambda folder: Dataset.zip((lines_of(folder), Dataset.range(500))),
    "concatenate": lambda folder: lines_of(folder).take(20).concatenate(lines_of(folder).skip(20)),
    "batch, unbatch": lambda folder: lines_of(folder).batch(7).unbatch(),
}


def first_line(element: Any) -> str:
    """The line in an element, which may be a tuple with a number."""
    leaves = element if type(element) is tuple else (element,)
    return next(leaf.decode() for leaf in leaves if isinstance(leaf, bytes))


def message_of(dataset: Dataset, wanted: str, **options: Any) -> str:
    with pytest.raises(InvalidArgumentError, match="this one") as caught:
        list(dataset.map(fail_on(wanted), **options))
    return str(caught.value)


@pytest.mark.parametrize("name", PLANS)
def test_a_failing_function_leads_to_the_line(name: str, folder: Path) -> None:
    dataset = PLANS[name](folder)
    lines = [first_line(element) for element in dataset]
    for wanted in (lines[2], lines[len(lines) // 2 + 1], lines[-1]):
        file, number = wanted.split(":")
        place = f"line {int(number) + 1} (byte {6 * int(number)}) of {folder / file}.txt"
        assert message_of(dataset, wanted).endswith(f"; the element comes from {place}")


@pytest.mark.parametrize("calls", [None, 2])
def test_a_resumed_iteration_leads_to_the_same_line(calls: int | None, folder: Path) -> None:
    mapped = (
        interleave_lines(folder).shuffle(5, seed=1).map(fail_on("b:033"), num_parallel_calls=calls)
    )
    first, again = iter(mapped), iter(mapped)
    for _ in range(20):
        next(first)
    again.load_state_dict(first.state_dict())
    with pytest.raises(InvalidArgumentError, match=r"comes from line 34 \(byte 198\) of .*b.txt"):
        list(again)


def test_a_batch_names_some_of_its_lines(folder: Path) -> None:
    message = message_of(lines_of(folder).batch(8), "a:017")
    assert message.count("line ") == 3
    assert f"line 17 (byte 96) of {folder / 'a.txt'}" in message
    assert message.endswith("5 more")


def test_a_predicate_and_a_scan_lead_to_the_line(folder: Path) -> None:
    words = r"comes from line 12 \(byte 66\) of .*b.txt"
    check = fail_on("b:011")
    filtered = lines_of(folder).filter(lambda x: check(x) == 0)
    scanned = lines_of(folder).scan(np.int64(0), lambda state, x: (state, check(x)))
    for dataset in (filtered, scanned):
        with pytest.raises(InvalidArgumentError, match=words):
            list(dataset)


def write_tfrecords(path: Path) -> Dataset:
    with TFRecordWriter(str(path)) as writer:
        for line in records("x"):
            writer.write(line.encode())
    return TFRecordDataset(str(path))


def write_fixed(path: Path) -> Dataset:
    path.write_bytes(b"head" + "".join(records("x")).encode())
    return FixedLengthRecordDataset(str(path), 5, header_bytes=4)


def write_gzip(path: Path) -> Dataset:
    path.write_bytes(gzip.compress("\n".join(records("x")).encode()))
    return TextLineDataset(str(path), compression_type="GZIP")


def write_csv(path: Path) -> Dataset:
    path.write_text("a,b\n" + "".join(f"{line},1\n" for line in records("x")), encoding="utf-8")
    return CsvDataset(str(path), [b"", np.int32], header=True)


def write_json_lines(path: Path) -> Dataset:
    rows = [json.dumps({"a": line}) for line in records("x")]
    path.write_text("\n".join(rows), encoding="utf-8")
    return Dataset.from_json_lines(str(path)).map(lambda row: row["a"])


FORMATS: dict[str, tuple[Callable[[Path], Dataset], str]] = {
    "TFRecord": (write_tfrecords, "record 30 (byte 630)"),
    "fixed length": (write_fixed, "record 30 (byte 154)"),
    "gzip": (write_gzip, "line 31 (byte 180)"),
    "CSV": (write_csv, "line 32 (byte 244)"),
    "JSON lines": (write_json_lines, "record 30 (byte 450)"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_names_its_records(name: str, tmp_path: Path) -> None:
    write, place = FORMATS[name]
    dataset = write(tmp_path / "x")
    for behind in (dataset, dataset.shuffle(10, seed=1)):
        message = message_of(behind, record("x", 30))
        assert message.endswith(f"comes from {place} of {tmp_path / 'x'}")


CHOSEN: dict[str, Callable[[Path], Dataset]] = {
    "filter": lambda folder: lines_of(folder).filter(lambda x: x[-1:] != b"4"),
    "filter, shuffle": lambda folder: lines_of(folder).filter(lambda x: True).shuffle(9).repeat(2),
    "filter, take": lambda folder: (
        interleave_lines(folder).filter(lambda x: x[:1] != b"a").take(70)
    ),
    "rows": lambda folder: Dataset.from_tensor_slices(records("b")).filter(lambda x: True),
}


@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_behind_a_filter_an_equal_line_is_named(name: str, executor: Any, folder: Path) -> None:
    dataset = CHOSEN[name](folder).with_options(Options(executor=executor))
    calls = 2 if executor == "processes" else None
    message = message_of(dataset, "b:011", num_parallel_calls=calls)
    line = f"line 12 (byte 66) of {folder / 'b.txt'}"
    row = "row 11 of from_tensor_slices"
    assert message.endswith(f"; the element equals {row if name == 'rows' else line}")


UNKNOWN: dict[str, Callable[[Path], Dataset]] = {
    "filter of results": lambda folder: lines_of(folder).map(lambda x: x).filter(lambda x: True),
    "ignored errors": lambda folder: lines_of(folder).map(lambda x: x).ignore_errors(),
    "in any order": lambda folder: lines_of(folder).map(
        lambda x: x, num_parallel_calls=2, deterministic=False
    ),
    "rows made by a function": lambda folder: (
        lines_of(folder).map(lambda x: np.array([x, x])).unbatch()
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_nothing_is_said_where_a_function_decides(name: str, folder: Path) -> None:
    assert message_of(UNKNOWN[name](folder), "b:011").endswith("ValueError: this one")


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_an_error_has_the_element(executor: Any, folder: Path) -> None:
    dataset = lines_of(folder).with_options(Options(executor=executor))
    with pytest.raises(InvalidArgumentError, match="this one") as caught:
        list(dataset.map(fail_on("b:011"), num_parallel_calls=2))
    assert caught.value.element == b"b:011"
    assert pickle.loads(pickle.dumps(caught.value)).element is None


def test_a_place_that_the_error_names_is_not_repeated(tmp_path: Path) -> None:
    (path := tmp_path / "a.csv").write_text("a,b\n1,2\nx,3\n")
    with pytest.raises(InvalidArgumentError, match=r"line 3 .*'x'$") as caught:
        list(CsvDataset(str(path), [1, 2], header=True))
    assert caught.value.message.count(str(path)) == 1


def test_no_function_is_called_again(folder: Path) -> None:
    seen: list[bytes] = []
    dataset = lines_of(folder).map(lambda x: seen.append(x) or x).shuffle(4, seed=1)
    assert "comes from line 12" in message_of(dataset, "a:011")
    assert len(seen) == len(set(seen))


def test_a_search_ends_at_its_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.engine.origins.MOST_BYTES", 300)
    far = message_of(lines_of(folder).shuffle(3, seed=1), "c:020")
    assert far.endswith("ValueError: this one")


def test_lines_are_counted_up_to_a_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = texts(folder)[0]
    opened = origins.OpenedFile("text", path, {}, position=180)
    assert origins.describe_record(opened, 5) == f"line 36 (byte 210) of {path}"
    monkeypatch.setattr(origins, "MOST_BYTES", 100)
    assert origins.describe_record(opened, 5) == f"the record at byte 210 of {path}"


def test_an_error_is_searched_for_when_its_text_is_needed(folder: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="this one") as caught:
        list(lines_of(folder).map(fail_on("a:011")))
    (folder / "a.txt").unlink()
    assert "line 12" in str(caught.value)  # `match` has asked for the text.

    iterator = iter(lines_of(folder).skip(COUNT).map(fail_on("b:011")))
    (folder / "a.txt").write_text("a\n" * COUNT, encoding="utf-8")
    try:
        list(iterator)
    except InvalidArgumentError as error:
        pickled = pickle.dumps(error)
    assert re.search("line 12 .* of .*b.txt", str(pickle.loads(pickled)))
