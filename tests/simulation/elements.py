"""Elements on their way: packed and unpacked by the codec of the service."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from penstock.element import nest
from penstock.element.chunk import Chunk
from penstock.service.protocol.frames import pack_columns, unpack_columns

TREE = nest.flatten(0)[1]


@lru_cache(maxsize=4096)
def pack(values: tuple[int, ...]) -> tuple[bytes, bytes]:
    """The description and the bytes of some elements."""
    chunk = Chunk(TREE, [np.array(values, dtype=np.int64)], len(values))
    description, parts = pack_columns(chunk)
    return description, b"".join(parts)


def unpack(description: bytes, body: bytes, count: int) -> Chunk:
    return Chunk(TREE, unpack_columns(description, memoryview(body)), count)


def values_of(chunk: Chunk) -> list[int]:
    return chunk.columns[0].tolist()  # type: ignore[union-attr, no-any-return]
