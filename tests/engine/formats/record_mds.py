"""Writes small MDS datasets with the `mosaicml-streaming` package, and what that package reads.

Run it from the repository's root with a Python that has mosaicml-streaming:

    python -m tests.engine.formats.record_mds
"""

from __future__ import annotations

import json
import pathlib
import shutil
from decimal import Decimal
from typing import Any

import numpy as np
from PIL import Image
from streaming import MDSWriter
from streaming.base.format import reader_from_json

GOLDEN = pathlib.Path(__file__).parent / "golden"
COLUMNS = {
    "id": "int",
    "small": "int8",
    "half": "float16",
    "score": "float64",
    "text": "str",
    "data": "bytes",
    "digits": "str_int",
    "ratio": "str_float",
    "price": "str_decimal",
    "facts": "json",
    "grid": "ndarray:float32:2,3",
    "ids": "ndarray:int16",
    "any": "ndarray",
    "pixels": "pil",
    "picture": "png",
}


def sample(number: int) -> dict[str, Any]:
    pixels = np.arange(2 * (number + 1) * 3, dtype=np.uint8).reshape(2, number + 1, 3)
    return {
        "id": number,
        "small": number - 5,
        "half": number / 4,
        "score": number / 3,
        "text": f"text {number} é",
        "data": bytes(range(number)),
        "digits": 10**number,
        "ratio": number / 8,
        "price": Decimal(number) / 4,
        "facts": {"n": number, "list": [number]},
        "grid": np.full((2, 3), number, np.float32),
        "ids": np.arange(number + 1, dtype=np.int16),
        "any": np.full((number + 1, 2), number, np.int64),
        "pixels": Image.fromarray(pixels),
        "picture": Image.fromarray(pixels),
    }


def plain(value: Any, encoding: str) -> Any:
    """A value as JSON can hold it; bytes as Latin-1 text."""
    if encoding == "png":
        return np.asarray(value).tolist()
    if encoding == "pil":
        return np.asarray(value).tolist()
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return str(value) if isinstance(value, Decimal) else value


def write(name: str, compression: str | None, size_limit: int | None) -> None:
    folder = GOLDEN / name
    shutil.rmtree(folder, ignore_errors=True)
    with MDSWriter(
        out=str(folder), columns=COLUMNS, compression=compression, size_limit=size_limit
    ) as writer:
        for number in range(9):
            writer.write(sample(number))


def read(name: str) -> list[dict[str, Any]]:
    index = json.loads((GOLDEN / name / "index.json").read_text())
    rows = []
    for shard in index["shards"]:
        reader = reader_from_json(str(GOLDEN / name), "", shard)
        for number in range(shard["samples"]):
            row = reader[number]
            rows.append({key: plain(row[key], COLUMNS[key]) for key in COLUMNS})
    return rows


def main() -> None:
    write("mds", None, 3000)
    write("mds-zstd", "zstd", 3000)
    (GOLDEN / "mds.json").write_text(json.dumps(read("mds")) + "\n")


if __name__ == "__main__":
    main()
