"""TFRecord files and tar archives as tables: the places of their records are in an index.

Every read checks that the records are where the index says, so an index that does not fit the file
is an error and never other data: not every file says when it was changed last. A compressed file
has no places to go to: `refuse_compressed`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import threading
from abc import abstractmethod
from functools import lru_cache
from itertools import pairwise
from typing import Any, BinaryIO, ClassVar

import numpy as np

from penstock.element import nest, strings
from penstock.element.chunk import Chunk
from penstock.element.columns import Array
from penstock.element.dtypes import string
from penstock.element.spec import TensorSpec
from penstock.engine.formats import tar
from penstock.engine.formats.extras import crc32c
from penstock.engine.formats.files import (
    join,
    open_bytes,
    read_exactly,
    read_small,
    size_of,
    translate_errors,
    version_of,
    write_file,
)
from penstock.engine.formats.record_spans import Run, SpanReader
from penstock.engine.formats.remote_files import FileVersion
from penstock.engine.formats.tables import Selection
from penstock.engine.formats.tfrecord import (
    FOOTER,
    HEADER,
    count_undamaged,
    damaged_record,
    masked_crc,
)
from penstock.errors import DataLossError, FailedPreconditionError, InvalidArgumentError, OpError

_SCAN_BLOCK = 1 << 16
_END_MARK = bytes(1024)


def refuse_compressed(path: str, compression: str | None, call: str) -> None:
    if compression:
        raise InvalidArgumentError(
            f"{call}: {path!r} is compressed ({compression}), so no record can be read without all "
            "bytes before it, and index cannot help; leave out index, or write the file without "
            "compression"
        )


class _IndexedReader(SpanReader):
    """A file whose records are where an index in `folder` says."""

    kind: ClassVar[str]

    def __init__(self, path: str, call: str, folder: str) -> None:
        self._folder = folder or default_folder()
        digest = hashlib.sha256(os.fsencode(f"{self.kind}\n{path}")).hexdigest()[:24]
        name = path.rstrip("/").rpartition("/")[2][-80:]
        self._index = join(self._folder, f"{name}.{digest}.index")
        """Its name is that of the file, and a hash of the path of the file."""
        super().__init__(path, call)

    @abstractmethod
    def _scan(self) -> Array:
        """Reads the file; returns where each record begins, and at last where the last one ends."""

    def _find_starts(self) -> Array:
        """Where records are: from the index, or by a scan."""
        version = version_of(self._path, self._call)
        data = _UNKEPT.get(self._index) or _read_index(self._index, self._call)
        known = None if data is None else _decode_index(data, self._path, version)
        if known is not None:
            return known
        starts = self._scan()
        if version_of(self._path, self._call) != version:
            raise FailedPreconditionError(
                f"{self._call}: {self._path!r} changed while it was scanned for its index; make "
                "the dataset again when the file is complete"
            )
        _keep_index(self._index, _encode_index(starts, self._path, version), self._folder)
        return starts


class IndexedTFRecords(_IndexedReader):
    """The records of a TFRecord file."""

    kind = "tfrecord"
    specs = TensorSpec((), string)

    def _scan(self) -> Array:
        return scan_tfrecords(self._path, self._call)

    def decode(self, runs: list[Run], selection: Selection) -> Chunk:
        records: list[bytes] = []
        footers: list[bytes] = []
        for data, starts in runs:
            base = starts[0]
            for start, stop in pairwise(starts):
                at, end = start - base + HEADER, stop - base - FOOTER
                if data[at - HEADER : at] != _header(end - at):
                    raise self._misplaced_error(start)
                records.append(data[at:end])
                footers.append(data[end : end + FOOTER])
        good = count_undamaged(records, footers)
        if good < len(records):
            places = [start for _, starts in runs for start in starts[:-1]]
            problem = "the checksum of its data is wrong"
            raise damaged_record(self._call, self._path, places[good], problem)
        return Chunk(nest.LEAF, [strings.make_column(records)], len(records))

    def _misplaced_error(self, place: int) -> DataLossError:
        problem = f"its header is not as it was when {self._index!r} was written; delete that index"
        return damaged_record(self._call, self._path, place, problem)


@lru_cache(maxsize=4096)
def _header(length: int) -> bytes:
    """The header of a record of so many bytes."""
    text = length.to_bytes(8, "little", signed=True)
    return text + masked_crc(text)


def scan_tfrecords(path: str, call: str) -> Array:
    """Where the records of a TFRecord file are. The data between their headers is not checked."""
    with translate_errors(path, call), contextlib.closing(open_bytes(path, call=call)) as file:
        size = size_of(file)
        if size is None:
            raise InvalidArgumentError(
                f"{call}: the size of {path!r} is not known, so it cannot have an index; "
                "leave out index"
            )
        places = _scan_headers(file, size, path, call)
    if places[-1] > size:
        raise damaged_record(call, path, places[-2], "the file ends within it")
    return np.array(places, np.int64)


def _scan_headers(file: BinaryIO, size: int, path: str, call: str) -> list[int]:
    places, at, base, buffer = [0], 0, 0, b""
    lengths: dict[bytes, int] = {}
    block = _SCAN_BLOCK
    while at < size:
        header = buffer[at - base : at - base + HEADER]
        if len(header) < HEADER:
            buffer, base = read_exactly(file, at, min(block, size - at)), at
            header = buffer[:HEADER]
        if (length := lengths.get(header)) is None:
            length = lengths[header] = _length_of(header, path, call, at)
        at += HEADER + length + FOOTER
        # Beside long records, only their headers are read.
        block = _SCAN_BLOCK if length < _SCAN_BLOCK else HEADER
        places.append(at)
    return places


def _length_of(header: bytes, path: str, call: str, place: int) -> int:
    if len(header) < HEADER:
        raise damaged_record(call, path, place, "the file ends within it")
    if masked_crc(header[:8]) != header[8:]:
        raise damaged_record(call, path, place, "the checksum of its length is wrong")
    return int.from_bytes(header[:8], "little")


class IndexedTar(_IndexedReader):
    """The samples of a tar archive."""

    kind = "tar"

    def __init__(
        self, path: str, call: str, folder: str, fields: tuple[str, ...], is_strict: bool
    ) -> None:
        self._fields, self._is_strict = fields, is_strict
        self.specs = {name: TensorSpec((), string) for name in (tar.KEY, *fields)}
        super().__init__(path, call, folder)

    def _scan(self) -> Array:
        return tar.scan_samples(self._path)

    def decode(self, runs: list[Run], selection: Selection) -> Chunk:
        samples = [sample for run in runs for sample in self._decode_run(*run)]
        return tar.chunk_of(samples, self._fields)

    def _decode_run(self, data: bytes, starts: list[int]) -> list[dict[str, bytes]]:
        reader = _RunReader(self._path, self._fields, self._is_strict, data, starts[0])
        samples: list[dict[str, bytes]] = []
        try:
            while some := reader.read(len(starts) - 1):
                samples += some
        except DataLossError as error:
            raise self._misplaced_error(starts[0]) from error
        if reader.ends != starts[1:]:
            raise self._misplaced_error(starts[0])
        return samples

    def _misplaced_error(self, place: int) -> DataLossError:
        return DataLossError(
            f"{self._call}: {self._path!r} is damaged at byte {place}: its headers are not as they "
            f"were when {self._index!r} was written; delete that index"
        )


class _RunReader(tar.TarReader):
    """The samples in the bytes of consecutive samples, which lie at `place` of an archive."""

    def __init__(
        self, path: str, fields: tuple[str, ...], is_strict: bool, data: bytes, place: int
    ) -> None:
        super().__init__(path, fields, is_strict, compression="", position=place)
        self._data = data + _END_MARK
        self.ends: list[int] = []
        """Where each sample ended."""

    def _cut(self, limit: int) -> list[dict[str, bytes]]:
        return self._cut_samples(limit)

    def _move(self, last: tar.TarMember) -> None:
        super()._move(last)
        self.ends.append(self.position)

    def _open_file(self) -> BinaryIO:
        return io.BytesIO(self._data)


# Indexes: where each record begins, found by one scan and kept for the next program. An index is
# only a help: a file that has none, or one of another version of the file, is scanned.

_INDEX_MAGIC = b"penstock index 1\n"
_INDEX_DTYPES = ("<u4", "<u8")
"""Of the lengths of records."""

log = logging.getLogger("penstock")

_UNKEPT_LOCK = threading.Lock()
_UNKEPT: dict[str, bytes] = {}
"""Indexes that could not be written, by their paths; `_UNKEPT_LOCK` guards it."""


def default_folder() -> str:
    """The folder of indexes of this user."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "penstock", "indexes")


def _read_index(place: str, call: str) -> bytes | None:
    """The bytes of an index; None if it does not exist or cannot be read."""
    with contextlib.suppress(OpError):
        return read_small(place, call)
    return None


def _keep_index(place: str, data: bytes, folder: str) -> None:
    try:
        write_file(place, data)
    except OpError as error:
        with _UNKEPT_LOCK:
            is_first = not any(kept.startswith(folder) for kept in _UNKEPT)
            _UNKEPT[place] = data
        if is_first:
            log.warning(
                "indexes cannot be written to %r, so every program scans its files again (%s); "
                'name another folder, as in index="/data/indexes"',
                folder,
                error,
            )


def _encode_index(starts: Array, path: str, version: FileVersion) -> bytes:
    lengths = np.diff(starts, prepend=0)
    dtype = _INDEX_DTYPES[int(lengths.max()) >= 1 << 32]
    head = {**_file_facts(path, version), "dtype": dtype, "count": len(starts)}
    body = json.dumps(head).encode() + b"\n" + lengths.astype(dtype).tobytes()
    return _INDEX_MAGIC + crc32c(body).to_bytes(4, "little") + body


def _file_facts(path: str, version: FileVersion) -> dict[str, Any]:
    """What must be as it was. By whose clock a local file was changed does not matter here."""
    modified = version.modified if "://" in path else version.modified.partition(" ")[0]
    return {"path": path, "size": version.size, "modified": modified}


def _decode_index(data: bytes, path: str, version: FileVersion) -> Array | None:
    """The places in an index; None if it is damaged, or of another file or version."""
    body = data[len(_INDEX_MAGIC) + 4 :]
    if data[: len(_INDEX_MAGIC) + 4] != _INDEX_MAGIC + crc32c(body).to_bytes(4, "little"):
        return None
    text, _, lengths = body.partition(b"\n")
    head = json.loads(text)
    wanted = _file_facts(path, version)
    if {name: head.get(name) for name in wanted} != wanted or head["dtype"] not in _INDEX_DTYPES:
        return None
    found = np.frombuffer(lengths, head["dtype"])
    return np.cumsum(found, dtype=np.int64) if len(found) == head["count"] else None
