"""Batches on their way to GPUs with torch: copied on streams of their own, ahead of their use.

Neither the host nor the stream that computes waits for a copy that it does not need yet. Memory
that a GPU still reads is not written to: torch keeps account of its locked memory, and `rows` are
the user's and change no more than a prefetched dataset may.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from penstock.distribute.backends.cuda import Driver, driver
from penstock.distribute.backends.fetching import RowFetch, fetched, owners_of_numbers
from penstock.distribute.backends.moving import Array, ColumnDelivery
from penstock.distribute.backends.torch_tensors import dtype_of, locked, tensor_of
from penstock.element.chunk import Chunk
from penstock.engine.gather import Gather
from penstock.engine.tuning import cores

_COPYING_THREADS = 12
"""Measured on 16 cores: more threads copy no faster."""

_UNFINISHED = 2
"""Steps that were handed out, besides those prefetched, before one must be computed."""


class Sent(NamedTuple):
    """A tensor on its way, and the event that says it is there."""

    tensor: torch.Tensor
    copied: torch.cuda.Event


class CudaDelivery(ColumnDelivery):
    """Copies columns through locked memory, by streams that nobody else uses."""

    def __init__(self, handles: Sequence[torch.device], columns: Sequence[int], ahead: int) -> None:
        super().__init__(handles, columns, self._copied)
        self._ahead = ahead
        gpus = {handle for handle in handles if handle.type == "cuda"}
        self._streams: dict[torch.device, torch.cuda.Stream] = {
            gpu: torch.cuda.Stream(gpu)  # type: ignore[no-untyped-call]
            for gpu in gpus
        }
        self._gather = Gather(min(cores(), _COPYING_THREADS))
        self._used: deque[torch.cuda.Event] = deque()
        self._drained = weakref.finalize(self, _drain, list(self._streams.values()), self._gather)

    def of_rows(self, rows: Chunk) -> CudaRows | None:
        """A delivery for chunks of row numbers; None where the GPU cannot fetch the rows."""
        cuda = driver()
        if cuda is None or not cuda.copies_rows:
            return None
        owners = owners_of_numbers(self._columns, len(rows.columns))
        return CudaRows(self._handles, owners, self._ahead, rows, cuda)

    def send(self, chunk: Chunk) -> Chunk:
        # Else a program that computes slower than it reads would fill the GPU with batches.
        while len(self._used) > self._ahead + _UNFINISHED:
            self._used.popleft().synchronize()
        sent = self._sent(chunk)
        events = {gpu: _recorded(stream) for gpu, stream in self._streams.items()}
        return Chunk(sent.tree, [_marked(column, events) for column in sent.columns], len(sent))

    def _sent(self, chunk: Chunk) -> Chunk:
        return super().send(chunk)

    def _copied(self, array: Array, alone: bool, handle: torch.device) -> Sequence[torch.Tensor]:
        if handle.type != "cuda":
            return tensor_of(array, alone).to(handle).unbind()
        tensor, memory = locked(array.shape, array.dtype)
        self._gather.copy(memory, array)
        return self._uploaded(tensor, handle).unbind()

    def _uploaded(self, tensor: torch.Tensor, handle: torch.device) -> torch.Tensor:
        with torch.cuda.stream(self._streams[handle]):
            return tensor.to(handle, non_blocking=True)

    def receive(self, values: list[Any]) -> list[Any]:
        """The caller's stream waits for the copies, the caller does not."""
        waited = set()
        for value in values:
            if isinstance(value, Sent):
                stream = torch.cuda.current_stream(value.tensor.device)
                if value.copied not in waited:
                    waited.add(value.copied)
                    self._used.append(_recorded(stream))
                    stream.wait_event(value.copied)
                value.tensor.record_stream(stream)
        return [value.tensor if isinstance(value, Sent) else value for value in values]

    def close(self) -> None:
        self._drained()


class CudaRows(CudaDelivery):
    """Fetches rows by their numbers: large ones by the GPU itself, from where they lie."""

    def __init__(
        self,
        handles: Sequence[torch.device],
        columns: Sequence[int],
        ahead: int,
        rows: Chunk,
        cuda: Driver,
    ) -> None:
        super().__init__(handles, columns, ahead)
        self._fetch = RowFetch(rows, cuda)

    def _sent(self, chunk: Chunk) -> Chunk:
        return fetched(chunk, self._fetch.rows, self._columns, self._fetched)

    def _fetched(self, leaf: int, owner: int, numbers: Array) -> Sequence[torch.Tensor]:
        handle = self._handles[owner]
        on_gpu = handle.type == "cuda"
        tensor = self._read_by_gpu(leaf, numbers, handle) if on_gpu else None
        if tensor is not None:
            return tensor.unbind()
        gathered = self._gathered(leaf, numbers)
        return (self._uploaded(gathered, handle) if on_gpu else gathered).unbind()

    def _read_by_gpu(self, leaf: int, numbers: Array, handle: torch.device) -> torch.Tensor | None:
        column: Any = self._fetch.rows.columns[leaf]
        stream = self._streams[handle]
        with torch.cuda.stream(stream), self._fetch.cuda.on(handle.index):
            copies = self._fetch.copies(leaf, numbers)
            if copies is None:
                return None
            shape = (*numbers.shape, *column.shape[1:])
            tensor = torch.empty(shape, dtype=dtype_of(column.dtype), device=handle)
            return tensor if copies.begin(tensor.data_ptr(), stream.cuda_stream) else None

    def _gathered(self, leaf: int, numbers: Array) -> torch.Tensor:
        column: Any = self._fetch.rows.columns[leaf]
        tensor, memory = locked((*numbers.shape, *column.shape[1:]), column.dtype)
        flat = memory.reshape(numbers.size, *column.shape[1:])
        self._gather.into(flat, column, numbers.ravel())
        return tensor


def _recorded(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


def _marked(column: Any, events: dict[torch.device, torch.cuda.Event]) -> Any:
    if not isinstance(column, list):
        return column
    return [
        Sent(leaf, events[leaf.device])
        if isinstance(leaf, torch.Tensor) and leaf.device in events
        else leaf
        for leaf in column
    ]


def _drain(streams: list[torch.cuda.Stream], gather: Gather) -> None:
    """What is read now may be gone soon."""
    for stream in streams:
        stream.synchronize()
    gather.stop()
