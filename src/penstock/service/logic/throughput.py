"""Throughput: how fast somebody makes or uses elements, of late."""

from __future__ import annotations

from dataclasses import dataclass

FADING = 0.7
"""What remains of a measurement when the next one comes."""


@dataclass(slots=True)
class Throughput:
    """Elements over seconds; old ones count less and less."""

    elements: float = 0.0
    seconds: float = 0.0
    waited: float = 0.0

    def add(self, elements: float, seconds: float, waited: float = 0.0) -> None:
        if seconds > 0 or elements:
            self.elements = self.elements * FADING + elements
            self.seconds = self.seconds * FADING + seconds
            self.waited = self.waited * FADING + waited

    @property
    def rate(self) -> float:
        """Elements per second."""
        return self.elements / self.seconds if self.seconds > 0 else 0.0
