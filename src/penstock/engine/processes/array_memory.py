"""The memory of a shared array: a file without a name, in blocks that are filled one by one.

Behind the bytes of the array is one flag for each block, which is set after the block was written.
A block never changes once its flag is set. The kernel frees the file with the last process that
has it open or mapped, also after kill -9.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Any

import numpy as np

from penstock.element.columns import Array
from penstock.engine.processes.descriptors import make_sealed_file
from penstock.errors import DataLossError

BLOCK = 64 << 10
"""Bytes of a block: a row that is read by random access brings in at least so much."""


class ArrayMemory:
    """The memory of an array of `size` bytes; `descriptor` is that of another process's."""

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        self.size = size
        self.blocks = -(-size // BLOCK)
        self._flags_at = self.blocks * BLOCK
        self.descriptor = -1
        if descriptor is None:
            descriptor = make_sealed_file("penstock-array", self._file_size)
        self.descriptor = descriptor
        self._check()
        self.map = mmap.mmap(self.descriptor, self._file_size, prot=mmap.PROT_READ)
        self.bytes: Array = np.frombuffer(self.map, np.uint8, size)
        """What was written so far, and zeros."""
        self.flags: Array = np.frombuffer(self.map, np.bool_, self.blocks, self._flags_at)
        """Which blocks were written."""

    @property
    def _file_size(self) -> int:
        return self._flags_at + self.blocks

    def _check(self) -> None:
        """Raises if another process passed a file that could be too short, or become so."""
        sealed = fcntl.fcntl(self.descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        if not sealed or os.fstat(self.descriptor).st_size != self._file_size:
            raise DataLossError(f"shared array: not the memory of an array of {self.size} bytes")

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)

    @property
    def identity(self) -> tuple[int, int]:
        """Equal for two objects, also in two processes, that share their memory."""
        found = os.fstat(self.descriptor)
        return found.st_dev, found.st_ino

    def map_privately(self) -> mmap.mmap:
        """A map that may be written to: the process gets its own copy of the pages it changes."""
        return mmap.mmap(self.descriptor, self._file_size, access=mmap.ACCESS_COPY)

    def write(self, first: int, data: Any) -> None:
        """Writes the blocks from number `first` on, then sets their flags.

        Through the descriptor: a map would count as memory of this process, and the kernel would
        clear every page before it is filled.
        """
        data = memoryview(data)
        self._write_all(data, first * BLOCK)
        self._write_all(memoryview(b"\1" * -(-len(data) // BLOCK)), self._flags_at + first)

    def _write_all(self, data: memoryview, place: int) -> None:
        while data:
            written = os.pwrite(self.descriptor, data, place)
            place, data = place + written, data[written:]


def runs_of(blocks: Array) -> list[tuple[int, int]]:
    """Sorted numbers as ranges of consecutive ones: (first, stop)."""
    if not len(blocks):
        return []
    ends = np.flatnonzero(np.diff(blocks) != 1)
    firsts = blocks[np.concatenate([[0], ends + 1])]
    lasts = blocks[np.concatenate([ends, [len(blocks) - 1]])]
    return list(zip(firsts.tolist(), (lasts + 1).tolist(), strict=True))
