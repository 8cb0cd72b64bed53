"""CUDA's driver, and host memory locked for it, so that a GPU reads that memory by itself.

A GPU can read only locked memory. A large array of the user is locked when it is first read and
stays locked as long as it exists, because locking it again in every epoch would take seconds. The
same holds for memory that receives chunks of worker processes. All other arrays are copied into
locked buffers, which are reused as soon as the GPU has read them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import lru_cache
from typing import Any

import numpy as np

from penstock.element.columns import Array
from penstock.element.reused import ReusedMemory, find_origin

_PORTABLE = 1
_READ_ONLY = 8
_IN_STREAM_ORDER = 1
_NON_BLOCKING = 1
_WITHOUT_SPINNING = 1 | 2  # Nor recording times.


class _Attributes(ctypes.Structure):
    """How a batch of copies reads and writes (`CUmemcpyAttributes`)."""

    _fields_ = (
        ("order", c_int),
        ("source", c_int * 2),
        ("destination", c_int * 2),
        ("flags", c_uint),
    )


class Driver:
    """The calls of libcuda that deliveries need; GPUs are given by their number."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._contexts: dict[int, c_void_p] = {}
        newer, older = (
            getattr(library, name, None) for name in ("cuMemcpyBatchAsync_v2", "cuMemcpyBatchAsync")
        )
        # The older function takes one more argument: where to store which copy failed.
        self._batch: Any = newer or older
        self._failed = () if newer else (byref(c_size_t()),)
        library.cuInit(0)

    @contextmanager
    def on(self, gpu: int) -> Iterator[None]:
        """Makes the primary context of a GPU, which the frameworks use, current in this thread."""
        if gpu not in self._contexts:
            context = c_void_p()
            self._library.cuDevicePrimaryCtxRetain(byref(context), c_int(gpu))
            self._contexts[gpu] = context
        self._library.cuCtxPushCurrent_v2(self._contexts[gpu])
        try:
            yield
        finally:
            self._library.cuCtxPopCurrent_v2(byref(c_void_p()))

    @property
    def copies_rows(self) -> bool:
        """Whether `copy_rows` is available; it is since CUDA 12.8."""
        return self._batch is not None

    def copy_rows(self, to: Array, sources: Array, sizes: Array, stream: int) -> bool:
        """Starts copies from locked memory; returns whether it could."""
        attributes = _Attributes(_IN_STREAM_ORDER)
        status = self._batch(
            _pointer(to),
            _pointer(sources),
            _pointer(sizes),
            c_size_t(len(sizes)),
            byref(attributes),
            byref(c_size_t(0)),
            c_size_t(1),
            *self._failed,
            c_void_p(stream),
        )
        return bool(status == 0)

    def copy(self, source: int, nbytes: int, to: int, stream: int) -> bool:
        """Starts a copy from locked memory to a GPU; returns whether it could."""
        call = self._library.cuMemcpyHtoDAsync_v2
        status = call(c_uint64(to), c_void_p(source), c_size_t(nbytes), c_void_p(stream))
        return bool(status == 0)

    def lock(self, address: int, nbytes: int) -> bool:
        """Locks host memory so that all GPUs can read it; returns whether it could."""
        call = self._library.cuMemHostRegister_v2
        # Memory that this process may only read needs the second flag, which not all GPUs have.
        return any(
            call(c_void_p(address), c_size_t(nbytes), c_uint(flags)) == 0
            for flags in (_PORTABLE, _PORTABLE | _READ_ONLY)
        )

    def unlock(self, address: int) -> None:
        self._library.cuMemHostUnregister(c_void_p(address))

    def stream(self) -> int:
        made = c_void_p()
        self._library.cuStreamCreate(byref(made), c_uint(_NON_BLOCKING))
        return int(made.value or 0)

    def mark(self, gpu: int, stream: int) -> EventMark:
        """A mark after everything that was started on a stream until now."""
        made = c_void_p()
        with self.on(gpu):
            self._library.cuEventCreate(byref(made), c_uint(_WITHOUT_SPINNING))
            self._library.cuEventRecord(made, c_void_p(stream))
        return EventMark(self, gpu, made)

    def is_passed(self, event: c_void_p) -> bool:
        return bool(self._library.cuEventQuery(event) == 0)

    def wait_for(self, event: c_void_p) -> None:
        self._library.cuEventSynchronize(event)

    def forget(self, event: c_void_p) -> None:
        self._library.cuEventDestroy_v2(event)

    def wait(self) -> None:
        """Blocks until all GPUs that were used through `on` have finished their work."""
        for gpu in tuple(self._contexts):
            with self.on(gpu):
                self._library.cuCtxSynchronize()


class EventMark:
    """A point in a stream of a GPU; it is over once all work before it is done."""

    def __init__(self, driver: Driver, gpu: int, event: c_void_p) -> None:
        self._driver, self._gpu, self._event = driver, gpu, event
        weakref.finalize(self, driver.forget, event).atexit = False

    def is_over(self) -> bool:
        with self._driver.on(self._gpu):
            return self._driver.is_passed(self._event)

    def wait(self) -> None:
        with self._driver.on(self._gpu):
            self._driver.wait_for(self._event)


def _pointer(array: Array) -> c_void_p:
    return c_void_p(_address(array))


@lru_cache(maxsize=1)
def driver() -> Driver | None:
    """The driver of this machine's GPUs; None if there is none."""
    try:
        return Driver(ctypes.CDLL("libcuda.so.1"))
    except OSError:
        return None


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
        address, nbytes = _address(whole), whole.nbytes
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
                and driver.copy(_address(array), array.nbytes, to, stream)
            )

    def _unlock(self, address: int) -> None:
        with self.mutex:
            if address in self._locked:
                self._locked.pop(address)[1].unlock(address)

    def before_fork(self) -> None:
        self.mutex.acquire()
        for driver in {driver for _, driver in self._locked.values()}:
            driver.wait()
        for address in tuple(self._locked):
            self._unlock(address)

    def after_fork(self) -> None:
        self.mutex.release()


LOCKED = LockedArrays()
os.register_at_fork(
    before=LOCKED.before_fork,
    after_in_parent=LOCKED.after_fork,
    after_in_child=LOCKED.after_fork,
)


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _origin(array: Array) -> tuple[Array, Any]:
    """The array that this one is a view of, and the object that owns its memory.

    The owner is None for memory-mapped files, and for objects without weak references.
    """
    array = find_origin(array)
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
    return array.nbytes >= _SMALL and isinstance(find_origin(array), ReusedMemory)


def _memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


_BUFFERS = 3
"""How many buffers of one size the GPU may still read before `take_free` blocks."""

_SMALL = 1 << 20
"""Bytes below which the number of buffers is not limited, and no memory is locked in place."""


class Buffer:
    """Locked memory, and a mark after the copy that reads it last."""

    def __init__(self, cuda: Driver, nbytes: int) -> None:
        self.nbytes = -(-max(nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = mmap.mmap(-1, self.nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory = np.frombuffer(memory, np.uint8)
        address = self._memory.__array_interface__["data"][0]
        # If it cannot be locked, copies are slower but still correct.
        if cuda.lock(address, self.nbytes):
            weakref.finalize(self, cuda.unlock, address).atexit = False
        self.reader: EventMark | None = None

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
