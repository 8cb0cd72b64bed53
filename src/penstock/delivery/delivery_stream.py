"""`DeliveryStream`: chunks on their way to the devices.

A state of it is a state of its source: elements that are in transit leave no trace.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.delivery import Delivery
from penstock.element.chunk import Chunk
from penstock.engine import advice
from penstock.engine.context import Context
from penstock.engine.contract import State, Stream
from penstock.engine.inlets import FedStream
from penstock.engine.meters import Meter, Stage
from penstock.engine.prefetch import PrefetchStream
from penstock.engine.tuning import Budget, Depth

DELIVERY = Stage("deliver", advice.DELIVERY)


class DeliveryStream(FedStream):
    """The chunks of `source`, sent by a delivery, after a `check` that may refuse elements."""

    def __init__(
        self,
        source: Stream,
        delivery: Delivery,
        meter: Meter,
        check: Callable[[Chunk], None] | None = None,
    ) -> None:
        super().__init__(source)
        self._delivery, self._meter, self._check = delivery, meter, check

    def pull(self, limit: int) -> Chunk:
        started = self._meter.since = time.perf_counter()
        try:
            nbytes, sent, seconds = self._pull(limit)
        except BaseException:
            self._meter.end_pull(time.perf_counter() - started)
            raise
        self._meter.record_copy(len(sent), seconds)
        self._meter.record(len(sent), nbytes, time.perf_counter() - started)
        return sent

    def _pull(self, limit: int) -> tuple[int, Chunk, float]:
        """How many bytes the next chunk has on the host, the chunk after it was sent, and how
        long sending it took."""
        chunk = self._feed.pull(limit)
        started = time.perf_counter()
        try:
            return chunk.nbytes, self._send(chunk), time.perf_counter() - started
        except Exception:
            if len(chunk) == 1:
                raise
            # Only one element fails, in its turn; those before it must be handed on.
            self._feed.unread(chunk, 0)
            chunk = self._feed.pull(1)
            return chunk.nbytes, self._send(chunk), time.perf_counter() - started

    def _send(self, chunk: Chunk) -> Chunk:
        if self._check is not None:
            self._check(chunk)
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
