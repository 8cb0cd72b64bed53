"""`Replicas`: the replicas of a strategy, and which of them belong to this process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from penstock.delivery import Tensor
from penstock.distribute.backends import Backend
from penstock.distribute.devices import Device


class Collectives(Protocol):
    """Operations that all processes of a strategy must call, in the same order."""

    def gather(self, array: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        """Every process's array (shapes may differ, dtypes not), in the order of the workers."""

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum of every process's tensor, on the device of this process's tensor.

        The tensors belong to the backend and have one shape and one dtype.
        """

    def broadcast(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The array of worker 0; every worker passes an array of the same shape and dtype."""

    def barrier(self) -> None:
        """Returns when every process has called it."""


@dataclass(frozen=True)
class Replicas:
    """The devices of this process, and its number among the workers, which all have as many."""

    backend: Backend
    devices: tuple[Device, ...]
    workers: int = 1
    worker: int = 0
    collectives: Collectives | None = None

    @property
    def here(self) -> int:
        """The number of replicas in this process."""
        return len(self.devices)

    @property
    def total(self) -> int:
        return self.workers * self.here

    @property
    def first(self) -> int:
        """The global number of the first replica of this process."""
        return self.worker * self.here
