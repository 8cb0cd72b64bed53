"""MDS, the format of MosaicML Streaming: shards of samples, and a file `index.json` about them.

    number of samples    uint32, little-endian
    places               uint32 each: where a sample begins; at last where the last one ends
    columns              JSON: their names, encodings and sizes (null for a size that varies)
    samples              the sizes of columns that vary, uint32 each; then all columns

A shard is read without its index, but only the index says which shards there are. A compressed
shard is read as a whole. Shards have no checksums that must be there, so sizes are compared.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from penstock.element import columns, nest, strings
from penstock.element.chunk import Chunk
from penstock.element.columns import Array
from penstock.element.dtypes import of_numpy, string, uint8
from penstock.element.ragged import Ragged
from penstock.element.spec import RaggedTensorSpec, TensorSpec
from penstock.engine.formats.extras import arrow, crc32c, load_extra
from penstock.engine.formats.files import join, read_small, size_of, version_of
from penstock.engine.formats.record_spans import BLOCK_BYTES, Run, SpanReader
from penstock.engine.formats.tables import RowsOnDemand, Selection
from penstock.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
)

_PACKED = {"br": "brotli", "bz2": "bz2", "gz": "gzip", "snappy": "snappy", "zstd": "zstd"}
"""The ends of the names of compressed shards."""

Columns = tuple[tuple[str, str, int | None], ...]
"""The name, the encoding and the size of each column."""


class MdsShard(NamedTuple):
    """A shard, as its index describes it."""

    path: str
    size: int
    modified: str
    footer: int
    blocks: tuple[int, ...]
    columns: Columns


def index_of(path: str) -> str:
    """The `index.json` of a folder, or of the path that names it."""
    path = path if "://" in path else os.path.abspath(path)
    return path if path.endswith("index.json") else join(path, "index.json")


def find_shards(index: str, call: str) -> list[MdsShard]:
    """The shards that an `index.json` lists; none of them is read."""
    text = read_small(index, call)
    if text is None:
        raise NotFoundError(
            f"{call}: {index!r} does not exist; name a folder that has it, or single shards"
        )
    try:
        listed = json.loads(text)["shards"]
        found = [_shard(index.removesuffix("index.json"), entry, call) for entry in listed]
    except OpError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise DataLossError(
            f"{call}: {index!r} is damaged: it does not describe the shards of MDS ({error!r:.100})"
        ) from None
    if not found:
        raise InvalidArgumentError(f"{call}: {index!r} lists no shards")
    return found


def _shard(folder: str, entry: Any, call: str) -> MdsShard:
    if (entry["version"], entry["format"]) != (2, "mds"):
        raise ValueError(f"version {entry['version']} of the format {entry['format']!r}")
    stored = entry["raw_data"]
    is_there = "://" not in folder and os.path.exists(join(folder, stored["basename"]))
    if entry["zip_data"] and not is_there:
        stored = entry["zip_data"]
    path, size, modified = join(folder, stored["basename"]), _count(stored, "bytes"), ""
    if "://" not in path:
        version = version_of(path, call)
        modified = version.modified
        if version.size != size:
            raise FailedPreconditionError(
                f"{call}: {path!r} has {version.size} bytes, but its index.json says {size}; "
                "it is not complete, or was written again"
            )
    columns = _columns(entry)
    samples = _count(entry, "samples")
    blocks = _divide(samples, 0 if packing_of(path) else size)
    return MdsShard(path, size, modified, _footer(samples, columns), blocks, columns)


def _count(entry: Any, name: str) -> int:
    if not isinstance(count := entry[name], int) or count < 0:
        raise ValueError(f"{name} is {count!r}")
    return count


def _columns(entry: Any) -> Columns:
    names, encodings = entry["column_names"], entry["column_encodings"]
    return tuple(zip(names, encodings, entry["column_sizes"], strict=True))


def _footer(samples: int, columns: Columns) -> int:
    return crc32c(repr((samples, columns)).encode())


def _divide(samples: int, size: int) -> tuple[int, ...]:
    """Blocks of as many samples as each other, or one less; one block of a compressed shard."""
    count = min(max(-(-size // BLOCK_BYTES), 1), max(samples, 1))
    return tuple(np.diff(np.arange(count + 1) * samples // count).tolist()) if samples else ()


def packing_of(path: str) -> str:
    """How a shard is compressed, by the end of its name; empty if it is not."""
    return _PACKED.get(path.rpartition(".")[2], "")


class MdsReader(SpanReader):
    """One shard."""

    def __init__(self, path: str, call: str) -> None:
        self._data: bytes | None = None
        """The bytes of a compressed shard, until its block is read."""
        super().__init__(path, call)
        packed = packing_of(path)
        samples = len(self._starts) - 1
        self.blocks = _divide(samples, 0 if packed else int(self._starts[-1]))
        self.footer = _footer(samples, self._described)

    def _find_starts(self) -> Array:
        try:
            return self._read_head()
        except OpError:
            raise
        except (ValueError, KeyError, TypeError, struct.error) as error:
            raise DataLossError(
                f"{self._call}: {self._path!r} is not a complete MDS shard ({error!s:.100}); it is "
                "cut short, damaged, or of another format"
            ) from None

    def _read_head(self) -> Array:
        if packing_of(self._path):
            self._data = self._inflate()
        size = self._size()
        if size < 8:
            raise ValueError(f"it has {size} bytes")
        (samples,) = struct.unpack("<I", self._bytes(0, 4))
        places = 4 * (samples + 2)
        if places > size:
            raise ValueError(f"it has no room for {samples} samples")
        starts = np.frombuffer(self._bytes(4, places), "<u4").astype(np.int64)
        if starts[0] < places or starts[-1] != size or bool(np.any(np.diff(starts) < 0)):
            raise ValueError("the places of its samples do not fit its size")
        self._described = _columns(json.loads(self._bytes(places, int(starts[0]))))
        self._columns = {name: column_of(kind, size) for name, kind, size in self._described}
        self._varying = sum(size is None for _, _, size in self._described)
        self.specs = self._describe(starts)
        return starts

    def _size(self) -> int:
        if self._data is not None:
            return len(self._data)
        if self._local is not None:
            return self._local.size
        return size_of(self._open_remote()) or 0

    def _bytes(self, start: int, stop: int) -> bytes:
        if self._data is not None:
            return self._data[start:stop]
        if self._local is not None:
            return self._local.read([(start, stop)])[0]
        return self._read_remote(start, stop)

    def _inflate(self) -> bytes:
        packed, data = packing_of(self._path), read_small(self._path, self._call) or b""
        try:
            if packed == "gzip":
                return zlib.decompress(data, wbits=31)
            if packed == "bz2":
                import bz2

                return bz2.decompress(data)
            load_extra("pyarrow", self._call)
            if packed == "snappy":
                return bytes(arrow.decompress(data, _snappy_size(data), "snappy"))
            return bytes(arrow.CompressedInputStream(arrow.BufferReader(data), packed).read())
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"it cannot be inflated: {error}") from None

    def _describe(self, starts: Array) -> dict[str, Any]:
        """The specs of the columns; the first sample shows what their encodings do not."""
        specs = {name: column.spec for name, column in self._columns.items()}
        unknown = [name for name, spec in specs.items() if spec is None]
        if unknown and len(starts) > 1:
            first = (self._bytes(int(starts[0]), int(starts[1])), starts[:2].tolist())
            values = self._split([first], tuple(unknown))
            for name in unknown:
                specs[name] = self._columns[name].describe(values[name][0])
        return {
            name: "no sample shows its dtype" if spec is None else spec
            for name, spec in specs.items()
        }

    def prefetch(self, number: int, ahead: int, selection: Selection) -> bool:
        return False if packing_of(self._path) else super().prefetch(number, ahead, selection)

    def read(self, number: int, first: int, selection: Selection) -> RowsOnDemand:
        if not packing_of(self._path):
            return super().read(number, first, selection)
        data = self._data or self._inflate()
        self._data = None
        return self._block_of_bytes(self._starts, data, 0, selection)

    def decode(self, runs: list[Run], selection: Selection) -> Chunk:
        values = self._split(runs, selection.columns)
        columns = {name: self._convert(name, values[name], runs) for name in selection.columns}
        leaves, tree = nest.flatten(columns)
        return Chunk(tree, leaves, sum(len(starts) - 1 for _, starts in runs))

    def _convert(self, name: str, values: list[bytes], runs: list[Run]) -> Any:
        column = self._columns[name]
        try:
            return column.convert(values)
        except _UNREADABLE:
            places = [start for _, starts in runs for start in starts[:-1]]
            for place, value in zip(places, values, strict=True):
                try:
                    column.convert([value])
                except _UNREADABLE as error:
                    raise self._damage(place, f"column {name!r} cannot be read: {error}") from None
            raise

    def _split(self, runs: list[Run], wanted: tuple[str, ...]) -> dict[str, list[bytes]]:
        """The bytes of each wanted column of all samples."""
        found: dict[str, list[bytes]] = {name: [] for name in wanted}
        adders = [found[name].append if name in found else None for name in self._columns]
        sizes = [size for _, _, size in self._described]
        heads = struct.Struct(f"<{self._varying}I")
        for data, starts in runs:
            for start, stop in pairwise(starts):
                at, end = start - starts[0], stop - starts[0]
                if at + heads.size > end:
                    raise self._damage(start, "it is too short for its columns")
                varying = iter(heads.unpack_from(data, at))
                at += heads.size
                for size, add in zip(sizes, adders, strict=True):
                    begin, at = at, at + (next(varying) if size is None else size)
                    if add is not None:
                        add(data[begin:at])
                if at != end:
                    raise self._damage(start, "its columns do not have the sizes that it says")
        return found

    def _damage(self, place: int, problem: str) -> DataLossError:
        return DataLossError(
            f"{self._call}: {self._path!r} has a damaged sample at byte {place}: {problem}"
        )


def _snappy_size(data: bytes) -> int:
    """The size of what was compressed, with which a block of snappy begins: seven bits a byte."""
    size = shift = 0
    for byte in data[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return size
    raise ValueError("it does not begin with its size")


# The encodings of columns: bytes of many samples to a column. A pickle is refused, because reading
# it may run any code.

_DTYPES = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    18: "float16",
    32: "uint32",
    33: "int32",
    34: "float32",
    64: "uint64",
    65: "int64",
    66: "float64",
}
"""The dtype for the first byte of an array."""

_BYTES = ("bytes", "str", "jpeg", "png", "json", "str_decimal")
"""What stays bytes, to be decoded in a `map`."""

_CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4, "CMYK": 4, "YCbCr": 3, "HSV": 3, "LA": 2}
"""The channels of an image of each mode whose channels are bytes."""


_UNREADABLE = (ValueError, OverflowError, TypeError, IndexError)
"""What converting a value raises if its bytes are not those of its encoding."""


class MdsColumn(NamedTuple):
    """How the bytes of a column become values."""

    spec: Any
    """None if only a sample shows it; a text, the reason, if it cannot be read."""
    convert: Callable[[list[bytes]], Any]
    describe: Callable[[bytes], Any] = len
    """The spec, from the bytes of a sample."""


def column_of(encoding: str, size: int | None) -> MdsColumn:
    kind, _, rest = encoding.partition(":")
    if kind in _BYTES:
        return MdsColumn(TensorSpec((), string), strings.make_column)
    if kind in ("str_int", "str_float"):
        dtype = np.dtype(np.int64 if kind == "str_int" else np.float64)
        parse = int if kind == "str_int" else float
        return MdsColumn(
            TensorSpec((), of_numpy(dtype)),
            lambda values: np.array([parse(value) for value in values], dtype),
        )
    if kind == "pil":
        return MdsColumn(
            TensorSpec((None, None, None), uint8),
            lambda values: columns.make(list(map(_decode_image, values))),
        )
    if kind == "ndarray":
        return _array_column(rest, size)
    if kind == "int" or kind in _DTYPES.values():
        return _fixed_column("int64" if kind == "int" else kind, (), size)
    reason = f"its encoding is {encoding!r}"
    if kind == "pkl":
        reason += ", and a pickle may run any code"
    return MdsColumn(reason, strings.make_column)


def _fixed_column(name: str, shape: tuple[int, ...], size: int | None) -> MdsColumn:
    if name not in _DTYPES.values():
        return MdsColumn(f"its dtype is {name!r}", strings.make_column)
    dtype = np.dtype(name).newbyteorder("<")
    if size != dtype.itemsize * int(np.prod(shape)):
        raise ValueError(f"values of {name} and shape {shape} have {size} bytes")

    def convert(values: list[bytes]) -> Any:
        found = np.frombuffer(b"".join(values), dtype).reshape(len(values), *shape)
        return found.astype(name, copy=False)

    return MdsColumn(TensorSpec(shape, of_numpy(np.dtype(name))), convert)


def _array_column(rest: str, size: int | None) -> MdsColumn:
    """`ndarray:DTYPE:SHAPE`; without a shape, or also without a dtype, each value has its own."""
    name, _, shape = rest.partition(":")
    if shape:
        return _fixed_column(name, tuple(map(int, shape.split(","))), size)

    def describe(value: bytes) -> Any:
        array = _decode_array(value, name)
        dtype = of_numpy(array.dtype)
        if array.ndim == 1:
            return RaggedTensorSpec((None,), dtype, 0)
        return TensorSpec((None,) * array.ndim, dtype)

    return MdsColumn(None, lambda values: _join([_decode_array(v, name) for v in values]), describe)


def _decode_array(value: bytes, name: str) -> Any:
    at = 0
    if not name:
        if value[0] not in _DTYPES:
            raise ValueError(f"no dtype has the number {value[0]}")
        name, at = _DTYPES[value[0]], 1
    rank, width = value[at] >> 2, 1 << (value[at] & 3)
    at += 1
    shape = np.frombuffer(value, f"<u{width}", rank, at).tolist()
    dtype = np.dtype(name).newbyteorder("<")
    return np.frombuffer(value, dtype, -1, at + rank * width).reshape(shape).astype(name)


def _join(arrays: list[Any]) -> Any:
    """Arrays of one dimension as a `Ragged`, all other arrays as they are."""
    if len({(array.ndim, array.dtype) for array in arrays}) > 1:
        raise ValueError("its arrays have different dtypes or ranks")
    if arrays[0].ndim != 1:
        return columns.make(arrays)
    return Ragged(np.concatenate(arrays), np.cumsum([0, *map(len, arrays)]))


def _decode_image(value: bytes) -> Any:
    """Width, height, the length of the mode's name, that name, the pixels."""
    width, height, length = np.frombuffer(value, "<u4", 3).tolist()
    mode = value[12 : 12 + length].decode()
    if mode not in _CHANNELS:
        raise ValueError(f"images of mode {mode!r} are not supported; store them as PNG")
    pixels = np.frombuffer(value, np.uint8, -1, 12 + length)
    return pixels.reshape(height, width, _CHANNELS[mode])
