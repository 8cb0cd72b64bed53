"""What a reader knows about its bottleneck, as its heartbeats say it."""

from __future__ import annotations

import msgspec


class Bottleneck(msgspec.Struct, frozen=True, omit_defaults=True):
    """The slowest operator on the workers, and the work of the reader itself."""

    place: str = ""
    """`source`, `function` or `operator`; empty if nothing is known."""
    operator: str = ""
    """The operator with its function and its place in the source: `map(decode at train.py:12)`."""
    delivered: float = 0.0
    """Seconds in which the reader brought elements to devices, since the last heartbeat."""


UNKNOWN_BOTTLENECK = Bottleneck()
"""What is known before a reader has reported it; it is not sent."""
