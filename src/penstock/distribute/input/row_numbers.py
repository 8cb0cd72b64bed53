"""Numbered plans: rows in memory that are only shuffled, batched and counted travel as numbers.

Whoever fetches the rows does so at the end, from where they lie straight to where they are used,
and only its own. A plan that looks into its rows anywhere has no such form.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.element.chunk import Chunk
from penstock.element.spec import TensorSpec
from penstock.plan import nodes
from penstock.plan.nodes import Node
from penstock.plan.traits import Trait

ROW_NUMBERS = TensorSpec([None], "int64")
"""What a batch of such a plan, or a part of one, looks like."""


@dataclass(frozen=True)
class RowNumberPlan:
    """The plan with a number in the place of every row, and the rows."""

    plan: Node
    rows: Chunk


def replace_by_row_numbers(plan: Node) -> RowNumberPlan | None:
    """The same plan of row numbers; None where it is not batches of rows in some order."""
    found, batches = _replace_rows(plan)
    return found if batches == 1 else None


def _replace_rows(plan: Node) -> tuple[RowNumberPlan | None, int]:
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
