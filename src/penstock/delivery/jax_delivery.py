"""Delivery to JAX's devices: arrays that share no memory with arrays of the dataset.

On the CPU JAX uses NumPy's memory where it can, so it gets only arrays that the engine made for one
element, or copies. To NVIDIA's GPUs CUDA copies large arrays, through berths, on a stream of its
own: JAX itself copies from memory that is not locked, which is nine times slower and blocks the
caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from penstock.delivery.cuda import Driver, address_of, driver
from penstock.delivery.jax_berths import Handle, Landing, receive_landed
from penstock.delivery.locked_memory import Buffers
from penstock.delivery.moving import ColumnDelivery, may_keep_memory
from penstock.delivery.row_fetch import fetch_rows, owners_of_row_numbers, plan_copies
from penstock.element.chunk import Chunk
from penstock.element.columns import Array
from penstock.element.dtypes import to_native
from penstock.engine.gather import Gather
from penstock.engine.tuning import cores

_NVIDIA = ("gpu", "cuda")


def open_delivery(
    handles: Sequence[Handle], columns: Sequence[int] | None, ahead: int
) -> ColumnDelivery:
    """A delivery of chunks whose column i goes to the device handles[columns[i]]."""
    is_nvidia = all(handle.device.platform in _NVIDIA for handle in handles)
    cuda = driver() if is_nvidia else None
    if cuda is not None:
        return JaxCudaDelivery(handles, columns, ahead=ahead, cuda=cuda)
    return ColumnDelivery(handles, columns, _move_rows)


def find_default_device() -> Any:
    """The device that JAX uses in this thread unless it is configured otherwise."""
    (device,) = jax.numpy.zeros(()).devices()
    return device


def _move_rows(array: Array, alone: bool, handle: Handle) -> Sequence[Any]:
    if not may_keep_memory(array, alone) and handle.device.platform == "cpu":
        array = to_native(array).copy()
    rows: list[Any] = handle.put(list(to_native(array)))
    return rows


_COPYING_THREADS = 12
"""Measured on 16 cores: more threads copy no faster."""

_LARGE = 1 << 20
"""Bytes from which on a leaf of an element is copied through a berth."""


class JaxCudaDelivery(ColumnDelivery):
    """Copies columns to GPUs through locked memory; used by the thread that prefetches."""

    def __init__(
        self, handles: Sequence[Handle], columns: Sequence[int] | None, ahead: int, cuda: Driver
    ) -> None:
        super().__init__(handles, columns, _move_rows)
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

    def _move(self, array: Array, alone: bool, handle: Handle) -> list[Any]:
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
        begin = partial(self._cuda.copy, address_of(memory), nbytes)
        landed = landing.begin(begin, shape, dtype)
        buffer.reader = landing.record_event()
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
        self._rows = rows

    def _send_columns(self, chunk: Chunk) -> Chunk:
        return fetch_rows(chunk, self._rows, self._owners(chunk), self._fetch_leaf)

    def _fetch_leaf(self, leaf: int, owner: int, numbers: Array) -> list[Any]:
        handle = self._handles[owner]
        return [self._fetch_batch(leaf, handle, batch) for batch in numbers]

    def _fetch_batch(self, leaf: int, handle: Handle, numbers: Array) -> Any:
        column: Any = self._rows.columns[leaf]
        shape = (*numbers.shape, *column.shape[1:])
        landed = self._fetch_by_gpu(column, handle, numbers, shape)
        if landed is not None:
            return landed
        return self._move_leaf(shape, column.dtype, handle, self._gather_rows, column, numbers)

    def _fetch_by_gpu(
        self, column: Array, handle: Handle, numbers: Array, shape: tuple[int, ...]
    ) -> Any:
        large = int(np.prod(shape, dtype=np.int64)) * column.itemsize >= _LARGE
        if not large or jax.dtypes.canonicalize_dtype(column.dtype) != column.dtype:
            return None
        landing = self._landings[handle]
        with self._cuda.on(landing.gpu):
            copies = plan_copies(column, numbers, self._cuda)
        return None if copies is None else landing.begin(copies.begin, shape, column.dtype)

    def _gather_rows(self, memory: Array, column: Array, numbers: Array) -> None:
        if memory.dtype == column.dtype:
            self._gather.into(memory, column, numbers)
        else:
            np.copyto(memory, column[numbers], casting="same_kind")
