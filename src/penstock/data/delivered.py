"""`DeliveredIterator`: iterates over a dataset's elements as tensors on a device.

A thread computes elements and sends them ahead of their use. A state is that of an `Iterator` over
the same dataset: it counts the elements that the caller got, not those in transit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from collections.abc import Iterator as PythonIterator
from typing import Any

from penstock.data.arguments import is_dataset
from penstock.data.iterator import Iterator
from penstock.delivery import Delivery
from penstock.delivery.delivery_stream import DELIVERY, DeliveryStream, run_ahead
from penstock.delivery.row_numbers import deliver_by_row_numbers
from penstock.element import nest
from penstock.element.chunk import Chunk
from penstock.engine.context import Context, Environment
from penstock.engine.contract import Stream
from penstock.engine.lower import open_plan
from penstock.errors import InvalidTypeError
from penstock.plan.nodes import IterationCounter, Node

Check = Callable[[Chunk], None]
"""Called with every chunk before it is sent; raises if its elements cannot be used."""


class DeliveredIterator(Iterator):
    """Iterates over a dataset's elements as tensors; can be saved and resumed at any of them.

    Args:
        plan: The plan of the dataset.
        environment: What the plan runs in.
        iterations: Counts the iterations over the dataset.
        open_delivery: Makes the delivery, whenever the iterator starts to compute elements.
        ahead: How many elements are computed and sent while the caller works on another one.
        check: Refuses elements that cannot be used.
    """

    def __init__(
        self,
        plan: Node,
        environment: Environment,
        iterations: IterationCounter,
        *,
        open_delivery: Callable[[], Delivery],
        ahead: int,
        check: Check,
    ) -> None:
        super().__init__(plan, environment, iterations)
        self._open_delivery = open_delivery
        self._ahead = ahead
        self._check = check
        self.keep_state: Callable[[dict[str, Any]], None] | None = None
        """Gets the state if the iterator is dropped before the end of the dataset."""

    def __del__(self) -> None:
        # Any thread may run this at any time, so it counts elements and asks no stream.
        keep_state = getattr(self, "keep_state", None)  # Missing if `__init__` has failed.
        if keep_state is not None and not self._is_at_end and not sys.is_finalizing():
            keep_state(self._describe((self._place.after(self._taken_count), self.position)))

    def __next__(self) -> Any:
        tree, leaves = super().__next__()
        return nest.unflatten(tree, self._delivery.receive(list(leaves)))

    def _streams(self, context: Context) -> Stream:
        plan, delivery = self._plan, self._open_delivery()
        plan, delivery = deliver_by_row_numbers(plan, delivery) or (plan, delivery)
        self._delivery, self._metered = delivery, plan
        meter = context.meters.of_stage(DELIVERY)
        opened = open_plan(plan, self._at, context)
        stream = DeliveryStream(opened, delivery, meter, check=self._check)
        return run_ahead(stream, self._ahead, context)

    def _elements(self, chunk: Chunk) -> PythonIterator[Any]:
        rows = zip(*chunk.columns, strict=True) if chunk.columns else [()] * len(chunk)
        # A list iterator has a length hint, from which `Iterator` derives how many were taken.
        return iter([(chunk.tree, leaves) for leaves in rows])


def refuse_datasets(where: str, chunk: Chunk) -> None:
    """Raises if an element contains a dataset; `where` is the call of the user."""
    lists = (column for column in chunk.columns if isinstance(column, list))
    if any(is_dataset(leaf) for column in lists for leaf in column):
        raise InvalidTypeError(f"{where}: an element is a dataset; flatten it with flat_map")
