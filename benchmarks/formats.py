"""Files to batches: penstock beside the libraries that read the same files.

`PYTHON=.venv/bin/python scripts/bench formats` measures the CPU time of each way, in turns, in one
process. A way whose package is missing is left out. Then `remote` measures files over HTTP. The
exit status is 1 if penstock misses a ratio that it owes.
"""

from __future__ import annotations

import functools
import gc
import json
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import numpy as np

from benchmarks import remote, sequences

BATCH = 1024
SUBJECT = "penstock"

Way = Callable[[str], Iterator[int]]
"""Reads a file and yields the number of rows of each batch."""


def write_numbers(path: str, rows: int) -> None:
    import pyarrow
    import pyarrow.parquet

    numbers = np.random.default_rng(0)
    columns = {f"x{i}": numbers.random(rows, np.float32) for i in range(8)}
    table = pyarrow.table(columns | {"y": numbers.integers(0, 10, rows)})
    pyarrow.parquet.write_table(table, path, row_group_size=100_000)


def write_texts(path: str, rows: int) -> None:
    import pyarrow
    import pyarrow.parquet

    texts = [f"some text of row {i}" for i in range(rows)]
    table = pyarrow.table({"id": np.arange(rows), "text": texts})
    pyarrow.parquet.write_table(table, path, row_group_size=50_000)


def write_json(path: str, rows: int) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for i in range(rows):
            row = {"id": i, "score": i / 7, "text": f"some text of row {i}", "tags": [1, 2, 3]}
            file.write(json.dumps(row) + "\n")


def penstock_parquet(path: str) -> Iterator[int]:
    from penstock.data import Dataset

    for batch in Dataset.from_parquet(path).batch(BATCH):
        yield len(next(iter(batch.values())))


def scan_parquet(path: str) -> Iterator[int]:
    """The same columns as arrays: a user of pyarrow would convert them as well."""
    import pyarrow.dataset

    for batch in pyarrow.dataset.dataset(path).to_batches(batch_size=BATCH):
        arrays = [column.to_numpy(zero_copy_only=False) for column in batch.columns]
        yield len(arrays[0])


def penstock_json(path: str) -> Iterator[int]:
    from penstock.data import Dataset

    for batch in Dataset.from_json_lines(path).batch(BATCH):
        yield len(batch["id"])


def huggingface_json(path: str) -> Iterator[int]:
    import datasets

    datasets.disable_progress_bars()
    rows = datasets.load_dataset("json", data_files=path, split="train", streaming=True)
    for batch in rows.with_format("numpy").batch(BATCH):
        yield len(batch["id"])


def python_json(path: str) -> Iterator[int]:
    with open(path, "rb") as file:
        for line in file:
            json.loads(line)
            yield 1


def huggingface_parquet(path: str) -> Iterator[int]:
    import datasets

    datasets.disable_progress_bars()
    rows = datasets.load_dataset("parquet", data_files=path, split="train", streaming=True)
    for batch in rows.with_format("numpy").batch(BATCH):
        yield len(next(iter(batch.values())))


def write_many(path: str, files: int) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"id": np.arange(10), "text": ["text"] * 10, "ids": [[1, 2]] * 10})
    folder = Path(path)
    folder.mkdir()
    pyarrow.parquet.write_table(table, folder / "0.parquet")
    content = (folder / "0.parquet").read_bytes()
    for number in range(1, files):
        (folder / f"{number}.parquet").write_bytes(content)


def penstock_many(path: str) -> Iterator[int]:
    from penstock.data import Dataset

    rows = Dataset.from_parquet(f"{path}/*.parquet")
    next(iter(rows.batch(BATCH)))
    yield len(rows) // 10


def scan_many(path: str) -> Iterator[int]:
    import pyarrow.dataset

    rows = pyarrow.dataset.dataset(path)
    next(iter(rows.to_batches(batch_size=BATCH)))
    yield rows.count_rows() // 10


def write_samples(path: str, samples: int, size: int) -> None:
    from penstock.io import TarWriter

    image = np.random.default_rng(0).bytes(size)
    with TarWriter(path) as writer:
        for number in range(samples):
            writer.write({"__key__": f"{number:06}", "jpg": image, "cls": str(number)})


def penstock_tar(path: str) -> Iterator[int]:
    from penstock.data import Dataset

    for batch in Dataset.from_tar(path).batch(64):
        yield len(batch["cls"])


def python_tar(path: str) -> Iterator[int]:
    with tarfile.open(path, "r|") as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            file.read()
            if member.name.endswith(".cls"):
                yield 1


def webdataset_tar(path: str) -> Iterator[int]:
    import webdataset

    for sample in webdataset.WebDataset(path, shardshuffle=False):
        assert sample["cls"]
        yield 1


def write_examples(path: str, rows: int) -> None:
    from penstock.io import TFRecordWriter, serialize_example

    values = np.random.default_rng(0).random((rows, 220)).astype(np.float32)
    with TFRecordWriter(path) as writer:
        for number in range(rows):
            feature = {"x": values[number], "y": [number], "name": [b"row %d" % number]}
            writer.write(serialize_example(feature))


def penstock_records(path: str) -> Iterator[int]:
    from penstock.data import TFRecordDataset

    for batch in TFRecordDataset(path).batch(BATCH):
        yield len(batch)


def tensorflow_records(path: str) -> Iterator[int]:
    import tensorflow

    for batch in tensorflow.data.TFRecordDataset(path).batch(BATCH).as_numpy_iterator():
        yield len(batch)


def penstock_examples(path: str) -> Iterator[int]:
    from penstock import io
    from penstock.data import TFRecordDataset

    features = {
        "x": io.FixedLenFeature([220], "float32"),
        "y": io.FixedLenFeature([], "int64"),
        "name": io.FixedLenFeature([], "string"),
    }
    records = TFRecordDataset(path).batch(BATCH)
    for batch in records.map(lambda serialized: io.parse_example(serialized, features)):
        yield len(batch["y"])


def tensorflow_examples(path: str) -> Iterator[int]:
    import tensorflow as tf

    features = {
        "x": tf.io.FixedLenFeature([220], tf.float32),
        "y": tf.io.FixedLenFeature([], tf.int64),
        "name": tf.io.FixedLenFeature([], tf.string),
    }
    records = tf.data.TFRecordDataset(path).batch(BATCH)
    parsed = records.map(lambda serialized: tf.io.parse_example(serialized, features))
    for batch in parsed.as_numpy_iterator():
        yield len(batch["y"])


@dataclass(frozen=True)
class Task:
    """A file of `rows` rows, the ways to read it, and the ratios that penstock owes to them."""

    write: Callable[[str, int], None]
    suffix: str
    rows: int
    ways: dict[str, Way]
    owed: dict[str, float]
    unit: str = f"rows per second of CPU time, batches of {BATCH}"
    least: float = 0
    """The rate that penstock owes, independent of other libraries."""


TASKS = {
    "numbers": Task(
        write_numbers,
        ".parquet",
        2_000_000,
        {SUBJECT: penstock_parquet, "pyarrow": scan_parquet, "datasets": huggingface_parquet},
        {"pyarrow": 0.9, "datasets": 3},
    ),
    "texts": Task(
        write_texts,
        ".parquet",
        500_000,
        {SUBJECT: penstock_parquet, "pyarrow": scan_parquet},
        {"pyarrow": 0.9},
    ),
    "json": Task(
        write_json,
        ".jsonl",
        100_000,
        {SUBJECT: penstock_json, "datasets": huggingface_json, "json.loads": python_json},
        {"datasets": 1.5},
    ),
    "many": Task(
        write_many,
        ".folder",
        10_000,
        {SUBJECT: penstock_many, "pyarrow": scan_many},
        {},
        "Parquet files per second of CPU time, from their names to the first batch",
        10_000,
    ),
    **{
        name: Task(
            functools.partial(write_samples, size=size),
            ".tar",
            count,
            {SUBJECT: penstock_tar, "webdataset": webdataset_tar, "tarfile": python_tar},
            {"webdataset": 3},
            "samples per second of CPU time",
        )
        for name, size, count in (("tar", 2_000, 40_000), ("tar-large", 100_000, 4_000))
    },
    "records": Task(
        write_examples,
        ".tfrecord",
        100_000,
        {SUBJECT: penstock_records, "tf.data": tensorflow_records},
        {"tf.data": 1.5},
    ),
    "examples": Task(
        write_examples,
        ".tfrecord",
        50_000,
        {SUBJECT: penstock_examples, "tf.data": tensorflow_examples},
        {"tf.data": 1},
    ),
    **{
        name: Task(
            sequences.write_documents,
            ".npz",
            4_000_000,
            ways,
            {"grain": 10},
            f"tokens per second of CPU time, {sequences.ROWS} rows of {sequences.LENGTH} per batch",
        )
        for name, ways in sequences.PACKING.items()
    },
    **{
        name: Task(sequences.write_rows, ".npz", 200_000, ways, {"grain": 10})
        for name, ways in sequences.MIXING.items()
    },
}


def measure(way: Way, path: str, rows: int) -> float:
    """Rows per second of CPU time."""
    gc.collect()  # Otherwise penstock could find decoded blocks of the last round.
    started = process_time()
    found = sum(way(path))
    assert found == rows, f"{found} rows of {rows}"
    return rows / (process_time() - started)


def compare(task: Task, rows: int, rounds: int) -> dict[str, float]:
    """The median rate of each way that is installed."""
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, f"rows{task.suffix}"))
        task.write(path, rows)
        for _ in range(rounds):
            for name, way in task.ways.items():
                try:
                    rates.setdefault(name, []).append(measure(way, path, rows))
                except ModuleNotFoundError as error:
                    print(f"{name}: not measured: {error}")
    return {name: median(found) for name, found in rates.items() if found}


def misses(task: Task, rates: dict[str, float]) -> list[str]:
    """The ways whose ratio penstock owes and misses; penstock itself, if it misses its rate."""
    slow = [SUBJECT] if rates[SUBJECT] < task.least else []
    return slow + [
        name
        for name, owed in task.owed.items()
        if name in rates and rates[SUBJECT] < owed * rates[name]
    ]


def table(name: str, task: Task, rates: dict[str, float]) -> str:
    lines = [f"{name}: {task.unit}"]
    for way, rate in rates.items():
        owed = f"  (owed: {task.owed[way]}x)" if way in task.owed else ""
        if way == SUBJECT and task.least:
            owed = f"  (owed: {task.least:,.0f})"
        ratio: Any = f"{rates[SUBJECT] / rate:.2f}x"
        lines.append(f"  {way:12}{rate:>14,.0f}{ratio:>9}{owed}")
    return "\n".join(lines)


def main(words: list[str]) -> int:
    quick, well = "--quick" in words, True
    chosen = [word for word in words if word in TASKS]
    for name in chosen or TASKS:
        task = TASKS[name]
        rates = compare(task, task.rows // 20 if quick else task.rows, 1 if quick else 5)
        print(table(name, task, rates), flush=True)
        well &= not misses(task, rates)
    if chosen:
        return 0 if well else 1
    shares = remote.measure(8 if quick else 100, 1 if quick else 2)
    print(remote.table(shares), flush=True)
    well &= quick or not remote.misses(shares)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
