"""Saved datasets: a folder with elements in Arrow IPC files, by shards, and their metadata.

    snapshot.metadata                  the spec, the run, its shards and counts
    dataset_spec.json                  the spec again
    <run>/<number>.shard/<n>.snapshot  the elements of one shard: see `chunks`

The metadata is replaced as a whole, and file readers read only files that it names; `runs` writes
both. The names are TensorFlow's, the content of the files is not.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from penstock.element.chunk import Chunk
from penstock.element.descriptions import spec_from_json, spec_to_json
from penstock.engine.fitting import fit_chunk
from penstock.engine.formats.checked_files import check_packing
from penstock.engine.formats.chunks import read_chunks
from penstock.engine.formats.folders import join, read_small
from penstock.engine.formats.framing import crc32c
from penstock.errors import DataLossError, FailedPreconditionError, NotFoundError

METADATA = "snapshot.metadata"
_SPEC_OF_TENSORFLOW = "dataset_spec.pb"

_VERSION = 3
"""Of the metadata, and of the files. In version 2, the files are those of `blocks`."""

_READABLE = (2, _VERSION)

_POLL = 0.1
"""Seconds between two checks whether a dataset was saved."""

_WARN = 5.0
"""Seconds after which waiting for it is reported."""

log = logging.getLogger("penstock")


@dataclass(frozen=True)
class SavedInfo:
    """A saved dataset: its spec, its shards (files, relative to the folder) and its length.

    `run` is the folder of its files, `replaced` the folder of the run before it, if there was one.
    """

    spec: Any
    shards: tuple[str, ...]
    count: int
    compression: str | None = None
    run: str = ""
    replaced: str = ""


def to_bytes(info: SavedInfo) -> bytes:
    spec = None if info.spec is None else spec_to_json(info.spec)
    text = json.dumps(info.__dict__ | {"spec": spec, "version": _VERSION}, indent=1).encode()
    return b"%08x %b" % (crc32c(text), text)


def find(path: str, call: str) -> SavedInfo | None:
    """Reads the metadata of a folder; None if no dataset was completely saved there."""
    data = read_small(join(path, METADATA), call)
    if data is None:
        return None
    try:
        return _from_bytes(data)
    except FailedPreconditionError as error:
        raise FailedPreconditionError(f"{call}: {path!r} cannot be read: {error.message}") from None
    except (ValueError, TypeError, LookupError) as error:
        if read_small(join(path, _SPEC_OF_TENSORFLOW), call) is not None:
            raise FailedPreconditionError(
                f"{call}: TensorFlow saved {path!r}, in a format of its own; have TensorFlow write "
                "the elements as TFRecord files, and read those"
            ) from None
        raise DataLossError(
            f"{call}: {join(path, METADATA)!r} is damaged, or no file of penstock's ({error}); if "
            "it is penstock's, write the dataset anew"
        ) from error


def _from_bytes(data: bytes) -> SavedInfo:
    crc, text = data[:9], data[9:]
    if b"%08x " % crc32c(text) != crc:
        raise ValueError("its checksum is wrong")
    found = json.loads(text)
    if (version := found.pop("version")) not in _READABLE:
        raise ValueError(f"it is of another version: format {version}, not {_VERSION}")
    if not all(re.fullmatch(r"\d*", found[run]) for run in ("run", "replaced")):
        raise ValueError("a run is a number")
    spec = found["spec"] if found["spec"] is None else spec_from_json(found["spec"])
    return SavedInfo(**found | {"spec": spec, "shards": tuple(found["shards"])})


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
