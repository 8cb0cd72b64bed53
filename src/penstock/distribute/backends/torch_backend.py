"""The torch backend: tensors on torch's devices.

A tensor uses the memory of an array that the engine made for one step; all other arrays are copied.

Batches for GPUs are copied ahead of their use, on CUDA streams of their own, so that neither the
host nor the stream that computes waits for a copy that it does not need yet. Memory that a GPU
still reads is not written to: torch tracks its own locked memory, and the user must not change the
rows of a dataset while it is prefetched.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch

from penstock.distribute.backends.cuda import Driver, driver
from penstock.distribute.backends.moving import (
    Array,
    ColumnDelivery,
    array_of,
    may_keep_memory,
    to_native,
)
from penstock.distribute.backends.row_fetch import RowFetch, fetch_rows, owners_of_row_numbers
from penstock.element.chunk import Chunk
from penstock.element.dtypes import as_dtype
from penstock.engine.gather import Gather
from penstock.engine.tuning import cores


def tensor_of(array: Array, alone: bool) -> torch.Tensor:
    """An array as a tensor on the CPU; uses the array's memory if `alone` and that is allowed."""
    array = to_native(array) if may_keep_memory(array, alone) else to_native(array).copy()
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


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
"""How many received steps may be uncomputed, beside the prefetched ones, before `send` blocks."""


class TensorInTransit(NamedTuple):
    """A tensor that is being copied to a GPU, and the event after that copy."""

    tensor: torch.Tensor
    copied: torch.cuda.Event


class CudaDelivery(ColumnDelivery):
    """Copies columns to GPUs through locked memory, on streams of its own.

    `_used` is shared by the thread that prefetches (`send`) and the caller (`receive`); a deque's
    `append` and `popleft` are atomic.
    """

    def __init__(self, handles: Sequence[torch.device], columns: Sequence[int], ahead: int) -> None:
        super().__init__(handles, columns, self._copy_steps)
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
        sent = self._send_columns(chunk)
        events = {gpu: _record_event(stream) for gpu, stream in self._streams.items()}
        return Chunk(
            sent.tree, [_attach_events(column, events) for column in sent.columns], len(sent)
        )

    def _send_columns(self, chunk: Chunk) -> Chunk:
        return super().send(chunk)

    def _copy_steps(
        self, array: Array, alone: bool, handle: torch.device
    ) -> Sequence[torch.Tensor]:
        if handle.type != "cuda":
            return tensor_of(array, alone).to(handle).unbind()
        tensor, memory = allocate_locked(array.shape, array.dtype)
        self._gather.copy(memory, array)
        return self._upload(tensor, handle).unbind()

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
        self._drained()


class CudaRows(CudaDelivery):
    """Fetches rows by their numbers; the GPU reads large rows out of the user's arrays."""

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

    def _send_columns(self, chunk: Chunk) -> Chunk:
        return fetch_rows(chunk, self._fetch.rows, self._columns, self._fetch_steps)

    def _fetch_steps(self, leaf: int, owner: int, numbers: Array) -> Sequence[torch.Tensor]:
        handle = self._handles[owner]
        on_gpu = handle.type == "cuda"
        tensor = self._read_by_gpu(leaf, numbers, handle) if on_gpu else None
        if tensor is not None:
            return tensor.unbind()
        gathered = self._gather_rows(leaf, numbers)
        return (self._upload(gathered, handle) if on_gpu else gathered).unbind()

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

    def _gather_rows(self, leaf: int, numbers: Array) -> torch.Tensor:
        column: Any = self._fetch.rows.columns[leaf]
        tensor, memory = allocate_locked((*numbers.shape, *column.shape[1:]), column.dtype)
        flat = memory.reshape(numbers.size, *column.shape[1:])
        self._gather.into(flat, column, numbers.ravel())
        return tensor


def _record_event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


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


_CPU = torch.device("cpu")


class TorchBackend:
    name = "torch"

    def handles(self, kind: str) -> Sequence[torch.device]:
        if kind == "CPU":
            return (_CPU,)
        count = torch.cuda.device_count() if kind == "GPU" else 0
        return tuple(torch.device("cuda", index) for index in range(count))

    def identify(self, device: object) -> tuple[str, int] | None:
        if isinstance(device, str) and device.partition(":")[0] in ("cpu", "cuda"):
            try:
                device = torch.device(device)
            except RuntimeError:
                return None
        if not isinstance(device, torch.device):
            return None
        kind = {"cpu": "CPU", "cuda": "GPU"}.get(device.type)
        return None if kind is None else (kind, device.index or 0)

    def put(self, value: Any, handle: torch.device) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(handle)
        array = array_of(value)
        return value if array is None else tensor_of(array, False).to(handle)

    def delivery(
        self, handles: Sequence[torch.device], columns: Sequence[int], ahead: int
    ) -> ColumnDelivery:
        if any(handle.type == "cuda" for handle in handles):
            return CudaDelivery(handles, columns, ahead)
        return ColumnDelivery(handles, columns, _move_rows)

    def numpy(self, tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return tensor
        tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
        if tensor.dtype == torch.bfloat16:
            return tensor.view(torch.int16).numpy().view(as_dtype("bfloat16").dtype)[()]
        return tensor.numpy()[()]

    def is_tensor(self, value: object) -> bool:
        return isinstance(value, torch.Tensor)

    def is_traced(self, value: object) -> bool:
        return False

    def add(self, tensors: Sequence[torch.Tensor], handle: torch.device) -> torch.Tensor:
        total = tensors[0].to(handle)
        for tensor in tensors[1:]:
            total = torch.add(total, tensor.to(handle))
        return total

    def sum(self, tensor: torch.Tensor, axis: int | tuple[int, ...]) -> torch.Tensor:
        return torch.sum(tensor, axis, dtype=tensor.dtype)

    def divide(self, tensor: torch.Tensor, count: float) -> torch.Tensor:
        if not (tensor.is_floating_point() or tensor.is_complex()):
            tensor = tensor.float() if tensor.element_size() < 4 else tensor.double()
        return torch.true_divide(tensor, count)

    def concatenate(
        self, tensors: Sequence[torch.Tensor], axis: int, handle: torch.device
    ) -> torch.Tensor:
        return torch.cat([tensor.to(handle) for tensor in tensors], axis)

    def use_device(self, handle: torch.device) -> AbstractContextManager[Any]:
        # Entering a device makes every call of torch slower; it is skipped if it changes nothing.
        if handle.type == "cpu" and torch.get_default_device() == _CPU:
            return nullcontext()
        return _on(handle)

    def thread_settings(self) -> AbstractContextManager[Any]:
        return _TorchSettings()


def _move_rows(array: Array, alone: bool, handle: torch.device) -> Sequence[torch.Tensor]:
    return tensor_of(array, alone).to(handle).unbind()


@contextmanager
def _on(handle: torch.device) -> Iterator[None]:
    current = torch.cuda.device(handle) if handle.type == "cuda" else nullcontext()
    with current, handle:
        yield


class _TorchSettings:
    """The settings that torch keeps per thread, captured from the thread that creates this."""

    def __init__(self) -> None:
        self._entries = ExitStack()
        self._gradients = torch.is_grad_enabled()
        self._inference = torch.is_inference_mode_enabled()
        self._device = torch.get_default_device()
        self._autocast = [
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
            for kind in ("cpu", "cuda")
        ]
        on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        count = torch.cuda.device_count() if on_gpu else 0
        self._streams = [torch.cuda.current_stream(index) for index in range(count)]

    def __enter__(self) -> None:
        enter = self._entries.enter_context
        enter(torch.inference_mode(self._inference))  # Before gradients, which it turns on.
        enter(torch.set_grad_enabled(self._gradients))
        for kind, dtype, enabled in self._autocast:
            enter(torch.autocast(kind, dtype, enabled))
        for stream in self._streams:
            enter(torch.cuda.stream(stream))
        if self._device != torch.get_default_device():
            enter(self._device)

    def __exit__(self, *_: object) -> None:
        self._entries.close()


BACKEND = TorchBackend()
