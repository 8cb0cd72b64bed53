"""Arrays that are mapped from files: where their bytes are, and the same array in another process.

A reference is made only if a process that opens the file by its name finds the bytes of the array
there: not if the file was removed or replaced, and not for copy-on-write maps.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np

from penstock.element.columns import Array
from penstock.errors import FailedPreconditionError
from penstock.plan.array_references import FileArray

_SHARED = ("r", "r+", "w+")


def find_map(column: Any) -> np.memmap[Any, Any] | None:
    """The map behind an array, if its pages can be read again from the file.

    Not for copy-on-write maps: what was written there lives nowhere else.
    """
    while isinstance(column, np.ndarray):
        if isinstance(column, np.memmap):
            shared = column.mode in _SHARED and getattr(column, "_mmap", None) is not None
            return column if shared else None
        column = column.base
    return None


def refer_to_file(array: Array) -> FileArray | None:
    """The reference to an array that a file holds; None if there is no such file."""
    found = find_map(array)
    if found is None or found.filename is None or array.dtype.hasobject:
        return None
    path = os.path.abspath(os.fspath(found.filename))
    memory = np.frombuffer(found._mmap, np.uint8).ctypes.data  # type: ignore[attr-defined]
    if not os.path.isfile(path) or _is_deleted(memory):
        return None
    begin = found.offset - found.offset % mmap.ALLOCATIONGRANULARITY
    return FileArray(
        path=path,
        file_size=os.path.getsize(path),
        offset=begin + array.ctypes.data - memory,
        dtype=array.dtype,
        shape=array.shape,
        strides=array.strides,
        writeable=array.flags.writeable,
    )


def _is_deleted(address: int) -> bool:
    """Whether the file that is mapped at an address was removed, or replaced by another one."""
    try:
        with open("/proc/self/maps", "rb") as maps:
            for line in maps:
                begin, _, end = line.split(None, 1)[0].partition(b"-")
                if int(begin, 16) <= address < int(end, 16):
                    return line.rstrip().endswith(b" (deleted)")
    except OSError:
        pass  # Only Linux has this file.
    return False


def open_file_array(reference: FileArray) -> Array:
    """Maps the array; raises FailedPreconditionError if the file is not the sender's."""
    path = reference.path
    try:
        size = os.path.getsize(path)
        if size != reference.file_size:
            raise FailedPreconditionError(
                f"distribute: the file {path!r}, which this dataset maps into memory, has {size} "
                f"bytes here and {reference.file_size} where the dataset was made; put the same "
                "file there"
            )
        bytes_of_file = np.memmap(path, np.uint8, "c" if reference.writeable else "r")
    except (OSError, ValueError) as error:
        raise FailedPreconditionError(
            f"distribute: the file {path!r}, which this dataset maps into memory, cannot be read "
            f"here ({error}); put it at the same path on every worker's machine, or send its rows: "
            "from_tensor_slices(numpy.array(rows))"
        ) from error
    array: Array = np.ndarray(
        reference.shape, reference.dtype, bytes_of_file, reference.offset, reference.strides
    )
    return array
