"""Files over HTTP behind a slow link: how much of the link each reader uses.

The link has 20 ms of latency and 50 MB a second, so the CPU is not what limits. Beside it, in the
same run, `plain` reads the file with one request, which is what the link gives at most.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

LATENCY, RATE = 0.02, 50e6
OWED = 0.8
BASE = "plain"

ROOT = Path(__file__).resolve().parent.parent


def write_files(folder: Path, megabytes: int) -> None:
    """A file of each format, with about as many bytes."""
    import pyarrow
    import pyarrow.parquet

    from penstock.io import TFRecordWriter

    draw = np.random.default_rng(0)
    rows = draw.integers(0, 255, (megabytes * 100, 10_000), np.uint8)
    (folder / "plain").write_bytes(rows.tobytes())
    np.save(folder / "rows.npy", rows)
    with TFRecordWriter(folder / "rows.tfrecord") as writer:
        for row in rows:
            writer.write(row.tobytes())
    table = pyarrow.table({"x": draw.random(megabytes * 125_000)})
    pyarrow.parquet.write_table(
        table, folder / "rows.parquet", row_group_size=500_000, compression=None
    )
    with pyarrow.ipc.new_file(folder / "rows.arrow", table.schema) as file:
        file.write_table(table, max_chunksize=500_000)


def read_plain(url: str) -> Iterator[int]:
    with urllib.request.urlopen(url) as answer:
        while data := answer.read(1 << 18):
            yield len(data)


def readers() -> dict[str, tuple[str, Callable[[str], Iterable[Any]]]]:
    """By name: a file, and how to read it."""
    from penstock.data import Dataset, FixedLengthRecordDataset, TFRecordDataset

    return {
        BASE: ("plain", read_plain),
        "fixed": ("plain", lambda url: FixedLengthRecordDataset(url, 10_000).batch(64)),
        "tfrecord": ("rows.tfrecord", lambda url: TFRecordDataset(url).batch(64)),
        "npy": ("rows.npy", lambda url: Dataset.from_numpy(url).batch(64)),
        "parquet": ("rows.parquet", lambda url: Dataset.from_parquet(url).batch(50_000)),
        "arrow": ("rows.arrow", lambda url: Dataset.from_arrow(url).batch(50_000)),
    }


@contextmanager
def slow_link(folder: Path) -> Iterator[str]:
    """The URL under which a folder is served."""
    command = [sys.executable, "-m", "benchmarks.slow_link", str(folder), str(LATENCY), str(RATE)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


def drain(elements: Iterable[Any]) -> None:
    for _ in elements:
        pass


def measure(megabytes: int, rounds: int) -> dict[str, float]:
    """The best bytes per second of each reader, in turns."""
    rates: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as small:
        folder = Path(name)
        write_files(folder, megabytes)
        write_files(Path(small), 1)
        for _, (file, read) in readers().items():  # Loads what they import.
            drain(read(f"file://{small}/{file}") if file != "plain" else ())
        with slow_link(folder) as url:
            for reader, (file, read) in [*readers().items()] * rounds:
                started = perf_counter()
                drain(read(f"{url}/{file}"))
                rate = (folder / file).stat().st_size / (perf_counter() - started)
                rates[reader] = max(rate, rates.get(reader, 0.0))
    return rates


def table(rates: dict[str, float]) -> str:
    lines = [f"http: of a link with {LATENCY * 1000:.0f} ms and {RATE / 1e6:.0f} MB/s"]
    for reader, rate in rates.items():
        owed = "" if reader == BASE else f"  (owed: {OWED}x)"
        lines.append(f"  {reader:12}{rate / 1e6:>9.1f} MB/s{rate / rates[BASE]:>9.2f}x{owed}")
    return "\n".join(lines)


def misses(rates: dict[str, float]) -> list[str]:
    """The readers that use too little of the link."""
    return [reader for reader, rate in rates.items() if rate < OWED * rates[BASE]]
