"""The metadata of a saved dataset: one small file in its folder, which is replaced as a whole."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from penstock.element.descriptions import spec_from_json, spec_to_json
from penstock.engine.formats.blocks import VERSION, crc32c
from penstock.engine.formats.folders import join, read_small
from penstock.errors import DataLossError, FailedPreconditionError

METADATA = "snapshot.metadata"


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
    text = json.dumps(info.__dict__ | {"spec": spec, "version": VERSION}, indent=1).encode()
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
        raise DataLossError(
            f"{call}: {join(path, METADATA)!r} is damaged, or no file of penstock's ({error}); "
            "delete it, and write the dataset anew"
        ) from error


def _from_bytes(data: bytes) -> SavedInfo:
    crc, text = data[:9], data[9:]
    if b"%08x " % crc32c(text) != crc:
        raise ValueError("its checksum is wrong")
    found = json.loads(text)
    if (version := found.pop("version")) != VERSION:
        raise ValueError(f"it is of another version: format {version}, not {VERSION}")
    if not all(re.fullmatch(r"\d*", found[run]) for run in ("run", "replaced")):
        raise ValueError("a run is a number")
    spec = found["spec"] if found["spec"] is None else spec_from_json(found["spec"])
    return SavedInfo(**found | {"spec": spec, "shards": tuple(found["shards"])})
