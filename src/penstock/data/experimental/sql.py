"""`SqlDataset`: the rows that a query of a SQLite database returns."""

from __future__ import annotations

import contextlib
import functools
import os
import urllib.parse
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.data import arguments as check
from penstock.data.dataset import Dataset
from penstock.element import nest
from penstock.element.dtypes import DType
from penstock.element.spec import TensorSpec
from penstock.errors import InvalidArgumentError, InvalidTypeError, UnknownError
from penstock.plan.functions import Function
from penstock.plan.nodes import Generator

if TYPE_CHECKING:
    import sqlite3

_TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "bool", "float64", "string")
_CALL = "SqlDataset"


class SqlDataset(Dataset):
    """The rows that a query of a database returns; every iteration runs the query again.

    Values are converted as SQLite converts them: text to a number by the digits that it begins
    with, NULL to 0 or "". An integer that its dtype cannot hold loses its upper bits.

    Args:
        driver_name: "sqlite".
        data_source_name: The path of the database, which is only read.
        query: The query.
        output_types: The dtypes of the columns, as a tuple or any structure: of a dict, in the
            order of its sorted keys. Of int8, int16, int32, int64, uint8, uint16, bool, float64
            and string.

    >>> import os, sqlite3, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "people.sqlite")
    >>> connection = sqlite3.connect(path)
    >>> _ = connection.executescript("CREATE TABLE a (x, y); INSERT INTO a VALUES (1, 'b');")
    >>> connection.close()
    >>> for x, y in SqlDataset("sqlite", path, "SELECT x, y FROM a", (np.int32, "string")):
    ...     print(x, y)
    1 b'b'
    """

    def __init__(
        self, driver_name: str, data_source_name: Any, query: str, output_types: Any
    ) -> None:
        driver = _text("driver_name", driver_name)
        path, statement = _text("data_source_name", data_source_name), _text("query", query)
        types = nest.map_structure(_dtype, _sort(output_types))
        if driver != "sqlite":
            raise InvalidArgumentError(f'{_CALL}: driver_name must be "sqlite", got {driver!r}')
        rows = functools.partial(read_rows, path, statement, types)
        signature = nest.map_structure(lambda kind: TensorSpec((), kind), types)
        super().__init__(Generator(Function(rows), (), signature))


def _text(name: str, value: Any) -> str:
    if value is None:
        raise InvalidArgumentError(f"{_CALL}: {name} must be a string, got None")
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    return check.text(_CALL, name, os.fspath(value) if hasattr(value, "__fspath__") else value)


def _sort(types: Any) -> Any:
    """The structure with its dicts in the order of their keys."""
    if isinstance(types, list):
        raise InvalidTypeError(f"{_CALL}: output_types must be a tuple of dtypes, got {types!r}")
    if type(types) is dict:
        return {key: _sort(types[key]) for key in sorted(types)}
    return tuple(map(_sort, types)) if type(types) is tuple else types


def _dtype(value: Any) -> DType:
    kind = check.dtype(_CALL, "output_types", value)
    if kind.name not in _TYPES:
        raise InvalidArgumentError(
            f"{_CALL}: output_types must be of {', '.join(_TYPES)}, got {kind.name}"
        )
    return kind


def read_rows(path: str, query: str, types: Any) -> Iterator[Any]:
    """Runs the query, and yields its rows as elements."""
    import sqlite3

    kinds, tree = nest.flatten(types)
    address = f"file:{urllib.parse.quote(path)}?mode=ro"
    try:
        with contextlib.closing(
            sqlite3.connect(address, uri=True, check_same_thread=False)
        ) as connection:
            connection.text_factory = bytes
            rows = connection.execute(query)
            _check_columns(rows, len(kinds), query)
            converters = [_converter(kind, connection) for kind in kinds]
            for row in rows:
                values = [convert(value) for convert, value in zip(converters, row, strict=True)]
                yield nest.unflatten(tree, values)
    except sqlite3.Error as error:
        is_write = str(getattr(error, "sqlite_errorname", "")).startswith("SQLITE_READONLY")
        kind = InvalidArgumentError if is_write else UnknownError
        raise kind(f"{_CALL}: {query!r} of {path!r} failed: {error}") from error


def _check_columns(rows: sqlite3.Cursor, wanted: int, query: str) -> None:
    columns = len(rows.description or ())
    if columns != wanted:
        raise InvalidArgumentError(
            f"{_CALL}: {query!r} returns {columns} columns, but output_types has {wanted}"
        )


def _converter(kind: DType, connection: sqlite3.Connection) -> Callable[[Any], Any]:
    """A function from a value of the database to a leaf."""
    own, name = _OWN_TYPES.get(kind.name, (int, "INTEGER"))

    def as_own(value: Any) -> Any:
        """Has SQLite convert what is of another type."""
        if type(value) is own:
            return value
        if value is None:
            return own()
        return connection.execute(f"SELECT CAST(? AS {name})", (value,)).fetchone()[0]

    if own is not int:
        return as_own if own is bytes else lambda value: np.float64(as_own(value))
    return lambda value: np.int64(as_own(value)).astype(kind.dtype)


_OWN_TYPES: dict[str, tuple[type, str]] = {"string": (bytes, "TEXT"), "float64": (float, "REAL")}
