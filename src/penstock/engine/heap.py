"""The heap of the C library: keeps the memory of freed elements, so that new ones can use it."""

from __future__ import annotations

import functools

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
