"""torch with one simulated GPU in host memory: its streams do everything at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

GPU = torch.device("cuda", 0)


class OnGpu(torch.Tensor):
    """A tensor that claims to be on the GPU."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return GPU

    def record_stream(self, stream: Any) -> None:
        pass


class OnHost(torch.Tensor):
    """A tensor in locked memory, which can be copied to the GPU."""

    def to(self, device: torch.device, non_blocking: bool = False) -> torch.Tensor:  # type: ignore[override]
        assert device == GPU
        assert non_blocking
        return self.clone().as_subclass(OnGpu)


class Stream:
    cuda_stream = 0

    def __init__(self, device: torch.device) -> None:
        assert device == GPU
        self.waited: list[Event] = []

    def wait_event(self, event: Event) -> None:
        self.waited.append(event)

    def synchronize(self) -> None:
        pass


class Event:
    """The point after the work of a stream; it has passed when `Cuda.is_done` is true."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda

    def record(self, stream: Stream) -> None:
        pass

    def query(self) -> bool:
        return self._cuda.is_done

    def synchronize(self) -> None:
        self._cuda.waits += 1


class Cuda:
    """The part of `torch.cuda` that deliveries use."""

    def __init__(self) -> None:
        self.is_done = True
        self.waits = 0
        self.current = Stream(GPU)

    def Stream(self, device: torch.device) -> Stream:
        return Stream(device)

    def Event(self, blocking: bool) -> Event:
        return Event(self)

    def current_stream(self, device: torch.device) -> Stream:
        return self.current

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        yield


class Torch:
    """torch, with a simulated `cuda` and memory on its GPU."""

    def __init__(self) -> None:
        self.cuda = Cuda()
        self.locked = 0
        """How many tensors were made in locked memory."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(
        self, shape: Any, dtype: torch.dtype, device: Any = None, pin_memory: bool = False
    ) -> torch.Tensor:
        made = torch.zeros(shape, dtype=dtype)
        if device is not None:
            assert device == GPU
            return made.as_subclass(OnGpu)
        assert pin_memory
        self.locked += 1
        return made.as_subclass(OnHost)
