"""The heap of the C library: keeps the memory of freed elements, so that new ones can use it."""

from __future__ import annotations

import ctypes
import functools
from collections import deque

import numpy as np

from penstock.element.columns import Array

_LARGEST = 31 << 20  # glibc learns from blocks of up to 32 MB.


@functools.cache
def keep_freed_memory() -> None:
    """Makes glibc keep freed memory for the next elements; other C libraries do not change.

    glibc returns the top of its heap to the system when 128 KB of it are free. Elements of 100 KB
    then cost 25 page faults each. glibc raises that threshold to twice the size of the largest
    block that was freed, so one large block, which is never touched, is allocated and freed.
    """
    np.empty(_LARGEST, np.uint8)


_kept_at_most = 2 * _LARGEST


def keep_freed_batches(size: int) -> None:
    """Makes glibc also keep the freed memory of two batches of so many bytes, of many strings.

    Otherwise it returns the memory of every second batch to the system: batches of 120 MB took
    four times as long.
    """
    global _kept_at_most
    keep_freed_memory()
    wanted = min(2 * size, _KEPT)
    if wanted > _kept_at_most:
        _kept_at_most = 1 << (wanted - 1).bit_length()
        _set_option(_TRIM_THRESHOLD, _kept_at_most)


class _Loan:
    """The memory of a large array; it is kept for later arrays when no array uses it any more."""

    def __init__(self, memory: Array, size: int) -> None:
        self._memory = memory
        self.__array_interface__ = memory[:size].__array_interface__

    def __del__(self) -> None:
        _kept.append(self._memory)
        while len(_kept) > _KEPT_ARRAYS or sum(map(len, _kept)) > _KEPT:
            _kept.popleft()


def allocate_bytes(size: int) -> Array:
    """An array of bytes. If it is large, it uses memory that an earlier array has given back.

    glibc returns that to the system, which clears every page again: for batches of 150 MB this took
    more than half of the time.
    """
    if size <= _LARGEST:
        return np.empty(size, np.uint8)
    for _ in range(len(_kept)):
        try:
            memory = _kept.popleft()
        except IndexError:  # Another thread took it.
            break
        if size <= len(memory) <= 2 * size:
            return np.asarray(_Loan(memory, size))
        _kept.append(memory)
    return np.asarray(_Loan(np.empty(size, np.uint8), size))


_kept: deque[Array] = deque()
_KEPT_ARRAYS = 4

_ARENA_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -8, -3, -1  # Of malloc.h.
_KEPT = 1 << 30


def keep_large_arrays() -> None:
    """Makes glibc also keep the memory of large arrays, in a process that only computes elements.

    Otherwise it returns that memory to the system, which clears every page again for the next
    batch: for batches of 80 MB this took nearly half of a worker's time.
    """
    global _kept_at_most
    _kept_at_most = _KEPT
    _set_option(_ARENA_MAX, 1)  # Other heaps than the first have no room for large arrays.
    _set_option(_MMAP_THRESHOLD, _KEPT)
    _set_option(_TRIM_THRESHOLD, _KEPT)


def _set_option(option: int, value: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(option, value)
