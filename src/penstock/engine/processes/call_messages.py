"""What a program and its call processes send each other: functions, chunks and errors.

A function travels once to each process, as a file in shared memory: processes share the arrays that
it captures.
"""

from __future__ import annotations

import mmap
import os
import pickle
from typing import Any, NamedTuple

import numpy as np

from penstock.element import columns, nest
from penstock.element.buffers import Description, Packing, unpack
from penstock.element.chunk import Chunk
from penstock.element.columns import Column
from penstock.element.nest import Tree
from penstock.element.ragged import Ragged
from penstock.engine.processes.batch_memory import SentRows
from penstock.engine.tracebacks import format_for_others
from penstock.errors import OpError, UnknownError
from penstock.plan.functions import load_cloudpickle


class Define(NamedTuple):
    """A function, in the file whose descriptor comes with it, and its number."""

    number: int


class Forget(NamedTuple):
    """The function of this number is not called any more."""

    number: int


class Elements(NamedTuple):
    """A chunk: `size` elements; the buffers come with the message. See `Trees` for `skeleton`."""

    skeleton: bytes
    size: int
    descriptions: list[Description]
    fixed: list[bool]
    """Which columns must not be written to."""


class ShareCell(NamedTuple):
    """Memory for the rows of batches, in the file whose descriptor comes with it."""

    cell: int
    room: int


class DropCells(NamedTuple):
    """The process may unmap these cells."""

    cells: tuple[int, ...]


class Call(NamedTuple):
    """Asks for calls of a function on elements; `contained` is the value of `CONTAINED`.

    Without elements, it asks the process to load the function. `rows` says where the process
    writes the results, if they are rows of a batch.
    """

    number: int
    ordinal: int
    elements: Elements | None
    contained: bool
    rows: SentRows | None = None


class Ready(NamedTuple):
    """The process has started."""


class CallResults(NamedTuple):
    """The results of a task: in columns or, where these cannot contain them, pickled.

    `failures` are the indices and errors of elements that could not be made; they are left out of
    the results. If `are_written`, the results are where `Call.rows` said, and `elements` has only
    their structure and number.
    """

    seconds: float
    elements: Elements | None
    pickled: bytes
    failures: list[tuple[int, bytes]]
    are_written: bool = False


class CallFailure(NamedTuple):
    """A call raised an exception that is not the failure of an element."""

    error: bytes


class Unloadable(NamedTuple):
    """The function of a task cannot be loaded in the process."""

    reason: str


# Functions


def write_function(value: Any) -> int:
    """Writes anything that cloudpickle can pickle to a file without a name; returns it."""
    buffers: list[pickle.PickleBuffer] = []
    data = load_cloudpickle().dumps(value, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    index = pickle.dumps((len(data), [len(view) for view in views]))
    descriptor = os.memfd_create("penstock", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        for part in (len(index).to_bytes(8, "little") + index, data, *views):
            file.write(part)
            file.write(bytes(-file.tell() % mmap.PAGESIZE))
    return descriptor


def read_function(descriptor: int) -> Any:
    """Reads what `write_function` wrote; its arrays are mapped, and copied where one is changed."""
    memory = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
    at = int.from_bytes(memory[:8], "little") + 8
    size, lengths = pickle.loads(memory[8:at])
    buffers, start = [], _page(at)
    at = start + _page(size)
    for length in lengths:
        buffers.append(memory[at : at + length])
        at += _page(length)
    return pickle.loads(memory[start : start + size], buffers=buffers)


def _page(size: int) -> int:
    return size + -size % mmap.PAGESIZE


# Chunks


class Trees:
    """Structures of elements as bytes: an example of the structure, pickled.

    A structure that equals the one before it is sent as b"".
    """

    def __init__(self) -> None:
        self._last: Tree | None = None

    def pack(self, tree: Tree) -> bytes:
        import cloudpickle

        if tree == self._last:
            return b""
        self._last = None
        data: bytes = cloudpickle.dumps(nest.unflatten(tree, [0] * tree.num_leaves))
        self._last = tree
        return data

    def unpack(self, data: bytes) -> Tree:
        if data:
            self._last = nest.flatten(pickle.loads(data))[1]
        assert self._last is not None
        return self._last


def pack_chunk(chunk: Chunk, trees: Trees) -> tuple[Elements, list[memoryview]]:
    """A chunk and its buffers; raises if an element contains something that has no buffer."""
    packing = Packing("sent to another process")
    described = [packing.column(column) for column in chunk.columns]
    fixed = [_is_fixed(column) for column in chunk.columns]
    return Elements(trees.pack(chunk.tree), chunk.size, described, fixed), packing.parts


def unpack_chunk(elements: Elements, body: memoryview, trees: Trees) -> Chunk:
    """The chunk; its arrays are views of `body`."""
    made = unpack(elements.descriptions, body)
    pairs = zip(made, elements.fixed, strict=True)
    given = [columns.as_read_only(column) if fixed else column for column, fixed in pairs]
    return Chunk(trees.unpack(elements.skeleton), given, elements.size)


def _is_fixed(column: Column) -> bool:
    if isinstance(column, Ragged):
        return _is_fixed(column.flat)
    if isinstance(column, list):
        return bool(column) and isinstance(column[0], np.ndarray) and _is_fixed(column[0])
    return not column.flags.writeable


# Errors


def pack_error(error: BaseException) -> bytes:
    """An exception with its cause and its traceback as text."""
    cause = error.__cause__
    trace = format_for_others(error)
    copied = None if cause is None else _copy_error(cause)
    return pickle.dumps((_copy_error(error), copied, trace))


def unpack_error(data: bytes) -> BaseException:
    """The exception, with a note that has the traceback of the process."""
    own, cause, trace = pickle.loads(data)
    error = _restore(*own)
    if cause is not None:
        error.__cause__ = _restore(*cause)
    if trace:
        (error.__cause__ or error).add_note(f"Traceback in the process of the call:\n{trace}")
    return error


def _copy_error(error: BaseException) -> tuple[bytes, str]:
    """An exception, pickled if that is possible, and as text."""
    import cloudpickle

    try:
        pickled = cloudpickle.dumps(error)
        if type(pickle.loads(pickled)) is not type(error):
            pickled = b""
    except Exception:
        pickled = b""
    text = error.message if isinstance(error, OpError) else f"{type(error).__name__}: {error}"
    return pickled, text


def _restore(pickled: bytes, text: str) -> BaseException:
    try:
        error: BaseException = pickle.loads(pickled)
    except Exception:  # It was not pickled, or its class is found only in the other process.
        return UnknownError(text)
    return error
