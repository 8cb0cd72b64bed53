"""Descriptions of columns: what lies in the bytes behind a message, as typed values.

A description is believed only as far as its sizes go: `decoded` tells how many bytes they come to,
which whoever holds the bytes compares before anything is made of them.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from penstock.element.dtypes import as_dtype

ALIGN = 64
"""Every buffer begins at a multiple of it."""

_CACHED = 512

Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]
Dims = Annotated[tuple[Size, ...], msgspec.Meta(max_length=64)]


class DenseColumn(msgspec.Struct, frozen=True, tag="d", array_like=True):
    """Numbers in C order, little-endian."""

    dtype: str
    shape: Dims


class TextColumn(msgspec.Struct, frozen=True, tag="t", array_like=True):
    """The lengths of the strings (int64), then their `size` bytes."""

    shape: Dims
    size: Size


class RaggedColumn(msgspec.Struct, frozen=True, tag="r", array_like=True):
    """Row splits, then the values."""

    dtype: Literal["int32", "int64"]
    rows: Size
    values: Described


class ShapesColumn(msgspec.Struct, frozen=True, tag="s", array_like=True):
    """The rank of each leaf, the dimensions of all (both int64), then all of their values."""

    rows: Size
    dims: Size
    flat: DenseColumn | TextColumn


class LeavesColumn(msgspec.Struct, frozen=True, tag="l", array_like=True):
    """Each leaf by itself."""

    leaves: tuple[Described, ...]


class EmptyColumn(msgspec.Struct, frozen=True, tag="n", array_like=True):
    """Leaves that are None: a byte for each, so that they can be counted before they are made."""

    rows: Size


Described = DenseColumn | TextColumn | RaggedColumn | ShapesColumn | LeavesColumn | EmptyColumn
Description = tuple[Described, ...]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Description)


def encoded(described: list[Described]) -> bytes:
    """A description as it travels."""
    return _encoder.encode(described)


def decoded(description: bytes) -> tuple[Description, int]:
    """The described columns, and the bytes they take; errors of many kinds where it is none."""
    return _remembered(description) if len(description) <= _CACHED else _decode(description)


def _decode(description: bytes) -> tuple[Description, int]:
    described = _decoder.decode(description)
    return described, sum(map(_size, described))


_remembered = lru_cache(maxsize=256)(_decode)  # Most chunks of a stream are described alike.


def _size(described: Described) -> int:
    match described:
        case DenseColumn(dtype, shape):
            return padded(dtype_of(dtype).itemsize * math.prod(shape))
        case TextColumn(shape, size):
            return padded(8 * math.prod(shape)) + padded(size)
        case RaggedColumn(dtype, rows, values):
            return padded(dtype_of(dtype).itemsize * (rows + 1)) + _size(values)
        case ShapesColumn(rows, dims, flat):
            return padded(8 * rows) + padded(8 * dims) + _size(flat)
        case LeavesColumn(leaves):
            return sum(map(_size, leaves))
        case EmptyColumn(rows):
            return padded(rows)


def padded(size: int) -> int:
    """A size with what is added so that the next buffer is aligned."""
    return size + -size % ALIGN


@lru_cache(maxsize=64)
def dtype_of(name: str) -> np.dtype[Any]:
    """A dtype of numbers, by its name."""
    dtype = as_dtype(name).dtype
    if dtype.hasobject or dtype.name != name:
        raise ValueError(f"{name!r} is not a type of numbers")
    return dtype
