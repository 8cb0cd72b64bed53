"""Batches on their way to NVIDIA's GPUs with JAX: the large ones copied by CUDA, on its own stream.

JAX itself copies from memory that is not locked, nine times slower, and makes its callers wait for
that; for small arrays this is nothing. What is large is handed to JAX when it is received.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax as jax_module
import numpy as np

from penstock.distribute.backends.cuda import Driver
from penstock.distribute.backends.fetching import RowFetch, fetched, owners_of_numbers
from penstock.distribute.backends.jax_landing import Landing, received
from penstock.distribute.backends.moving import Array, ColumnDelivery
from penstock.distribute.backends.pinned import Buffers
from penstock.element.chunk import Chunk
from penstock.engine.gather import Gather
from penstock.engine.tuning import cores

# Its own annotations are incomplete.
jax: Any = jax_module

_COPYING_THREADS = 12
"""Measured on 16 cores: more threads copy no faster."""

_LARGE = 1 << 20
"""Bytes of a leaf of a step from which on it is worth a berth of its own."""


class JaxCudaDelivery(ColumnDelivery):
    """Copies columns through locked memory."""

    def __init__(
        self, handles: Sequence[Any], columns: Sequence[int], ahead: int, cuda: Driver
    ) -> None:
        super().__init__(handles, columns, self._moved_steps)
        self._ahead = ahead
        self._cuda = cuda
        self._buffers = Buffers(cuda)
        self._gather = Gather(min(cores(), _COPYING_THREADS))
        self._landings = {handle: Landing(cuda, handle) for handle in set(handles)}

    def of_rows(self, rows: Chunk) -> JaxCudaRows | None:
        """A delivery for chunks of row numbers; None where the GPU cannot fetch the rows."""
        if not self._cuda.copies_rows:
            return None
        owners = owners_of_numbers(self._columns, len(rows.columns))
        return JaxCudaRows(self._handles, owners, self._ahead, self._cuda, rows)

    def send(self, chunk: Chunk) -> Chunk:
        sent = self._sent(chunk)
        for landing in self._landings.values():
            landing.sent()
        return sent

    def _sent(self, chunk: Chunk) -> Chunk:
        return super().send(chunk)

    def _moved_steps(self, array: Array, alone: bool, handle: Any) -> list[Any]:
        fill = self._gather.copy
        return [self._moved_step(row.shape, row.dtype, handle, fill, row) for row in array]

    def _moved_step(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        handle: Any,
        fill: Callable[..., None],
        *source: Any,
    ) -> Any:
        """An array that `fill` makes, on its way to a device."""
        dtype = jax.dtypes.canonicalize_dtype(dtype.newbyteorder("="))
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if nbytes < _LARGE:
            memory = np.empty(shape, dtype)
            fill(memory, *source)
            return jax.device_put(memory, handle)
        landing = self._landings[handle]
        with self._cuda.on(landing.gpu):
            buffer = self._buffers.free(nbytes)
        memory = buffer.array(shape, dtype)
        fill(memory, *source)
        begin = partial(self._cuda.copy, memory.__array_interface__["data"][0], nbytes)
        landed = landing.begin(begin, shape, dtype)
        buffer.reader = landing.mark()
        return jax.device_put(memory.copy(), handle) if landed is None else landed

    def receive(self, values: list[Any]) -> list[Any]:
        return received(values)

    def close(self) -> None:
        for landing in self._landings.values():
            landing.close()
        self._buffers.close()
        self._gather.stop()


class JaxCudaRows(JaxCudaDelivery):
    """Fetches rows by their numbers: large ones by the GPU itself, from where they lie."""

    def __init__(
        self,
        handles: Sequence[Any],
        columns: Sequence[int],
        ahead: int,
        cuda: Driver,
        rows: Chunk,
    ) -> None:
        super().__init__(handles, columns, ahead, cuda)
        self._fetch = RowFetch(rows, cuda)

    def _sent(self, chunk: Chunk) -> Chunk:
        return fetched(chunk, self._fetch.rows, self._columns, self._fetched)

    def _fetched(self, leaf: int, owner: int, numbers: Array) -> list[Any]:
        handle = self._handles[owner]
        return [self._fetched_step(leaf, handle, step) for step in numbers]

    def _fetched_step(self, leaf: int, handle: Any, numbers: Array) -> Any:
        column: Any = self._fetch.rows.columns[leaf]
        shape = (*numbers.shape, *column.shape[1:])
        landed = self._landed(leaf, handle, numbers, shape)
        if landed is not None:
            return landed
        return self._moved_step(shape, column.dtype, handle, self._gathered, column, numbers)

    def _landed(self, leaf: int, handle: Any, numbers: Array, shape: tuple[int, ...]) -> Any:
        column: Any = self._fetch.rows.columns[leaf]
        large = int(np.prod(shape, dtype=np.int64)) * column.itemsize >= _LARGE
        if not large or jax.dtypes.canonicalize_dtype(column.dtype) != column.dtype:
            return None
        landing = self._landings[handle]
        with self._cuda.on(landing.gpu):
            copies = self._fetch.copies(leaf, numbers)
        return None if copies is None else landing.begin(copies.begin, shape, column.dtype)

    def _gathered(self, memory: Array, column: Array, numbers: Array) -> None:
        if memory.dtype == column.dtype:
            self._gather.into(memory, column, numbers)
        else:
            np.copyto(memory, column[numbers], casting="same_kind")
