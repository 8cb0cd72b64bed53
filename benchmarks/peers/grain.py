"""The workloads in Grain, read without threads, as its documents advise for data already in memory.

It has no padded batch by the longest row, and its window shuffle works within blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grain
from numpy.typing import NDArray

from benchmarks.peers import material
from benchmarks.peers.serve import serve

MapDataset = grain.MapDataset
IN_MEMORY = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)


class Pairs:
    """Rows of features, each with its label, as a random-access source."""

    def __init__(self, features: NDArray[Any], labels: NDArray[Any]) -> None:
        self.features, self.labels = features, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.features[index], self.labels[index]


def range_batch(n: int) -> Iterable[Any]:
    return MapDataset.range(n).batch(1024).to_iter_dataset(IN_MEMORY)


def map_(n: int) -> Iterable[Any]:
    return MapDataset.range(n).map(lambda x: x * x).batch(1024).to_iter_dataset(IN_MEMORY)


def filter_(n: int) -> Iterable[Any]:
    return MapDataset.range(n).filter(lambda x: x % 3 == 0).to_iter_dataset(IN_MEMORY).batch(1024)


def shuffle(n: int) -> Iterable[Any]:
    source = MapDataset.range(n)
    blocks = grain.experimental.WindowShuffleMapDataset(source, window_size=10_000, seed=1)
    return blocks.batch(1024).to_iter_dataset(IN_MEMORY)


def rows(n: int) -> Iterable[Any]:
    pairs = Pairs(*material.rows(n))
    return MapDataset.source(pairs).shuffle(1).batch(256).to_iter_dataset(IN_MEMORY)


def images(n: int) -> Iterable[Any]:
    return MapDataset.source(material.images(n)).shuffle(1).batch(64).to_iter_dataset(IN_MEMORY)


def one_by_one(n: int) -> Iterable[Any]:
    return MapDataset.range(n).to_iter_dataset(IN_MEMORY)


PROGRAMS = {
    "range_batch": range_batch,
    "map": map_,
    "filter": filter_,
    "shuffle": shuffle,
    "rows": rows,
    "images": images,
    "one_by_one": one_by_one,
}

if __name__ == "__main__":
    serve(PROGRAMS, "grain")
