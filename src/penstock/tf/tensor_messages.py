"""`serialize_tensor` and `parse_tensor`: arrays as the bytes of a `TensorProto`."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.element.dtypes import as_dtype, of_numpy
from penstock.engine.formats.examples.reading import MalformedError, MessageCursor
from penstock.engine.formats.examples.wire import encode_length
from penstock.errors import InvalidArgumentError
from penstock.tf.operations import operation, vector
from penstock.tf.values import to_array

# The numbers of TensorFlow's DataType.
_NUMBERS = {
    "float32": 1,
    "float64": 2,
    "int32": 3,
    "uint8": 4,
    "int16": 5,
    "int8": 6,
    "string": 7,
    "complex64": 8,
    "int64": 9,
    "bool": 10,
    "bfloat16": 14,
    "uint16": 17,
    "complex128": 18,
    "float16": 19,
    "uint32": 22,
    "uint64": 23,
}
_NAMES = {number: name for name, number in _NUMBERS.items()}
# The tags of the fields of TensorProto and TensorShapeProto that are used here.
_DTYPE, _SHAPE, _CONTENT, _STRING = 0x08, 0x12, 0x22, 0x42
_DIM, _SIZE = 0x12, 0x08


@operation
def serialize_tensor(tensor: Any, name: str | None = None) -> Any:
    """A tensor as bytes, which `parse_tensor` reads."""
    array = to_array(tensor)
    dtype = of_numpy(array.dtype).name
    shape = b"".join(_field(_DIM, _dimension(size)) for size in array.shape)
    head = bytes((_DTYPE,)) + encode_length(_NUMBERS[dtype]) + _field(_SHAPE, shape)
    if dtype == "string":
        return head + b"".join(_field(_STRING, text) for text in array.ravel().tolist())
    return head + (_field(_CONTENT, array.tobytes()) if array.size else b"")


def _field(tag: int, body: bytes) -> bytes:
    return bytes((tag,)) + encode_length(len(body)) + body


def _dimension(size: int) -> bytes:
    return bytes((_SIZE,)) + encode_length(size) if size else b""


@operation
def parse_tensor(serialized: Any, out_type: Any, name: str | None = None) -> Any:
    """The tensor that `serialize_tensor` wrote."""
    data, wanted = to_array(serialized)[()], as_dtype(out_type)
    try:
        number, shape, content, texts = _read(data)
    except MalformedError as error:
        raise InvalidArgumentError(f"tf.io.parse_tensor: cannot be read: {error}") from None
    if _NAMES.get(number) != wanted.name:
        raise InvalidArgumentError(
            f"tf.io.parse_tensor: the bytes hold {_NAMES.get(number)}, not {wanted.name}"
        )
    if wanted.name == "string":
        return vector(texts).reshape(shape)
    return np.frombuffer(content, wanted.dtype).reshape(shape).copy()


def _read(data: bytes) -> tuple[int, tuple[int, ...], bytes, list[bytes]]:
    cursor, number, content = MessageCursor(data), 0, b""
    texts: list[bytes] = []
    shape: tuple[int, ...] = ()
    while not cursor.has_ended:
        tag = cursor.peek()
        if tag not in (_DTYPE, _SHAPE, _CONTENT, _STRING):
            cursor.skip_field()
            continue
        cursor.at += 1
        if tag == _DTYPE:
            number = cursor.varint()
        elif tag == _SHAPE:
            shape = _read_shape(cursor.message())
        elif tag == _CONTENT:
            content = cursor.message()
        else:
            texts.append(cursor.message())
    return number, shape, content, texts


def _read_shape(data: bytes) -> tuple[int, ...]:
    cursor, sizes = MessageCursor(data), []
    while not cursor.has_ended:
        cursor.expect(_DIM, "a dimension")
        inner = MessageCursor(cursor.message())
        size = 0
        while not inner.has_ended:
            inner.expect(_SIZE, "the size of a dimension")
            size = inner.varint()
        sizes.append(size)
    return tuple(sizes)
