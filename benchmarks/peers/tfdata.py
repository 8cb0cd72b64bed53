"""The workloads in tf.data, iterated eagerly (its faster way here), threads as by default."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from benchmarks.peers import material
from benchmarks.peers.serve import serve

Dataset = tf.data.Dataset


def range_batch(n: int) -> Iterable[Any]:
    return Dataset.range(n).batch(1024)


def map_(n: int) -> Iterable[Any]:
    return Dataset.range(n).map(lambda x: x * x).batch(1024)


def map_batched(n: int) -> Iterable[Any]:
    return Dataset.range(n).batch(1024).map(lambda x: x * x)


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
    flat, starts, ends = (tf.constant(array) for array in material.tokens(n))
    return Dataset.range(n).map(lambda i: flat[starts[i] : ends[i]]).padded_batch(64)


PROGRAMS = {
    "range_batch": range_batch,
    "map": map_,
    "map_vectorized": map_,
    "map_vectorized_batched": map_batched,
    "filter": filter_,
    "shuffle": shuffle,
    "rows": rows,
    "images": images,
    "one_by_one": one_by_one,
    "padded_batch": padded_batch,
}

if __name__ == "__main__":
    serve(PROGRAMS, "tensorflow-cpu")
