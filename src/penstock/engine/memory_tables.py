"""Arrow tables in memory: used in place, and serialized only when a plan is sent elsewhere.

A table is sent as one array of bytes, so it travels as all large arrays do (decision 0038): each
machine has one copy, and a process waits only for the bytes of the blocks that it reads. The bytes
are Arrow messages: the schema, then each record batch, padded to 64 bytes. At the end are the
places of these messages, then their number.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from penstock.element import nest
from penstock.element.chunk import Chunk
from penstock.element.columns import Array
from penstock.engine.formats.arrow_columns import ArrowBlock, specs_of
from penstock.engine.formats.extras import arrow
from penstock.engine.formats.tables import Selection, TableReader
from penstock.engine.processes.shared_arrays import find_lazy_rows
from penstock.plan.nodes import Data

_ALIGNMENT = 64


class TableData(Data):
    """An Arrow table as the data of a plan."""

    def __init__(self, table: Any) -> None:
        self.schema = table.schema.remove_metadata()
        self.batches = [batch for batch in table.to_batches() if batch.num_rows]

    @cached_property
    def chunk(self) -> Chunk:  # type: ignore[override]
        """The bytes of the table, made when they are first needed."""
        data = serialize(self.schema, self.batches)
        return Chunk(nest.LEAF, [data], len(data)).as_read_only()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TableData):
            return self is other or (
                self.schema == other.schema
                and len(self.batches) == len(other.batches)
                and all(a.equals(b) for a, b in zip(self.batches, other.batches, strict=True))
            )
        return isinstance(other, Data) and Data(self.chunk) == other

    def __hash__(self) -> int:
        return hash(Data)

    def __repr__(self) -> str:
        return f"a table of {sum(batch.num_rows for batch in self.batches)} rows"

    def __reduce__(self) -> Any:
        return Data, (self.chunk,)


def serialize(schema: Any, batches: list[Any]) -> Array:
    """The bytes of a table. Dictionaries are decoded, because a message alone lacks them."""
    plain = _without_dictionaries(schema)
    if plain != schema:
        batches = [batch.cast(plain) for batch in batches]
    messages = [plain.serialize(), *(batch.serialize() for batch in batches)]
    sizes = [-(-message.size // _ALIGNMENT) * _ALIGNMENT for message in messages]
    starts = np.cumsum([0, *sizes], dtype=np.int64)
    data = np.zeros(int(starts[-1]) + 8 * (len(starts) + 1), np.uint8)
    for start, message in zip(starts.tolist(), messages, strict=False):
        data[start : start + message.size] = np.frombuffer(message, np.uint8)
    data[int(starts[-1]) :] = np.append(starts, len(messages)).view(np.uint8)
    return data


def _without_dictionaries(schema: Any) -> Any:
    is_dictionary = arrow.types.is_dictionary
    kinds = [f.type.value_type if is_dictionary(f.type) else f.type for f in schema]
    fields = [field.with_type(kind) for field, kind in zip(schema, kinds, strict=True)]
    return arrow.schema(fields)


class MemoryReader(TableReader):
    """The blocks of a table in memory."""

    footer = 0

    def __init__(self, data: Data) -> None:
        if isinstance(data, TableData):
            self._batches: list[Any] | None = data.batches
            self.schema = data.schema
        else:
            self._batches = None
            self._bytes, self._lazy = data.chunk.columns[0], find_lazy_rows(data.chunk)
            self._starts = self._find_messages()
            self.schema = arrow.ipc.read_schema(self._message(0))
        self.blocks = ()
        self.specs = specs_of(self.schema)

    def _require(self, places: range) -> None:
        """Blocks until some bytes have arrived."""
        if self._lazy is not None:
            self._lazy.require(places)

    def _find_messages(self) -> list[int]:
        size = len(self._bytes)
        self._require(range(size - 8, size))
        count = int(np.asarray(self._bytes[-8:]).view(np.int64)[0])
        self._require(range(size - 8 * (count + 2), size))
        starts: list[int] = np.asarray(self._bytes[-8 * (count + 2) : -8]).view(np.int64).tolist()
        return starts

    def _message(self, number: int) -> Any:
        start, stop = self._starts[number], self._starts[number + 1]
        self._require(range(start, stop))
        return arrow.py_buffer(self._bytes[start:stop])

    def read(self, number: int, first: int, selection: Selection) -> ArrowBlock:
        if self._batches is not None:
            batch = self._batches[number]
        else:
            batch = arrow.ipc.read_record_batch(self._message(number + 1), self.schema)
        return ArrowBlock(batch, first, selection, mapped=True)
