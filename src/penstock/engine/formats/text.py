"""Lines of text files, without their line ends.

A line ends with `\\n` or `\\r\\n`; the last one may go without; an empty line is a record.
"""

from __future__ import annotations

from penstock.engine.formats.files import Path
from penstock.engine.formats.records import BlockReader


class TextReader(BlockReader[bytes]):
    """Whole blocks are split at once; `position` is the byte after the last line given out."""

    call = "TextLineDataset"

    def __init__(
        self,
        path: Path,
        compression: str | None = None,
        buffer_size: int | None = None,
        position: int = 0,
    ) -> None:
        super().__init__(path, compression, buffer_size, position)
        self._lines: list[bytes] = []
        self._given = 0
        self._end = position
        self._carriage_returns = False

    def _cut(self, limit: int) -> list[bytes]:
        if self._given == len(self._lines):
            self._split()
        lines = self._lines[self._given : self._given + limit]
        self._given += len(lines)
        # Each line had its "\n", but for the last one of a file that ends without.
        self.position = min(self.position + sum(map(len, lines)) + len(lines), self._end)
        if self._carriage_returns:
            return [line.removesuffix(b"\r") for line in lines]
        return lines

    def _split(self) -> None:
        """Cuts all complete lines off the buffer."""
        whole = self._buffer.rfind(b"\n") + 1 if self._more else len(self._buffer)
        block, self._buffer = self._buffer[:whole], self._buffer[whole:]
        self._lines, self._given = block.split(b"\n"), 0
        if not self._lines[-1]:
            self._lines.pop()
        self._end += len(block)
        self._carriage_returns = b"\r" in block
