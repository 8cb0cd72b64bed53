"""A writer of block files, as earlier releases wrote them, for tests of their reader."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.element.buffers import ALIGN, Packing
from penstock.element.chunk import Chunk
from penstock.element.descriptions import structure_to_json
from penstock.engine.formats.blocks import _HEAD, Head, _magic
from penstock.engine.formats.extras import crc32c
from penstock.engine.formats.inflate import WINDOW_BITS


class BlocksOut:
    """Collects blocks; `finish` writes the file."""

    def __init__(self, path: Path, packing: str | None = None) -> None:
        self._path, self._packing = path, packing or "NONE"
        self.data = bytearray(_magic(self._packing))

    def add(self, kind: bytes, rows: int, description: Any, parts: Sequence[Any] = ()) -> None:
        text = json.dumps(description, separators=(",", ":")).encode()
        text += b" " * (-len(text) % ALIGN)
        body = b"".join((text, *parts))
        size = len(body)
        if self._packing != "NONE":
            deflater = zlib.compressobj(wbits=WINDOW_BITS["GZIP"])
            body = deflater.compress(body) + deflater.flush()
        self.put(Head(kind, rows, len(text), size, len(body), crc32c(body)), body)

    def add_chunk(self, chunk: Chunk) -> None:
        self.add(b"TREE", 0, structure_to_json(chunk.tree))
        packing = Packing("written")
        descriptions = [packing.column(column) for column in chunk.columns]
        self.add(b"ROWS", len(chunk), descriptions, packing.parts)

    def put(self, head: Head, body: bytes) -> None:
        data = _HEAD.pack(*head, 0)[:-4]
        self.data += data + crc32c(data).to_bytes(4, "little") + body

    def finish(self, count: int) -> str:
        self.put(Head(b"DONE", 0, 0, count, 0, 0), b"")
        return self.close()

    def close(self) -> str:
        self._path.write_bytes(self.data)
        return str(self._path)
