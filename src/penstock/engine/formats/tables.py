"""What every format of tables offers: blocks of rows that can be read alone, as columns.

Opening a file reads what the file says about its blocks and columns, and no rows. A `TableReader`
is used by one thread at a time; a `TableBlock` never changes, so any thread may read its rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.element.chunk import Chunk
from penstock.element.index import Index
from penstock.engine.gather import TakeRows


@dataclass(frozen=True)
class Selection:
    """What is read of a table, and the words for its errors."""

    call: str
    """The call of the user, as `Dataset.from_parquet`."""
    path: str
    """The file; empty for a table in memory."""
    columns: tuple[str, ...]
    fill: Mapping[str, Any] = field(default_factory=dict)
    """What takes the place of a missing value, by column."""


class TableBlock(Protocol):
    """Rows that were read together."""

    @property
    def nbytes(self) -> int:
        """The memory that the block occupies, in bytes."""

    def rows(self, index: Index, take: TakeRows) -> Chunk:
        """The rows at an index. Errors name the row in the file."""


class RowsOnDemand:
    """A block whose rows are read when they are asked for, by a function of their index."""

    def __init__(self, read: Callable[[Index], Chunk], nbytes: int = 1 << 10) -> None:
        self._read, self.nbytes = read, nbytes

    def rows(self, index: Index, take: TakeRows) -> Chunk:
        return self._read(index)


class TableReader(ABC):
    """One open file of rows."""

    footer: int
    """A checksum of what the file says about its blocks."""
    blocks: tuple[int, ...]
    """The number of rows in each block."""
    specs: Any
    """The spec of every column by name, or the spec of a row that has no columns.

    For a column that cannot be read: the reason, as a text.
    """

    def prefetch(self, number: int, ahead: int, selection: Selection) -> bool:
        """Begins to fetch a block, and up to `ahead` blocks after it, if the file is remote.

        True if reading the block then compares the version of the file with that at its opening.
        """
        return False

    @abstractmethod
    def read(self, number: int, first: int, selection: Selection) -> TableBlock:
        """Block `number`, whose first row is row `first` of the file."""

    def close(self) -> None:  # noqa: B027 (not every reader has a file)
        """Closes the file; a second call does nothing."""
