"""Remote files: which bytes are fetched, which requests are repeated, and which refused."""

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from penstock.data import Dataset, FixedLengthRecordDataset, TextLineDataset
from penstock.engine.formats import remote_requests
from penstock.engine.formats.files import expand, open_bytes
from penstock.engine.formats.remote_files import RANGE_BYTES, RemoteFile
from penstock.engine.formats.remote_requests import RequestLimit
from penstock.errors import (
    DataLossError,
    FailedPreconditionError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from penstock.io import read_file
from tests.engine.formats.http_files import FileServer
from tests.engine.formats.table_samples import plain

CONTENT = random.Random(0).randbytes(3 * RANGE_BYTES + 12 * 1024)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setattr(remote_requests, "FIRST_PAUSE", 0.0)
    (tmp_path / "file").write_bytes(CONTENT)
    (tmp_path / "lines").write_text("".join(f"{i}\n" for i in range(50)))
    server = FileServer(str(tmp_path)).start()
    yield server
    server.stop()


def fail_first(count: int, kind: str, method: str = "GET") -> Callable[[str, str, str], str]:
    """A fault that hits the first requests of an HTTP method."""
    left = [kind] * count
    return lambda found, path, span: left.pop() if left and found == method else ""


def gets(server: FileServer) -> list[str]:
    return [span for method, _, span in server.requests if method == "GET"]


def test_reads_in_any_order_are_those_of_the_content(server: FileServer) -> None:
    draw = random.Random(1)
    with open_bytes(f"{server.url}/file") as file:
        assert isinstance(file, RemoteFile)
        for _ in range(60):
            start = file.tell()
            if draw.random() < 0.4:
                start = file.seek(draw.randrange(len(CONTENT) + 10))
            size = draw.choice([1, 100, 70_000, RANGE_BYTES + 5, 5 * RANGE_BYTES])
            assert file.read(size) == CONTENT[start : start + size]
        assert file.seek(-5, 2) == len(CONTENT) - 5
        assert file.read() == CONTENT[-5:]
        with pytest.raises(ValueError, match="a position must be at least 0, got -1"):
            file.seek(-1)


def test_a_file_that_is_read_in_order_is_fetched_once_by_pieces(server: FileServer) -> None:
    with open_bytes(f"{server.url}/file") as file:
        data = b"".join(iter(lambda: file.read(1 << 18), b""))
    assert data == CONTENT
    assert sorted(gets(server)) == [
        f"bytes=0-{2**18 - 1}",
        f"bytes={RANGE_BYTES}-{2 * RANGE_BYTES - 1}",
        f"bytes={2 * RANGE_BYTES}-{3 * RANGE_BYTES - 1}",
        f"bytes={2**18}-{RANGE_BYTES - 1}",
        f"bytes={3 * RANGE_BYTES}-{len(CONTENT) - 1}",
    ]


def test_what_is_prefetched_is_fetched_once(server: FileServer) -> None:
    with open_bytes(f"{server.url}/file") as file:
        assert isinstance(file, RemoteFile)
        file.prefetch([[(10, 20), (500_000, 500_100)], [(RANGE_BYTES, 3 * RANGE_BYTES)]])
        for start, stop in [(500_000, 500_100), (10, 20), (RANGE_BYTES, 3 * RANGE_BYTES)]:
            file.seek(start)
            assert file.read(stop - start) == CONTENT[start:stop]
    assert len(gets(server)) == 4


def test_only_bytes_that_the_file_has_are_prefetched(server: FileServer) -> None:
    with open_bytes(f"{server.url}/file") as file:
        assert isinstance(file, RemoteFile)
        end = len(CONTENT)
        assert not file.prefetch([[(end, end + 5), (-7, -3), (9, 4)]])
        assert file.prefetch([[(end - 10, end + 10**12)]])
        file.seek(end - 10)
        assert file.read() == CONTENT[-10:]
    assert gets(server) == [f"bytes={end - 10}-{end - 1}"]


def test_a_damaged_remote_table_is_named(server: FileServer) -> None:
    path = Path(server.folder, "table.arrow")
    with pa.ipc.new_file(path, pa.schema([("x", pa.int64())])) as writer:
        for _ in range(3):
            writer.write_batch(pa.record_batch({"x": np.arange(50_000)}))
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(DataLossError, match="table.arrow' is damaged"):
        Dataset.from_arrow(f"{server.url}/table.arrow")


def test_a_server_without_ranges_sends_the_whole_file(server: FileServer) -> None:
    server.has_ranges = False
    with open_bytes(f"{server.url}/file") as file:
        file.seek(RANGE_BYTES)
        assert file.read(3) == CONTENT[RANGE_BYTES : RANGE_BYTES + 3]
        assert file.read() == CONTENT[RANGE_BYTES + 3 :]
    assert len(gets(server)) == 1


@pytest.mark.parametrize("kind", ["503", "drop"])
def test_failures_that_pass_are_repeated_and_counted(server: FileServer, kind: str) -> None:
    server.fault = fail_first(3, kind)
    iterator = iter(TextLineDataset(f"{server.url}/lines"))
    assert [int(line) for line in iterator] == list(range(50))
    assert iterator.profile().retries == 3
    assert "repeated: 3" in str(iterator.profile())
    assert iter(TextLineDataset(f"{server.url}/lines")).profile().retries == 0


def test_repetitions_are_counted_wherever_files_are_read(server: FileServer) -> None:
    server.fault = fail_first(2, "503")
    names = Dataset.from_tensor_slices([f"{server.url}/lines".encode()] * 4)
    iterator = iter(names.map(read_file, num_parallel_calls=2).prefetch(1))
    assert len(list(iterator)) == 4
    assert iterator.profile().retries == 2


def test_failures_that_stay_are_an_error(server: FileServer) -> None:
    server.fault = lambda method, path, span: "503" if method == "GET" else ""
    message = "TextLineDataset: 'http.*/lines' cannot be reached .*503.*, after 5 attempts"
    with pytest.raises(UnavailableError, match=message):
        list(TextLineDataset(f"{server.url}/lines"))
    assert len(gets(server)) == 5
    server.fault = lambda *_: "503"
    with pytest.raises(UnavailableError, match="cannot be reached .*503"):
        Dataset.from_parquet(f"{server.url}/lines")
    with pytest.raises(UnavailableError, match="Dataset.list_files: .* cannot be reached .*503"):
        expand(f"{server.url}/li*")


def test_failures_that_will_not_pass_are_not_repeated(server: FileServer) -> None:
    server.fault = lambda *_: "403"
    with pytest.raises(PermissionDeniedError, match="may not be opened by this user"):
        read_file(f"{server.url}/lines")
    assert len(server.requests) == 1
    server.fault = lambda *_: ""
    with pytest.raises(NotFoundError, match="does not exist"):
        read_file(f"{server.url}/nothing")


def test_a_server_that_does_not_run_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_requests, "FIRST_PAUSE", 0.0)
    server = FileServer(str(tmp_path))
    server.server_close()
    with pytest.raises(UnavailableError, match=f"{server.url}/x' cannot be reached"):
        read_file(f"{server.url}/x")
    with pytest.raises(UnavailableError, match=f"{server.url}/x' cannot be reached"):
        Dataset.from_parquet(f"{server.url}/x")


@pytest.mark.parametrize("size", [len(CONTENT), len(CONTENT) - RANGE_BYTES])
def test_a_file_that_changes_while_it_is_read_is_named(server: FileServer, size: int) -> None:
    iterator = iter(FixedLengthRecordDataset(f"{server.url}/file", 1024))
    next(iterator)
    Path(server.folder, "file").write_bytes(bytes(size))
    message = (
        r"FixedLength.*: 'http.*/file' has changed while it was read: it had \d+ bytes, version"
    )
    with pytest.raises(FailedPreconditionError, match=message):
        list(iterator)


def write_table(path: Path, start: int, rows: int = 40) -> None:
    table = pa.table({"x": np.arange(start, start + rows), "y": [f"{i}" for i in range(rows)]})
    pa.parquet.write_table(table, path, row_group_size=10)


def test_a_table_that_changes_while_it_is_read_is_named(server: FileServer) -> None:
    path = Path(server.folder, "table.parquet")
    write_table(path, 0)
    iterator = iter(Dataset.from_parquet(f"{server.url}/table.parquet").shuffle(40, seed=1))
    next(iterator)
    write_table(path, 1)
    with pytest.raises(FailedPreconditionError, match="table.parquet' has changed"):
        list(iterator)


def test_only_the_bytes_of_selected_columns_are_fetched(server: FileServer) -> None:
    path = Path(server.folder, "wide.parquet")
    columns = {name: np.random.default_rng(0).random(300_000) for name in "abc"}
    pa.parquet.write_table(
        pa.table(columns), path, row_group_size=100_000, compression=None, use_dictionary=False
    )
    dataset = Dataset.from_parquet(f"{server.url}/wide.parquet", columns=["b"]).batch(100_000)
    found = np.concatenate([batch["b"] for batch in dataset])
    np.testing.assert_array_equal(found, columns["b"])
    ends = [span.removeprefix("bytes=").split("-") for span in gets(server)]
    fetched = sum(int(stop) - int(start) + 1 for start, stop in ends)
    assert 300_000 * 8 < fetched < 300_000 * 8 + 400_000


def test_footers_are_read_at_once(server: FileServer) -> None:
    for number in range(12):
        write_table(Path(server.folder, f"part-{number:02}.parquet"), number, rows=4)
    two, arrived = threading.Event(), []

    def wait_for_another(method: str, path: str, span: str) -> str:
        arrived.append(path)
        if len(arrived) == 2:
            two.set()
        return "" if two.wait(60) else "403"

    server.fault = wait_for_another
    dataset = Dataset.from_parquet(f"{server.url}/part-{{00..11}}.parquet")
    assert [row["x"] for row in plain(list(dataset))] == [
        n + i for n in range(12) for i in range(4)
    ]


def test_the_first_footer_that_is_missing_is_the_error(server: FileServer) -> None:
    write_table(Path(server.folder, "part-0.parquet"), 0)
    with pytest.raises(NotFoundError, match="part-1.parquet' does not exist"):
        Dataset.from_parquet(f"{server.url}/part-{{0..3}}.parquet")


def test_the_window_grows_while_requests_stay_fast() -> None:
    class Clock:
        now = 0.0

        def perf_counter(self) -> float:
            return self.now

    limit = RequestLimit(None)  # type: ignore[arg-type]
    limit.is_hungry = True
    clock = Clock()
    patch = pytest.MonkeyPatch()
    patch.setattr(remote_requests, "time", clock)
    try:
        for seconds in [0.1, 0.1, 0.12, 0.15]:
            clock.now = seconds
            limit.adapt(0.0)
        assert limit.depth == 6
        clock.now = 0.3  # Requests queue in the link.
        limit.adapt(0.0)
        assert limit.depth == 6
        limit.is_hungry, clock.now = False, 0.1
        limit.adapt(0.0)
        assert limit.depth == 6
        limit.is_hungry = True
        for _ in range(100):
            limit.adapt(0.0)
        assert limit.depth == 32
    finally:
        patch.undo()
