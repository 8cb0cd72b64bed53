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
    columns = [_Column(number, one, na_value) for number, one in enumerate(record_defaults)]
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
        as_tensor(column.read([row[column.number] for row in rows]).reshape(lines.shape))
        for column in columns
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


class _Column:
    """How the fields of one column are read."""

    def __init__(self, number: int, default: Any, empty: str) -> None:
        self.number, self._empty = number, empty
        if isinstance(default, DType | np.dtype | type):
            self.dtype, self._default = as_dtype(default), None
            return
        array = to_array(default)
        self.dtype = of_numpy(array.dtype)
        if array.size > 1:
            raise InvalidArgumentError(
                f"tf.io.decode_csv: a field has one default, got {default!r:.60} for {number}"
            )
        self._default = array.ravel()[0] if array.size else None

    def read(self, fields: list[str]) -> Array:
        result = np.empty(len(fields), self.dtype.dtype)
        with np.errstate(over="ignore"):  # A float that does not fit is infinite.
            for place, field in enumerate(fields):
                try:
                    result[place] = self._value(field, place)
                except OverflowError:
                    raise self._invalid(field, place) from None
        return result

    def _value(self, field: str, place: int) -> Any:
        if field in ("", self._empty):
            if self._default is None:
                raise InvalidArgumentError(
                    f"tf.io.decode_csv: Field {self.number} is required but missing "
                    f"in record {place}!"
                )
            return self._default
        if self.dtype.name == "string":
            return field.encode(*_ENCODING)
        try:
            return int(field) if self.dtype.is_integer else float(field)
        except ValueError:
            raise self._invalid(field, place) from None

    def _invalid(self, field: str, place: int) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"tf.io.decode_csv: Field {self.number} in record {place} is not a valid "
            f"{self.dtype.name}: {field}"
        )
