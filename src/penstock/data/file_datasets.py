"""Datasets of the records in files, whose names are a list or another dataset.

Each is a plan over file names: a missing or damaged file raises when iteration reaches it.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

from penstock.data import arguments as check
from penstock.data.arguments import AUTOTUNE
from penstock.data.dataset import DEFAULT_CYCLE, Dataset
from penstock.data.skipping import BadFiles
from penstock.data.table_plans import plan_tfrecords
from penstock.element.dtypes import string
from penstock.element.spec import TensorSpec
from penstock.engine.formats.files import Path
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.plan.functions import Function
from penstock.plan.nodes import FILE_DATASETS, Interleave, Node, Records, known_spec

Options = tuple[tuple[str, Any], ...]


class _RecordDataset(Dataset):
    """The records of files of one format, which has no options of its own."""

    _format: ClassVar[str]
    _skipping: ClassVar[Options] = ()
    """The options with which a file reader continues behind what `on_error="skip"` leaves out."""

    def __init__(
        self,
        filenames: Any,
        compression_type: str | None = None,
        buffer_size: int | None = None,
        num_parallel_reads: int | None = None,
        name: str | None = None,
        on_error: str = "raise",
    ) -> None:
        where = FILE_DATASETS[self._format]
        bad = BadFiles(where, on_error)
        options = reader_options(where, compression_type, buffer_size)
        plan = plan_records(
            where,
            self._format,
            filenames=filenames,
            options=(*options, *self._skipping) if bad.skips else options,
            parallel=num_parallel_reads,
        )
        super().__init__(bad.skip_in(plan))


class TextLineDataset(_RecordDataset):
    """The lines of text files, without their ends.

    Args:
        filenames: A path, a list or array of paths, or a dataset of them.
        compression_type: None, "GZIP" or "ZLIB".
        buffer_size: How many bytes to read at once.
        num_parallel_reads: How many files to read at once, a line of each in turn.
        name: Accepted and ignored.
        on_error: "raise", or "skip" to leave out what cannot be read, with a warning at the end.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "lines.txt")
    ...     _ = path.write_text("one\\ntwo\\n")
    ...     print(*TextLineDataset(path))
    b'one' b'two'
    """

    _format = "text"


class TFRecordDataset(_RecordDataset):
    """The records of TFRecord files, their checksums verified.

    Args:
        filenames: A path, a list or array of paths, or a dataset of them.
        compression_type: None, "GZIP" or "ZLIB".
        buffer_size: How many bytes to read at once.
        num_parallel_reads: How many files to read at once, a record of each in turn.
        name: Accepted and ignored.
        index: True gives random access: the dataset has a length, `ds[i]` reads one record, a
            shuffle holds no records. The files are scanned once for where their records are, and
            this index is kept in `~/.cache/penstock/indexes`, or in the folder that is given
            instead of True. Not for compressed files.
        on_error: "raise", or "skip" to leave out what cannot be read, with a warning at the end: a
            record, or the rest of a file if the length of a record is damaged. The dataset then
            has no random access. `ignore_errors` leaves out the rest of the file in both cases,
            as in TensorFlow.

    >>> import os, tempfile
    >>> from penstock.io import TFRecordWriter
    >>> folder = tempfile.mkdtemp()
    >>> path = os.path.join(folder, "x.tfrecord")
    >>> with TFRecordWriter(path) as writer:
    ...     for number in range(3):
    ...         writer.write(b"record %d" % number)
    >>> print(*TFRecordDataset(path))
    b'record 0' b'record 1' b'record 2'
    >>> TFRecordDataset(path, index=os.path.join(folder, "indexes"))[2]
    b'record 2'
    """

    _format = "tfrecord"
    _skipping = (("skips_damaged", True),)

    def __init__(
        self,
        filenames: Any,
        compression_type: str | None = None,
        buffer_size: int | None = None,
        num_parallel_reads: int | None = None,
        name: str | None = None,
        index: bool | Path = False,
        on_error: str = "raise",
    ) -> None:
        where = "TFRecordDataset"
        bad = BadFiles(where, on_error)
        plan = plan_tfrecords(where, filenames, index, compression_type, bad)
        if plan is None:
            super().__init__(
                filenames,
                compression_type=compression_type,
                buffer_size=buffer_size,
                num_parallel_reads=num_parallel_reads,
                on_error=on_error,
            )
            return
        if num_parallel_reads is not None:
            raise InvalidArgumentError(
                f"TFRecordDataset: num_parallel_reads={num_parallel_reads} takes records of "
                "several files in turn, and index reads them in order; leave out one of both"
            )
        Dataset.__init__(self, plan)


class FixedLengthRecordDataset(Dataset):
    """Records of one length, from binary files.

    Args:
        filenames: A path, a list or array of paths, or a dataset of them.
        record_bytes: The length of a record.
        header_bytes: How many bytes to leave out at the start of each file.
        footer_bytes: How many bytes to leave out at its end.
        buffer_size: How many bytes to read at once.
        compression_type: None, "GZIP" or "ZLIB".
        num_parallel_reads: How many files to read at once, a record of each in turn.
        name: Accepted and ignored.
        on_error: "raise", or "skip" to leave out what cannot be read, with a warning at the end.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "data")
    ...     _ = path.write_bytes(b"HHabcdef")
    ...     print(*FixedLengthRecordDataset(path, 3, header_bytes=2))
    b'abc' b'def'
    """

    def __init__(
        self,
        filenames: Any,
        record_bytes: int,
        header_bytes: int | None = None,
        footer_bytes: int | None = None,
        buffer_size: int | None = None,
        compression_type: str | None = None,
        num_parallel_reads: int | None = None,
        name: str | None = None,
        on_error: str = "raise",
    ) -> None:
        where = "FixedLengthRecordDataset"
        options = (
            ("record_bytes", check.integer(where, "record_bytes", record_bytes)),
            ("header_bytes", check.integer(where, "header_bytes", header_bytes or 0)),
            ("footer_bytes", check.integer(where, "footer_bytes", footer_bytes or 0)),
            *reader_options(where, compression_type, buffer_size),
        )
        plan = plan_records(
            where, "fixed", filenames=filenames, options=options, parallel=num_parallel_reads
        )
        super().__init__(BadFiles(where, on_error).skip_in(plan))


def reader_options(where: str, compression_type: Any, buffer_size: Any) -> Options:
    """The options of every file reader; opening a file checks them."""
    compression = None
    if compression_type is not None:
        compression = check.text(where, "compression_type", compression_type)
    size = None if buffer_size is None else check.integer(where, "buffer_size", buffer_size)
    return (("compression", compression), ("buffer_size", size))


def plan_records(
    where: str,
    format: str,
    filenames: Any,
    options: Options,
    parallel: Any = None,
) -> Node:
    """The plan of a file reader: file after file, or several files in turn."""
    names = plan_names(where, filenames)
    calls = check.parallelism(where, "num_parallel_reads", parallel)
    if calls is None:
        return Records(names, format, options)
    one = Function(functools.partial(one_file, format, options))
    cycle = DEFAULT_CYCLE if calls == AUTOTUNE else calls
    return Interleave(names, function=one, cycle=cycle, block=1, parallel=calls)


def one_file(format: str, options: Options, filename: bytes) -> Dataset:
    """The records of one file, for `interleave`."""
    names = check.names(format, "filename", filename)
    return Dataset(Records(names, format, options))


def plan_names(where: str, filenames: Any) -> Node:
    if not check.is_dataset(filenames):
        return check.names(where, "filenames", filenames)
    plan = check.plan_of(where, "filenames", filenames)
    spec = known_spec(plan)
    if spec is not None and not (
        isinstance(spec, TensorSpec) and spec.dtype == string and not spec.shape.rank
    ):
        raise InvalidTypeError(f"{where}: filenames must hold strings, got a dataset of {spec}")
    return plan
