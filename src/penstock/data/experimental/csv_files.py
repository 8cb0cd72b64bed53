"""CSV files: rows as tuples (`CsvDataset`), or as batches of named columns (`make_csv_dataset`)."""

from __future__ import annotations

import codecs
import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import numpy as np

from penstock.data import arguments as check
from penstock.data.dataset import Dataset
from penstock.data.experimental.example_datasets import split_label, take_turns
from penstock.data.file_datasets import plan_records, reader_options
from penstock.data.skipping import BadFiles
from penstock.element.dtypes import DType, as_dtype
from penstock.element.spec import TensorSpec
from penstock.engine.formats import files, open_reader
from penstock.engine.formats.csv import ENCODING, check_delimiter
from penstock.engine.formats.files import check_compression
from penstock.errors import InvalidArgumentError, UnfitTypeError

_LOG = logging.getLogger("penstock")

_KINDS = ("int32", "int64", "float32", "float64", "string")


class CsvDataset(Dataset):
    """The rows of CSV files, as tuples.

    Args:
        filenames: A path, a list or array of paths, or a dataset of them.
        record_defaults: One per column: a dtype for a required column, a value (or a list of
            one) to take where a field is empty.
        compression_type: None, "GZIP" or "ZLIB".
        buffer_size: How many bytes to read at once.
        header: Whether the first line of each file is left out.
        field_delim: The separator of fields.
        use_quote_delim: Whether double quotes may enclose a field.
        na_value: A text that means an empty field.
        select_cols: The columns to read, by number, in order.
        exclude_cols: The columns not to read, by number.
        name: Accepted and ignored.
        on_error: "raise", or "skip" to leave out what cannot be read, with a warning at the end.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "a.csv")
    ...     _ = path.write_text("x,y\\n1,a\\n,b\\n")
    ...     for x, y in CsvDataset(path, [[7], [""]], header=True):
    ...         print(x, y)
    1 b'a'
    7 b'b'
    """

    def __init__(
        self,
        filenames: Any,
        record_defaults: Sequence[Any],
        compression_type: str | None = None,
        buffer_size: int | None = None,
        header: bool = False,
        field_delim: str = ",",
        use_quote_delim: bool = True,
        na_value: str = "",
        select_cols: Sequence[int] | None = None,
        exclude_cols: Sequence[int] | None = None,
        name: str | None = None,
        on_error: str = "raise",
    ) -> None:
        where = "CsvDataset"
        bad = BadFiles(where, on_error)
        if select_cols is not None and exclude_cols is not None:
            raise InvalidArgumentError(f"{where}: select_cols and exclude_cols exclude each other")
        options = (
            *reader_options(where, compression_type, buffer_size),
            ("field_delim", check.text(where, "field_delim", field_delim)),
            ("use_quote_delim", check.boolean(where, "use_quote_delim", use_quote_delim)),
            ("header", check.boolean(where, "header", header)),
        )
        check_delimiter(where, field_delim)
        check_compression(compression_type, where)
        if buffer_size is not None:
            check.integer(where, "buffer_size", buffer_size, at_least=1)
        fields = tuple(field_of(where, default) for default in record_defaults)
        selected = _columns(where, "select_cols", select_cols)
        _check_count(where, fields, selected)
        columns = (
            fields,
            check.text(where, "na_value", na_value),
            selected,
            _columns(where, "exclude_cols", exclude_cols),
        )
        spec = tuple(TensorSpec((), dtype) for dtype, *_ in fields)
        options += (("columns", columns), ("spec", spec))
        super().__init__(bad.skip_in(plan_records(where, "csv", filenames, options)))


@functools.cache
def _warn_of_dtype_name(where: str, default: str) -> None:
    """Logs a warning, once for each call and name."""
    _LOG.warning(
        "%s: record_defaults has the text %r, which makes a column of strings and fills its empty "
        "fields; for a column of that type, write penstock.%s",
        where,
        default,
        default,
    )


_Field = tuple[DType, object, bool]
"""A column: its dtype, the value of an empty field, and whether no field may be empty."""


def field_of(where: str, default: Any) -> _Field:
    """A column, from its dtype (it is required) or its default value."""
    if isinstance(default, DType | np.dtype | type):
        kind, value, required = check.dtype(where, "record_defaults", default), None, True
    else:
        if isinstance(default, str) and default in _KINDS:
            _warn_of_dtype_name(where, default)
        array = np.asarray(check.element(f"{where}: record_defaults", default))
        if array.size > 1 or array.ndim > 1:
            raise InvalidArgumentError(
                f"{where}: record_defaults must hold dtypes or single values, got {default!r}"
            )
        kind, required = as_dtype(array.dtype), array.size == 0
        value = None if required else array.item()
    if kind.name not in _KINDS:
        raise UnfitTypeError(
            f"{where}: record_defaults must be one of {', '.join(_KINDS)}, got {kind.name}"
        )
    return kind, value, required


def _check_count(where: str, fields: tuple[_Field, ...], selected: tuple[int, ...] | None) -> None:
    if not fields or (selected is not None and len(selected) != len(fields)):
        wanted = "one or more" if selected is None else f"the {len(selected)} selected"
        raise InvalidArgumentError(
            f"{where}: record_defaults must be of {wanted} columns, got {len(fields)}"
        )


def _columns(where: str, name: str, columns: Sequence[int] | None) -> tuple[int, ...] | None:
    if columns is None:
        return None
    numbers = tuple(check.integer(where, name, one, at_least=0) for one in columns)
    if any(b <= a for a, b in pairwise(numbers)):
        raise InvalidArgumentError(f"{where}: {name} must rise, got {list(numbers)}")
    return numbers


def make_csv_dataset(
    file_pattern: Any,
    batch_size: int,
    column_names: Sequence[str] | None = None,
    column_defaults: Sequence[Any] | None = None,
    label_name: str | None = None,
    select_columns: Sequence[Any] | None = None,
    field_delim: str = ",",
    use_quote_delim: bool = True,
    na_value: str = "",
    header: bool = True,
    num_epochs: int | None = None,
    shuffle: bool = True,
    shuffle_buffer_size: int = 10000,
    shuffle_seed: int | None = None,
    prefetch_buffer_size: int | None = None,
    num_parallel_reads: int | None = None,
    sloppy: bool = False,
    num_rows_for_inference: int | None = 100,
    compression_type: str | None = None,
    ignore_errors: bool = False,
    encoding: str = "utf-8",
) -> Dataset:
    """Batches of rows, as dicts from column names to arrays; with a label, pairs of both.

    Args:
        file_pattern: A pattern, or a list of patterns or names.
        batch_size: How many rows make a batch.
        column_names: The names of the columns; by default the header's.
        column_defaults: As `CsvDataset.record_defaults`; by default found from the first rows.
        label_name: The column that is the label.
        select_columns: The columns to read, by name or number.
        field_delim: The separator of fields.
        use_quote_delim: Whether double quotes may enclose a field.
        na_value: A text that means an empty field.
        header: Whether the files begin with a header.
        num_epochs: How often the rows are repeated; without end if None.
        shuffle: Whether files and rows come in random order.
        shuffle_buffer_size: From how many rows the next is drawn.
        shuffle_seed: The seed of that order.
        prefetch_buffer_size: How many batches to prepare ahead; AUTOTUNE if None.
        num_parallel_reads: How many files to read at once, in turn.
        sloppy: Whether the order may depend on which file is faster.
        num_rows_for_inference: How many rows to look at for the dtypes; all if None.
        compression_type: None, "GZIP" or "ZLIB".
        ignore_errors: Whether rows that cannot be read are left out.
        encoding: The encoding of the names in the header; fields are bytes, as they are.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "a.csv")
    ...     _ = path.write_text("x,y\\n1,a\\n2,b\\n")
    ...     print(*make_csv_dataset(str(path), 2, num_epochs=1, shuffle=False))
    {'x': array([1, 2], dtype=int32), 'y': array([b'a', b'b'], dtype=object)}
    """
    where = "make_csv_dataset"
    _check_encoding(where, encoding)
    found = files.expand(check.paths(where, "file_pattern", file_pattern), where)
    grammar: dict[str, Any] = {"field_delim": field_delim, "use_quote_delim": use_quote_delim}
    table = Table(
        where=where,
        paths=found,
        grammar=grammar | {"compression": compression_type},
        header=header,
        na_value=na_value,
        encoding=encoding,
    )
    columns, defaults, numbers = table.columns(
        names=column_names,
        defaults=column_defaults,
        selected=select_columns,
        rows=num_rows_for_inference,
    )
    _check_label(where, label_name, columns)
    rows = functools.partial(
        CsvDataset,
        record_defaults=defaults,
        compression_type=compression_type,
        header=header,
        na_value=na_value,
        select_cols=numbers,
        **grammar,
    )
    names = Dataset.from_tensor_slices(found)
    if shuffle:
        names = names.shuffle(len(found), shuffle_seed)
    ds = take_turns(names, rows, num_parallel_reads, sloppy)
    ds = ds.ignore_errors() if ignore_errors else ds
    if shuffle:
        ds = ds.shuffle(shuffle_buffer_size, shuffle_seed)
    ds = ds if num_epochs == 1 else ds.repeat(num_epochs)
    ds = ds.batch(batch_size, drop_remainder=num_epochs is None)
    ds = ds.map(functools.partial(by_name, tuple(columns), label_name))
    return ds.prefetch(prefetch_buffer_size)


def _check_encoding(where: str, encoding: Any) -> None:
    try:
        codecs.lookup(check.text(where, "encoding", encoding))
    except LookupError:
        raise InvalidArgumentError(
            f'{where}: encoding must be one that Python knows, such as "utf-8", got {encoding!r}'
        ) from None


def _check_label(where: str, label: str | None, names: list[str]) -> None:
    if label is not None and label not in names:
        raise InvalidArgumentError(
            f"{where}: label_name must be one of the columns {names}, got {label!r}"
        )


def by_name(names: tuple[str, ...], label_name: str | None, *columns: Any) -> Any:
    """Columns as a dict; with a label, a pair of the dict and the label."""
    features = dict(zip(names, columns, strict=True))
    return features if label_name is None else split_label(label_name, features)


@dataclass(frozen=True)
class Table:
    """CSV files with the same columns, how to read them, and the call to name in errors."""

    where: str
    paths: Sequence[str]
    grammar: Mapping[str, Any]
    header: bool
    na_value: str
    encoding: str

    def columns(
        self,
        names: Sequence[str] | None,
        defaults: Sequence[Any] | None,
        selected: Sequence[Any] | None,
        rows: int | None,
    ) -> tuple[list[str], list[Any], list[int] | None]:
        """The columns to read: names, defaults, and numbers (None for all there are).

        Arguments that are None are inferred from the files.
        """
        every = self._header_names() if names is None else list(names)
        if len(set(every)) < len(every):
            raise InvalidArgumentError(f"{self.where}: column_names must differ, got {every}")
        numbers = list(range(len(every)))
        if selected is not None:
            numbers = sorted(self._number(column, every) for column in selected)
            self._check_selection(numbers, selected)
        values = self._defaults(len(every), rows) if defaults is None else list(defaults)
        if defaults is None:
            values = [values[i] for i in numbers]
        if len(values) != len(numbers):
            raise InvalidArgumentError(
                f"{self.where}: column_defaults must be one for each of the {len(numbers)} columns "
                f"that are read, got {len(values)}"
            )
        chosen = [every[i] for i in numbers]
        return chosen, values, None if selected is None else numbers

    def _check_selection(self, numbers: list[int], selected: Sequence[Any]) -> None:
        if not numbers or len(set(numbers)) < len(numbers):
            raise InvalidArgumentError(
                f"{self.where}: select_columns must name one or more columns, each once, "
                f"got {selected}"
            )

    def _header_names(self) -> list[str]:
        if not self.header:
            raise InvalidArgumentError(f"{self.where}: needs column_names where there is no header")
        headers = [self._decode(path, next(_rows(path, self.grammar), [])) for path in self.paths]
        for path, names in zip(self.paths, headers, strict=True):
            if names != headers[0]:
                raise InvalidArgumentError(
                    f"{self.where}: all files must have one header, got {headers[0]} in "
                    f"{self.paths[0]!r} and {names} in {path!r}"
                )
        return headers[0]

    def _decode(self, path: str, names: list[str]) -> list[str]:
        """Names in the encoding of the file; the reader decodes fields by UTF-8."""
        try:
            return [name.encode(*ENCODING).decode(self.encoding) for name in names]
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(
                f"{self.where}: the header of {path!r} is not {self.encoding!r} ({error}); "
                'pass the encoding of the files, such as encoding="latin-1"'
            ) from None

    def _number(self, column: Any, names: list[str]) -> int:
        if column in names:
            return names.index(column)
        if isinstance(column, int | np.integer) and 0 <= column < len(names):
            return int(column)
        raise InvalidArgumentError(
            f"{self.where}: select_columns must be names or numbers of columns {names}, "
            f"got {check.describe(column)}"
        )

    def _defaults(self, count: int, limit: int | None) -> list[Any]:
        """0 or "" per column, in the narrowest dtype that holds what the first rows hold."""
        kinds = [-1] * count
        options = {**self.grammar, "header": self.header}
        rows = ((path, row) for path in self.paths for row in _rows(path, options))
        for path, row in islice(rows, limit):
            if len(row) != count:
                raise InvalidArgumentError(
                    f"{self.where}: there are {count} column_names, but a row of {path!r} has "
                    f"{len(row)} fields: {row!r:.60}; is field_delim right?"
                )
            for column, text in enumerate(row):
                if text not in ("", self.na_value):
                    kinds[column] = max(kinds[column], _kind(text))
        # A column of empty fields only is one of strings, the last of the kinds.
        return [_default(_KINDS[kind]) for kind in kinds]


def _default(kind: str) -> Any:
    return b"" if kind == "string" else np.zeros((), as_dtype(kind).dtype)[()]


def _kind(text: str) -> int:
    """The first of the dtypes that can hold a field."""
    for index, kind in enumerate(_KINDS[:-1]):
        limits: Any = np.iinfo(kind) if kind.startswith("i") else np.finfo(kind)
        try:
            value = int(text) if kind.startswith("i") else float(text)
        except ValueError:
            continue
        # Python's numbers: NumPy would warn of a number that a float32 cannot hold.
        if type(value)(limits.min) <= value <= type(value)(limits.max):
            return index
    return len(_KINDS) - 1


def _rows(path: str, options: Mapping[str, Any]) -> Iterator[list[str]]:
    with closing(open_reader("csv", path, options)) as reader:
        while rows := reader.read(100):
            yield from rows
