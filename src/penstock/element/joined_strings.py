"""Joined strings: a column of byte strings as two arrays, which processes can share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.element.columns import Array


class JoinedStrings:
    """The bytes of all strings, one string behind the other, and where each of them begins.

    `starts` has one entry more than there are strings: where the last one ends. Rows that are read
    from it are an array of `bytes`, as any column of strings.
    """

    def __init__(self, data: Array, starts: Array) -> None:
        self.data, self.starts = data, starts
        self.require: Callable[[Array | None], None] = lambda indices: None
        """Blocks until the strings at some indices have arrived, or all; called before each read.

        The arrays may be shared memory that is filled as strings are needed.
        """

    @classmethod
    def of(cls, strings: list[bytes]) -> JoinedStrings:
        """Joins strings.

        >>> JoinedStrings.of([b"a", b"", b"bc"])[1:]
        array([b'', b'bc'], dtype=object)
        """
        starts = np.zeros(len(strings) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, strings), np.int64, len(strings)), out=starts[1:])
        starts.flags.writeable = False
        return cls(np.frombuffer(b"".join(strings), np.uint8), starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, rows: slice) -> Array:
        return self.take(np.arange(*rows.indices(len(self))))

    def __reduce__(self) -> Any:
        self.require(None)
        return JoinedStrings, (self.data, self.starts)

    def take(self, indices: Array) -> Array:
        """The strings at some indices."""
        self.require(indices)
        data = memoryview(self.data)  # type: ignore[arg-type]
        begins, ends = self.starts[indices].tolist(), self.starts[indices + 1].tolist()
        made: Any = np.empty(len(begins), object)
        made[:] = [data[begin:end].tobytes() for begin, end in zip(begins, ends, strict=True)]
        return made  # type: ignore[no-any-return]
