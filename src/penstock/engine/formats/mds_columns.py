"""The encodings of MDS columns: bytes of many samples to a column.

A pickle is refused, because reading it may run any code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from penstock.element import columns
from penstock.element.dtypes import of_numpy, string, uint8
from penstock.element.ragged import Ragged
from penstock.element.spec import RaggedTensorSpec, TensorSpec

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
        return MdsColumn(TensorSpec((), string), _as_objects)
    if kind in ("str_int", "str_float"):
        dtype = np.dtype(np.int64 if kind == "str_int" else np.float64)
        parse = int if kind == "str_int" else float
        return MdsColumn(
            TensorSpec((), of_numpy(dtype)),
            lambda values: np.array([parse(value) for value in values], dtype),
        )
    if kind == "pil":
        return MdsColumn(TensorSpec((None, None, None), uint8), _images)
    if kind == "ndarray":
        return _array_column(rest, size)
    if kind == "int" or kind in _DTYPES.values():
        return _fixed_column("int64" if kind == "int" else kind, (), size)
    reason = f"its encoding is {encoding!r}"
    if kind == "pkl":
        reason += ", and a pickle may run any code"
    return MdsColumn(reason, _as_objects)


def _as_objects(values: list[bytes]) -> Any:
    column = np.empty(len(values), object)
    column[:] = values
    return column


def _fixed_column(name: str, shape: tuple[int, ...], size: int | None) -> MdsColumn:
    if name not in _DTYPES.values():
        return MdsColumn(f"its dtype is {name!r}", _as_objects)
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
    """Arrays of one dimension as a `Ragged`; others as they are."""
    if len({(array.ndim, array.dtype) for array in arrays}) > 1:
        raise ValueError("its arrays have different dtypes or ranks")
    if arrays[0].ndim != 1:
        return columns.make(arrays)
    return Ragged(np.concatenate(arrays), np.cumsum([0, *map(len, arrays)]))


def _images(values: list[bytes]) -> Any:
    return columns.make([_decode_image(value) for value in values])


def _decode_image(value: bytes) -> Any:
    """Width, height, the length of the mode's name, that name, the pixels."""
    width, height, length = np.frombuffer(value, "<u4", 3).tolist()
    mode = value[12 : 12 + length].decode()
    if mode not in _CHANNELS:
        raise ValueError(f"images of mode {mode!r} are not supported; store them as PNG")
    pixels = np.frombuffer(value, np.uint8, -1, 12 + length)
    return pixels.reshape(height, width, _CHANNELS[mode])
