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


def packed(n: int) -> Iterable[Any]:
    flat, starts, ends = (tf.constant(array) for array in material.documents(n))
    return Dataset.range(n).map(lambda i: flat[starts[i] : ends[i]]).unbatch().batch(1025)


def tfrecord(n: int) -> Iterable[Any]:
    return tf.data.TFRecordDataset(material.record_files(n)).batch(256)


def tfrecord_interleave(n: int) -> Iterable[Any]:
    files = Dataset.list_files(material.record_files(n), shuffle=False)
    many = tf.data.AUTOTUNE
    return files.interleave(tf.data.TFRecordDataset, 4, num_parallel_calls=many).batch(256)


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
    "packed": packed,
    "tfrecord": tfrecord,
    "tfrecord_interleave": tfrecord_interleave,
}

if __name__ == "__main__":
    serve(PROGRAMS, "tensorflow-cpu")
