"""The torch backend: tensors on torch's devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch

from penstock.delivery import Delivery
from penstock.delivery.moving import array_of
from penstock.delivery.torch_delivery import open_delivery, tensor_of
from penstock.element.dtypes import as_dtype

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
    ) -> Delivery:
        return open_delivery(handles, columns, ahead)

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
        return _use_device(handle)

    def thread_settings(self) -> AbstractContextManager[Any]:
        return _TorchSettings()


@contextmanager
def _use_device(handle: torch.device) -> Iterator[None]:
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
