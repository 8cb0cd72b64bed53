"""`experimental.TFRecordWriter`: writes all elements of a dataset into one file."""

from __future__ import annotations

import contextlib
from typing import Any

from penstock.data import arguments as check
from penstock.data.dataset import Dataset
from penstock.element.dtypes import string
from penstock.element.spec import TensorSpec
from penstock.engine.formats import tfrecord
from penstock.engine.formats.files import check_compression
from penstock.errors import InvalidTypeError, NotADatasetError


class RecordsWriter:
    """Writes a dataset of strings to a TFRecord file; `penstock.io.TFRecordWriter` writes records.

    Args:
        filename: Where to write; a file that exists is replaced.
        compression_type: None, "GZIP" or "ZLIB".

    >>> import os, tempfile
    >>> from penstock.data import TFRecordDataset
    >>> path = os.path.join(tempfile.mkdtemp(), "words.tfrecord")
    >>> RecordsWriter(path).write(Dataset.from_tensor_slices(["one", "two"]))
    >>> print(*TFRecordDataset(path))
    b'one' b'two'
    """

    def __init__(self, filename: Any, compression_type: str | None = None) -> None:
        where = "TFRecordWriter"
        self._path = check.path(where, "filename", filename)
        kind = compression_type
        if kind is not None:
            kind = check.text(where, "compression_type", compression_type)
        self._compression = check_compression(kind, where)

    def write(self, dataset: Dataset) -> None:
        """Writes the elements of a dataset, from the first to the last."""
        where = "TFRecordWriter.write"
        check.plan_of(where, "dataset", dataset)
        spec = dataset.element_spec
        if not isinstance(spec, TensorSpec):
            raise NotADatasetError(f"{where}: elements must be single strings, got {spec}")
        if spec.dtype != string or spec.shape.rank:
            raise InvalidTypeError(f"{where}: elements must be single strings, got {spec}")
        with (
            tfrecord.TFRecordWriter(self._path, self._compression) as writer,
            contextlib.closing(dataset._chunks()) as chunks,
        ):
            for chunk in chunks:
                for record in chunk.elements():
                    writer.write(record)
