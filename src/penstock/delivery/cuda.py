"""CUDA's driver: the calls by which GPUs read memory of the host."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import lru_cache
from typing import Any

from penstock.element.columns import Array

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

    def record_event(self, gpu: int, stream: int) -> CopyEvent:
        """An event after everything that was started on a stream until now."""
        made = c_void_p()
        with self.on(gpu):
            self._library.cuEventCreate(byref(made), c_uint(_WITHOUT_SPINNING))
            self._library.cuEventRecord(made, c_void_p(stream))
        return CopyEvent(self, gpu, made)

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


class CopyEvent:
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


def address_of(array: Array) -> int:
    """The address of the first byte of an array."""
    address: int = array.__array_interface__["data"][0]
    return address


def _pointer(array: Array) -> c_void_p:
    return c_void_p(address_of(array))


@lru_cache(maxsize=1)
def driver() -> Driver | None:
    """The driver of this machine's GPUs; None if there is none."""
    try:
        return Driver(ctypes.CDLL("libcuda.so.1"))
    except OSError:
        return None
