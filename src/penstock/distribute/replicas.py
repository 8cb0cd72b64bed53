"""`Replicas`: the replicas of a strategy, and which of them belong to this process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from penstock.distribute.backends import Backend
from penstock.distribute.devices import Device
from penstock.distribute.workers.collectives import Peers


@dataclass(frozen=True)
class Replicas:
    """The devices of this process, and its number among the workers, which all have as many."""

    backend: Backend
    devices: tuple[Device, ...]
    workers: int = 1
    worker: int = 0
    collectives: Peers | None = None

    @cached_property
    def here(self) -> int:
        """The number of replicas in this process."""
        return len(self.devices)

    @cached_property
    def total(self) -> int:
        return self.workers * self.here

    @cached_property
    def first(self) -> int:
        """The global number of the first replica of this process."""
        return self.worker * self.here
