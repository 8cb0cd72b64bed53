"""NumPy files: `.npy` is one array, `.npz` an archive of arrays with as many rows.

A local file is mapped into memory. Of any other file, and of a compressed archive, a block is read.
"""

from __future__ import annotations

import ast
import contextlib
import math
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.lib import format as npy

from penstock.element import nest, strings
from penstock.element.chunk import Chunk
from penstock.element.columns import Array
from penstock.element.dtypes import of_numpy, to_native
from penstock.element.dtypes import string as string_dtype
from penstock.element.index import Index, array_of, slice_of
from penstock.element.spec import TensorSpec
from penstock.engine.formats.extras import crc32c
from penstock.engine.formats.files import (
    close_on_error,
    open_bytes,
    read_exactly,
    size_of,
    translate_errors,
)
from penstock.engine.formats.remote_files import Range, prefetch_blocks
from penstock.engine.formats.tables import Selection, TableReader
from penstock.engine.gather import MappedFiles, TakeRows
from penstock.errors import DataLossError, InvalidArgumentError, OpError

_BLOCK_BYTES = 4 << 20
"""About how many bytes of a file that is not mapped are read at once."""


class _Member(NamedTuple):
    """An array of a file: what its header says, and where its values begin."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    start: int | None
    """None if it is compressed."""

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize


class NumpyReader(TableReader):
    """Opening it reads the headers of the arrays."""

    def __init__(self, path: str, call: str) -> None:
        self._call, self._path = call, path
        self._is_mapped = "://" not in path
        self._file = open_bytes(path, call=call)
        with close_on_error(self._file), _report_damage(path, call):
            self._members = self._find_members()
            self.blocks = self._divide()
            self.specs = self._describe()
        self.footer = crc32c(repr(self._members).encode())

    def _find_members(self) -> dict[str, _Member]:
        if read_exactly(self._file, 0, min(size_of(self._file) or 0, 2)) != b"PK":
            self._file.seek(0)
            return {"": self._check(_read_header(self._file), "")}
        import zipfile

        archive = zipfile.ZipFile(self._file)
        found = {}
        for info in archive.infolist():
            with archive.open(info) as member:
                header = _read_header(member)
            start = None
            if info.compress_type == zipfile.ZIP_STORED:
                start = _data_start(self._file, info) + (header.start or 0)
            elif header.shape and header.shape[0] * header.row_bytes > info.file_size:
                raise EOFError(f"{info.filename!r} needs more bytes than it has in the archive")
            name = info.filename.removesuffix(".npy")
            found[name] = self._check(header._replace(start=start), name)
        return found

    def _check(self, member: _Member, name: str) -> _Member:
        what = f"array {name!r} of {self._path!r}" if name else repr(self._path)
        if member.dtype.hasobject:
            raise InvalidArgumentError(
                f"{self._call}: {what} has Python objects, which only a pickle could hold; "
                "save it with a dtype of numbers or strings"
            )
        if not member.shape:
            raise InvalidArgumentError(f"{self._call}: {what} is a single value and has no rows")
        size = size_of(self._file)
        if member.start is not None and size is not None:
            if member.start + member.shape[0] * member.row_bytes > size:
                raise EOFError(f"{what} needs more bytes than the file has")
        return member

    def _divide(self) -> tuple[int, ...]:
        lengths = {name: member.shape[0] for name, member in self._members.items()}
        if len(set(lengths.values())) > 1:
            raise InvalidArgumentError(
                f"{self._call}: the arrays of {self._path!r} must have the same number of rows, "
                f"got {lengths}"
            )
        rows = next(iter(lengths.values()), 0)
        if self._is_mapped or not all(map(_is_contiguous, self._members.values())):
            return (rows,) if rows else ()
        row = sum(member.row_bytes for member in self._members.values())
        size = max(1, _BLOCK_BYTES // max(row, 1))
        return tuple(min(size, rows - at) for at in range(0, rows, size))

    def _describe(self) -> Any:
        if (whole := self._members.get("")) is None:
            return {name: _spec(m.dtype, m.shape[1:]) for name, m in self._members.items()}
        if whole.dtype.names is None:
            return _spec(whole.dtype, whole.shape[1:])
        return {name: _spec(whole.dtype[name], whole.shape[1:]) for name in whole.dtype.names}

    def prefetch(self, number: int, ahead: int, selection: Selection) -> bool:
        names = [""] if "" in self._members else list(selection.columns)
        return prefetch_blocks(self._file, number, ahead, lambda block: self._ranges(block, names))

    def _ranges(self, number: int, names: list[str]) -> list[Range]:
        """Where the rows of a block are; empty if the whole file must be read."""
        if not all(map(_is_contiguous, self._members.values())):
            return []
        first = sum(self.blocks[:number])
        members = [self._members[name] for name in names]
        starts = [(member.start or 0) + first * member.row_bytes for member in members]
        sizes = [self.blocks[number] * member.row_bytes for member in members]
        return [(start, start + size) for start, size in zip(starts, sizes, strict=True) if size]

    def read(self, number: int, first: int, selection: Selection) -> ArrayBlock:
        stop = first + self.blocks[number]
        names = [""] if "" in self._members else list(selection.columns)
        with _report_damage(self._path, self._call):
            arrays = {name: self._load(name, first, stop) for name in names}
        whole = arrays.get("")
        if whole is None:
            return ArrayBlock(arrays)
        if whole.dtype.names is None:
            return ArrayBlock(whole)
        return ArrayBlock({name: whole[name] for name in selection.columns})

    def _load(self, name: str, start: int, stop: int) -> Array:
        member = self._members[name]
        order: Any = "F" if member.fortran else "C"
        if member.start is None:
            import zipfile

            with zipfile.ZipFile(self._file) as archive, archive.open(f"{name}.npy") as packed:
                array: Array = npy.read_array(packed, allow_pickle=False)
            return array[start:stop]
        if self._is_mapped and math.prod(member.shape) * member.dtype.itemsize:
            return np.memmap(
                self._path, member.dtype, "r", member.start, shape=member.shape, order=order
            )[start:stop]
        if member.fortran:
            data = read_exactly(self._file, member.start, member.shape[0] * member.row_bytes)
            return np.frombuffer(data, member.dtype).reshape(member.shape, order="F")[start:stop]
        row = member.row_bytes
        data = read_exactly(self._file, member.start + start * row, (stop - start) * row)
        return np.frombuffer(data, member.dtype).reshape(stop - start, *member.shape[1:])

    def close(self) -> None:
        self._file.close()


@contextlib.contextmanager
def _report_damage(path: str, call: str) -> Iterator[None]:
    """Damaged headers make NumPy and zipfile raise exceptions of many classes."""
    with translate_errors(path, call):
        try:
            yield
        except (OpError, OSError, MemoryError):
            raise
        except Exception as error:
            raise DataLossError(
                f"{call}: {path!r} is not a complete .npy or .npz file ({str(error)[:200]}); "
                "it is cut short, damaged, or of another format"
            ) from error


def _read_header(file: Any) -> _Member:
    """What the header of an array says; NumPy has no public function for all its versions."""
    version = npy.read_magic(file)
    width = 2 if version == (1, 0) else 4
    length = int.from_bytes(file.read(width), "little")
    text = file.read(length)
    if len(text) < length:
        raise EOFError("the header is cut short")
    return _parse_header(
        text.decode("latin1" if version < (3, 0) else "utf8"), npy.MAGIC_LEN + width + length
    )


@lru_cache(maxsize=8)
def _parse_header(text: str, start: int) -> _Member:
    """Many files have the same header, and parsing it takes most of the time of opening one."""
    header = ast.literal_eval(text)
    shape = tuple(map(int, header["shape"]))
    if any(size < 0 for size in shape):
        raise ValueError(f"the shape is {shape}")
    return _Member(shape, bool(header["fortran_order"]), npy.descr_to_dtype(header["descr"]), start)


def _data_start(file: BinaryIO, info: Any) -> int:
    """Where the bytes of a member begin; its own header says so, not the directory at the end."""
    head = read_exactly(file, info.header_offset, 30)
    name, extra = struct.unpack_from("<HH", head, 26)
    start: int = info.header_offset + 30 + name + extra
    return start


def _is_contiguous(member: _Member) -> bool:
    return member.start is not None and not member.fortran


def _spec(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """The spec of a row; a text, the reason, if elements cannot have the dtype."""
    if dtype.subdtype is not None:
        dtype, inner = dtype.subdtype
        shape = (*shape, *inner)
    if dtype.kind in "SU":
        return TensorSpec(shape, string_dtype)
    if dtype.kind in "mM":
        return TensorSpec(shape, np.int64)
    try:
        return TensorSpec(shape, of_numpy(dtype.newbyteorder("=")))
    except (TypeError, KeyError) as error:
        return f"its dtype is {dtype}: {error}"


class ArrayBlock:
    """Rows of arrays; strings and dates are converted when their rows are read."""

    def __init__(self, arrays: Any) -> None:
        columns, self._tree = nest.flatten(arrays)
        size = len(columns[0]) if columns else 0
        self._rows = Chunk(self._tree, [_as_array(column) for column in columns], size)
        self._mapped = MappedFiles(self._rows)
        mapped = all(isinstance(column, np.memmap) for column in columns)
        self.nbytes = 0 if mapped else sum(column.nbytes for column in columns)

    def rows(self, index: Index, take: TakeRows) -> Chunk:
        if isinstance(index, range) and index.step > 0:
            part = slice_of(index)
            found = Chunk(self._tree, [c[part] for c in self._rows.columns], len(index))
        else:
            found = self._mapped.gather(self._rows, array_of(index), take)
        return Chunk(self._tree, [_plain(column) for column in found.columns], len(index))


def _as_array(column: Array) -> Array:
    """A plain array; dates as numbers."""
    array = column.view(np.ndarray)
    return array.view(np.int64) if array.dtype.kind in "mM" else array


def _plain(column: Any) -> Any:
    if column.dtype.kind in "SU":
        return strings.from_array(column)
    return to_native(column)
