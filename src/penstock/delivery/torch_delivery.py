"""Delivery to torch's devices: tensors that share no memory with arrays of the dataset.

A tensor uses the memory of an array that the engine made for one element; all other arrays are
copied. Batches for GPUs are copied ahead of their use, on CUDA streams of their own, so that
neither the host nor the stream that computes waits for a copy that it does not need yet. Memory
that a GPU still reads is not written to: torch tracks its own locked memory, a delivery keeps the
chunks that the GPU reads in place, and the user must not change the rows of a dataset while it is
prefetched.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from penstock.delivery.cuda import Driver, driver
from penstock.delivery.locked_memory import LOCKED, is_reused
from penstock.delivery.moving import ColumnDelivery, may_keep_memory, own_rows
from penstock.delivery.row_fetch import fetch_rows, owners_of_row_numbers, plan_copies
from penstock.element.chunk import Chunk
from penstock.element.columns import Array
from penstock.element.dtypes import to_native
from penstock.engine.gather import Gather
from penstock.engine.tuning import cores


def open_delivery(
    handles: Sequence[torch.device], columns: Sequence[int] | None, ahead: int
) -> ColumnDelivery:
    """A delivery of chunks whose column i goes to the device handles[columns[i]]."""
    if any(handle.type == "cuda" for handle in handles):
        return CudaDelivery(handles, columns, ahead)
    return ColumnDelivery(handles, columns, move_rows)


def move_rows(array: Array, alone: bool, handle: torch.device) -> list[torch.Tensor]:
    """The rows of an array on a device, without a CUDA stream or locked memory."""
    # Not `unbind`: torch forbids to write to one of several views with a gradient.
    rows = [_view_as_tensor(row) for row in own_rows(array, alone)]
    return rows if handle.type == "cpu" else [row.to(handle) for row in rows]


def lock_rows(array: Array, alone: bool, handle: torch.device) -> list[torch.Tensor]:
    """Copies of the rows of an array in locked memory of the host."""
    tensor, memory = allocate_locked(array.shape, array.dtype)
    np.copyto(memory, array)
    return _rows_of(tensor)


def tensor_of(array: Array, alone: bool) -> torch.Tensor:
    """An array as a tensor on the CPU; uses the array's memory if `alone` and that is allowed."""
    return _view_as_tensor(array if may_keep_memory(array, alone) else to_native(array).copy())


def _view_as_tensor(array: Array) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _rows_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The rows of a tensor, which the caller may write to."""
    return [tensor[i] for i in range(len(tensor))]


def dtype_of(dtype: np.dtype[Any]) -> torch.dtype:
    return tensor_of(np.empty(0, dtype), True).dtype


def allocate_locked(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[torch.Tensor, Array]:
    """Locked memory from torch's cache, as a tensor and as an array."""
    tensor = torch.empty(shape, dtype=dtype_of(dtype), pin_memory=True)
    raw = tensor.view(torch.int16) if dtype.name == "bfloat16" else tensor
    return tensor, raw.numpy().view(dtype.newbyteorder("="))


_COPYING_THREADS = 12
"""Measured on 16 cores: more threads copy no faster."""

_UNFINISHED = 2
"""How many received elements may be uncomputed, beside those ahead, before `send` blocks."""


class TensorInTransit(NamedTuple):
    """A tensor that is being copied to a GPU, and the event after that copy."""

    tensor: torch.Tensor
    copied: torch.cuda.Event


class CudaDelivery(ColumnDelivery):
    """Copies columns to GPUs, on streams of its own.

    A GPU reads memory that is reused, such as what worker processes share, in place. All other
    columns go through locked memory.

    `_used` is shared by the thread that prefetches (`send`) and the caller (`receive`); a deque's
    `append` and `popleft` are atomic.
    """

    def __init__(
        self, handles: Sequence[torch.device], columns: Sequence[int] | None, ahead: int
    ) -> None:
        super().__init__(handles, columns, move_rows)
        self._ahead = ahead
        gpus = {handle for handle in handles if handle.type == "cuda"}
        self._streams: dict[torch.device, torch.cuda.Stream] = {
            gpu: torch.cuda.Stream(gpu)  # type: ignore[no-untyped-call]
            for gpu in gpus
        }
        self._gather = Gather(min(cores(), _COPYING_THREADS))
        self._used: deque[torch.cuda.Event] = deque()
        self._reading: list[Array] = []
        """The arrays that GPUs read in place, of the chunk that is being sent."""
        self._held: deque[tuple[list[torch.cuda.Event], list[Array]]] = deque()
        """The arrays that GPUs read in place, until the events after their copies."""
        self._drained = weakref.finalize(self, _drain, list(self._streams.values()), self._gather)

    def of_rows(self, rows: Chunk) -> CudaRows | None:
        """A delivery for chunks of row numbers; None if the driver cannot copy rows."""
        cuda = driver()
        if cuda is None or not cuda.copies_rows:
            return None
        owners = owners_of_row_numbers(self._columns, len(rows.columns))
        return CudaRows(self._handles, owners, ahead=self._ahead, rows=rows, cuda=cuda)

    def send(self, chunk: Chunk) -> Chunk:
        # Otherwise a program that computes slower than it reads would fill the GPU with batches.
        while len(self._used) > self._ahead + _UNFINISHED:
            self._used.popleft().synchronize()
        while self._held and all(map(_is_over, self._held[0][0])):
            self._held.popleft()
        sent = self._send_columns(chunk)
        events = {gpu: _record_event(stream) for gpu, stream in self._streams.items()}
        if self._reading:
            self._held.append((list(events.values()), self._reading))
            self._reading = []
        return Chunk(
            sent.tree, [_attach_events(column, events) for column in sent.columns], len(sent)
        )

    def _send_columns(self, chunk: Chunk) -> Chunk:
        return super().send(chunk)

    def _move(self, array: Array, alone: bool, handle: torch.device) -> Sequence[torch.Tensor]:
        if handle.type != "cuda":
            return super()._move(array, alone, handle)
        tensor = self._read_in_place(array, handle)
        if tensor is None:
            locked, memory = allocate_locked(array.shape, array.dtype)
            self._gather.copy(memory, array)
            tensor = self._upload(locked, handle)
        return _rows_of(tensor)

    def _read_in_place(self, array: Array, handle: torch.device) -> torch.Tensor | None:
        """Makes the GPU read an array where it is; None if its memory is not worth locking."""
        cuda = driver()
        if cuda is None or not is_reused(array) or not array.dtype.isnative:
            return None
        stream = self._streams[handle]
        with torch.cuda.stream(stream), cuda.on(handle.index or 0):
            tensor = torch.empty(array.shape, dtype=dtype_of(array.dtype), device=handle)
            if not LOCKED.copy(array, cuda, tensor.data_ptr(), stream.cuda_stream):
                return None
        self._reading.append(array)
        return tensor

    def _upload(self, tensor: torch.Tensor, handle: torch.device) -> torch.Tensor:
        with torch.cuda.stream(self._streams[handle]):
            return tensor.to(handle, non_blocking=True)

    def receive(self, values: list[Any]) -> list[Any]:
        """Makes the caller's CUDA stream wait for the copies; does not block the caller."""
        waited = set()
        for value in values:
            if isinstance(value, TensorInTransit):
                stream = torch.cuda.current_stream(value.tensor.device)
                if value.copied not in waited:
                    waited.add(value.copied)
                    self._used.append(_record_event(stream))
                    stream.wait_event(value.copied)
                value.tensor.record_stream(stream)
        return [value.tensor if isinstance(value, TensorInTransit) else value for value in values]

    def close(self) -> None:
        """Frees events and streams at once.

        A process that is forked later aborts if its garbage collector frees one: it has no CUDA.
        """
        self._drained()
        self._held.clear()
        self._used.clear()
        self._streams.clear()


class CudaRows(CudaDelivery):
    """Fetches rows by their numbers; the GPU reads large rows out of the user's arrays."""

    def __init__(
        self,
        handles: Sequence[torch.device],
        columns: Sequence[int] | None,
        ahead: int,
        rows: Chunk,
        cuda: Driver,
    ) -> None:
        super().__init__(handles, columns, ahead)
        self._rows, self._cuda = rows, cuda

    def _send_columns(self, chunk: Chunk) -> Chunk:
        return fetch_rows(chunk, self._rows, self._owners(chunk), self._fetch_leaf)

    def _fetch_leaf(self, leaf: int, owner: int, numbers: Array) -> Sequence[torch.Tensor]:
        column: Any = self._rows.columns[leaf]
        handle = self._handles[owner]
        on_gpu = handle.type == "cuda"
        tensor = self._read_by_gpu(column, numbers, handle) if on_gpu else None
        if tensor is not None:
            return _rows_of(tensor)
        gathered = self._gather_rows(column, numbers)
        return _rows_of(self._upload(gathered, handle) if on_gpu else gathered)

    def _read_by_gpu(
        self, column: Array, numbers: Array, handle: torch.device
    ) -> torch.Tensor | None:
        stream = self._streams[handle]
        with torch.cuda.stream(stream), self._cuda.on(handle.index or 0):
            copies = plan_copies(column, numbers, self._cuda)
            if copies is None:
                return None
            shape = (*numbers.shape, *column.shape[1:])
            tensor = torch.empty(shape, dtype=dtype_of(column.dtype), device=handle)
            return tensor if copies.begin(tensor.data_ptr(), stream.cuda_stream) else None

    def _gather_rows(self, column: Array, numbers: Array) -> torch.Tensor:
        tensor, memory = allocate_locked((*numbers.shape, *column.shape[1:]), column.dtype)
        flat = memory.reshape(numbers.size, *column.shape[1:])
        self._gather.into(flat, column, numbers.ravel())
        return tensor


def _record_event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


def _is_over(event: torch.cuda.Event) -> bool:
    return bool(event.query())  # type: ignore[no-untyped-call]


def _attach_events(column: Any, events: dict[torch.device, torch.cuda.Event]) -> Any:
    if not isinstance(column, list):
        return column
    return [
        TensorInTransit(leaf, events[leaf.device])
        if isinstance(leaf, torch.Tensor) and leaf.device in events
        else leaf
        for leaf in column
    ]


def _drain(streams: list[torch.cuda.Stream], gather: Gather) -> None:
    """Blocks until all copies are done: their sources may be freed afterwards."""
    for stream in streams:
        stream.synchronize()
    gather.stop()
