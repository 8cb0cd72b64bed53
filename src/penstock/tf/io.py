"""`tf.io`: files, records and examples, over `penstock.io`."""

from __future__ import annotations

import base64
import csv
import functools
import itertools
import re
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock import io as plain
from penstock.element.dtypes import DType, as_dtype, of_numpy
from penstock.engine.formats import files
from penstock.engine.formats.examples.reading import MalformedError, MessageCursor
from penstock.engine.formats.examples.wire import encode_length
from penstock.errors import InvalidArgumentError
from penstock.tf import gfile
from penstock.tf.missing_operations import refuse_names_of_tf
from penstock.tf.operations import elementwise, map_texts, operation, texts, vector
from penstock.tf.ported_functions import unwrap, wrap
from penstock.tf.ragged_values import SparseTensor
from penstock.tf.values import Array, Tensor, as_tensor, to_array

FixedLenFeature = plain.FixedLenFeature
FixedLenSequenceFeature = plain.FixedLenSequenceFeature
VarLenFeature = plain.VarLenFeature
RaggedFeature = plain.RaggedFeature
TFRecordOptions = plain.TFRecordOptions

__all__ = [
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "RaggedFeature",
    "TFRecordOptions",
    "TFRecordWriter",
    "VarLenFeature",
    "decode_base64",
    "decode_csv",
    "decode_bmp",
    "decode_compressed",
    "decode_gif",
    "decode_image",
    "decode_and_crop_jpeg",
    "decode_jpeg",
    "decode_png",
    "decode_raw",
    "encode_base64",
    "encode_jpeg",
    "encode_png",
    "extract_jpeg_shape",
    "gfile",
    "is_jpeg",
    "matching_files",
    "parse_example",
    "parse_sequence_example",
    "parse_single_example",
    "parse_single_sequence_example",
    "parse_tensor",
    "read_file",
    "serialize_tensor",
    "write_file",
]


class PortedRecordWriter(plain.TFRecordWriter):
    """Writes records; `write` takes bytes, and strings as tensors."""

    def __init__(self, path: Any, options: Any = None) -> None:
        super().__init__(unwrap(path), options)

    def write(self, record: Any) -> None:
        super().write(unwrap(record))


TFRecordWriter = PortedRecordWriter


def _example_result(found: dict[str, Any], features: Any) -> dict[str, Any]:
    """Tensors; of features with a varying number of values, sparse ones."""
    return {
        name: SparseTensor.of_rows(found[name])
        if isinstance(features[name], VarLenFeature)
        else wrap(found[name])
        for name in _order_names(found, features)
    }


def _order_names(found: dict[str, Any], features: Any) -> list[str]:
    """The names of features in TensorFlow's order: sparse ones, dense ones, ragged ones."""
    return sorted(found, key=lambda name: (_PLACES.get(type(features[name]), 1), name))


_PLACES: dict[type, int] = {VarLenFeature: 0, RaggedFeature: 2}


def parse_example(
    serialized: Any, features: Any, example_names: Any = None, name: str | None = None
) -> dict[str, Any]:
    """The features of a batch of serialized examples; see `penstock.io.parse_example`."""
    return _example_result(plain.parse_example(unwrap(serialized), features), features)


def parse_single_example(
    serialized: Any, features: Any, example_names: Any = None, name: str | None = None
) -> dict[str, Any]:
    """The features of one serialized example."""
    return _example_result(plain.parse_single_example(unwrap(serialized), features), features)


def parse_sequence_example(
    serialized: Any,
    context_features: Any = None,
    sequence_features: Any = None,
    example_names: Any = None,
    name: str | None = None,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The context and the sequences of serialized examples, and the lengths of the sequences."""
    found = plain.parse_sequence_example(unwrap(serialized), context_features, sequence_features)
    context, sequences, lengths = found
    return (
        _example_result(context, context_features or {}),
        _sequence_result(sequences, sequence_features),
        _sequence_result(lengths, sequence_features),
    )


def parse_single_sequence_example(
    serialized: Any,
    context_features: Any = None,
    sequence_features: Any = None,
    example_name: Any = None,
    name: str | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The context and the sequences of one serialized example."""
    context, sequences = plain.parse_single_sequence_example(
        unwrap(serialized), context_features, sequence_features
    )
    return (
        _example_result(context, context_features or {}),
        _sequence_result(sequences, sequence_features),
    )


def _sequence_result(found: dict[str, Any], features: Any) -> dict[str, Any]:
    return {name: wrap(found[name]) for name in _order_names(found, features)}


def read_file(filename: Any, name: str | None = None) -> Tensor:
    """The bytes of a file."""
    return as_tensor(plain.read_file(unwrap(filename)))


def write_file(filename: Any, contents: Any, name: str | None = None) -> None:
    """Writes a file, and the folders that it needs."""
    plain.write_file(unwrap(filename), unwrap(contents))


@operation
def matching_files(pattern: Any, name: str | None = None) -> Any:
    """The names of the files that match patterns, sorted."""
    patterns = np.atleast_1d(to_array(pattern)).tolist()
    try:
        found = sorted(files.expand(patterns, "io.matching_files"))
    except InvalidArgumentError:  # No file matches.
        found = []
    return vector([path.encode() for path in found])


def _bytes(contents: Any) -> Any:
    return to_array(contents)[()]


def decode_and_crop_jpeg(
    contents: Any, crop_window: Any, channels: int = 0, ratio: int = 1, **_: Any
) -> Tensor:
    """A part of a JPEG image; the window is its first row and column, its height and width."""
    top, left, height, width = to_array(crop_window).tolist()
    whole = decode_jpeg(contents, channels, ratio)
    if top < 0 or left < 0 or top + height > len(whole) or left + width > whole.shape[1]:
        raise InvalidArgumentError(
            f"tf.io.decode_and_crop_jpeg: the window {[top, left, height, width]} is not inside "
            f"the image of shape {whole.shape}"
        )
    return whole[top : top + height, left : left + width]


def decode_jpeg(contents: Any, channels: int = 0, ratio: int = 1, **_: Any) -> Tensor:
    """The pixels of a JPEG image."""
    return as_tensor(plain.decode_jpeg(_bytes(contents), channels, ratio))


def decode_png(contents: Any, channels: int = 0, dtype: Any = np.uint8, name: Any = None) -> Tensor:
    """The pixels of a PNG image."""
    return as_tensor(plain.decode_png(_bytes(contents), channels, dtype))


def decode_image(
    contents: Any,
    channels: int | None = None,
    dtype: Any = np.uint8,
    name: str | None = None,
    expand_animations: bool = True,
) -> Tensor:
    """The pixels of a JPEG, PNG, GIF or BMP image."""
    return as_tensor(plain.decode_image(_bytes(contents), channels or 0, dtype, expand_animations))


def decode_gif(contents: Any, name: str | None = None) -> Tensor:
    """The frames of a GIF image."""
    return as_tensor(plain.decode_image(_bytes(contents), 3, np.uint8, True))


def decode_bmp(contents: Any, channels: int = 0, name: str | None = None) -> Tensor:
    """The pixels of a BMP image."""
    return as_tensor(plain.decode_image(_bytes(contents), channels, np.uint8, False))


@operation
def extract_jpeg_shape(contents: Any, output_type: Any = np.int32, name: Any = None) -> Any:
    """The height, width and number of channels of a JPEG image."""
    return np.array(plain.decode_jpeg(_bytes(contents)).shape, as_dtype(output_type).dtype)


@operation
def decode_compressed(bytes: Any, compression_type: str = "", name: str | None = None) -> Any:
    """Strings that were compressed with GZIP or ZLIB."""
    bits = {"GZIP": 31, "ZLIB": 15}
    array = texts("io.decode_compressed", bytes)
    if not compression_type:
        return array
    if compression_type not in bits:
        raise InvalidArgumentError(
            f"tf.io.decode_compressed: must be GZIP or ZLIB, got {compression_type}"
        )
    return map_texts(
        "io.decode_compressed", array, lambda text: zlib.decompress(text, bits[compression_type])
    )


def encode_jpeg(image: Any, format: str = "", quality: int = 95, **_: Any) -> Tensor:
    """The bytes of a JPEG file."""
    return as_tensor(plain.encode_jpeg(to_array(image), quality))


def encode_png(image: Any, compression: int = -1, name: str | None = None) -> Tensor:
    """The bytes of a PNG file."""
    return as_tensor(plain.encode_png(to_array(image), compression))


@operation
def is_jpeg(contents: Any, name: str | None = None) -> Any:
    """Whether the bytes begin as those of a JPEG file."""
    return to_array(contents)[()][:3] == b"\xff\xd8\xff"


@operation
def decode_raw(
    input_bytes: Any,
    out_type: Any,
    little_endian: bool = True,
    fixed_length: int | None = None,
    name: str | None = None,
) -> Any:
    """The numbers whose bytes strings are; the strings have one length."""
    array, dtype = texts("io.decode_raw", input_bytes), as_dtype(out_type).dtype
    rows = array.ravel().tolist()
    if fixed_length is not None:
        rows = [text[:fixed_length].ljust(fixed_length, b"\0") for text in rows]
    lengths = {len(row) for row in rows} if rows else {fixed_length or 0}
    if len(lengths) > 1 or any(length % dtype.itemsize for length in lengths):
        raise InvalidArgumentError(
            f"tf.io.decode_raw: the strings have {sorted(lengths)} bytes; they must have one "
            f"length, a multiple of {dtype.itemsize}"
        )
    order = dtype if little_endian else dtype.newbyteorder(">")
    made = np.frombuffer(b"".join(rows), order).astype(dtype)
    return made.reshape(*array.shape, lengths.pop() // dtype.itemsize)


@elementwise
def encode_base64(input: Any, pad: bool = False, name: str | None = None) -> Any:
    """Strings in the alphabet of base64 that is safe in URLs."""

    def encode(text: bytes) -> bytes:
        encoded = base64.urlsafe_b64encode(text)
        return encoded if pad else encoded.rstrip(b"=")

    return map_texts("io.encode_base64", input, encode)


@elementwise
def decode_base64(input: Any, name: str | None = None) -> Any:
    """Strings from base64."""
    return map_texts("io.decode_base64", input, _decode_base64)


def _decode_base64(text: bytes) -> bytes:
    if not _BASE64.fullmatch(text) or (text.endswith(b"=") and len(text) % 4):
        raise InvalidArgumentError(f"tf.io.decode_base64: {text!r:.60} is not base64 of URLs")
    return base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))


_BASE64 = re.compile(rb"[A-Za-z0-9_-]*={0,2}")


# Lines of comma-separated values


_ENCODING = ("utf-8", "surrogateescape")


def decode_csv(
    records: Any,
    record_defaults: Sequence[Any],
    field_delim: str = ",",
    use_quote_delim: bool = True,
    na_value: str = "",
    select_cols: Sequence[int] | None = None,
    name: str | None = None,
) -> list[Tensor]:
    """The columns of lines; an empty field becomes its default.

    Args:
        records: Lines, of any shape.
        record_defaults: One for each column: a value, or an empty tensor if it is required.
        field_delim: The character between fields.
        use_quote_delim: Whether quotes protect delimiters.
        na_value: A text that counts as an empty field.
        select_cols: Which columns to read, in rising order.
    """
    if len(field_delim) != 1:
        raise InvalidArgumentError(
            f"tf.io.decode_csv: field_delim must be one character, got {field_delim!r}"
        )
    lines = texts("io.decode_csv", records)
    columns = [_default_of(number, one) for number, one in enumerate(record_defaults)]
    quoting: Any = csv.QUOTE_MINIMAL if use_quote_delim else csv.QUOTE_NONE
    decoded = [line.decode(*_ENCODING) for line in lines.ravel().tolist()]
    pattern = _pattern_of_lines(field_delim, use_quote_delim)
    for place, line in enumerate(decoded):
        if not pattern.fullmatch(line):
            raise InvalidArgumentError(
                f"tf.io.decode_csv: a field in record {place} has quotes or line breaks inside"
            )
    rows = list(csv.reader(decoded, delimiter=field_delim, quoting=quoting))
    if select_cols is not None:
        if any(after <= before for before, after in itertools.pairwise(select_cols)):
            raise InvalidArgumentError(
                f"tf.io.decode_csv: select_cols must be in rising order, got {list(select_cols)}"
            )
        rows = [_select(row, select_cols) for row in rows]
    for place, row in enumerate(rows):
        if len(row) != len(columns):
            raise InvalidArgumentError(
                f"tf.io.decode_csv: Expect {len(columns)} fields but have {len(row)} "
                f"in record {place}"
            )
    return [
        as_tensor(_read_column(number, rows, column, na_value).reshape(lines.shape))
        for number, column in enumerate(columns)
    ]


@functools.cache
def _pattern_of_lines(delimiter: str, has_quotes: bool) -> re.Pattern[str]:
    """Lines in which only fields in quotes have quotes, delimiters and line breaks inside."""
    between = re.escape(delimiter)
    field = rf"[^{between}\r\n]*"
    if has_quotes:
        field = rf'(?:"(?:[^"]|"")*"|[^"{between}\r\n]*)'
    return re.compile(rf"{field}(?:{between}{field})*")


def _select(row: list[str], columns: Sequence[int]) -> list[str]:
    if columns[-1] >= len(row):
        raise InvalidArgumentError(
            f"tf.io.decode_csv: column {columns[-1]} is selected, but a record has {len(row)}"
        )
    return [row[number] for number in columns]


def _default_of(number: int, given: Any) -> tuple[DType, Any]:
    """The dtype of a column, and what an empty field becomes; None if its fields are required."""
    if isinstance(given, DType | np.dtype | type):
        return as_dtype(given), None
    array = to_array(given)
    if array.size > 1:
        raise InvalidArgumentError(
            f"tf.io.decode_csv: a field has one default, got {given!r:.60} for {number}"
        )
    return of_numpy(array.dtype), array.ravel()[0] if array.size else None


def _read_column(
    number: int, rows: list[list[str]], column: tuple[DType, Any], empty: str
) -> Array:
    dtype, default = column
    result = np.empty(len(rows), dtype.dtype)
    with np.errstate(over="ignore"):  # A float that does not fit is infinite.
        for place, row in enumerate(rows):
            field = row[number]
            if field in ("", empty):
                if default is None:
                    raise InvalidArgumentError(
                        f"tf.io.decode_csv: Field {number} is required but missing in record "
                        f"{place}!"
                    )
                result[place] = default
                continue
            try:
                result[place] = _parse_field(field, dtype)
            except (ValueError, OverflowError):
                raise InvalidArgumentError(
                    f"tf.io.decode_csv: Field {number} in record {place} is not a valid "
                    f"{dtype.name}: {field}"
                ) from None
    return result


def _parse_field(field: str, dtype: DType) -> Any:
    if dtype.name == "string":
        return field.encode(*_ENCODING)
    return int(field) if dtype.is_integer else float(field)


# Tensors as the bytes of a `TensorProto`


# The numbers of TensorFlow's DataType.
_DTYPE_NUMBERS = {
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
_DTYPE_NAMES = {number: name for name, number in _DTYPE_NUMBERS.items()}
# The tags of the fields of TensorProto and TensorShapeProto that are used here.
_DTYPE, _SHAPE, _CONTENT, _STRING = 0x08, 0x12, 0x22, 0x42
_DIM, _SIZE = 0x12, 0x08


@operation
def serialize_tensor(tensor: Any, name: str | None = None) -> Any:
    """A tensor as bytes, which `parse_tensor` reads."""
    array = to_array(tensor)
    dtype = of_numpy(array.dtype).name
    shape = b"".join(_field(_DIM, _dimension(size)) for size in array.shape)
    head = bytes((_DTYPE,)) + encode_length(_DTYPE_NUMBERS[dtype]) + _field(_SHAPE, shape)
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
        number, shape, content, texts = _read_tensor(data)
    except MalformedError as error:
        raise InvalidArgumentError(f"tf.io.parse_tensor: cannot be read: {error}") from None
    if _DTYPE_NAMES.get(number) != wanted.name:
        raise InvalidArgumentError(
            f"tf.io.parse_tensor: the bytes hold {_DTYPE_NAMES.get(number)}, not {wanted.name}"
        )
    if wanted.name == "string":
        return vector(texts).reshape(shape)
    return np.frombuffer(content, wanted.dtype).reshape(shape).copy()


def _read_tensor(data: bytes) -> tuple[int, tuple[int, ...], bytes, list[bytes]]:
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


__getattr__ = refuse_names_of_tf("io", __all__)
