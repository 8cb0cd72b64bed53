"""Delivery: chunks become tensors on devices, ahead of their use.

Strategies and the adapters `as_torch`, `as_jax` and `as_keras` deliver through this room. A
framework's module here, `<framework>_delivery`, is imported by its first use.
"""

from __future__ import annotations

from typing import Any

from penstock.element.chunk import Chunk

Tensor = Any
"""A value of the framework, or a NumPy value of a kind that it does not have (strings)."""


class Delivery:
    """Moves chunks to devices, ahead of their use. This one leaves everything on the host."""

    def of_rows(self, rows: Chunk) -> Delivery | None:
        """A delivery to the same devices for chunks of row numbers; None if it would not be faster.

        Each device has one column of numbers, and receives the leaves of the rows they mean.
        """
        return None

    def send(self, chunk: Chunk) -> Chunk:
        """The same chunk, each column on its device.

        Called by the thread that prefetches; may return before the copies are done.
        """
        return chunk

    def receive(self, values: list[Tensor]) -> list[Tensor]:
        """One element's leaves, ready for use by the calling thread and its CUDA stream."""
        return values

    def close(self) -> None:
        """Frees buffers and threads; calling it again does nothing."""
