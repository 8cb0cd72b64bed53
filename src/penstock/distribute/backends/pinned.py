"""Locked memory for copies to a GPU, used again as soon as the GPU has read it.

Memory that is new to a process is dear, and locking it dearer still. Whoever fills a buffer must
say who reads it before asking for the next one.
"""

from __future__ import annotations

import mmap
import weakref
from typing import Any

import numpy as np

from penstock.distribute.backends.cuda import Driver, EventMark
from penstock.distribute.backends.moving import Array

_BUFFERS = 3
"""Of one size, that wait for the GPU, before somebody has to wait for one of them."""

_SMALL = 1 << 20
"""Bytes of buffers that are so small that there may be any number of them."""


class Buffer:
    """Some locked memory, and who reads it."""

    def __init__(self, cuda: Driver, nbytes: int) -> None:
        self.nbytes = -(-max(nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = mmap.mmap(-1, self.nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory = np.frombuffer(memory, np.uint8)
        address = self._memory.__array_interface__["data"][0]
        # Where it cannot be locked, copies take longer and are right all the same.
        if cuda.lock(address, self.nbytes):
            weakref.finalize(self, cuda.unlock, address).atexit = False
        self.reader: EventMark | None = None

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return self._memory[:nbytes].view(dtype).reshape(shape)

    def is_free(self) -> bool:
        return self.reader is None or self.reader.passed()

    def wait(self) -> None:
        if self.reader is not None:
            self.reader.wait()


class Buffers:
    """The locked memory of one delivery; for one thread."""

    def __init__(self, cuda: Driver) -> None:
        self._cuda = cuda
        self._all: list[Buffer] = []

    def free(self, nbytes: int) -> Buffer:
        """A buffer of at least so many bytes that nobody reads any more."""
        fitting = [one for one in self._all if nbytes <= one.nbytes <= 2 * nbytes + mmap.PAGESIZE]
        for one in fitting:
            if one.is_free():
                return one
        if len(fitting) < _BUFFERS or nbytes < _SMALL:
            self._all.append(Buffer(self._cuda, nbytes))
            return self._all[-1]
        oldest = fitting[0]
        self._all.remove(oldest)
        self._all.append(oldest)
        oldest.wait()
        return oldest

    def close(self) -> None:
        for one in self._all:
            one.wait()
        self._all.clear()
