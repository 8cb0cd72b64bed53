"""`decode_csv`: lines of comma-separated values as one tensor for each column."""

from __future__ import annotations

import csv
import functools
import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.element.dtypes import DType, as_dtype, of_numpy
from penstock.errors import InvalidArgumentError
from penstock.tf.operations import texts
from penstock.tf.values import Array, Tensor, as_tensor, to_array

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
