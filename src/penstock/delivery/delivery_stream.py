"""`DeliveryStream`: chunks on their way to the devices.

A state of it is a state of its source: elements that are in transit leave no trace.
"""

from __future__ import annotations

from penstock.delivery import Delivery
from penstock.element.chunk import Chunk
from penstock.engine.context import Context
from penstock.engine.contract import State, Stream
from penstock.engine.inlets import FedStream
from penstock.engine.prefetch import PrefetchStream
from penstock.engine.tuning import Budget, Depth


class DeliveryStream(FedStream):
    """The chunks of `source`, sent by a delivery."""

    def __init__(self, source: Stream, delivery: Delivery) -> None:
        super().__init__(source)
        self._delivery = delivery

    def pull(self, limit: int) -> Chunk:
        chunk = self._feed.pull(limit)
        try:
            return self._send(chunk)
        except Exception:
            if len(chunk) == 1:
                raise
            # Only one element fails, in its turn; those before it must be handed on.
            self._feed.unread(chunk, 0)
            return self._send(self._feed.pull(1))

    def _send(self, chunk: Chunk) -> Chunk:
        return self._delivery.send(chunk)

    def save(self) -> State:
        return self._feed.save()

    def close(self) -> None:
        super().close()
        self._delivery.close()


def run_ahead(stream: Stream, ahead: int, context: Context) -> Stream:
    """The same stream, pulled by a thread that is `ahead` elements ahead of the caller."""
    if not ahead or context.inline:
        return stream
    return PrefetchStream(stream, Depth(ahead, Budget.of(context.options)))
