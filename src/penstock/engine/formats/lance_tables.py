"""Lance datasets, read by the package `lance`: rows by index, of the version that was opened.

Lance never changes a version, so nothing must be compared: rows that are added or deleted later
belong to another version. A block is a fragment, whose rows are read when they are asked for.
"""

from __future__ import annotations

import re
from functools import partial

from penstock.element import nest
from penstock.element.chunk import Chunk
from penstock.element.index import Index, array_of
from penstock.engine.formats.arrow_columns import convert_column, specs_of
from penstock.engine.formats.extras import crc32c, load_extra
from penstock.engine.formats.tables import RowsOnDemand, Selection, TableReader
from penstock.errors import DataLossError, NotFoundError


class LanceTable(TableReader):
    """One dataset, at a version; at its latest one without `version`.

    Blocks read by the dataset, which is closed with the last of them.
    """

    def __init__(self, path: str, call: str, version: int | None = None) -> None:
        lance = load_extra("lance", call, "lance")
        try:
            self._dataset = lance.dataset(path, version=version)
            fragments = self._dataset.get_fragments()
            self.blocks = tuple(fragment.count_rows() for fragment in fragments)
        except (ValueError, OSError) as error:
            which = "" if version is None else f" at version {version}"
            raise NotFoundError(
                f"{call}: there is no Lance dataset at {path!r}{which} ({_reason(error)})"
            ) from None
        self._call, self._path = call, path
        self.version: int = self._dataset.version
        self.schema = self._dataset.schema
        self.specs = specs_of(self.schema)
        self.footer = crc32c(repr((self.version, self.blocks, str(self.schema))).encode())

    def prefetch(self, number: int, ahead: int, selection: Selection) -> bool:
        return True

    def read(self, number: int, first: int, selection: Selection) -> RowsOnDemand:
        return RowsOnDemand(partial(self._read_rows, first, selection))

    def _read_rows(self, first: int, selection: Selection, index: Index) -> Chunk:
        """Some rows of the fragment that begins at row `first`."""
        numbers = array_of(index) + first
        try:
            found = self._dataset.take(numbers.tolist(), columns=list(selection.columns))
        except (ValueError, OSError, RuntimeError) as error:
            raise DataLossError(
                f"{self._call}: {self._path!r} is damaged: rows {numbers.min()} to {numbers.max()} "
                f"cannot be read ({_reason(error)})"
            ) from None
        table = found.combine_chunks()
        columns = {
            name: convert_column(table.column(name).chunk(0), name, selection, numbers)
            for name in selection.columns
        }
        leaves, tree = nest.flatten(columns)
        return Chunk(tree, leaves, len(numbers))


def _reason(error: Exception) -> str:
    """What Lance says, without the places in its source."""
    return re.sub(r", [^,\s]*/rust/.*", "", str(error), flags=re.DOTALL)[:200]
