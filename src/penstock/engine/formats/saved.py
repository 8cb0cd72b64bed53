"""Saved datasets: a folder with elements in chunk files, by shards, and their metadata.

    snapshot.metadata                  the spec, the run, its shards and counts
    dataset_spec.json                  the spec again
    <run>/<number>.shard/<n>.snapshot  the elements of one shard, a chunk file

File readers read only files that `snapshot.metadata` names. The names are TensorFlow's, the content
of the files is not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from typing import Any

from penstock.element.chunk import Chunk
from penstock.engine.fitting import fit_chunk
from penstock.engine.formats.blocks import check_packing
from penstock.engine.formats.chunks import read_chunks
from penstock.engine.formats.folders import join
from penstock.engine.formats.metadata import SavedInfo, find
from penstock.engine.formats.runs import RunWriter, Shard
from penstock.errors import AbortedError, NotFoundError

_POLL = 0.1
"""Seconds between two checks whether a dataset was saved."""

_WARN = 5.0
"""Seconds after which waiting for it is reported."""

log = logging.getLogger("penstock")


def write(
    path: str, chunks: Iterable[Chunk], spec: Any, compression: str | None, shard: Shard | None
) -> None:
    """Saves elements into a folder; what was saved there before is replaced, at the very end."""
    run = RunWriter(path, compression, shard, "Dataset.save", spec)
    try:
        for chunk in chunks:
            run.write(chunk)
        if not run.commit():
            raise AbortedError(
                f"Dataset.save: another writer has begun to write {path!r} anew; "
                "give each writer its own folder"
            )
    finally:
        run.abandon()


def describe(path: str, compression: str | None = None, wait: bool = False) -> SavedInfo:
    """The metadata of a folder; NotFoundError if no dataset was completely saved there.

    With `wait`, blocks until one is saved. A wrong `compression` is noticed only when elements are
    read.
    """
    check_packing(compression, "Dataset.load")
    info = _wait_for(path) if wait else find(path, "Dataset.load")
    if info is None:
        raise NotFoundError(
            f"Dataset.load: {path!r} holds no saved dataset; write one there with Dataset.save"
        )
    return info


def _wait_for(path: str) -> SavedInfo:
    """The metadata of a folder, as soon as a dataset was saved there."""
    started = warned = time.monotonic()
    while (info := find(path, "Dataset.load")) is None:
        if (now := time.monotonic()) - warned > _WARN:
            warned = now
            log.warning("Dataset.load: waiting for %.0f s: %r is empty", now - started, path)
        time.sleep(_POLL)
    return info


def read(
    path: str, shards: Iterable[str], compression: str | None, spec: Any, call: str
) -> Iterator[Chunk]:
    """The elements of some shards, one after the other; InvalidArgumentError if `spec` is wrong."""
    for shard in shards:
        try:
            for chunk in read_chunks(join(path, shard), compression, call):
                yield fit_chunk(chunk, spec, f"{call}: {path!r}")
        except NotFoundError as error:
            raise NotFoundError(
                f"{call}: {shard!r} in {path!r} is gone; if the dataset was written anew, "
                "load it again"
            ) from error
