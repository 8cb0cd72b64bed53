"""Saves small datasets into this folder, as the present release writes them.

Run it from the repository's root, for a format that has no files here yet:

    python -m tests.engine.formats.recorded_saves.record blocks-2

Files of earlier formats stay: `load` and `cache` must read them forever.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from penstock.data.dataset import Dataset
from penstock.element.chunk import Chunk
from penstock.element.ragged import Ragged
from penstock.engine.formats.chunks import ChunkWriter

FOLDER = Path(__file__).parent


class Pair(NamedTuple):
    left: Any
    right: Any


def element(number: int) -> Any:
    """An element that has a leaf of each kind."""
    return {
        "number": np.int64(number),
        "small": np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3) + number,
        "complex": np.complex64(number + 2j),
        "flag": np.bool_(number % 2),
        "text": b"text " * number,
        "pair": Pair(np.arange(number, dtype=np.float32), (None, np.zeros((2, 0)))),
        "rows": Ragged.from_rows([np.arange(i, dtype=np.int16) for i in range(number + 1)]),
    }


def changing() -> list[Any]:
    """Elements whose structures and dtypes differ."""
    return [np.int32(1), np.int64(2), (np.int64(3),), b"four", np.int32(5)]


def main(name: str) -> None:
    folder = FOLDER / name
    folder.mkdir()
    dataset = Dataset.range(1, 7).map(lambda number: element(int(number)))
    shard = {"shard_func": lambda element: element["number"] % 2}
    dataset.save(folder / "plain", **shard)
    dataset.save(folder / "gzip", compression="GZIP", **shard)
    list(dataset.cache(str(folder / "cache")))
    writer = ChunkWriter(str(folder / "changing"))
    for each in changing():
        writer.write(Chunk.of([each]))
    writer.close()


if __name__ == "__main__":
    main(sys.argv[1])
