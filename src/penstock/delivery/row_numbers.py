"""Plans of row numbers: what a plan yields before its rows are fetched.

If a plan makes batches of rows in memory, and every operator works by position and none reads the
rows, the thread that prefetches may read row numbers instead. A delivery then fetches the rows
directly from the user's array to the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.delivery import Delivery
from penstock.element.chunk import Chunk
from penstock.element.spec import TensorSpec
from penstock.plan import nodes
from penstock.plan.nodes import Node
from penstock.plan.traits import Trait

ROW_NUMBERS = TensorSpec([None], "int64")
"""The spec of a batch of row numbers, and of a portion of it."""


@dataclass(frozen=True)
class RowNumberPlan:
    """A plan that yields row numbers, and the rows that they refer to."""

    plan: Node
    rows: Chunk


def deliver_by_row_numbers(plan: Node, delivery: Delivery) -> tuple[Node, Delivery] | None:
    """The plan of row numbers, and the delivery that fetches the rows, which replaces `delivery`.

    None unless the plan makes batches of rows in memory and the devices can fetch rows by number.
    """
    late = replace_by_row_numbers(plan)
    by_number = None if late is None else delivery.of_rows(late.rows)
    if late is None or by_number is None:
        return None
    delivery.close()
    return late.plan, by_number


def replace_by_row_numbers(plan: Node) -> RowNumberPlan | None:
    """The same plan for row numbers; None unless it makes batches of rows in memory."""
    found, batches = _replace_rows(plan)
    return found if batches == 1 else None


def _replace_rows(plan: Node) -> tuple[RowNumberPlan | None, int]:
    """The plan for row numbers, and how many `batch` operators it has."""
    if isinstance(plan, nodes.Slices):
        rows = plan.data.chunk
        if not all(isinstance(c, np.ndarray) and c.dtype.isnative for c in rows.columns):
            return None, 0
        return RowNumberPlan(nodes.Range(0, len(rows), 1, ROW_NUMBERS.dtype), rows), 0
    if Trait.BY_POSITION not in plan.traits:
        return None, 0
    inner, batches = _replace_rows(plan.inputs[0])
    if inner is None:
        return None, 0
    moved = RowNumberPlan(plan.with_inputs((inner.plan,)), inner.rows)
    return moved, batches + isinstance(plan, nodes.Batch)
