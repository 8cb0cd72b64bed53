"""`on_error="skip"` of every reader, and `ignore_errors(log=True)`: what they skip and log."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from penstock.data import (
    Dataset,
    FixedLengthRecordDataset,
    Options,
    TextLineDataset,
    TFRecordDataset,
)
from penstock.data.experimental import CsvDataset, assert_cardinality
from penstock.data.experimental.service import distribute
from penstock.errors import (
    DataLossError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    UnavailableError,
)
from penstock.io import TarWriter, TFRecordWriter
from penstock.plan import parts
from tests.engine.formats.http_files import FileServer

Write = Callable[[Path, int], None]


def write_tfrecords(path: Path, start: int) -> None:
    with TFRecordWriter(path) as writer:
        for number in range(start, start + 3):
            writer.write(b"%d" % number)


def write_parquet(path: Path, start: int) -> None:
    pa.parquet.write_table(pa.table({"x": np.arange(start, start + 3)}), path)


def write_arrow(path: Path, start: int) -> None:
    table = pa.table({"x": np.arange(start, start + 3)})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


def write_numpy(path: Path, start: int) -> None:
    with open(path, "wb") as file:
        np.save(file, np.arange(start, start + 3))


def write_lines(path: Path, start: int) -> None:
    path.write_text("".join(f'{{"x": {number}}}\n' for number in range(start, start + 3)))


def write_rows(path: Path, start: int) -> None:
    path.write_text("".join(f"{number}\n" for number in range(start, start + 3)))


def write_fixed(path: Path, start: int) -> None:
    path.write_bytes(np.arange(start, start + 3, dtype="<i4").tobytes())


def write_tar(path: Path, start: int) -> None:
    with TarWriter(path) as writer:
        for number in range(start, start + 3):
            writer.write({"__key__": f"{number}", "x": f"{number}"})


def numbers(dataset: Any) -> list[int]:
    return [_number(element) for element in dataset]


def _number(element: Any) -> int:
    if isinstance(element, dict):
        element = element["x"]
    if isinstance(element, tuple):
        element = element[0]
    if isinstance(element, bytes) and len(element) == 4:
        return int.from_bytes(element, "little")
    return int(element)


def csv(paths: Any, **more: Any) -> Dataset:
    return CsvDataset(paths, ["int64"], **more)


def read_fixed(paths: Any, **more: Any) -> Dataset:
    return FixedLengthRecordDataset(paths, 4, **more)


READERS: dict[str, tuple[Callable[..., Dataset], Write]] = {
    "TFRecordDataset": (TFRecordDataset, write_tfrecords),
    "CsvDataset": (csv, write_rows),
    "FixedLengthRecordDataset": (read_fixed, write_fixed),
    "Dataset.from_parquet": (Dataset.from_parquet, write_parquet),
    "Dataset.from_arrow": (Dataset.from_arrow, write_arrow),
    "Dataset.from_numpy": (Dataset.from_numpy, write_numpy),
    "Dataset.from_json_lines": (Dataset.from_json_lines, write_lines),
    "Dataset.from_tar": (Dataset.from_tar, write_tar),
}


@pytest.fixture(params=READERS)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def paths_of(folder: Path, write: Write) -> list[Path]:
    """Good files at both ends; a missing one, a folder, one cut short and one of noise between."""
    paths = [folder / part for part in ("a", "missing", "folder", "cut", "noise", "z")]
    write(paths[0], 100)
    paths[2].mkdir()
    write(paths[3], 200)
    data = paths[3].read_bytes()
    paths[3].write_bytes(data[: len(data) // 5] + (b'"' if write is write_rows else b""))
    paths[4].write_bytes(b"\xff\xfe noise, noise")
    write(paths[5], 300)
    return paths


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "penstock"]


def test_bad_files_are_left_out_and_counted(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make, write = READERS[name]
    found = numbers(make(paths_of(tmp_path, write), on_error="skip"))
    assert [number for number in found if not 200 <= number < 300] == [100, 101, 102, 300, 301, 302]
    assert set(found) < {100, 101, 102, 200, 201, 202, 300, 301, 302}
    said = messages(caplog)
    for part in ("missing", "folder", "cut", "noise"):
        assert any(f"{part}'" in text for text in said)
    assert all(text.startswith(f"{name}: ") for text in said)
    assert said[-1].endswith("could not be read and were left out")


def test_without_skip_the_first_bad_file_is_an_error(name: str, tmp_path: Path) -> None:
    make, write = READERS[name]
    for path in paths_of(tmp_path, write)[1:5]:
        with pytest.raises(OpError, match=f"{name}: .*{path.name}"):
            numbers(make([tmp_path / "a", path]))


def test_the_first_file_may_be_bad(name: str, tmp_path: Path) -> None:
    make, write = READERS[name]
    paths = paths_of(tmp_path, write)
    found = numbers(make([paths[4], paths[1], paths[5]], on_error="skip"))
    assert found[-3:] == [300, 301, 302]


TABLES = ["Dataset.from_parquet", "Dataset.from_arrow", "Dataset.from_numpy"]


@pytest.mark.parametrize("name", TABLES)
def test_if_no_table_is_good_the_first_error_is_raised(name: str, tmp_path: Path) -> None:
    make, write = READERS[name]
    paths = paths_of(tmp_path, write)
    with pytest.raises(NotFoundError, match="missing' does not exist"):
        make([paths[1], paths[4]], on_error="skip")


def test_a_missing_or_retyped_column_is_a_bad_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_parquet(tmp_path / "0.parquet", 0)
    pa.parquet.write_table(pa.table({"y": [1]}), tmp_path / "1.parquet")
    pa.parquet.write_table(pa.table({"x": ["text"]}), tmp_path / "2.parquet")
    assert numbers(Dataset.from_parquet(f"{tmp_path}/*", on_error="skip")) == [0, 1, 2]
    said = messages(caplog)
    assert "1.parquet" in said[0]
    assert "2.parquet" in said[1]
    assert said[2] == "Dataset.from_parquet: 2 files could not be read and were left out"


def write_damaged_table(path: Path) -> list[int]:
    """Writes three row groups of 1000 numbers, the second of which is damaged; returns all."""
    table = pa.table({"x": np.random.default_rng(0).integers(0, 1000, 3000)})
    pa.parquet.write_table(
        table,
        path,
        row_group_size=1000,
        compression="none",
        use_dictionary=False,
        write_page_checksum=True,
    )
    data = bytearray(path.read_bytes())
    place = pa.parquet.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    data[place : place + 40] = bytes(40)
    path.write_bytes(data)
    return table["x"].to_pylist()


def test_damaged_row_groups_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = write_damaged_table(tmp_path / "rows.parquet")
    iterator = iter(Dataset.from_parquet(tmp_path / "rows.parquet", on_error="skip"))
    assert numbers(iterator) == expected[:1000] + expected[2000:]
    said = messages(caplog)
    assert len(said) == 2
    assert "row group 1 cannot be read" in said[0]
    assert said[-1].startswith("Dataset.from_parquet: 1000 records, rows or files could not be")
    assert [row.errors for row in iterator.profile().operators] == [0, 1000]
    assert "from_parquet: 1000 errors" in str(iterator.profile())


@pytest.mark.parametrize(("skipped", "taken", "errors"), [(0, 1500, 500), (1400, 1000, 600)])
def test_rows_of_a_damaged_row_group_count_only_where_they_are_wanted(
    skipped: int, taken: int, errors: int, tmp_path: Path
) -> None:
    expected = write_damaged_table(tmp_path / "rows.parquet")
    table = Dataset.from_parquet(tmp_path / "rows.parquet").skip(skipped).take(taken)
    iterator = iter(table.ignore_errors())
    good = expected[skipped:1000] + expected[2000 : max(skipped + taken, 2000)]
    assert numbers(iterator) == good
    assert [row.errors for row in iterator.profile().operators][1] == errors


def test_errors_after_a_state_that_was_saved_without_random_access() -> None:
    def fail_on_multiples_of_3(number: Any) -> Any:
        if number % 3 == 0:
            raise ValueError("a multiple of 3")
        return number

    def build(**options: Any) -> Dataset:
        made = Dataset.range(1, 10).map(fail_on_multiples_of_3, num_parallel_calls=2, **options)
        return made.apply(assert_cardinality(9)).ignore_errors()

    iterator = iter(build(deterministic=False))
    found = [next(iterator)]
    ordered = iter(build())
    ordered.load_state_dict(iterator.state_dict())
    assert sorted([*found, *ordered]) == [1, 2, 4, 5, 7, 8]


def test_lines_of_text_after_a_missing_file(tmp_path: Path) -> None:
    write_rows(tmp_path / "a", 0)
    paths = [tmp_path / "missing", tmp_path / "a"]
    assert numbers(TextLineDataset(paths, on_error="skip")) == [0, 1, 2]
    parallel = TextLineDataset(paths, num_parallel_reads=2, on_error="skip")
    assert numbers(parallel) == [0, 1, 2]


def test_single_lines_and_samples_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text('1\n"2"x\n3\n')
    assert numbers(csv(tmp_path / "rows", on_error="skip")) == [1, 3]
    (tmp_path / "lines").write_text('{"x": 1}\n{"x": "?"}\n{"x": 3}\n')
    lines = Dataset.from_json_lines(tmp_path / "lines", columns={"x": "int64"}, on_error="skip")
    assert numbers(lines) == [1, 3]
    with TarWriter(tmp_path / "tar") as writer:
        for key, field in (("1", "x"), ("2", "y"), ("3", "x")):
            writer.write({"__key__": key, field: key})
    assert numbers(Dataset.from_tar(tmp_path / "tar", on_error="skip")) == [1, 3]


def write_damaged(path: Path, count: int, bad: set[int], byte: int = 12) -> None:
    """Writes records of four digits; some have a bit flipped, by default in the first digit."""
    with TFRecordWriter(path) as writer:
        for number in range(count):
            writer.write(b"%04d" % number)
    data = bytearray(path.read_bytes())
    for number in bad:
        data[20 * number + byte] ^= 1
    path.write_bytes(data)


def digits(dataset: Any) -> list[int]:
    return [int(record) for record in dataset]


def test_single_records_of_a_file_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_damaged(tmp_path / "a", 100, {0, 50, 51, 99})
    write_damaged(tmp_path / "b", 2, set())
    paths = [tmp_path / "a", tmp_path / "b"]
    expected = [number for number in range(100) if number not in {0, 50, 51, 99}]
    dataset = TFRecordDataset(paths, on_error="skip")
    assert digits(dataset) == [*expected, 0, 1]
    assert len(messages(caplog)) == 5
    assert "a' has a damaged record at byte 1000: the checksum of its data" in messages(caplog)[1]
    parallel = TFRecordDataset(paths, num_parallel_reads=2, on_error="skip")
    assert sorted(digits(parallel)) == sorted([*expected, 0, 1])
    indexed = TFRecordDataset(paths, index=tmp_path / "indexes", on_error="skip")
    assert digits(indexed) == [*expected, 0, 1]
    write_damaged(tmp_path / "a", 100, {50}, byte=8)
    assert digits(dataset) == [*range(50), 0, 1]  # Where the next record begins is not known.


def test_without_skip_a_damaged_record_ends_its_file_as_in_tensorflow(tmp_path: Path) -> None:
    write_damaged(tmp_path / "a", 10, {3})
    write_damaged(tmp_path / "b", 2, set())
    dataset = TFRecordDataset([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(DataLossError, match="a' has a damaged record at byte 60"):
        digits(dataset)
    assert digits(dataset.ignore_errors()) == [0, 1, 2, 0, 1]


@pytest.mark.parametrize("bad", [{0}, {9, 10, 11}, set(range(0, 100, 7))])
def test_parts_of_a_file_and_states_behind_damaged_records(
    tmp_path: Path, bad: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 200)  # A part begins at every tenth record.
    write_damaged(tmp_path / "a", 100, bad)
    dataset = TFRecordDataset(tmp_path / "a", on_error="skip")
    expected = [number for number in range(100) if number not in bad]
    for count in (0, 1, 9, 10, 50, len(expected)):
        iterator, resumed = iter(dataset), iter(dataset)
        for _ in range(count):
            next(iterator)
        resumed.load_state_dict(iterator.state_dict())
        assert digits(resumed) == expected[count:]
    served = dataset.apply(distribute("distributed_epoch", "local://2"))
    assert digits(served) == expected
    options = Options()
    options.deterministic = False
    assert sorted(digits(served.with_options(options))) == expected


def test_indexed_files_are_skipped(tmp_path: Path) -> None:
    paths = paths_of(tmp_path, write_tfrecords)
    index = tmp_path / "indexes"
    found = numbers(TFRecordDataset(paths, index=index, on_error="skip"))
    assert found == [100, 101, 102, 300, 301, 302]


def test_images_that_cannot_be_decoded_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cat").mkdir()
    for number in range(3):
        Image.new("RGB", (2, 2), (number, 0, 0)).save(tmp_path / "cat" / f"{number}.png")
    (tmp_path / "cat" / "1.png").write_bytes(b"no image")
    images = Dataset.from_image_folder(tmp_path, on_error="skip")
    assert [int(element["image"][0, 0, 0]) for element in images] == [0, 2]
    assert "1.png" in messages(caplog)[0]


def test_what_is_left_out_is_also_left_out_by_workers_and_after_a_resume(tmp_path: Path) -> None:
    dataset = TFRecordDataset(paths_of(tmp_path, write_tfrecords), on_error="skip")
    expected = numbers(dataset)
    assert numbers(dataset.apply(distribute("distributed_epoch", "local://1"))) == expected
    for count in range(len(expected)):
        iterator, resumed = iter(dataset), iter(dataset)
        for _ in range(count):
            next(iterator)
        resumed.load_state_dict(iterator.state_dict())
        assert numbers(resumed) == expected[count:]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setattr("penstock.engine.formats.remote_requests.FIRST_PAUSE", 0.0)
    server = FileServer(str(tmp_path)).start()
    yield server
    server.stop()


def test_a_server_that_fails_is_no_bad_file(server: FileServer, tmp_path: Path) -> None:
    write_tfrecords(tmp_path / "a", 0)
    dataset = TFRecordDataset([f"{server.url}/a", f"{server.url}/missing"], on_error="skip")
    assert numbers(dataset) == [0, 1, 2]
    server.fault = lambda *_: "503"
    with pytest.raises(UnavailableError, match="cannot be reached"):
        numbers(dataset)


def test_a_remote_file_that_changed_is_a_bad_file(server: FileServer, tmp_path: Path) -> None:
    for number in range(2):
        write_parquet(tmp_path / f"{number}.parquet", 10 * number)
    dataset = Dataset.from_parquet(f"{server.url}/{{0..1}}.parquet", on_error="skip")
    write_parquet(tmp_path / "0.parquet", 77)
    assert numbers(dataset) == [10, 11, 12]


def test_ignored_errors_are_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    def fail_often(x: Any) -> Any:
        if x % 20:
            raise ValueError(f"no {x}")
        return x

    iterator = iter(Dataset.range(60).map(fail_often).ignore_errors(log=True))
    assert [int(element) for element in iterator] == [0, 20, 40]
    said = messages(caplog)
    assert len(said) == 11
    assert "Dataset.ignore_errors: left out: Dataset.map: " in said[0]
    assert said[-1] == ("Dataset.ignore_errors: 57 elements could not be read and were left out")
    assert [row.errors for row in iterator.profile().operators][:2] == [0, 57]


def test_the_count_is_logged_also_if_the_iterator_is_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = paths_of(tmp_path, write_tfrecords)
    iterator = iter(TFRecordDataset(paths[1:], on_error="skip"))
    next(iterator)
    iterator.close()
    assert "4 records, rows or files could not be read" in messages(caplog)[-1]


def test_without_log_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert list(Dataset.range(3).map(lambda x: 1 // 0).ignore_errors()) == []
    assert messages(caplog) == []


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match='on_error must be "raise" or "skip", got True'):
        TextLineDataset("x", on_error=True)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="from_tar: on_error must be"):
        Dataset.from_tar("x", on_error="ignore")
    shutil.copy(__file__, tmp_path / "x")
    with pytest.raises(DataLossError, match="Parquet"):
        Dataset.from_parquet(tmp_path / "x", on_error="skip")


def fail_at(wanted: int) -> Callable[[Any], Any]:
    """A function that fails for one element: the image, or row, of that number."""

    def fail(element: Any) -> Any:
        if wanted in (np.ravel(element.get("image", -1))[0], element.get("x")):
            raise ValueError("this one")
        return element

    return fail


def message_of(dataset: Dataset) -> str:
    with pytest.raises(InvalidArgumentError, match="this one") as caught:
        list(dataset)
    return str(caught.value)


def test_behind_images_that_were_left_out_no_wrong_row_is_named(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    for number in range(8):
        pixels = np.full((2, 2, 3), number, np.uint8)
        Image.fromarray(pixels).save(tmp_path / "cat" / f"{number}.png")
    for number in (1, 4):
        (tmp_path / "cat" / f"{number}.png").write_bytes(b"no image")
    images = Dataset.from_image_folder(tmp_path, on_error="skip")
    for dataset in (images, images.shuffle(8, seed=1)):
        for wanted in (2, 5, 7):
            assert message_of(dataset.map(fail_at(wanted))).endswith("ValueError: this one")


def test_behind_rows_that_were_left_out_the_right_row_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "x.parquet"
    table = pa.table({"x": np.arange(30) * 1001})
    pa.parquet.write_table(table, path, row_group_size=10, use_dictionary=False)
    column = pa.parquet.ParquetFile(path).metadata.row_group(0).column(0)
    data = bytearray(path.read_bytes())
    begin = column.data_page_offset
    data[begin : begin + column.total_compressed_size] = bytes(column.total_compressed_size)
    path.write_bytes(data)
    rows = Dataset.from_parquet(path, on_error="skip")
    assert len(list(rows)) == 20
    for dataset in (rows, rows.shuffle(30, seed=1)):
        caplog.clear()
        message = message_of(dataset.map(fail_at(25025)))
        assert message.endswith(f"this one; the element equals row 25 of {path}")
        assert sum("left out: " in text for text in caplog.messages) == 1  # Not by the search.
