"""Memory for the bytes of chunks: shared by a worker and a client, or reused to receive into.

Shared memory comes in slabs: files without a name that the kernel frees with the last process that
maps them. A slab is cut into cells of one size. A `Rows` names the cell that holds its bytes, and
the client's `Release` returns the cell when no array shows it any more. A worker never waits for a
cell: when none is free, it sends the bytes through the socket.

The first use of fresh memory costs as much as filling it, so large receive buffers are reused. A
buffer is reused only when no array is left that shows a part of it.

A forked process shows the same memory, and this process does not know which arrays it has. So
memory that is lent when this process forks is retired: it is never filled again, and freed with the
last process that maps it.
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
from typing import NamedTuple, Protocol

import numpy as np

from penstock.element.buffers import ALIGN
from penstock.element.columns import Array
from penstock.element.reused import ReusedMemory
from penstock.engine.processes.descriptors import make_sealed_file
from penstock.errors import DataLossError

_SMALL = 96 << 10  # For smaller sizes, the allocator reuses memory.
_HUGE = 4 << 20

AVAILABLE = hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS")
"""Whether this system has sealed memory files."""


def slab_limit(memory: int) -> int:
    """The bytes of all slabs of a connection, on a machine with so much memory.

    A reader holds several large batches of each worker. Without a cell, a batch goes through the
    socket, where it is copied twice more.
    """
    return max(256 << 20, memory // 64)


LIMIT = slab_limit(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
"""The bytes of all slabs of a connection on this machine."""

_SLAB = 32 << 20

_CELLS = 1 << 12  # The most cells of a slab. A segment is `slab number * _CELLS + cell`.

_SMALLEST = 32 << 10

_ROOMY = 4  # A cell is used for chunks that fill at least this fraction (one fourth) of it.


def size_class(size: int) -> int:
    """The size of the buffer or cell for `size` bytes: 2 or 3 times a power of two."""
    power = 1 << max(size - 1, 1).bit_length()
    return power * 3 // 4 if size <= power * 3 // 4 else power


class BufferRef(weakref.ref[Array]):
    """Calls back when the last array over a buffer is freed; lighter than `weakref.finalize`."""

    __slots__ = ("memory", "room")
    memory: ReusedMemory
    room: int
    __hash__ = object.__hash__  # Arrays are not hashable.
    __eq__ = object.__eq__


class ReceiveBuffers:
    """Buffers to receive into; freed ones are kept for reuse, up to `limit` bytes."""

    def __init__(self, limit: int = 128 << 20) -> None:
        self._limit = limit
        self._idle = 0  #: guarded by _lock; bytes in `_free`
        self._free: dict[int, list[ReusedMemory]] = {}  #: guarded by _lock; by size class
        self._referenced: set[BufferRef] = set()
        """Keeps the weak references alive; adding and discarding one are atomic, without a lock."""
        self._lock = threading.Lock()

    def take(self, size: int) -> memoryview:
        """A buffer of `size` bytes, which is reused after the last reference to it is gone."""
        if size < _SMALL:
            return allocate_aligned(size).data
        room = size_class(size)
        memory = self._reuse(room)
        if memory is None:
            memory = _map_memory(room)
        buffer = memory[:size]
        reference = BufferRef(buffer, self._take_back)
        reference.memory, reference.room = memory, room
        self._referenced.add(reference)
        return buffer.data

    def _reuse(self, room: int) -> ReusedMemory | None:
        # Neither this method nor `_take_back` waits for the lock: the garbage collector may call
        # `_take_back` in the thread that holds it.
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if not (kept := self._free.get(room)):
                return None
            self._idle -= room
            return kept.pop()
        finally:
            self._lock.release()

    def _take_back(self, reference: BufferRef) -> None:
        self._referenced.discard(reference)
        memory, room = reference.memory, reference.room
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


def allocate_aligned(size: int) -> Array:
    """`size` bytes of new memory at an aligned address."""
    raw: Array = np.empty(size + ALIGN, np.uint8)
    start = -raw.__array_interface__["data"][0] % ALIGN
    return raw[start : start + size]


def _map_memory(room: int) -> ReusedMemory:
    # Private: a forked process keeps what it had, when this one reuses the memory.
    memory = mmap.mmap(-1, room, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if room >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return ReusedMemory.over(memory)


BUFFERS = ReceiveBuffers()
"""The receive buffers of this process."""


class Slab(NamedTuple):
    """Shared memory of `cells` cells of `cell` bytes; its descriptor comes with the message."""

    number: int
    cell: int
    cells: int
    dropped: tuple[int, ...] = ()
    """The numbers of slabs that the receiver may unmap."""


class WorkerSlab:
    """A slab as the worker sees it; guarded by the lock of its pool."""

    def __init__(self, number: int, cell: int, cells: int) -> None:
        self.number, self.cell, self.cells = number, cell, cells
        self.descriptor = make_sealed_file("penstock", cell * cells)
        try:
            self.memory: Array = np.frombuffer(mmap.mmap(self.descriptor, cell * cells), np.uint8)
        except BaseException:
            self.close_descriptor()
            raise
        # A stack: the cell that was released last is still in the caches.
        self.free: list[int] = []
        self.used = 0
        """How many cells were ever used; cells that never were have no memory yet."""
        self.retired = 0
        """How many cells are never used again."""

    @property
    def size(self) -> int:
        return self.cell * self.cells

    def close_descriptor(self) -> None:
        """Closes the descriptor; the memory stays mapped."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1


class Cell(NamedTuple):
    """A lent cell: its segment number, its memory, and its slab if that must be announced."""

    segment: int
    memory: Array
    slab: Slab | None = None
    descriptor: int = -1


class SlabPool:
    """The worker's side of shared memory: lends cells of slabs to chunks.

    With `strict`, it lends nothing beyond `limit` bytes. Otherwise it does, one chunk in a slab,
    and drops such slabs when they are idle and it needs another.
    """

    def __init__(self, limit: int = LIMIT, strict: bool = True) -> None:
        self._limit, self._strict = limit, strict
        self._slabs: dict[int, WorkerSlab] = {}  #: guarded by _lock
        self._lent: set[int] = set()  #: guarded by _lock
        self._count = 0  #: guarded by _lock; numbers of slabs are never used twice
        self._lock = threading.Lock()

    def reuse(self, size: int) -> Cell | None:
        """A cell that was released; None if none fits."""
        with self._lock:
            fits = [s for s in self._slabs.values() if s.free and size <= s.cell <= size * _ROOMY]
            if not fits:
                return None
            slab = fits[0] if len(fits) == 1 else min(fits, key=lambda slab: slab.cell)
            return self._lend(slab, slab.free.pop(), size)

    def extend(self, size: int) -> Cell | None:
        """A cell that was never used, perhaps of a new slab; None if `limit` is reached."""
        with self._lock:
            slabs = self._slabs.values()
            fits = [s for s in slabs if s.used < s.cells and size <= s.cell <= size * _ROOMY]
            if fits:
                return self._lend_fresh(min(fits, key=lambda slab: slab.cell), size)
            cell = max(size_class(size), _SMALLEST)
            cells = max(1, min(_SLAB // cell, _CELLS))
            if (dropped := self._make_room(cell * cells)) is None:
                return None
            if not self._strict and self._room < cell * cells:
                cells = 1
            try:
                slab = self._slabs[self._count] = WorkerSlab(self._count, cell, cells)
            except (OSError, MemoryError):
                return None
            self._count += 1
            announced = Slab(slab.number, cell, cells, dropped)
            return self._lend_fresh(slab, size)._replace(slab=announced, descriptor=slab.descriptor)

    def close_descriptor(self, number: int) -> None:
        """Called once the descriptor of a slab was sent to the client."""
        self._slabs[number].close_descriptor()

    def release(self, segments: Iterable[int]) -> None:
        """Makes cells free that the client has released; raises if they were not lent."""
        with self._lock:
            for segment in segments:
                slab, cell = self._take_back(segment)
                slab.free.append(cell)

    def retire(self, segments: Iterable[int]) -> None:
        """Never lends these cells again: a process that the client forked may show them."""
        with self._lock:
            for segment in segments:
                slab, _ = self._take_back(segment)
                slab.retired += 1

    def _take_back(self, segment: int) -> tuple[WorkerSlab, int]:
        if segment not in self._lent:
            raise DataLossError(f"data connection: segment {segment} is not lent")
        self._lent.remove(segment)
        number, cell = divmod(segment, _CELLS)
        return self._slabs[number], cell

    def close(self) -> None:
        with self._lock:
            for slab in self._slabs.values():
                slab.close_descriptor()
            self._slabs.clear()
            self._lent.clear()

    def _lend_fresh(self, slab: WorkerSlab, size: int) -> Cell:
        slab.used += 1
        return self._lend(slab, slab.used - 1, size)

    def _lend(self, slab: WorkerSlab, cell: int, size: int) -> Cell:
        segment, start = slab.number * _CELLS + cell, slab.cell * cell
        self._lent.add(segment)
        return Cell(segment, slab.memory[start : start + size])

    @property
    def _room(self) -> int:
        return self._limit - sum(slab.size for slab in self._slabs.values())

    def _make_room(self, size: int) -> tuple[int, ...] | None:
        """Drops slabs without lent cells until `size` bytes fit; if strict, only if they will."""
        room = self._room
        slabs = self._slabs.values()
        idle, dropped = [s for s in slabs if len(s.free) + s.retired == s.used], []
        while room < size and idle:
            slab = idle.pop(0)
            room += slab.size
            dropped.append(slab.number)
        if room < size and self._strict:
            return None
        for number in dropped:
            self._slabs.pop(number).close_descriptor()
        return tuple(dropped)


class Lender(Protocol):
    """Lends shared memory to arrays, and reuses it when they are freed."""

    def retire_lent(self) -> None:
        """Lets no memory be filled again that is lent now."""


_LENDERS: weakref.WeakValueDictionary[int, Lender] = weakref.WeakValueDictionary()
"""By id. Threads add to it at any time; copying its references takes one step."""


def retire_lent_at_fork(lender: Lender) -> None:
    """Calls `retire_lent` of a lender whenever this process forks."""
    _LENDERS[id(lender)] = lender


def _retire_lent() -> None:
    for reference in _LENDERS.valuerefs():
        if (lender := reference()) is not None:
            lender.retire_lent()


# A forked process lends by lenders of its own. A thread of its parent may hold a lock of these.
os.register_at_fork(before=_retire_lent, after_in_child=_LENDERS.clear)


class SegmentRef(weakref.ref[Array]):
    """Calls back when the last array over a segment is freed."""

    __slots__ = ("is_retired", "segment")
    segment: int
    is_retired: bool


class MappedSlabs:
    """The client's side of shared memory: maps slabs, and collects segments to release."""

    def __init__(self, limit: int | None = 2 * LIMIT, writable: bool = False) -> None:
        self._limit = limit
        self._access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._slabs: dict[int, tuple[Slab, ReusedMemory]] = {}
        self._referenced: dict[int, SegmentRef] = {}
        # Without a lock: arrays may be freed in any thread, even in a thread that holds it.
        self._unused: collections.deque[int] = collections.deque()
        self._retired: collections.deque[int] = collections.deque()
        retire_lent_at_fork(self)

    def retire_lent(self) -> None:
        for reference in list(self._referenced.values()):
            reference.is_retired = True

    def map(self, slab: Slab, descriptor: int) -> None:
        """Maps a slab and closes the descriptor; raises DataLossError if it is unusable."""
        try:
            for number in slab.dropped:
                self._slabs.pop(number, None)
            self._check(slab, descriptor)
            memory = mmap.mmap(descriptor, slab.cell * slab.cells, prot=self._access)
        except (OSError, ValueError, OverflowError) as error:
            raise DataLossError(f"data connection: unusable shared memory ({error})") from None
        finally:
            if descriptor >= 0:  # Else this process has too many open files to receive one.
                os.close(descriptor)
        self._slabs[slab.number] = slab, ReusedMemory.over(memory)

    def _check(self, slab: Slab, descriptor: int) -> None:
        size = slab.cell * slab.cells
        used = sum(len(memory) for _, memory in self._slabs.values())
        if slab.number in self._slabs or not 0 < slab.cells <= _CELLS or slab.cell <= 0:
            raise ValueError(f"{slab} is not a slab")
        if self._limit is not None and used + size > self._limit:
            raise ValueError(f"{used + size} bytes are too many")
        if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise ValueError("it is not sealed against shrinking")
        if os.fstat(descriptor).st_size != size:
            raise ValueError(f"it does not have {size} bytes")

    def take(self, segment: int, size: int) -> memoryview:
        """The bytes in a segment, which is released after the last array over them is freed."""
        number, cell = divmod(segment, _CELLS)
        slab, memory = self._slabs.get(number, (None, None))
        if slab is None or memory is None or cell >= slab.cells or size > slab.cell:
            raise DataLossError(f"data connection: no segment {segment} of {size} bytes")
        start = slab.cell * cell
        array = memory[start : start + size]
        reference = SegmentRef(array, self._mark_unused)
        reference.segment, reference.is_retired = segment, False
        self._referenced[segment] = reference
        return array.data

    def _mark_unused(self, reference: SegmentRef) -> None:
        freed = self._retired if reference.is_retired else self._unused
        freed.append(reference.segment)

    @property
    def unused_count(self) -> int:
        """How many segments `take_unused` and `take_retired` would return."""
        return len(self._unused) + len(self._retired)

    def take_unused(self, most: int = 1 << 20) -> tuple[int, ...]:
        """Returns at most `most` segments that have become unused since the last call."""
        return tuple(self._unused.popleft() for _ in range(min(most, len(self._unused))))

    def take_retired(self, most: int = 1 << 20) -> tuple[int, ...]:
        """The same, of segments that must never be filled again."""
        return tuple(self._retired.popleft() for _ in range(min(most, len(self._retired))))

    def close(self) -> None:
        """Unmaps the slabs that no array uses; arrays keep theirs mapped."""
        self._slabs.clear()


@functools.cache
def host_id() -> str:
    """A name that is equal in processes that can share memory: same boot and same network."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return f"{socket.gethostname()}/{secrets.token_hex(8)}"  # Unique, so memory is not shared.


def can_share() -> bool:
    """Whether this system can share memory between connected processes."""
    return AVAILABLE and os.path.exists("/proc/self/ns/net")
