"""Berths: memory of a GPU into which CUDA copies arrays for JAX.

A berth is an array of JAX that no caller ever sees. When an element is received, JAX copies the
berth on the GPU and returns that copy. A berth is written to again only when that copy is done:
nothing else shows when the berth is free, because the caller may have deleted the copy.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np

from penstock.delivery.cuda import CopyEvent, Driver
from penstock.delivery.locked_memory import LOCKED, is_reused
from penstock.element.columns import Array


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
"""The most berths of one shape and dtype that the GPU may copy from before `_take_berth` blocks."""

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
    """The leaves sent to one GPU by one call of `send`; `event` is set when the call returns."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.event: CopyEvent | None = None


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
        self._held: deque[tuple[CopyEvent, list[Array]]] = deque()
        """The arrays that the GPU reads in place, kept until the events after their copies."""
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

    def record_event(self) -> CopyEvent:
        """An event after all copies that were started until now."""
        return self._cuda.record_event(self.gpu, self._stream)

    def finish_arrival(self) -> None:
        """Ends the current arrival; later leaves belong to the next one."""
        event = self._arrival.event = self.record_event()
        self._arrival = Arrival(self._handle)
        while self._held and self._held[0][0].is_over():
            self._held.popleft()
        if self._reading:
            self._held.append((event, self._reading))
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
    assert arrival.event is not None
    arrival.event.wait()
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
