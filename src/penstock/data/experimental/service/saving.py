"""Saving by a service: its workers write the shards of a saved dataset.

A shard may be written twice, after a worker was lost: so each attempt writes a file of its own and
renames it when it is complete. Readers see nothing before the client commits all shards.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.data import arguments as check
from penstock.data.dataset import Dataset
from penstock.data.experimental.service.remote_datasets import distribute
from penstock.data.shard_contents import ShardContent, divide_plan, read_shard
from penstock.element.dtypes import int64
from penstock.element.spec import TensorSpec
from penstock.engine.fitting import fit_chunk
from penstock.engine.formats.chunks import ChunkWriter
from penstock.engine.formats.saved import RunWriter, find
from penstock.errors import AbortedError, AlreadyExistsError, InvalidArgumentError
from penstock.plan import codec, seeds

_WHERE = "distributed_save"
_PACKING: dict[str | None, str | None] = {"AUTO": None, "SNAPPY": "GZIP"}
_SHARDS = 128
"""The largest number of shards: enough for many workers, and few enough for a folder."""


def distributed_save(
    dataset: Dataset,
    path: Any,
    data_service_address: str | tuple[str, str],
    compression: str | None = "AUTO",
) -> None:
    """Lets the workers of a service write a dataset into a folder, for `Dataset.load`.

    It returns when all shards are written. A dataset that was saved there before is an error.

    Args:
        dataset: The dataset; it must end.
        path: The folder, which all workers reach under this name.
        data_service_address: The service, as for `distribute`.
        compression: "AUTO", None or "GZIP"; "SNAPPY" means "GZIP", the only packing of files.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     distributed_save(Dataset.range(3).map(lambda x: x * x), folder, "local://1")
    ...     print(*Dataset.load(folder))
    0 1 4
    """
    plan = check.plan_of(_WHERE, "dataset", dataset)
    folder = check.path(_WHERE, "path", path)
    if not folder:
        raise InvalidArgumentError(f"{_WHERE}: path must name a folder, got {path!r}")
    folder = folder if "://" in folder else os.path.abspath(folder)
    packing = check.compression(_WHERE, _PACKING.get(compression, compression))
    if find(folder, _WHERE) is not None:
        raise AlreadyExistsError(
            f"{_WHERE}: {folder!r} has a saved dataset; save into another folder, or delete it"
        )
    contents = divide_plan(_WHERE, plan, _SHARDS)
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
        written = Dataset.range(len(contents)).map(write, output_signature=TensorSpec((), int64))
        counts = written.apply(distribute("distributed_epoch", data_service_address))
        for number, count in enumerate(counts):
            run.adopt(number, int(count))
        if not run.commit():
            raise AbortedError(
                f"{_WHERE}: another process has begun to write {folder!r}; "
                "give each process its own folder"
            )
    finally:
        run.abandon()


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
        writer = ChunkWriter(name, self.packing, _WHERE, self.spec)
        try:
            for chunk in read_shard(self.plan, self.contents[number], self.key):
                writer.write(fit_chunk(chunk, self.spec, _WHERE))
            writer.close()
        except BaseException:
            writer.abandon()
            raise
        if name != file:
            writer.rename(file)
        return np.int64(writer.count)
