"""Writes the files of this folder, each with a tool of its format: `python make_golden.py`."""

import datetime
import decimal
import gzip
import json
from pathlib import Path

import datasets
import numpy as np
import PIL.Image
import polars
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet

HERE = Path(__file__).parent
COUNT = 11


def people() -> pa.Table:
    """Every type of column that elements can have."""
    rows = range(COUNT)
    tags = [["a", "bc"][: i % 3] for i in rows]
    return pa.table(
        {
            "id": pa.array(rows, pa.int64()),
            "small": pa.array([i - 5 for i in rows], pa.int8()),
            "score": pa.array([i / 4 for i in rows], pa.float32()),
            "half": pa.array([np.float16(i) for i in rows], pa.float16()),
            "even": [i % 2 == 0 for i in rows],
            "name": [f"name {i} é" for i in rows],
            "raw": pa.array([bytes([i, 0]) for i in rows], pa.large_binary()),
            "code": pa.array([b"%02d" % i for i in rows], pa.binary(2)),
            "kind": pa.array([f"kind {i % 3}" for i in rows]).dictionary_encode(),
            "box": pa.FixedSizeListArray.from_arrays(
                pa.array(np.arange(4.0 * COUNT, dtype=np.float32)), 4
            ),
            "tags": pa.array(tags, pa.list_(pa.string())),
            "paths": pa.array(
                [[[i] * (i % 2), [1, 2]] for i in rows], pa.list_(pa.list_(pa.int32()))
            ),
            "place": pa.array([{"x": i, "label": {"text": str(i)}} for i in rows]),
            "at": pa.array(
                [datetime.datetime(2020, 1, 1, 0, 0, i) for i in rows], pa.timestamp("us")
            ),
            "day": pa.array([datetime.date(2020, 1, 1 + i) for i in rows], pa.date32()),
            "price": pa.array([decimal.Decimal(i) / 4 for i in rows], pa.decimal128(6, 2)),
        }
    )


def json_rows() -> list[dict[str, object]]:
    return [
        {
            "id": i,
            "score": i / 4,
            "name": f"name {i} é",
            "even": i % 2 == 0,
            "tags": ["a"] * (i % 3),
        }
        for i in range(COUNT)
    ]


def main() -> None:
    table = people()
    plain = table.drop_columns(["half"])  # Parquet of old readers, and Polars, have no float16.
    pa.parquet.write_table(plain, HERE / "people.parquet", row_group_size=4)
    pa.parquet.write_table(
        plain, HERE / "people.zstd.parquet", row_group_size=3, compression="zstd"
    )
    polars.DataFrame(
        {"id": list(range(COUNT)), "name": [f"n{i}" for i in range(COUNT)]}
    ).write_parquet(HERE / "polars.parquet", row_group_size=4)
    with pa.ipc.new_file(HERE / "people.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    with pa.ipc.new_stream(HERE / "people.stream.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    undecoded = table.drop_columns(["kind"])
    with pa.ipc.new_stream(HERE / "plain.stream.arrow", undecoded.schema) as writer:
        writer.write_table(undecoded, max_chunksize=3)
    pa.feather.write_feather(table, str(HERE / "people.feather"), compression="lz4", chunksize=5)
    grid = np.arange(COUNT * 6, dtype=np.float32).reshape(COUNT, 2, 3)
    np.save(HERE / "grid.npy", grid)
    np.save(HERE / "columns.npy", np.asfortranarray(grid[:, 0]))
    np.save(
        HERE / "records.npy",
        np.array(
            [(i, f"é{i}", [i, i]) for i in range(COUNT)],
            [("id", "<i4"), ("name", "<U4"), ("xy", "<f8", 2)],
        ),
    )
    np.savez(
        HERE / "arrays.npz",
        x=grid,
        y=np.arange(COUNT),
        name=np.array([f"n{i}" for i in range(COUNT)]),
    )
    np.savez_compressed(HERE / "packed.npz", x=grid, y=np.arange(COUNT, dtype=">i8"))
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in json_rows()).encode()
    (HERE / "people.jsonl").write_bytes(lines)
    (HERE / "people.jsonl.gz").write_bytes(gzip.compress(lines, mtime=0))
    (HERE / "people.jsonl.zst").write_bytes(pa.compress(lines, "zstd", asbytes=True))
    datasets.Dataset.from_list(json_rows()).save_to_disk(str(HERE / "people.datasets"))
    write_animals()


def write_animals() -> None:
    """A folder of images for each class."""
    for number in range(5):
        path = HERE / "animals" / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(np.full((2, 3, 3), 10 * number, np.uint8)).save(path)


if __name__ == "__main__":
    main()
