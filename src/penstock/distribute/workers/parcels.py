"""Parcels: arrays between processes as rows of bytes, all of one length.

Collectives move equal shapes. A parcel is a label (what is going on, dtype, shape) and, if there is
room, the array itself; processes compare labels before anything larger moves.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.element.dtypes import as_dtype
from penstock.errors import UnimplementedError

Array = np.ndarray[Any, Any]

LABEL = struct.Struct("<16s16s?q8q")
DIMENSIONS = 8
LENGTH = 512
ROOM = LENGTH - LABEL.size


@dataclass(frozen=True)
class Parcel:
    """What a process sends: `contents` are the array's bytes, None if there was no room."""

    action: str
    dtype: str
    shape: tuple[int, ...]
    contents: bytes | None = None

    def row(self) -> Array:
        """The parcel as bytes, `LENGTH` of them."""
        sizes = self.shape + (0,) * (DIMENSIONS - len(self.shape))
        texts = self.action.encode(), self.dtype.encode()
        label = LABEL.pack(*texts, self.contents is not None, len(self.shape), *sizes)
        return np.frombuffer((label + (self.contents or b"")).ljust(LENGTH, b"\0"), np.uint8)

    @classmethod
    def of_row(cls, row: Array) -> Parcel:
        action, dtype, full, rank, *sizes = LABEL.unpack(row[: LABEL.size].tobytes())
        parcel = cls(_text(action), _text(dtype), tuple(sizes[:rank]))
        if not full:
            return parcel
        contents = row[LABEL.size :][: parcel.nbytes].tobytes()
        return cls(parcel.action, parcel.dtype, parcel.shape, contents)

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * _numpy_dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.action} of {self.dtype}{list(self.shape)}"

    def array(self, contents: bytes) -> Array:
        """The array of this label and those bytes; nobody else has its memory."""
        return np.frombuffer(contents, _numpy_dtype(self.dtype)).reshape(self.shape).copy()


def pack(action: str, array: Array, call: str) -> Parcel:
    """An array as a parcel, with the array in it if it is small."""
    check(array.dtype.name, array.shape, call)
    fits = array.nbytes <= ROOM
    return Parcel(action, array.dtype.name, array.shape, array.tobytes() if fits else None)


def check(dtype: str, shape: Sequence[int], call: str) -> None:
    """An error unless arrays of this dtype and shape can go to other processes."""
    if dtype == "object" or dtype[:3] in ("str", "byt"):
        raise UnimplementedError(
            f"{call}: strings cannot go from worker to worker; send numbers, such as their indices"
        )
    if len(shape) > DIMENSIONS:
        raise UnimplementedError(
            f"{call}: an array of {len(shape)} dimensions cannot go from worker to worker; "
            f"reshape it to at most {DIMENSIONS}"
        )


def _text(padded: bytes) -> str:
    return padded.rstrip(b"\0").decode()


def _numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(as_dtype(name).as_numpy_dtype)
