"""`Replicas`: who takes part in a strategy, and which of them live in this process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from penstock.distribute.backends import Backend, Tensor
from penstock.distribute.devices import Device


class Collectives(Protocol):
    """What the processes of a strategy do together; every one of them must call the same."""

    def gather(self, array: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        """Every process's array (shapes may differ, dtypes not), in the order of the workers."""

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum of every process's tensor (of the backend; one shape, one dtype), where it is."""

    def broadcast(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The array of worker 0; the others' say only shape and dtype, which must be the same."""

    def barrier(self) -> None:
        """Returns when every process has called it."""


@dataclass(frozen=True)
class Replicas:
    """The devices of this process, and its place among the workers; all have as many devices."""

    backend: Backend
    devices: tuple[Device, ...]
    workers: int = 1
    worker: int = 0
    collectives: Collectives | None = None

    @property
    def here(self) -> int:
        """How many replicas this process has."""
        return len(self.devices)

    @property
    def total(self) -> int:
        return self.workers * self.here

    @property
    def first(self) -> int:
        """The number, among all, of this process's first replica."""
        return self.worker * self.here
