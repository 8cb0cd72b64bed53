"""Saving by a service: its workers write the shards of a saved dataset.

A shard may be written twice, after a worker was lost: so each attempt writes a file of its own and
renames it when it is complete. Readers see nothing before the client commits all shards.
"""

from __future__ import annotations

import functools
import itertools
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.data import arguments as check
from penstock.data.dataset import ENVIRONMENT, Dataset
from penstock.data.experimental.service.remote_datasets import distribute
from penstock.element.chunk import Chunk
from penstock.element.dtypes import int64
from penstock.element.spec import TensorSpec
from penstock.engine.context import Context
from penstock.engine.fitting import fit_chunk
from penstock.engine.formats.chunks import ChunkWriter
from penstock.engine.formats.runs import RunWriter
from penstock.engine.lower import chunks_of
from penstock.errors import AbortedError, InvalidArgumentError
from penstock.plan import codec, nodes, seeds
from penstock.plan.nodes import INFINITE, Node, options_of
from penstock.plan.shape import ENDLESS, Form, Shape
from penstock.plan.splits import piece, shape_of

_WHERE = "distributed_save"
_SHARDS = 128
"""The largest number of shards: enough for many workers, and few enough for a folder."""


def distributed_save(
    dataset: Dataset,
    path: Any,
    dispatcher_address: str | tuple[str, str],
    compression: str | None = "AUTO",
) -> None:
    """Lets the workers of a service write a dataset into a folder, for `Dataset.load`.

    It returns when all shards are written; they replace a dataset that was saved there.

    Args:
        dataset: The dataset; it must end.
        path: The folder, which all workers reach under this name.
        dispatcher_address: The service, as for `distribute`.
        compression: "AUTO", None or "GZIP"; pass "GZIP" to `Dataset.load` as well.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     distributed_save(Dataset.range(3).map(lambda x: x * x), folder, "local://1")
    ...     print(*Dataset.load(folder))
    0 1 4
    """
    plan = check.plan_of(_WHERE, "dataset", dataset)
    folder = check.path(_WHERE, "path", path)
    folder = folder if "://" in folder else os.path.abspath(folder)
    packing = check.compression(_WHERE, None if compression == "AUTO" else compression)
    contents = _divide(plan)
    run = RunWriter(folder, compression=packing, shard=None, call=_WHERE, spec=dataset.element_spec)
    try:
        files = [run.make_shard(number) for number in range(len(contents))]
        write = ShardWriter(
            plan=codec.encode(plan),
            contents=contents,
            files=tuple(files),
            packing=packing,
            spec=dataset.element_spec,
            key=seeds.draw(),
        )
        counts = _write_shards(write, len(contents), dispatcher_address)
        for number, count in enumerate(counts):
            run.adopt(number, count)
        if not run.commit():
            raise AbortedError(
                f"{_WHERE}: another process has begun to write {folder!r}; "
                "give each process its own folder"
            )
    finally:
        run.abandon()


def _write_shards(write: ShardWriter, shards: int, service: Any) -> Iterator[int]:
    """Lets workers write every shard; yields the number of elements of each."""
    made = Dataset.range(shards).map(write, output_signature=TensorSpec((), int64))
    return map(int, made.apply(distribute("distributed_epoch", service)))


@dataclass(frozen=True)
class ShardContent:
    """The content of one shard: a range of the elements, or of the pieces, of a plan."""

    kind: Form
    start: int
    stop: int
    streams: int

    def plans(self, plan: Node) -> Iterator[Node]:
        """The plans whose elements the shard holds, in order."""
        if self.kind == Form.SPLIT:
            for stream in range(self.start, self.stop):
                yield piece(plan, Form.SPLIT, stream, self.streams)
        elif self.kind == Form.RANDOM:
            whole = piece(plan, Form.RANDOM, 0, 1)
            yield nodes.Take(nodes.Skip(whole, self.start), self.stop - self.start)
        else:
            yield piece(plan, Form.SINGLE, 0, 1)


def _divide(plan: Node) -> tuple[ShardContent, ...]:
    shape: Shape = shape_of(plan)
    if plan.cardinality == INFINITE or shape.streams == ENDLESS:
        raise InvalidArgumentError(
            f"{_WHERE}: the dataset has no end, so it is never saved; take() some of it"
        )
    total = shape.length if shape.kind == Form.RANDOM else shape.streams
    shards = min(total, _SHARDS)
    ends = [total * number // shards for number in range(shards + 1)] if shards else []
    return tuple(
        ShardContent(shape.kind, start=start, stop=stop, streams=shape.streams)
        for start, stop in itertools.pairwise(ends)
    )


@dataclass(frozen=True)
class ShardWriter:
    """A function of a shard's number that writes this shard and returns its number of elements."""

    plan: bytes
    contents: tuple[ShardContent, ...]
    files: tuple[str, ...]
    packing: str | None
    spec: Any
    key: int

    def __call__(self, number: Any) -> np.int64:
        file = self.files[number]
        # A file at a URL becomes visible only when it is complete.
        name = file if "://" in file else f"{file}.{secrets.token_hex(8)}"
        writer = ChunkWriter(name, self.packing, _WHERE)
        try:
            for chunk in self._chunks(self.contents[number]):
                writer.write(fit_chunk(chunk, self.spec, _WHERE))
            writer.close()
        except BaseException:
            writer.abandon()
            raise
        if name != file:
            os.replace(name, file)
        return np.int64(writer.count)

    def _chunks(self, content: ShardContent) -> Iterator[Chunk]:
        for plan in content.plans(_decode_plan(self.plan)):
            context = Context(ENVIRONMENT, epoch=(0,), key=self.key, options=options_of(plan))
            yield from chunks_of(plan, context)


@functools.lru_cache(maxsize=4)
def _decode_plan(plan: bytes) -> Node:
    return codec.decode(plan)
