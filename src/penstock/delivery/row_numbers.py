"""Plans of row numbers: what a plan yields before its rows are fetched.

If a plan makes batches of rows in memory, and every operator works by position and none reads the
rows, the thread that prefetches may read row numbers instead. A delivery then fetches the rows
directly from the user's array to the device.
"""

from __future__ import annotations

import numpy as np

from penstock.delivery import Delivery
from penstock.element.chunk import Chunk
from penstock.element.spec import TensorSpec
from penstock.plan import nodes
from penstock.plan.nodes import Node
from penstock.plan.traits import Trait

ROW_NUMBERS = TensorSpec([None], "int64")
"""The spec of a batch of row numbers, and of a portion of it."""


def deliver_by_row_numbers(plan: Node, delivery: Delivery) -> tuple[Node, Delivery] | None:
    """The plan of row numbers, and the delivery that fetches the rows, which replaces `delivery`.

    None unless the plan makes batches of rows in memory and the devices can fetch rows by number.
    """
    match replace_by_row_numbers(plan):
        case late, rows if (by_number := delivery.of_rows(rows)) is not None:
            delivery.close()
            return late, by_number
    return None


def replace_by_row_numbers(plan: Node) -> tuple[Node, Chunk] | None:
    """The same plan for row numbers, and the rows; None unless it makes batches of these rows."""
    match _replace_rows(plan):
        case late, rows, 1:
            return late, rows
    return None


def _replace_rows(plan: Node) -> tuple[Node, Chunk, int] | None:
    """The plan for row numbers, the rows, and how many `batch` operators the plan has."""
    if isinstance(plan, nodes.Slices):
        rows = plan.data.chunk
        if not all(isinstance(c, np.ndarray) and c.dtype.isnative for c in rows.columns):
            return None
        return nodes.Range(0, len(rows), 1, ROW_NUMBERS.dtype), rows, 0
    if Trait.BY_POSITION not in plan.traits:
        return None
    found = _replace_rows(plan.inputs[0])
    if found is None:
        return None
    source, rows, batches = found
    return plan.with_inputs((source,)), rows, batches + isinstance(plan, nodes.Batch)
