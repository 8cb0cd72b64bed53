"""Tar archives of samples, as WebDataset writes them: neighbouring files with one key.

The key of `shard/0001.seg.png` is `shard/0001`, its field is `seg.png`. Other members than files,
and files without an extension, are no part of a sample. An archive that ends without its end mark
was cut off, which is an error. A compressed file is read beyond the end mark, to its checksum.
"""

from __future__ import annotations

import functools
import io
import os
import re
import stat
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, BinaryIO, ClassVar, NamedTuple

import numpy as np

from penstock.element import nest, strings
from penstock.element.chunk import Chunk
from penstock.engine.formats.files import Path, translate_errors
from penstock.engine.formats.inflate import name_packing
from penstock.engine.formats.new_files import FileWriter
from penstock.engine.formats.records import BY_NAME, ParsedRecords, RecordReader
from penstock.errors import DataLossError, InvalidArgumentError, InvalidTypeError

CALL = "Dataset.from_tar"
KEY = "__key__"

_UNIT = 512
_BLOCK = 1 << 20
"""How many bytes are read at once."""

_MOST_AT_ONCE = 1 << 20
"""Samples of about so many bytes are cut at once; more would not stay in a core's cache."""

_LONG_SLICE = 16 * 1024
"""Slices of so many bytes are read singly, shorter ones together with what follows them."""

_LEAST_WINDOW, _MOST_WINDOW = 4 * 1024, 1024 * 1024

_FILES = (b"0", b"\0", b"7")
_WITHOUT_CONTENT = (b"1", b"2", b"3", b"4", b"5", b"6")
"""Links, devices, folders and pipes: nothing follows their headers, even if these state a size."""

_LONG_NAME, _EXTENDED, _SPARSE = b"L", b"x", b"S"
_OWN_SIZE = (_LONG_NAME, _EXTENDED, *_WITHOUT_CONTENT)
"""Members whose size an extended header before them does not state."""

_SPARSE_FILES = "sparse members are not supported; write the archive without --sparse"
_NAME = re.compile(rb"(?s)^((?:.*/)?[^./][^./]*)\.([^/]*)$")
_META = re.compile(rb"(?:^|/)__[^/]*__(?:$|/)")


class LocalWindow:
    """The bytes of an open local file, which are read as they are sliced.

    A long slice is read into its own memory, without another copy; the last one is kept. Short
    slices are cut from a window of the file, which grows while they follow each other closely.
    """

    def __init__(self, file: io.FileIO, size: int, path: str, call: str) -> None:
        self._file, self._number, self._size = file, file.fileno(), size
        self._path, self._call = path, call
        self._begin, self._block = 0, b""
        self._ahead = _LEAST_WINDOW
        self._last, self._last_bytes = slice(0, 0), b""

    @classmethod
    def of(cls, file: BinaryIO, path: str, call: str) -> LocalWindow | None:
        """The bytes of a file; None if it is not a plain file of this machine."""
        if not isinstance(file, io.FileIO):
            return None
        found = os.fstat(file.fileno())
        is_plain = stat.S_ISREG(found.st_mode)
        return cls(file, found.st_size, path, call) if is_plain else None

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, where: slice) -> bytes:
        start, stop = where.start, where.stop
        begin, block = self._begin, self._block
        if begin <= start and stop <= begin + len(block):
            return block[start - begin : stop - begin]
        if stop - start >= _LONG_SLICE:
            if where != self._last:
                self._last, self._last_bytes = where, self._read(start, min(stop, self._size))
            return self._last_bytes
        block, begin = self.read_window(start, stop - start)
        return block[start - begin : stop - begin]

    def read_window(self, at: int, count: int) -> tuple[bytes, int]:
        """A window with `count` bytes from `at` on, or up to the file's end; where it begins."""
        end = self._begin + len(self._block)
        if not self._begin <= at <= at + count <= end:
            follows = self._begin <= at < end + self._ahead
            self._ahead = min(2 * self._ahead, _MOST_WINDOW) if follows else _LEAST_WINDOW
            self._begin = at
            self._block = self._read(at, min(at + max(count, self._ahead), self._size))
        return self._block, self._begin

    def _read(self, start: int, stop: int) -> bytes:
        """Reads a part of the file. The system may return fewer bytes than are asked for."""
        found, at = b"", start
        try:
            while at < stop and (more := os.pread(self._number, stop - at, at)):
                found += more
                at += len(more)
        except OSError:
            with translate_errors(self._path, self._call):
                raise
        if at < stop:
            raise DataLossError(
                f"{self._call}: {self._path!r} was cut off while it was read: it ends before "
                f"byte {stop}, and had {self._size} bytes when it was opened"
            )
        return found


class TarMember(NamedTuple):
    """A file of an archive that belongs to a sample."""

    key: bytes
    field: str
    start: int
    stop: int
    content: bytes | None
    """Its bytes, if they have been read."""


class TarReader(RecordReader[dict[str, bytes]]):
    """Samples; `position` is the byte at which the first header of the next sample begins."""

    call = CALL
    packings: ClassVar = {".gz": "GZIP", ".tgz": "GZIP"}

    def __init__(
        self,
        path: Path,
        fields: tuple[str, ...] | None = None,
        is_strict: bool = False,
        compression: str | None = BY_NAME,
        buffer_size: int | None = None,
        position: int = 0,
    ) -> None:
        super().__init__(path, compression, buffer_size or _BLOCK, position)
        self._fields, self._is_strict = fields, is_strict
        self._usual: list[str] = []
        """The fields of the last sample that fitted."""
        self._window: LocalWindow | None = None
        """The whole archive, if it is a local file and not compressed."""

    @property
    def _bytes(self) -> bytes | LocalWindow:
        """What members are cut from: the archive, or the part of it in the buffer."""
        return self._buffer if self._window is None else self._window

    def _fill(self) -> None:
        if self._file is None:
            with translate_errors(self.path, self.call):
                self._file = self._open_file()
                self._window = LocalWindow.of(self._file, self.path, self.call)
            if self._window is not None:
                self._start, self._more = self.position, False
                return
        super()._fill()

    def _cut(self, limit: int) -> list[dict[str, bytes]]:
        samples = self._cut_samples(limit)
        if not samples and not self._more:
            self._check_end()
        return ParsedRecords(samples, chunk_of(samples, self._fields)) if samples else samples

    def _check_end(self) -> None:
        """Reads a compressed file to its end: the checksums are behind the end mark."""
        if self._compression and self._file is not None:
            with translate_errors(self.path, self.call):
                while self._file.read(self._block):
                    pass

    def _cut_samples(self, limit: int) -> list[dict[str, bytes]]:
        samples: list[dict[str, bytes]] = []
        for members in self._groups(limit):
            if problem := self._problem(members):
                if samples:
                    break
                raise self._skip(members, problem)
            samples.append(self._sample(members))
            self._move(members[-1])
        return samples

    def _move(self, last: TarMember) -> None:
        end = last.stop + -last.stop % _UNIT
        self.position += end - self._start
        self._start = end

    def _groups(self, limit: int) -> list[list[TarMember]]:
        """The files of up to `limit` samples that lie complete in the buffer.

        A sample is complete when the header of a file with another key is there.
        """
        groups: list[list[TarMember]] = []
        members: list[TarMember] = []
        try:
            for member in self._members():
                if members and member.key != members[0].key:
                    groups.append(members)
                    if len(groups) == limit or member.start - self._start > _MOST_AT_ONCE:
                        return groups
                    members = []
                members.append(member)
        except DataLossError:
            if not groups:
                raise
            return groups
        return [*groups, members] if members and not self._more else groups

    def _members(self) -> Iterator[TarMember]:
        """The files from the first byte that was not cut, as far as the buffer reaches."""
        at, name, size = self._start, None, None
        whole, block, begin = len(self._bytes), self._buffer, 0
        while at + _UNIT <= whole:
            header = block[at - begin : at - begin + _UNIT]
            if self._window is not None and len(header) < _UNIT:
                block, begin = self._window.read_window(at, _UNIT)
                header = block[at - begin : at - begin + _UNIT]
            if not header[0] and not header.strip(b"\0"):
                self._more = False  # The end mark: what follows is filling.
                return
            kind = header[156:157]
            start, length = at + _UNIT, self._length(header, at)
            length = length if size is None or kind in _OWN_SIZE else size
            stop = start + length
            if stop + -stop % _UNIT > whole:
                break
            if kind == _LONG_NAME:
                name = self._bytes[start:stop].rstrip(b"\0")
            elif kind == _EXTENDED:
                name, size = self._read_extended(self._bytes[start:stop], at, name)
            else:
                named = _split_name(header, name) if kind in _FILES else None
                name = size = None
                if named is not None:
                    yield TarMember(*named, start, stop, self._read_ahead(named[1], start, stop))
            at = stop + -stop % _UNIT
        if not self._more:
            where = self.position + at - self._start
            rest = "within a member" if at < whole else "without its end mark"
            raise self._damage(where, f"the archive ends {rest}; it was cut off")

    def _read_ahead(self, field: str, start: int, stop: int) -> bytes | None:
        """Reads a member of a local file together with its header: the system reads in order."""
        wanted = self._fields is None or field in self._fields
        return self._window[start:stop] if wanted and self._window is not None else None

    def _length(self, header: bytes, at: int) -> int:
        """The size of a member, after the header's checksum was checked."""
        try:
            stated = int(header[148:156].strip(b"\0 ") or b"0", 8)
            # The sum of all bytes, those of the checksum as spaces. The lower half of Adler-32 is
            # one more than the sum, modulo 65521; it takes a quarter of the time of `sum`.
            found = (zlib.adler32(header) & 0xFFFF) - 1 - sum(header[148:156]) + 8 * ord(" ")
            excess = found - stated
            if excess % 65521 and (excess - 256 * _count_high(header)) % 65521:
                raise ValueError("the checksum of a header is wrong")
            kind = header[156:157]
            if kind == _SPARSE:
                raise ValueError(_SPARSE_FILES)
            if kind in _WITHOUT_CONTENT:
                return 0
            if header[124] & 0x80:
                return int.from_bytes(header[125:136], "big")
            length = int(header[124:136].strip(b"\0 ") or b"0", 8)
            if length < 0:
                raise ValueError("a header states a negative size")
            return length
        except ValueError as error:
            raise self._damage(self.position + at - self._start, str(error)) from None

    def _read_extended(
        self, data: bytes, at: int, name: bytes | None
    ) -> tuple[bytes | None, int | None]:
        """Name and size in the records of an extended header: `LENGTH KEY=VALUE\\n`."""
        size = None
        try:
            while data:
                count = int(data[: data.index(b" ")])
                key, _, value = data[data.index(b" ") + 1 : count - 1].partition(b"=")
                if key == b"path":
                    name = value
                elif key == b"size":
                    size = int(value)
                elif key.startswith(b"GNU.sparse."):
                    raise self._damage(self.position + at - self._start, _SPARSE_FILES)
                data = data[max(count, 1) :]
        except ValueError:
            where = self.position + at - self._start
            raise self._damage(where, "an extended header is malformed") from None
        return name, size

    def _sample(self, members: list[TarMember]) -> dict[str, bytes]:
        sample: dict[str, bytes] = {KEY: members[0].key}
        for _, field, start, stop, content in members:
            if self._fields is None or field in self._fields:
                sample[field] = self._bytes[start:stop] if content is None else content
        return sample

    def _problem(self, members: list[TarMember]) -> str:
        """Why a sample does not fit; empty if it does."""
        found = [member.field for member in members]
        if found == self._usual:
            return ""
        problem = self._misfit(found)
        self._usual = self._usual if problem else found
        return problem

    def _misfit(self, found: list[str]) -> str:
        if len(set(found)) < len(found):
            twice = next(field for field in found if found.count(field) > 1)
            return f"has the field {twice!r} twice"
        if self._fields is None:
            return ""
        missing = [field for field in self._fields if field not in found]
        others = [field for field in found if field not in self._fields]
        if missing:
            return f"has no field {missing[0]!r}"
        return f"also has the field {others[0]!r}" if others and self._is_strict else ""

    def _skip(self, members: list[TarMember], problem: str) -> InvalidArgumentError:
        """The error of a sample that does not fit; the next read continues behind it."""
        fields = ", ".join(repr(member.field) for member in members)
        error = InvalidArgumentError(
            f"{CALL}: sample {members[0].key.decode(errors='replace')!r} at byte {self.position} "
            f"of {self.path!r} {problem}; it has {fields}; state the fields that all samples have, "
            'as in columns=["jpg"], or leave out such samples with ignore_errors'
        )
        self._move(members[-1])
        self._continues = True
        return error

    def _damage(self, where: int, problem: str) -> DataLossError:
        hint = "" if where or problem == _SPARSE_FILES else "; is it a tar file?"
        if not where and (name := name_packing(self._bytes[self._start : self._start + _UNIT])):
            hint = f"; it is compressed by {name}: unpack it, or name what gzip packed .tar.gz"
        return DataLossError(f"{CALL}: {self.path!r} is damaged at byte {where}: {problem}{hint}")


def _count_high(header: bytes) -> int:
    """How many bytes of a header are negative for programs that add up signed bytes."""
    octets = header[:148] + header[156:]
    return sum(octet > 0x7F for octet in octets)


def _split_name(header: bytes, name: bytes | None) -> tuple[bytes, str] | None:
    """The key and the field of a member; None if it is no part of a sample."""
    if name is None:
        name = header[:100].partition(b"\0")[0]
        if header[345] and header[257:263] == b"ustar\0":
            name = header[345:500].partition(b"\0")[0] + b"/" + name
    found = _NAME.match(name)
    if found is None or (b"__" in name and _META.search(name)):
        return None
    return found[1], _field_of(found[2])


@functools.lru_cache(1024)
def _field_of(extension: bytes) -> str:
    return extension.decode(errors="replace").lower()


def chunk_of(samples: list[dict[str, bytes]], fields: tuple[str, ...] | None) -> Chunk:
    """Samples as columns; without `fields`, those of the first sample."""
    columns = {
        field: strings.make_column([sample[field] for sample in samples])
        for field in ((KEY, *fields) if fields is not None else samples[0])
    }
    leaves, tree = nest.flatten(columns)
    return Chunk(tree, leaves, len(samples))


class _Scanner(TarReader):
    """Gives out where samples end instead of the samples."""

    def _read_ahead(self, field: str, start: int, stop: int) -> None:
        """Reads headers only."""

    def _cut(self, limit: int) -> list[Any]:
        ends = []
        for members in self._groups(limit):
            self._move(members[-1])
            ends.append(self.position)
        return ends


def scan_samples(path: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where the samples of an archive begin, and at last where the last one ends."""
    ends: list[Any] = [0]
    with closing(_Scanner(path)) as scanner:
        while some := scanner.read(1 << 20):
            ends += some
    return np.array(ends, np.int64)


def first_fields(path: str) -> tuple[str, ...] | None:
    """The fields of the first sample of an archive; None if it has no samples."""
    with closing(TarReader(path)) as reader:
        samples = reader.read(1)
    return tuple(field for field in samples[0] if field != KEY) if samples else None


class TarWriter(FileWriter):
    """Writes samples to a tar archive, as WebDataset does; an archive that exists is replaced.

    The archive appears complete when the writer is closed. A `with` block that ends with an
    exception leaves no archive.

    Args:
      path: Where to write; a local path or an fsspec URL. An archive whose name ends in `.gz` or
        `.tgz` is compressed.

    >>> import os, tempfile
    >>> from penstock.data import Dataset
    >>> path = os.path.join(tempfile.mkdtemp(), "shard-0000.tar")
    >>> with TarWriter(path) as writer:
    ...     writer.write({"__key__": "0001", "txt": "a cat", "cls": b"3"})
    >>> list(Dataset.from_tar(path))
    [{'__key__': b'0001', 'cls': b'3', 'txt': b'a cat'}]
    >>> writer = TarWriter(path)
    >>> writer.write({"__key__": "0002", "txt": "a dog"})
    >>> writer.close()
    """

    call = "TarWriter"

    def __init__(self, path: Path) -> None:
        import tarfile

        super().__init__(path)
        self._describe = tarfile.TarInfo
        mode: Any = "w|gz" if TarReader.packing_of(self._path) else "w|"
        self._tar = tarfile.open(  # noqa: SIM115 (stays open)
            fileobj=self._file, mode=mode, format=tarfile.GNU_FORMAT
        )
        self._last: bytes | None = None

    def write(self, sample: Mapping[str, Any]) -> None:
        """Adds one sample: its key under `"__key__"`, and the bytes or text of each field."""
        call = "TarWriter.write"
        self._check_open()
        key = strings.bytes_of(self._check(sample.get(KEY), KEY))
        found = _NAME.match(key + b".x")
        if found is None or found[1] != key or key == self._last:
            raise InvalidArgumentError(
                f"{call}: {KEY} must be a new name without a dot in its last part, got {key!r}"
            )
        fields = {name: self._check(value, name) for name, value in sample.items() if name != KEY}
        if not fields:
            raise InvalidArgumentError(f"{call}: sample {key!r} has no fields")
        with translate_errors(self._path, call):
            for name, value in fields.items():
                data = strings.bytes_of(value)
                member = self._describe(f"{key.decode()}.{name}")
                member.size, member.mode = len(data), 0o644
                self._tar.addfile(member, io.BytesIO(data))
        self._last = key

    def _check(self, value: Any, name: str) -> bytes | str:
        if not isinstance(value, bytes | str):
            raise InvalidTypeError(
                f"TarWriter.write: field {name!r} must be bytes or text, got {value!r:.60}; "
                "encode it first"
            )
        return value

    def _finish(self) -> None:
        with translate_errors(self._path, "TarWriter.close"):
            self._tar.close()

    def _release(self) -> None:
        self._tar.close()  # Else it would write to the file when it is dropped.
