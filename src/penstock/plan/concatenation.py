"""Concatenations in a row: long rows become a tree, because plans are walked by recursion."""

from __future__ import annotations

from penstock.plan.nodes import Concatenate, Node

LONGEST = 128
"""The most concatenations in a row, each the `first` of the next. Python's stack has 1000 frames,
of which a walk needs up to four for each operator."""


def concatenate(first: Node, second: Node) -> Concatenate:
    """The elements of `first`, then those of `second`.

    Behind a row of `LONGEST` concatenations, further datasets are added to its last one: the plan
    of thousands of datasets has little more than `LONGEST` levels.

    >>> from penstock.element.dtypes import int64
    >>> from penstock.plan.nodes import Range
    >>> plan = Range(0, 2, 1, int64)
    >>> for _ in range(1000):
    ...     plan = concatenate(plan, Range(0, 2, 1, int64))
    >>> plan.cardinality, plan.row
    (2002, 128)
    """
    if isinstance(first, Concatenate) and first.row >= LONGEST:
        return Concatenate(first.first, concatenate(first.second, second))
    return Concatenate(first, second)
