"""What CSV files say about their columns: names in the header, dtypes in the first rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from penstock.data.arguments import typed
from penstock.element.dtypes import as_dtype
from penstock.engine.formats import open_reader
from penstock.errors import InvalidArgumentError

_KINDS = ("int32", "int64", "float32", "float64", "string")


@dataclass(frozen=True)
class Columns:
    """The columns to read: names, defaults, and numbers (None for all there are)."""

    names: list[str]
    defaults: list[Any]
    numbers: list[int] | None


@dataclass(frozen=True)
class Table:
    """CSV files with the same columns, how to read them, and the call to name in errors."""

    where: str
    paths: Sequence[str]
    grammar: Mapping[str, Any]
    header: bool
    na_value: str

    def columns(
        self,
        names: Sequence[str] | None,
        defaults: Sequence[Any] | None,
        selected: Sequence[Any] | None,
        rows: int | None,
    ) -> Columns:
        """The columns as the user told them; what is None is found in the files."""
        every = self._header_names() if names is None else list(names)
        if len(set(every)) < len(every):
            raise InvalidArgumentError(f"{self.where}: column_names must differ, got {every}")
        numbers = list(range(len(every)))
        if selected is not None:
            numbers = sorted({self._number(column, every) for column in selected})
        values = self._defaults(len(every), rows) if defaults is None else list(defaults)
        if defaults is None:
            values = [values[i] for i in numbers]
        if len(values) != len(numbers):
            raise InvalidArgumentError(
                f"{self.where}: column_defaults must be one for each of the {len(numbers)} columns "
                f"that are read, got {len(values)}"
            )
        chosen = [every[i] for i in numbers]
        return Columns(chosen, values, None if selected is None else numbers)

    def _header_names(self) -> list[str]:
        if not self.header:
            raise InvalidArgumentError(f"{self.where}: needs column_names where there is no header")
        headers = [next(_rows(path, self.grammar), []) for path in self.paths]
        for path, names in zip(self.paths, headers, strict=True):
            if names != headers[0]:
                raise InvalidArgumentError(
                    f"{self.where}: all files must have one header, got {headers[0]} in "
                    f"{self.paths[0]!r} and {names} in {path!r}"
                )
        return headers[0]

    def _number(self, column: Any, names: list[str]) -> int:
        if column in names:
            return names.index(column)
        if isinstance(column, int | np.integer) and 0 <= column < len(names):
            return int(column)
        raise InvalidArgumentError(
            f"{self.where}: select_columns must be names or numbers of columns {names}, "
            f"got {typed(column)}"
        )

    def _defaults(self, count: int, limit: int | None) -> list[Any]:
        """0 or "" per column, in the narrowest dtype that holds what the first rows hold."""
        kinds = [-1] * count
        options = {**self.grammar, "header": self.header}
        rows = (row for path in self.paths for row in _rows(path, options))
        for row in islice(rows, limit):
            for column, text in enumerate(row[:count]):
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
        if limits.min <= value <= limits.max:
            return index
    return len(_KINDS) - 1


def _rows(path: str, options: Mapping[str, Any]) -> Iterator[list[str]]:
    with closing(open_reader("csv", path, options)) as reader:
        while rows := reader.read(100):
            yield from rows
