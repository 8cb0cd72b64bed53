"""Lines of text files, without their line ends.

A line ends with `\\n` or `\\r\\n`, the last one may have no end; an empty line is a record. The
file reader of a part of a file reads the lines that begin in it.
"""

from __future__ import annotations

from typing import BinaryIO

from penstock.engine.formats.files import Path
from penstock.engine.formats.records import Part, RecordReader


class TextReader(RecordReader[bytes]):
    """Whole blocks are split at once; `position` is the byte after the last line given out."""

    call = "TextLineDataset"
    is_text = True

    def __init__(
        self,
        path: Path,
        compression: str | None = None,
        buffer_size: int | None = None,
        position: int = 0,
        part: Part | None = None,
    ) -> None:
        super().__init__(path, compression, buffer_size, position, part)
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
        if self._stop is not None:
            block = self._cut_to_part(block, self._stop - self._end)
        self._lines, self._given = block.split(b"\n"), 0
        if not self._lines[-1]:
            self._lines.pop()
        self._end += len(block)
        self._carriage_returns = b"\r" in block

    def _cut_to_part(self, block: bytes, room: int) -> bytes:
        """The lines of a block that begin in the `room` bytes before the end of the part."""
        if len(block) < room:
            return block
        self._more, self._buffer = False, b""
        if room <= 0:
            return b""
        end = block.find(b"\n", room - 1) + 1
        return block[:end] if end else block

    def _go_to(self, file: BinaryIO, position: int) -> None:
        if self._part is not None:
            start, self._stop = self._part
            size = self._size_for_parts(file)
            self.position = position or _line_from(file, min(start, size), size)
            self._end = self.position
            file.seek(0)
        super()._go_to(file, self.position)


def _line_from(file: BinaryIO, start: int, size: int) -> int:
    """Where the first line begins that does not begin before `start`."""
    if start == 0:
        return 0
    file.seek(start - 1)
    at = start - 1
    while block := file.read(1 << 16):
        if (end := block.find(b"\n")) >= 0:
            return at + end + 1
        at += len(block)
    return size
