"""`tf.io`: files, records and examples, over `penstock.io`."""

from __future__ import annotations

import base64
import re
import zlib
from typing import Any

import numpy as np

from penstock import io as plain
from penstock.element.dtypes import as_dtype
from penstock.engine.formats import files
from penstock.errors import InvalidArgumentError
from penstock.tf import gfile
from penstock.tf.csv_records import decode_csv
from penstock.tf.missing_operations import refuse_names_of_tf
from penstock.tf.operations import elementwise, map_texts, operation, texts, vector
from penstock.tf.ported_functions import unwrap, wrap
from penstock.tf.ragged_values import SparseTensor
from penstock.tf.tensor_messages import parse_tensor, serialize_tensor
from penstock.tf.values import Tensor, as_tensor, to_array

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

__getattr__ = refuse_names_of_tf("io", __all__)
