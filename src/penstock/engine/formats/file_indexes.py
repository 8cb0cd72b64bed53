"""Indexes of files: where each record begins, found by one scan and kept for the next program.

An index is only a help: a file that has none, or one of another version of the file, is scanned.
A reader that uses an index must check that the record lies exactly there, because not every
file says when it was changed last.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.element.columns import Array
from penstock.engine.formats.files import FileVersion, version_of, write_file
from penstock.engine.formats.folders import join, read_small
from penstock.engine.formats.framing import crc32c
from penstock.errors import FailedPreconditionError, OpError

Scan = Callable[[], Array]
"""Reads a whole file; returns where each record begins, and at last where the last one ends."""

_MAGIC = b"penstock index 1\n"
_DTYPES = ("<u4", "<u8")
"""Of the lengths of records."""

log = logging.getLogger("penstock")

_lock = threading.Lock()
_unkept: dict[str, bytes] = {}
"""Indexes that could not be written, by their paths; `_lock` guards it."""


def default_folder() -> str:
    """The folder of indexes of this user."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "penstock", "indexes")


def index_path(folder: str, kind: str, path: str) -> str:
    """Where the index of a file is kept. The name is that of the file, and a hash of its path."""
    digest = hashlib.sha256(os.fsencode(f"{kind}\n{path}")).hexdigest()[:24]
    name = path.rstrip("/").rpartition("/")[2][-80:]
    return join(folder, f"{name}.{digest}.index")


def find_index(path: str, kind: str, folder: str, call: str, scan: Scan) -> Array:
    """Where the records of a file are, as `scan` returns it: from its index, or by a scan."""
    place = index_path(folder, kind, path)
    version = version_of(path, call)
    data = _unkept.get(place) or _read(place, call)
    known = None if data is None else _decode(data, path, version)
    if known is not None:
        return known
    starts = scan()
    if version_of(path, call) != version:
        raise FailedPreconditionError(
            f"{call}: {path!r} changed while it was scanned for its index; make the dataset again "
            "when the file is complete"
        )
    _keep(place, _encode(starts, path, version), folder)
    return starts


def _read(place: str, call: str) -> bytes | None:
    """An index that cannot be read is like one that does not exist."""
    with contextlib.suppress(OpError):
        return read_small(place, call)
    return None


def _keep(place: str, data: bytes, folder: str) -> None:
    try:
        write_file(place, data)
    except OpError as error:
        with _lock:
            is_first = not any(kept.startswith(folder) for kept in _unkept)
            _unkept[place] = data
        if is_first:
            log.warning(
                "indexes cannot be written to %r, so every program scans its files again (%s); "
                'name another folder, as in index="/data/indexes"',
                folder,
                error,
            )


def _encode(starts: Array, path: str, version: FileVersion) -> bytes:
    lengths = np.diff(starts, prepend=0)
    dtype = _DTYPES[int(lengths.max()) >= 1 << 32]
    head = {**_facts(path, version), "dtype": dtype, "count": len(starts)}
    body = json.dumps(head).encode() + b"\n" + lengths.astype(dtype).tobytes()
    return _MAGIC + crc32c(body).to_bytes(4, "little") + body


def _facts(path: str, version: FileVersion) -> dict[str, Any]:
    """What must be as it was. By whose clock a local file was changed does not matter here."""
    modified = version.modified if "://" in path else version.modified.partition(" ")[0]
    return {"path": path, "size": version.size, "modified": modified}


def _decode(data: bytes, path: str, version: FileVersion) -> Array | None:
    """The places in an index; None if it is damaged, or of another file or version."""
    body = data[len(_MAGIC) + 4 :]
    if not data.startswith(_MAGIC) or data[len(_MAGIC) :][:4] != crc32c(body).to_bytes(4, "little"):
        return None
    text, _, lengths = body.partition(b"\n")
    head = json.loads(text)
    wanted = _facts(path, version)
    if {name: head.get(name) for name in wanted} != wanted or head["dtype"] not in _DTYPES:
        return None
    found = np.frombuffer(lengths, head["dtype"])
    return np.cumsum(found, dtype=np.int64) if len(found) == head["count"] else None
