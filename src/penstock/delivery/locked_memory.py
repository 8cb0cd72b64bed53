"""Host memory that is locked, so that GPUs read it by themselves.

A GPU can read only locked memory. A large array of the user is locked when it is first read and
stays locked as long as it exists, because locking it again in every epoch would take seconds. The
same holds for memory that receives chunks of worker processes. All other arrays are copied into
locked buffers, which are reused as soon as the GPU has read them.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from typing import Any

import numpy as np

from penstock.delivery.cuda import CopyEvent, Driver, address_of
from penstock.element.columns import Array
from penstock.element.reused import ReusedMemory, find_base


class LockedArrays:
    """Arrays of the user that are locked so that GPUs can read them, until they are freed.

    A fork would copy all locked memory for the child process, so everything is unlocked before a
    fork, and locked again when it is next needed.
    """

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        """Guards `_locked`. Held while copies are started, so that their source stays locked."""
        self._locked: dict[int, tuple[int, Driver]] = {}
        """The locked arrays by address: their size in bytes, and the driver that locked them."""

    def lock(self, array: Array, driver: Driver) -> bool:
        """Locks an array, and returns whether GPUs can read it, as long as the mutex is held."""
        whole, owner = _origin(array)
        if whole.nbytes > _memory() // 2:
            whole = array
        address, nbytes = address_of(whole), whole.nbytes
        with self.mutex:
            if address in self._locked:
                return self._locked[address][0] == nbytes
            fits = owner is not None and array.flags.c_contiguous and nbytes <= _memory() // 2
            if not fits or not driver.lock(address, nbytes):
                return False
            self._locked[address] = (nbytes, driver)
            weakref.finalize(owner, self._unlock, address).atexit = False
            return True

    def copy(self, array: Array, driver: Driver, to: int, stream: int) -> bool:
        """Locks a contiguous array and starts its copy to a GPU; returns whether it could."""
        with self.mutex:
            return (
                array.flags.c_contiguous
                and self.lock(array, driver)
                and driver.copy(address_of(array), array.nbytes, to, stream)
            )

    def _unlock(self, address: int) -> None:
        with self.mutex:
            if address in self._locked:
                self._locked.pop(address)[1].unlock(address)

    def before_fork(self) -> None:
        """Unlocks all arrays, and holds the mutex until after the fork."""
        self.mutex.acquire()
        for driver in {driver for _, driver in self._locked.values()}:
            driver.wait()
        for address in tuple(self._locked):
            self._unlock(address)


LOCKED = LockedArrays()
os.register_at_fork(
    before=LOCKED.before_fork,
    after_in_parent=LOCKED.mutex.release,
    after_in_child=LOCKED.mutex.release,
)


def _origin(array: Array) -> tuple[Array, Any]:
    """The array that this one is a view of, and the object that owns its memory.

    The owner is None for memory-mapped files, and for objects without weak references.
    """
    array = find_base(array)
    if isinstance(array, np.memmap):
        return array, None
    # Reused memory itself: it is freed before the map that it belongs to, not after it.
    is_owner = array.base is None or isinstance(array, ReusedMemory)
    owner = array if is_owner else array.base
    try:
        weakref.ref(owner)
    except TypeError:
        return array, None
    return array, owner


def is_reused(array: Array) -> bool:
    """Whether an array is in memory that will receive other chunks, so that locking it pays off."""
    return array.nbytes >= _SMALL and isinstance(find_base(array), ReusedMemory)


def _memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


_BUFFERS = 3
"""How many buffers of one size the GPU may still read before `take_free` blocks."""

_SMALL = 1 << 20
"""Bytes below which the number of buffers is not limited, and no memory is locked in place."""


class Buffer:
    """Locked memory, and an event after the copy that reads it last."""

    def __init__(self, cuda: Driver, nbytes: int) -> None:
        self.nbytes = -(-max(nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = mmap.mmap(-1, self.nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory = np.frombuffer(memory, np.uint8)
        address = address_of(self._memory)
        # If it cannot be locked, copies are slower but still correct.
        if cuda.lock(address, self.nbytes):
            weakref.finalize(self, cuda.unlock, address).atexit = False
        self.reader: CopyEvent | None = None

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return self._memory[:nbytes].view(dtype).reshape(shape)

    def is_free(self) -> bool:
        return self.reader is None or self.reader.is_over()

    def wait(self) -> None:
        if self.reader is not None:
            self.reader.wait()


class Buffers:
    """The locked buffers of one delivery; used by one thread."""

    def __init__(self, cuda: Driver) -> None:
        self._cuda = cuda
        self._all: list[Buffer] = []

    def take_free(self, nbytes: int) -> Buffer:
        """A buffer of at least `nbytes` that no GPU reads any more; may block until one is free.

        The caller must set its `reader` before it takes the next buffer.
        """
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
