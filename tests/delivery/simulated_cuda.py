"""A simulation of CUDA's driver with NumPy."""

from __future__ import annotations

import ctypes
from typing import Any

from penstock.element.chunk import Chunk


class Library:
    """The functions of libcuda that are called: copies at once, and counts locked memory."""

    def __init__(self, **statuses: int) -> None:
        self.locked: dict[int, int] = {}
        self.entered: list[int] = []
        self.copies = 0
        self._statuses = statuses

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu") or name == "cuMemcpyBatchAsync":
            raise AttributeError(name)
        return lambda *_: self._statuses.get(name, 0)

    def cuDevicePrimaryCtxRetain(self, context: Any, gpu: Any) -> int:
        context._obj.value = 100 + gpu.value
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:
        self.entered.append(context.value)
        return 0

    def cuCtxPopCurrent_v2(self, _: Any) -> int:
        self.entered.pop()
        return 0

    def cuMemHostRegister_v2(self, address: Any, nbytes: Any, flags: Any) -> int:
        if status := self._statuses.get("cuMemHostRegister_v2", 0):
            return status
        assert address.value not in self.locked
        self.locked[address.value] = nbytes.value
        return 0

    def cuMemHostUnregister(self, address: Any) -> int:
        del self.locked[address.value]
        return 0

    def cuMemcpyHtoDAsync_v2(self, to: Any, source: Any, nbytes: Any, stream: Any) -> int:
        if status := self._statuses.get("cuMemcpyHtoDAsync_v2", 0):
            return status
        ctypes.memmove(to.value, source.value, nbytes.value)
        return 0

    def cuMemcpyBatchAsync_v2(self, to: Any, sources: Any, sizes: Any, count: Any, *_: Any) -> int:
        if status := self._statuses.get("cuMemcpyBatchAsync_v2", 0):
            return status
        kind = ctypes.POINTER(ctypes.c_uint64 * count.value)
        for one in zip(*(ctypes.cast(part, kind)[0] for part in (to, sources, sizes)), strict=True):
            ctypes.memmove(*one)
            self.copies += 1
        return 0


class OlderLibrary(Library):
    """A driver before `cuMemcpyBatchAsync_v2`, whose function also returns which copy failed."""

    cuMemcpyBatchAsync_v2 = None  # type: ignore[assignment]

    def cuMemcpyBatchAsync(self, *arguments: Any) -> int:
        assert len(arguments) == 9
        return Library.cuMemcpyBatchAsync_v2(self, *arguments)


def deliver_chunk(delivery: Any, chunk: Chunk) -> list[list[Any]]:
    sent = delivery.send(chunk)
    return [delivery.receive(list(leaves)) for leaves in zip(*sent.columns, strict=True)]
