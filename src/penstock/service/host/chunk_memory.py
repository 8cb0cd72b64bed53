"""Memory for the bytes of chunks: shared by a worker and a client, or reused to receive into.

Shared memory comes in slabs: files without a name that the kernel frees with the last process that
maps them. A slab is cut into cells of one size. A `Rows` names the cell that holds its bytes, and
the client's `Release` returns the cell when no array shows it any more. A worker never waits for a
cell: when none is free, it sends the bytes through the socket.

The first use of fresh memory costs as much as filling it, so large receive buffers are reused. A
buffer is reused only when no array is left that shows a part of it.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import functools
import mmap
import os
import secrets
import socket
import threading
import weakref
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from penstock.element.buffers import ALIGN
from penstock.element.columns import Array
from penstock.errors import DataLossError
from penstock.service.protocol.frames import Slab

_SMALL = 96 << 10  # Below that, the allocator has memory that was used before.
_HUGE = 4 << 20


def size_class(size: int) -> int:
    """The next of the sizes in which memory is cut: 2 and 3 times the powers of two."""
    power = 1 << max(size - 1, 1).bit_length()
    return power * 3 // 4 if size <= power * 3 // 4 else power


class BufferRef(weakref.ref[Array]):
    """Knows when the last array that shows a buffer has died; a lighter `weakref.finalize`."""

    __slots__ = ("memory", "room")
    memory: mmap.mmap
    room: int
    __hash__ = object.__hash__  # What it refers to has none.
    __eq__ = object.__eq__


class ReceiveBuffers:
    """Buffers for what comes; those that come back are kept, up to `limit` bytes of them."""

    def __init__(self, limit: int = 128 << 20) -> None:
        self._limit = limit
        self._idle = 0
        self._free: dict[int, list[mmap.mmap]] = {}
        self._shown: set[BufferRef] = set()
        self._lock = threading.Lock()

    def take(self, size: int) -> memoryview:
        """A buffer of this size, for as long as anything refers to it."""
        if size < _SMALL:
            raw: Array = np.empty(size + ALIGN, np.uint8)
            start = -raw.__array_interface__["data"][0] % ALIGN
            return raw[start : start + size].data
        room = size_class(size)
        memory = self._reuse(room) or _fresh(room)
        buffer: Array = np.frombuffer(memory, np.uint8, size)
        shown = BufferRef(buffer, self._back)
        shown.memory, shown.room = memory, room
        self._shown.add(shown)
        return buffer.data

    def _reuse(self, room: int) -> mmap.mmap | None:
        # Neither here nor in `_back` does anybody wait for the lock: the collector may call
        # `_back` at any time, also in the thread that holds it.
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if not (kept := self._free.get(room)):
                return None
            self._idle -= room
            return kept.pop()
        finally:
            self._lock.release()

    def _back(self, shown: BufferRef) -> None:
        self._shown.discard(shown)
        memory, room = shown.memory, shown.room
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._idle + room > self._limit:
                self._free.clear()
                self._idle = 0
            if room <= self._limit:
                self._free.setdefault(room, []).append(memory)
                self._idle += room
        finally:
            self._lock.release()


def _fresh(room: int) -> mmap.mmap:
    memory = mmap.mmap(-1, room)
    if room >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


BUFFERS = ReceiveBuffers()
"""Those of this process."""


AVAILABLE = hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS")
"""Whether this system has what is needed."""

LIMIT = 256 << 20
"""The bytes of all slabs of a connection."""

_SLAB = 32 << 20
_CELLS = 1 << 12  # No slab has more cells: a segment is the number of its slab, then its cell.
_SMALLEST = 32 << 10
_ROOMY = 4  # How many times too large a cell may be that is used nevertheless.


class WorkerSlab:
    """A slab of the worker."""

    def __init__(self, number: int, cell: int, cells: int) -> None:
        self.number, self.cell, self.cells = number, cell, cells
        self.descriptor = os.memfd_create("penstock", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, cell * cells)
            # The client reads it as long as it likes; it must never get shorter.
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)
            self.memory: Array = np.frombuffer(mmap.mmap(self.descriptor, cell * cells), np.uint8)
        except BaseException:
            self.shut()
            raise
        # The cell that came back last is given out first: its memory is still in the caches.
        self.free: list[int] = []
        self.used = 0
        """How many cells were ever given out; the first use of memory is dear."""

    @property
    def size(self) -> int:
        return self.cell * self.cells

    def shut(self) -> None:
        """Forgets the descriptor; the memory stays."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1


class Cell(NamedTuple):
    """A cell that is lent: its segment's number, its memory, and its slab if that is news."""

    segment: int
    memory: Array
    slab: Slab | None = None
    descriptor: int = -1


class SlabPool:
    """The worker's side."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._slabs: dict[int, WorkerSlab] = {}
        self._lent: set[int] = set()
        self._count = 0
        self._lock = threading.Lock()

    def reuse(self, size: int) -> Cell | None:
        """A cell that came back, if there is one."""
        with self._lock:
            fits = [s for s in self._slabs.values() if s.free and size <= s.cell <= size * _ROOMY]
            if not fits:
                return None
            slab = fits[0] if len(fits) == 1 else min(fits, key=lambda slab: slab.cell)
            return self._lend(slab, slab.free.pop(), size)

    def extend(self, size: int) -> Cell | None:
        """A cell that was never used, perhaps of a new slab; None where there is no more room."""
        with self._lock:
            slabs = self._slabs.values()
            fits = [s for s in slabs if s.used < s.cells and size <= s.cell <= size * _ROOMY]
            if fits:
                return self._lend_fresh(min(fits, key=lambda slab: slab.cell), size)
            cell = max(size_class(size), _SMALLEST)
            cells = max(1, min(_SLAB // cell, _CELLS))
            dropped = self._make_room(cell * cells)
            try:
                slab = None if dropped is None else WorkerSlab(self._count, cell, cells)
            except (OSError, MemoryError):
                return None
            if slab is None or dropped is None:
                return None
            return self._announce(slab, dropped, size)

    def _announce(self, slab: WorkerSlab, dropped: tuple[int, ...], size: int) -> Cell:
        self._slabs[slab.number] = slab
        self._count += 1
        told = Slab(slab.number, slab.cell, slab.cells, dropped)
        return self._lend_fresh(slab, size)._replace(slab=told, descriptor=slab.descriptor)

    def announced(self, number: int) -> None:
        """The client has the descriptor of a slab."""
        self._slabs[number].shut()

    def release(self, segments: Iterable[int]) -> None:
        """Cells come back."""
        with self._lock:
            for segment in segments:
                if segment not in self._lent:
                    raise DataLossError(f"data connection: segment {segment} is not lent")
                self._lent.remove(segment)
                number, cell = divmod(segment, _CELLS)
                self._slabs[number].free.append(cell)

    def close(self) -> None:
        with self._lock:
            for slab in self._slabs.values():
                slab.shut()
            self._slabs.clear()
            self._lent.clear()

    def _lend_fresh(self, slab: WorkerSlab, size: int) -> Cell:
        slab.used += 1
        return self._lend(slab, slab.used - 1, size)

    def _lend(self, slab: WorkerSlab, cell: int, size: int) -> Cell:
        segment, start = slab.number * _CELLS + cell, slab.cell * cell
        self._lent.add(segment)
        return Cell(segment, slab.memory[start : start + size])

    def _make_room(self, size: int) -> tuple[int, ...] | None:
        """Drops slabs of which nothing is lent, where that helps; None where it does not."""
        room = self._limit - sum(slab.size for slab in self._slabs.values())
        idle, dropped = [s for s in self._slabs.values() if len(s.free) == s.used], []
        while room < size and idle:
            slab = idle.pop(0)
            room += slab.size
            dropped.append(slab.number)
        if room < size:
            return None
        for number in dropped:
            self._slabs.pop(number).shut()
        return tuple(dropped)


class SegmentRef(weakref.ref[Array]):
    """Knows when the last array that shows a segment has died; a lighter `weakref.finalize`."""

    __slots__ = ("segment",)
    segment: int


class MappedSlabs:
    """The client's side."""

    def __init__(self, limit: int = 2 * LIMIT) -> None:
        self._limit = limit
        self._slabs: dict[int, tuple[Slab, mmap.mmap]] = {}
        self._shown: dict[int, SegmentRef] = {}
        # Appended to when arrays die, which may happen in any thread at any time: no locks.
        self._unused: collections.deque[int] = collections.deque()

    def map(self, slab: Slab, descriptor: int) -> None:
        """Makes a slab readable; the descriptor is closed."""
        try:
            for number in slab.dropped:
                self._slabs.pop(number, None)
            self._check(slab, descriptor)
            memory = mmap.mmap(descriptor, slab.cell * slab.cells, prot=mmap.PROT_READ)
        except (OSError, ValueError, OverflowError) as error:
            raise DataLossError(f"data connection: unusable shared memory ({error})") from None
        finally:
            os.close(descriptor)
        self._slabs[slab.number] = slab, memory

    def _check(self, slab: Slab, descriptor: int) -> None:
        size = slab.cell * slab.cells
        used = sum(len(memory) for _, memory in self._slabs.values())
        if slab.number in self._slabs or not 0 < slab.cells <= _CELLS or slab.cell <= 0:
            raise ValueError(f"{slab} is not a slab")
        if used + size > self._limit:
            raise ValueError(f"{used + size} bytes are too many")
        if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise ValueError("it might get shorter")
        if os.fstat(descriptor).st_size != size:
            raise ValueError(f"it does not have {size} bytes")

    def take(self, segment: int, size: int) -> memoryview:
        """The bytes in a segment, which is released when nothing shows them any more."""
        number, cell = divmod(segment, _CELLS)
        slab, memory = self._slabs.get(number, (None, None))
        if slab is None or memory is None or cell >= slab.cells or size > slab.cell:
            raise DataLossError(f"data connection: no segment {segment} of {size} bytes")
        array: Array = np.frombuffer(memory, np.uint8, size, slab.cell * cell)
        shown = SegmentRef(array, self._died)
        shown.segment = segment
        self._shown[segment] = shown
        return array.data

    def _died(self, shown: SegmentRef) -> None:
        self._unused.append(shown.segment)

    @property
    def waiting(self) -> int:
        """How many segments could be released."""
        return len(self._unused)

    def unused(self) -> tuple[int, ...]:
        """Segments that nobody reads any more, each told once."""
        return tuple(self._unused.popleft() for _ in range(len(self._unused)))

    def close(self) -> None:
        """Forgets all slabs; arrays that still show a part keep what they need."""
        self._slabs.clear()


@functools.cache
def host_id() -> str:
    """Equal in processes that can share memory: one machine, since it started, and one network."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return f"{socket.gethostname()}/{secrets.token_hex(8)}"  # Nobody else's: no sharing.


def can_share() -> bool:
    """Whether this system offers shared memory to processes that are connected."""
    return AVAILABLE and os.path.exists("/proc/self/ns/net")
