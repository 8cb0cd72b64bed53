"""Numbering: how the numbers of elements in a piece of a plan relate to those in the whole plan.

A function that fails in a piece counts the elements of that piece. The reader of all pieces knows
how many elements came before, if the operators of all pieces can be matched: by `Counting.key`.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.engine.positions import first_number
from penstock.plan.nodes import Branch, Inputs, Node
from penstock.plan.traits import Trait


@dataclass(frozen=True)
class Counting:
    """How one operator of a piece counts the elements that it calls its function on."""

    key: str
    """Names the operator, in every piece of the plan."""
    first: int
    """The number of its first element in this piece."""
    is_last: bool
    """Whether each of its elements becomes one element of the piece."""
    takes_merged: bool
    """Whether its elements are those of an `interleave` that the reader merges, one for one."""


def counting_of(piece: Node, operator: Node) -> Counting | None:
    """How an operator of a piece counts; None if its numbers are those of the whole plan.

    So they are where its input has random access, and in a dataset that a function made.

    >>> from penstock.data import Dataset
    >>> rows = Dataset.range(9).filter(bool).map(float)
    >>> counting_of(rows.__plan__, rows.__plan__)
    Counting(key='0', first=0, is_last=True, takes_merged=False)
    >>> counting_of(rows.__plan__, rows.__plan__.inputs[0])
    >>> kept = rows.filter(bool).__plan__
    >>> counting_of(kept, kept).is_last
    False
    """
    functions, branches, is_last = 0, "", True
    node = piece
    while node is not operator:
        if not node.inputs:
            return None
        if isinstance(node, Branch) and node.number is not None:
            branches += f"{node.number}."
        functions += bool(node.functions)
        is_last = is_last and Trait.ONE_TO_ONE in node.traits
        node = node.inputs[0]
    source = node.inputs[0]
    if source.blocked is None:
        return None
    while Trait.ONE_TO_ONE in source.traits:
        source = source.inputs[0]
    return Counting(
        key=f"{branches}{functions}",
        first=first_number(node),
        is_last=is_last and Trait.ONE_TO_ONE in operator.traits,
        takes_merged=isinstance(source, Inputs),
    )
