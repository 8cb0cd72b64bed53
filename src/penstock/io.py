"""Files and records: what the file readers of `penstock.data` read, written and decoded."""

from typing import TYPE_CHECKING

from penstock.engine.formats.examples.features import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    VarLenFeature,
)
from penstock.engine.formats.examples.parsing import parse_example, parse_single_example
from penstock.engine.formats.examples.ragged_features import RaggedFeature
from penstock.engine.formats.examples.sequences import (
    parse_sequence_example,
    parse_single_sequence_example,
)
from penstock.engine.formats.examples.writing import serialize_example, serialize_sequence_example
from penstock.engine.formats.files import read_file, write_file
from penstock.engine.formats.image_folders import list_classes
from penstock.engine.formats.images import (
    decode_image,
    decode_jpeg,
    decode_png,
    encode_jpeg,
    encode_png,
)
from penstock.engine.formats.table_writers import ArrowWriter, ParquetWriter
from penstock.engine.formats.tar import TarWriter
from penstock.engine.formats.tfrecord import TFRecordOptions, TFRecordWriter
from penstock.missing_names import refuse_names

__all__ = [
    "TFRecordOptions",
    "TFRecordWriter",
    "ArrowWriter",
    "ParquetWriter",
    "TarWriter",
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "VarLenFeature",
    "RaggedFeature",
    "parse_example",
    "parse_single_example",
    "parse_sequence_example",
    "parse_single_sequence_example",
    "serialize_example",
    "serialize_sequence_example",
    "decode_image",
    "decode_jpeg",
    "decode_png",
    "encode_jpeg",
    "encode_png",
    "list_classes",
    "read_file",
    "write_file",
]


if not TYPE_CHECKING:  # A type checker would take any name.
    __getattr__ = refuse_names("io", __all__)
