"""Data whose strings are joined: what a plan holds instead of many strings when it is sent.

The arrays of joined strings travel as references, as all large arrays do (0038). So a machine has
one copy of the strings, however many workers it has, and a worker makes only strings that it reads.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from penstock.element import columns, nest
from penstock.element.chunk import Chunk
from penstock.element.dtypes import string
from penstock.element.joined_strings import JoinedStrings
from penstock.element.spec import TensorSpec
from penstock.plan.array_references import LARGE
from penstock.plan.nodes import Data, row_spec


class JoinedData(Data):
    """Rows of which some columns are `JoinedStrings`.

    `rows` is a chunk of them and of the other columns, which only an access reads.
    """

    def __init__(self, rows: Chunk) -> None:
        given: list[Any] = rows.columns
        made: list[Any] = [
            c if isinstance(c, JoinedStrings) else columns.as_read_only(c) for c in given
        ]
        self.rows = Chunk(rows.tree, made, rows.size)

    @cached_property
    def chunk(self) -> Chunk:  # type: ignore[override]
        """All rows, with all strings: for code that looks at more than some of them."""
        joined: list[Any] = self.rows.columns
        whole = [c[:] if isinstance(c, JoinedStrings) else c for c in joined]
        return Chunk(self.rows.tree, whole, self.rows.size).as_read_only()

    def __len__(self) -> int:
        return self.rows.size

    def __hash__(self) -> int:
        return hash((self.rows.tree, self.rows.size))

    def __reduce__(self) -> Any:
        return JoinedData, (self.rows,)

    def first(self) -> Any:
        return Chunk(self.rows.tree, [c[0:1] for c in self.rows.columns], 1).elements()[0]

    @property
    def spec(self) -> Any:
        found: list[Any] = self.rows.columns
        text = TensorSpec((), string)
        specs = [text if isinstance(c, JoinedStrings) else row_spec(c) for c in found]
        return nest.unflatten(self.rows.tree, specs)


def join_strings(data: Data) -> JoinedData | None:
    """The same rows with joined strings; None if `data` has few strings or none."""
    if type(data) is not Data:
        return None
    if data.joined is None:
        found = list(map(_find_strings, data.chunk.columns))
        pairs = zip(found, data.chunk.columns, strict=True)
        made: list[Any] = [
            c if strings is None else JoinedStrings.of(strings) for strings, c in pairs
        ]
        data.joined = JoinedData(Chunk(data.chunk.tree, made, len(data))) if any(found) else False
    return data.joined or None


def _find_strings(column: Any) -> list[bytes] | None:
    """The strings of a column, if they have many bytes."""
    if type(column) is not np.ndarray or column.dtype != object or column.ndim != 1:
        return None
    strings: list[bytes] = column.tolist()
    if set(map(type, strings)) != {bytes} or sum(map(len, strings)) < LARGE:
        return None
    return strings
