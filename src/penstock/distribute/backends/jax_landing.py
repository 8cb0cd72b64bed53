"""Where large arrays land that CUDA copies to a GPU by itself, until JAX has them.

JAX lets nobody write to its arrays, but a berth is one that only we ever see. What has landed in
it is copied once more, on the GPU, and the copy is handed out. A berth is written to again only
when this copy is done; nobody else could tell, as whoever has the copy may have deleted it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax as jax_module
import numpy as np

from penstock.distribute.backends.cuda import Driver, EventMark

# Its own annotations are incomplete.
jax: Any = jax_module

_LEFT = 2
"""Berths of one kind that the host has left but the GPU has not, before one is waited for."""

Begin = Callable[[int, int], bool]
"""Begins copies to an address, on a stream; whether that was possible."""


class Berth:
    """Memory of a GPU for a leaf of a step."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: Any) -> None:
        self.array = jax.block_until_ready(jax.numpy.zeros(shape, dtype, device=device))
        self.address: int = self.array.unsafe_buffer_pointer()
        self.kind = shape, dtype
        self.occupied = False
        """Whether something is in it that nobody has received."""
        self.left: Any = None
        """Ready when what was received from it was copied."""


class Arrival:
    """What is sent to one GPU at once; the mark is set when nothing more belongs to it."""

    def __init__(self) -> None:
        self.mark: EventMark | None = None


class Landed(NamedTuple):
    """A leaf of a step, in a berth or on its way there."""

    arrival: Arrival
    berth: Berth


class Landing:
    """The berths of one GPU, and the stream on which leaves arrive in them."""

    def __init__(self, cuda: Driver, device: Any) -> None:
        self._cuda, self._device = cuda, device
        self.gpu: int = device.local_hardware_id
        self._berths: list[Berth] = []
        self._arrival = Arrival()
        with cuda.on(self.gpu):
            self._stream = cuda.stream()
        self._closed = weakref.finalize(self, _leave, cuda, self._berths)

    def begin(self, begin: Begin, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Landed | None:
        """A leaf of this shape, on its way; None if it cannot be."""
        berth = self._free(shape, dtype)
        with self._cuda.on(self.gpu):
            berth.occupied = begin(berth.address, self._stream)
        return Landed(self._arrival, berth) if berth.occupied else None

    def _free(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Berth:
        left = [one for one in self._berths if one.kind == (shape, dtype) and not one.occupied]
        if len(left) <= _LEFT:
            self._berths.append(Berth(shape, dtype, self._device))
            return self._berths[-1]
        oldest = left[0]
        self._berths.remove(oldest)
        self._berths.append(oldest)
        jax.block_until_ready(oldest.left)
        return oldest

    def mark(self) -> EventMark:
        """Everything that was begun until now."""
        return self._cuda.mark(self.gpu, self._stream)

    def sent(self) -> None:
        """Nothing more belongs to what is being sent."""
        self._arrival.mark = self.mark()
        self._arrival = Arrival()

    def close(self) -> None:
        self._closed()


def _leave(cuda: Driver, berths: list[Berth]) -> None:
    cuda.wait()
    berths.clear()


def received(values: Sequence[Any]) -> list[Any]:
    """Leaves of a step, with JAX's own arrays in the place of what has landed."""
    groups: dict[Arrival, list[int]] = {}
    for i, value in enumerate(values):
        if isinstance(value, Landed):
            groups.setdefault(value.arrival, []).append(i)
    found = list(values)
    for arrival, places in groups.items():
        berths = [values[i].berth for i in places]
        for i, array in zip(places, _copied(arrival, berths), strict=True):
            found[i] = array
    return found


def _copied(arrival: Arrival, berths: list[Berth]) -> Sequence[Any]:
    assert arrival.mark is not None
    arrival.mark.wait()
    arrays: Sequence[Any]
    arrays, left = _copies()([berth.array for berth in berths])
    for berth in berths:
        berth.left = left
        berth.occupied = False
    return arrays


@lru_cache(maxsize=1)
def _copies() -> Any:
    """Gives copies of arrays, and something small that is ready when they are."""
    return jax.jit(lambda arrays: ([jax.numpy.copy(a) for a in arrays], arrays[0].ravel()[:1]))
