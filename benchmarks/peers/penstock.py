"""The workloads in penstock: the subject of the measurements."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from benchmarks.distribute import REPLICAS
from benchmarks.peers import material, services
from benchmarks.peers.serve import Program, serve
from benchmarks.peers.steps import Stretch, devices
from penstock.data import Dataset
from penstock.distribute import MirroredStrategy


def range_batch(n: int) -> Iterable[Any]:
    return Dataset.range(n).batch(1024)


def map_(n: int) -> Iterable[Any]:
    return Dataset.range(n).map(lambda x: x * x).batch(1024)


def map_vectorized(n: int) -> Iterable[Any]:
    return Dataset.range(n).map(lambda x: x * x, vectorized=True).batch(1024)


def filter_(n: int) -> Iterable[Any]:
    return Dataset.range(n).filter(lambda x: x % 3 == 0).batch(1024)


def shuffle(n: int) -> Iterable[Any]:
    return Dataset.range(n).shuffle(10_000).batch(1024)


def rows(n: int) -> Iterable[Any]:
    return Dataset.from_tensor_slices(material.rows(n)).shuffle(n).batch(256)


def images(n: int) -> Iterable[Any]:
    return Dataset.from_tensor_slices(material.images(n)).shuffle(n).batch(64)


def one_by_one(n: int) -> Iterable[Any]:
    return Dataset.range(n)


def padded_batch(n: int) -> Iterable[Any]:
    flat, starts, ends = material.tokens(n)
    return Dataset.range(n).map(lambda i: flat[starts[i] : ends[i]]).padded_batch(64)


def steps(replicas: int, n: int) -> Iterable[Any]:
    rows = material.features()
    dataset = Dataset.from_tensor_slices(rows).shuffle(len(rows)).batch(256).repeat()
    strategy = MirroredStrategy(devices(replicas))
    return Stretch(strategy.experimental_distribute_dataset(dataset), n)


PROGRAMS: dict[str, Program] = {
    "range_batch": range_batch,
    "map": map_,
    "map_vectorized": map_vectorized,
    "filter": filter_,
    "shuffle": shuffle,
    "rows": rows,
    "images": images,
    "one_by_one": one_by_one,
    "padded_batch": padded_batch,
    **{f"replicas_{count}": partial(steps, count) for count in REPLICAS},
    **services.PROGRAMS,
}

if __name__ == "__main__":
    serve(PROGRAMS, "penstock")
