"""The heap of the C library: keeps the memory of freed elements, so that new ones can use it."""

from __future__ import annotations

import ctypes
import functools
import sys

import numpy as np

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
    mallopt = None if sys.platform == "win32" else getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(option, value)
