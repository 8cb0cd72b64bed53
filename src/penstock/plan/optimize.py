"""Rewrite rules: functions from plans to plans that keep every element and every call.

A rule gets one node and returns a better one, or None. Operators that pick elements move before
functions, so that a shuffle, a shard or a skip is arithmetic on indices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.plan.nodes import (
    Map,
    Node,
    Prefetch,
    Repeat,
    Select,
    Shard,
    Shuffle,
    Skip,
    Take,
    Unordered,
    WithOptions,
    options_of,
    rewrite,
)
from penstock.plan.options import Options

Rule = Callable[[Node], Node | None]


def no_operation(node: Node) -> Node | None:
    """Removes operators that change nothing.

    After a stream they stay: removing one would let workers divide the plan there, and elements
    of a divided plan have other numbers.
    """
    if not node.inputs or node.inputs[0].blocked is not None:
        return None
    match node:
        case Skip(source, 0) | Shard(source, 1, 0) | Shuffle(source, 1):
            return source
        case Repeat(source, 1) if not source.by_epoch:
            return source
        case Take(source, count) if 0 <= source.cardinality <= count:
            return source
    return None


def index_before_map(node: Node) -> Node | None:
    """Picks elements before the function is called, not after; only with random access.

    A function that gets random numbers stays, because those depend on the element's index. A map
    without order stays, so that its states fit any number of parallel calls.
    """
    match node:
        case Take() | Skip() | Shard() | Shuffle() | Select() if isinstance(node.input, Map):
            function = node.input
            loose = function.deterministic is False
            if function.random is None and function.blocked is None and not loose:
                below = node.with_inputs((function.input, *node.inputs[1:]))
                return replace(function, input=below)
    return None


def prefetch_last(node: Node) -> Node | None:
    """Moves a prefetch after operators that only pick elements.

    Operators that ask for elements out of order must have random access to them.
    """
    match node:
        case Take() | Skip() | Shard() | Shuffle() | Select() if isinstance(node.input, Prefetch):
            source, size = node.input.input, node.input.size
            if source.blocked is None or not isinstance(node, Shuffle | Select):
                return Prefetch(node.with_inputs((source, *node.inputs[1:])), size)
    return None


def joined_counts(node: Node) -> Node | None:
    """Makes one count of two in a row.

    Two repetitions stay: with a prefetch between them they could not be joined, and plans that
    differ in their prefetches must have the same states.
    """
    match node:
        case Take(Take(source, inner), outer):
            return Take(source, min(inner, outer))
        case Skip(Skip(source, inner), outer):
            return Skip(source, inner + outer)
    return None


RULES: tuple[Rule, ...] = (
    no_operation,
    index_before_map,
    prefetch_last,
    joined_counts,
)


def optimize(node: Node, rules: Sequence[Rule] = RULES) -> Node:
    """Applies `rules`, inputs first, until none of them changes the plan."""
    if node.sealed:
        return node
    node = node.with_inputs(tuple(optimize(part, rules) for part in node.inputs))
    for rule in rules:
        if (better := rule(node)) is not None:
            return optimize(better, rules)
    return node


def rules_for(options: Options) -> tuple[Rule, ...]:
    """The rules that a plan's options allow."""
    wanted = options.experimental_optimization
    if wanted.apply_default_optimizations is False:
        return ()
    if wanted.noop_elimination is False:
        return tuple(rule for rule in RULES if rule is not no_operation)
    return RULES


def prepare(node: Node) -> Node:
    """The plan that is run: its options are applied and removed, then it is optimised."""
    options = options_of(node)
    node = without_options(node)
    if options.deterministic is False:
        node = rewrite(node, give_up_order)
    return optimize(node, rules_for(options))


def without_options(node: Node) -> Node:
    """The plan without `WithOptions`, so that rules match across places where options are set."""
    return rewrite(node, lambda one: one.input if isinstance(one, WithOptions) else one)


def give_up_order(node: Node) -> Node:
    """An operator with `deterministic=False` if it has parallel calls and the user set nothing."""
    if not isinstance(node, Unordered) or node.parallel is None:
        return node
    return replace(node, deterministic=False) if node.deterministic is None else node
