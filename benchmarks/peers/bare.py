"""The workloads as bare NumPy loops without any overhead: the upper limit, and the right answer.

Where the workload hands a Python function single elements, the loop calls it on NumPy scalars.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import cycle, islice
from typing import Any

import numpy as np

from benchmarks.distribute import REPLICAS
from benchmarks.peers import elements, material
from benchmarks.peers.serve import Program, serve
from benchmarks.service import CONSUMERS

TARGETS = 4
"""Buffers that copies use in turn: a reader still needs one while the next one is filled."""


class Loop:
    """A generator function as something that can be iterated again and again."""

    def __init__(self, generate: Callable[[], Iterator[Any]]) -> None:
        self.generate = generate

    def __iter__(self) -> Iterator[Any]:
        return self.generate()


def spans(n: int, size: int) -> Iterator[tuple[int, int]]:
    for start in range(0, n, size):
        yield start, min(start + size, n)


def range_batch(n: int) -> Iterable[Any]:
    return Loop(lambda: (np.arange(start, end) for start, end in spans(n, 1024)))


def map_(n: int) -> Iterable[Any]:
    def square(x: Any) -> Any:
        return x * x

    def generate() -> Iterator[Any]:
        for start, end in spans(n, 1024):
            yield np.array([square(x) for x in np.arange(start, end)])

    return Loop(generate)


def map_vectorized(n: int) -> Iterable[Any]:
    def generate() -> Iterator[Any]:
        for start, end in spans(n, 1024):
            x = np.arange(start, end)
            yield x * x

    return Loop(generate)


def filter_(n: int) -> Iterable[Any]:
    def is_wanted(x: Any) -> Any:
        return x % 3 == 0

    def generate() -> Iterator[Any]:
        kept: list[Any] = []
        for start, end in spans(n, 1024):
            kept += [x for x in np.arange(start, end) if is_wanted(x)]
            if len(kept) >= 1024:
                yield np.array(kept[:1024])
                del kept[:1024]
        if kept:
            yield np.array(kept)

    return Loop(generate)


def shuffle(n: int) -> Iterable[Any]:
    def generate() -> Iterator[Any]:
        random = np.random.default_rng()
        buffer = list(range(min(n, 10_000)))
        out: list[int] = []
        for start, end in spans(n - len(buffer), 1024):
            draws = random.integers(len(buffer), size=end - start).tolist()
            fresh_ones = range(len(buffer) + start, len(buffer) + end)
            for slot, fresh in zip(draws, fresh_ones, strict=True):
                out.append(buffer[slot])
                buffer[slot] = fresh
            if len(out) >= 1024:
                yield np.array(out[:1024])
                del out[:1024]
        rest = np.array(out + random.permutation(buffer).tolist())
        yield from (rest[start:end] for start, end in spans(len(rest), 1024))

    return Loop(generate)


def rows(n: int) -> Iterable[Any]:
    features, labels = material.rows(n)

    def generate() -> Iterator[Any]:
        order = np.random.default_rng().permutation(n)
        for start, end in spans(n, 256):
            index = order[start:end]
            yield features.take(index, axis=0), labels.take(index)

    return Loop(generate)


def images(n: int) -> Iterable[Any]:
    pixels = material.images(n)

    def generate() -> Iterator[Any]:
        order = np.random.default_rng().permutation(n)
        for start, end in spans(n, 64):
            yield pixels.take(order[start:end], axis=0)

    return Loop(generate)


def one_by_one(n: int) -> Iterable[Any]:
    return Loop(lambda: iter(np.arange(n)))


def padded_batch(n: int) -> Iterable[Any]:
    flat, starts, ends = material.tokens(n)

    def generate() -> Iterator[Any]:
        for start, end in spans(n, 64):
            lists = [flat[starts[i] : ends[i]] for i in range(start, end)]
            out = np.zeros((end - start, max(map(len, lists))), flat.dtype)
            for row, values in zip(out, lists, strict=True):
                row[: len(values)] = values
            yield out

    return Loop(generate)


def packed(n: int) -> Iterable[Any]:
    flat, starts, ends = material.documents(n)
    return Loop(lambda: cut(flat[starts[i] : ends[i]] for i in np.arange(n)))


def packed_ragged(n: int) -> Iterable[Any]:
    documents = material.document_list(n)
    return Loop(lambda: cut(documents))


def cut(documents: Iterable[Any]) -> Iterator[Any]:
    """Sequences of 1025 tokens."""
    waiting: list[Any] = []
    count = 0
    for document in documents:
        waiting.append(document)
        count += len(document)
        if count >= 1025:
            joined = np.concatenate(waiting)
            end = count // 1025 * 1025
            yield from joined[:end].reshape(-1, 1025)
            waiting, count = [joined[end:]], count - end
    if count:
        yield np.concatenate(waiting)


def tfrecord(n: int) -> Iterable[Any]:
    files = material.record_files(n)

    def generate() -> Iterator[Any]:
        records: list[bytes] = []
        for file in files:
            with open(file, "rb") as opened:
                content = opened.read()
            for start in range(0, len(content), material.FRAMED):
                records.append(content[start + 12 : start + 12 + material.RECORD])
                if len(records) == 256:
                    yield np.array(records, object)
                    records = []
        if records:
            yield np.array(records, object)

    return Loop(generate)


def steps(replicas: int, n: int) -> Iterable[Any]:
    features = material.features()
    cuts = [slice(start, end) for start, end in spans(256, 256 // replicas)]

    def generate() -> Iterator[Any]:
        for _ in spans(n * 256, len(features)):
            order = np.random.default_rng().permutation(len(features))
            for start, end in spans(len(features), 256):
                batch = features.take(order[start:end], axis=0)
                yield tuple([batch[cut] for cut in cuts])

    return Loop(generate)


def transfer(name: str, n: int) -> Iterable[Any]:
    """The least cost of carrying elements: one copy into memory that is already mapped."""
    source = elements.PROGRAMS[name]()
    return copies(source, [np.empty_like(source) for _ in range(TARGETS)], n)


def transfer_shared(name: str, n: int) -> Iterable[Any]:
    """The same copy into memory that processes can share, which has small pages."""
    source = elements.PROGRAMS[name]()
    shared = (mmap.mmap(-1, max(source.nbytes, 1)) for _ in range(TARGETS))
    targets = [np.frombuffer(m, source.dtype)[: source.size].reshape(source.shape) for m in shared]
    return copies(source, targets, n)


def copies(source: Any, targets: list[Any], n: int) -> Iterable[Any]:
    for target in targets:
        np.copyto(target, source)

    def generate() -> Iterator[Any]:
        for target in islice(cycle(targets), n):
            np.copyto(target, source)
            yield target

    return Loop(generate)


def function(n: int) -> Iterable[Any]:
    def generate() -> Iterator[Any]:
        # Two batches are read before the clock starts.
        for start, end in spans(n, 16):
            yield np.array([elements.busy(x + 32) for x in range(start, end)])

    return Loop(generate)


def ones(size: int, n: int) -> Iterable[Any]:
    """Ones, for workloads that only count their elements."""
    return Loop(lambda: (np.ones(size, int) for _ in range(n)))


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
    "packed_ragged": packed_ragged,
    "tfrecord": tfrecord,
    "tfrecord_interleave": tfrecord,
    **{f"replicas_{count}": partial(steps, count) for count in REPLICAS},
    **{name: partial(transfer, name) for name in elements.PROGRAMS},
    "batches_shm_shared": partial(transfer_shared, "batches_shm"),
    "function": function,
    "sleeping": partial(ones, 1),
    "coordinated": partial(ones, CONSUMERS),
}

if __name__ == "__main__":
    serve(PROGRAMS)
