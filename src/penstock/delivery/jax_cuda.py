"""Delivery to NVIDIA's GPUs with JAX: CUDA copies large arrays, on a stream of its own.

JAX itself copies from memory that is not locked, which is nine times slower and blocks the caller.
Small arrays are left to it. A large array is copied into a *berth*, an array of JAX on the GPU that
no caller ever sees. When an element is received, JAX copies the berth on the GPU and returns that
copy. A berth is written to again only when that copy is done: nothing else shows when the berth is
free, because the caller may have deleted the copy.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax as jax_module
import numpy as np

from penstock.delivery.cuda import LOCKED, Buffers, Driver, EventMark, is_reused
from penstock.delivery.moving import Array, ColumnDelivery
from penstock.delivery.row_fetch import RowFetch, fetch_rows, owners_of_row_numbers
from penstock.element.chunk import Chunk
from penstock.engine.gather import Gather
from penstock.engine.tuning import cores

# Its own annotations are incomplete.
jax: Any = jax_module


@dataclass(frozen=True)
class Handle:
    """A device of JAX, and whether arrays are *committed* to it.

    JAX moves uncommitted arrays to the devices of the arrays that they are used with; for
    committed ones it raises.
    """

    device: Any
    is_committed: bool = True

    def as_default(self) -> AbstractContextManager[Any]:
        """A context manager inside which uncommitted arrays are on this device."""
        if self.is_committed:
            return nullcontext()
        entered: AbstractContextManager[Any] = jax.default_device(self.device)
        return entered

    def put(self, values: Any) -> Any:
        """An array, or a list of arrays, on the device."""
        with self.as_default():
            return jax.device_put(values, self.device if self.is_committed else None)

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        with self.as_default():
            return jax.numpy.zeros(shape, dtype, device=self.device if self.is_committed else None)


_LEFT = 2
"""How many berths of one kind the GPU may still copy from before `_take_berth` blocks."""

Begin = Callable[[int, int], bool]
"""Starts copies to an address, on a stream; returns whether it could."""


class Berth:
    """Memory of a GPU that receives one leaf of an element."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], handle: Handle) -> None:
        self.array = jax.block_until_ready(handle.zeros(shape, dtype))
        self.address: int = self.array.unsafe_buffer_pointer()
        self.kind = shape, dtype
        self.occupied = False
        """Whether it holds a leaf that the caller has not received yet."""
        self.left: Any = None
        """An array of JAX that is ready once the received leaf was copied out of this berth."""


class Arrival:
    """The leaves sent to one GPU by one call of `send`; `mark` is set when the call returns."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.mark: EventMark | None = None


class LandedLeaf(NamedTuple):
    """A leaf of an element, in a berth or being copied there."""

    arrival: Arrival
    berth: Berth


class Landing:
    """The berths of one GPU, and the stream that copies leaves into them."""

    def __init__(self, cuda: Driver, handle: Handle) -> None:
        self._cuda, self._handle = cuda, handle
        self.gpu: int = handle.device.local_hardware_id
        self._berths: list[Berth] = []
        self._arrival = Arrival(handle)
        self._reading: list[Array] = []
        """The arrays that the GPU reads in place, of the current arrival."""
        self._held: deque[tuple[EventMark, list[Array]]] = deque()
        """The arrays that the GPU reads in place, until the marks after their copies."""
        with cuda.on(self.gpu):
            self._stream = cuda.stream()
        self._closed = weakref.finalize(self, _free_berths, cuda, self._berths)

    def begin(
        self, begin: Begin, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> LandedLeaf | None:
        """Starts the copy of a leaf into a berth; None if it could not."""
        berth = self._take_berth(shape, dtype)
        with self._cuda.on(self.gpu):
            berth.occupied = begin(berth.address, self._stream)
        return LandedLeaf(self._arrival, berth) if berth.occupied else None

    def begin_in_place(self, array: Array) -> LandedLeaf | None:
        """Starts the copy of an array out of its own memory; None if that is not worth locking."""
        if not is_reused(array):
            return None
        landed = self.begin(partial(LOCKED.copy, array, self._cuda), array.shape, array.dtype)
        if landed is not None:
            self._reading.append(array)
        return landed

    def _take_berth(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Berth:
        left = [one for one in self._berths if one.kind == (shape, dtype) and not one.occupied]
        if len(left) <= _LEFT:
            self._berths.append(Berth(shape, dtype, self._handle))
            return self._berths[-1]
        oldest = left[0]
        self._berths.remove(oldest)
        self._berths.append(oldest)
        jax.block_until_ready(oldest.left)
        return oldest

    def mark(self) -> EventMark:
        """A mark after all copies that were started until now."""
        return self._cuda.mark(self.gpu, self._stream)

    def finish_arrival(self) -> None:
        """Ends the current arrival; later leaves belong to the next one."""
        mark = self._arrival.mark = self.mark()
        self._arrival = Arrival(self._handle)
        while self._held and self._held[0][0].is_over():
            self._held.popleft()
        if self._reading:
            self._held.append((mark, self._reading))
            self._reading = []

    def close(self) -> None:
        self._closed()
        self._held.clear()


def _free_berths(cuda: Driver, berths: list[Berth]) -> None:
    cuda.wait()
    berths.clear()


def receive_landed(values: Sequence[Any]) -> list[Any]:
    """The leaves of an element, with each `LandedLeaf` replaced by an array of JAX."""
    groups: dict[Arrival, list[int]] = {}
    for i, value in enumerate(values):
        if isinstance(value, LandedLeaf):
            groups.setdefault(value.arrival, []).append(i)
    found = list(values)
    for arrival, indices in groups.items():
        berths = [values[i].berth for i in indices]
        for i, array in zip(indices, _copy_from_berths(arrival, berths), strict=True):
            found[i] = array
    return found


def _copy_from_berths(arrival: Arrival, berths: list[Berth]) -> Sequence[Any]:
    assert arrival.mark is not None
    arrival.mark.wait()
    arrays: Sequence[Any]
    with arrival.handle.as_default():
        arrays, left = _copy_program()([berth.array for berth in berths])
    for berth in berths:
        berth.left = left
        berth.occupied = False
    return arrays


@lru_cache(maxsize=1)
def _copy_program() -> Any:
    """A compiled function that returns copies of arrays, and a small array ready with them."""
    return jax.jit(lambda arrays: ([jax.numpy.copy(a) for a in arrays], arrays[0].ravel()[:1]))


_COPYING_THREADS = 12
"""Measured on 16 cores: more threads copy no faster."""

_LARGE = 1 << 20
"""Bytes from which on a leaf of an element is copied through a berth."""


class JaxCudaDelivery(ColumnDelivery):
    """Copies columns to GPUs through locked memory; used by the thread that prefetches."""

    def __init__(
        self, handles: Sequence[Handle], columns: Sequence[int] | None, ahead: int, cuda: Driver
    ) -> None:
        super().__init__(handles, columns, self._move_rows)
        self._ahead = ahead
        self._cuda = cuda
        self._buffers = Buffers(cuda)
        self._gather = Gather(min(cores(), _COPYING_THREADS))
        self._landings = {handle: Landing(cuda, handle) for handle in set(handles)}

    def of_rows(self, rows: Chunk) -> JaxCudaRows | None:
        """A delivery for chunks of row numbers; None if the driver cannot copy rows."""
        if not self._cuda.copies_rows:
            return None
        owners = owners_of_row_numbers(self._columns, len(rows.columns))
        return JaxCudaRows(self._handles, owners, ahead=self._ahead, cuda=self._cuda, rows=rows)

    def send(self, chunk: Chunk) -> Chunk:
        sent = self._send_columns(chunk)
        for landing in self._landings.values():
            landing.finish_arrival()
        return sent

    def _send_columns(self, chunk: Chunk) -> Chunk:
        return super().send(chunk)

    def _move_rows(self, array: Array, alone: bool, handle: Handle) -> list[Any]:
        return [self._move_row(array[i, ...], handle) for i in range(len(array))]

    def _move_row(self, row: Array, handle: Handle) -> Any:
        if row.nbytes >= _LARGE and jax.dtypes.canonicalize_dtype(row.dtype) == row.dtype:
            landed = self._landings[handle].begin_in_place(row)
            if landed is not None:
                return landed
        return self._move_leaf(row.shape, row.dtype, handle, self._gather.copy, row)

    def _move_leaf(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        handle: Handle,
        fill: Callable[..., None],
        *source: Any,
    ) -> Any:
        """Starts the copy of an array, which `fill` writes, to a device."""
        dtype = jax.dtypes.canonicalize_dtype(dtype.newbyteorder("="))
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if nbytes < _LARGE:
            memory = np.empty(shape, dtype)
            fill(memory, *source)
            return handle.put(memory)
        landing = self._landings[handle]
        with self._cuda.on(landing.gpu):
            buffer = self._buffers.take_free(nbytes)
        memory = buffer.array(shape, dtype)
        fill(memory, *source)
        begin = partial(self._cuda.copy, memory.__array_interface__["data"][0], nbytes)
        landed = landing.begin(begin, shape, dtype)
        buffer.reader = landing.mark()
        return handle.put(memory.copy()) if landed is None else landed

    def receive(self, values: list[Any]) -> list[Any]:
        return receive_landed(values)

    def close(self) -> None:
        for landing in self._landings.values():
            landing.close()
        self._buffers.close()
        self._gather.stop()


class JaxCudaRows(JaxCudaDelivery):
    """Fetches rows by their numbers; the GPU reads large rows out of the user's arrays."""

    def __init__(
        self,
        handles: Sequence[Handle],
        columns: Sequence[int] | None,
        ahead: int,
        cuda: Driver,
        rows: Chunk,
    ) -> None:
        super().__init__(handles, columns, ahead, cuda)
        self._fetch = RowFetch(rows, cuda)

    def _send_columns(self, chunk: Chunk) -> Chunk:
        return fetch_rows(chunk, self._fetch.rows, self._owners(chunk), self._fetch_leaf)

    def _fetch_leaf(self, leaf: int, owner: int, numbers: Array) -> list[Any]:
        handle = self._handles[owner]
        return [self._fetch_batch(leaf, handle, batch) for batch in numbers]

    def _fetch_batch(self, leaf: int, handle: Handle, numbers: Array) -> Any:
        column: Any = self._fetch.rows.columns[leaf]
        shape = (*numbers.shape, *column.shape[1:])
        landed = self._fetch_by_gpu(leaf, handle, numbers, shape)
        if landed is not None:
            return landed
        return self._move_leaf(shape, column.dtype, handle, self._gather_rows, column, numbers)

    def _fetch_by_gpu(
        self, leaf: int, handle: Handle, numbers: Array, shape: tuple[int, ...]
    ) -> Any:
        column: Any = self._fetch.rows.columns[leaf]
        large = int(np.prod(shape, dtype=np.int64)) * column.itemsize >= _LARGE
        if not large or jax.dtypes.canonicalize_dtype(column.dtype) != column.dtype:
            return None
        landing = self._landings[handle]
        with self._cuda.on(landing.gpu):
            copies = self._fetch.copies(leaf, numbers)
        return None if copies is None else landing.begin(copies.begin, shape, column.dtype)

    def _gather_rows(self, memory: Array, column: Array, numbers: Array) -> None:
        if memory.dtype == column.dtype:
            self._gather.into(memory, column, numbers)
        else:
            np.copyto(memory, column[numbers], casting="same_kind")
