"""Reused memory: buffers that receive one chunk after the other.

An array over such memory says so by its origin, so that code which prepares memory at some cost,
such as locking it for a GPU, prepares it once for all chunks that the buffer will receive.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.element.columns import Array


class ReusedMemory(np.ndarray[Any, Any]):
    """All bytes of a buffer that is reused; arrays of elements are views of a part of it.

    It must be freed before the memory: the owner of the memory waits for that.
    """

    @classmethod
    def over(cls, buffer: Any) -> ReusedMemory:
        """The bytes of a buffer, which this object keeps alive."""
        return np.frombuffer(buffer, np.uint8).view(cls)


def find_base(array: Array) -> Array:
    """The array that `array` is a view of, through views and memoryviews; itself if of none."""
    while not isinstance(array, np.memmap):
        base: Any = array.base
        while isinstance(base, memoryview):
            base = base.obj
        # Below reused memory is only the buffer, as another array.
        is_last = isinstance(array, ReusedMemory) and not isinstance(base, ReusedMemory)
        if is_last or not isinstance(base, np.ndarray):
            break
        array = base
    return array
