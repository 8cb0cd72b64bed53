"""Positions and states: what an operator and its inputs are opened with.

A plan with random access is opened at a position, any other plan at a state that its operators
saved. Either becomes an operator's own state and one state for each of its inputs, so that every
operator is opened in the same way.
"""

from __future__ import annotations

from penstock.engine.access import repetition_length
from penstock.engine.contract import State
from penstock.plan import nodes
from penstock.plan.nodes import Node


def states_of(node: Node, state: State) -> tuple[State, list[State]]:
    """Returns an operator's own state, and one state for each of its inputs."""
    if isinstance(node, nodes.Prefetch):
        return None, [state]
    if isinstance(state, int):
        return _states_at(node, state)
    return _states_at_start(node) if state is None else (state["own"], state["inputs"])


def _states_at(node: Node, position: int) -> tuple[State, list[State]]:
    """The states of an operator with random access and of its inputs, at a position."""
    match node:
        case nodes.Map() | nodes.AssertCardinality():
            return position, [position]
        case nodes.Batch(_, size):
            return None, [position * size]
        case nodes.Take(_, count):
            return count - position, [position]
        case nodes.Skip(_, count):
            return 0, [position + count]
        case nodes.Tail(_, start):
            return None, [position + start]
        case nodes.Enumerate(_, start):
            return start + position, [position]
        case nodes.Repeat(source):
            number, within = divmod(position, repetition_length(source))
            return [number, True, False, []], [within]
        case nodes.Concatenate(first):
            behind = 0 <= first.cardinality <= position
            within = position - first.cardinality if behind else position
            return [int(behind), []], [within]
        case nodes.Zip() | nodes.OneRepetition():
            return None, [position] * len(node.inputs)
    raise AssertionError(f"{node.label} has no random access: {node.blocked}")


def _states_at_start(node: Node) -> tuple[State, list[State]]:
    """The states at the start of an operator without random access, and of its inputs.

    Operators that number their elements begin with the number of the first one.
    """
    own: State = None
    match node:
        case nodes.Repeat():
            own = [0, False, False, []]
        case nodes.Concatenate():
            own = [0, []]
        case nodes.Map():
            own = [first_number(node), [], []]
        case nodes.Filter():
            own = first_number(node) or None
        case nodes.Interleave() if first := first_number(node):
            own = {"at": [0, 0, first], "slots": []}
        case nodes.Tail() | nodes.OneRepetition():
            raise AssertionError(f"{node.label} needs random access: {node.blocked}")
    return own, [None] * len(node.inputs)


def first_number(node: Node) -> int:
    """The number of the first element; the elements of a piece have their numbers in the plan."""
    skipped = node.first if isinstance(node, nodes.Inputs) else 0
    while node.inputs and not isinstance(node, nodes.Tail):
        node = node.inputs[0]
    return skipped + (node.start if isinstance(node, nodes.Tail) else 0)
