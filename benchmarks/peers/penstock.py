"""The workloads in penstock: the subject of the measurements."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from benchmarks.distribute import REPLICAS
from benchmarks.peers import material, services
from benchmarks.peers.serve import Program, serve
from benchmarks.peers.steps import Stretch, devices
from penstock import Ragged, TensorSpec
from penstock.data import AUTOTUNE, Dataset, TFRecordDataset
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


def packed(n: int) -> Iterable[Any]:
    flat, starts, ends = material.documents(n)
    return Dataset.range(n).map(lambda i: flat[starts[i] : ends[i]]).unbatch().batch(1025)


def packed_generator(n: int) -> Iterable[Any]:
    documents = material.document_list(n)
    spec = TensorSpec((None,), documents[0].dtype)
    return Dataset.from_generator(lambda: documents, output_signature=spec).unbatch().batch(1025)


def packed_ragged(n: int) -> Iterable[Any]:
    return (
        Dataset.from_tensor_slices(Ragged.from_rows(material.document_list(n)))
        .unbatch()
        .batch(1025)
    )


def tfrecord(n: int) -> Iterable[Any]:
    return TFRecordDataset(material.record_files(n)).batch(256)


def tfrecord_interleave(n: int) -> Iterable[Any]:
    files = Dataset.list_files(material.record_files(n), shuffle=False)
    return files.interleave(TFRecordDataset, 4, num_parallel_calls=AUTOTUNE).batch(256)


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
    "packed": packed,
    "packed_generator": packed_generator,
    "packed_ragged": packed_ragged,
    "tfrecord": tfrecord,
    "tfrecord_interleave": tfrecord_interleave,
    **{f"replicas_{count}": partial(steps, count) for count in REPLICAS},
    **services.PROGRAMS,
}

if __name__ == "__main__":
    serve(PROGRAMS, "penstock")
