"""Rewrite rules: functions from plans to plans that keep every element and every call.

A rule looks at one node and gives a better one, or None. Index arithmetic moves below functions,
so that a shuffle, a shard or a skip touches numbers and not elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.plan.nodes import (
    Map,
    Node,
    Prefetch,
    Repeat,
    Shard,
    Shuffle,
    Skip,
    Take,
    Unordered,
    WithOptions,
    options_of,
)
from penstock.plan.options import Options

Rule = Callable[[Node], Node | None]


def no_operation(node: Node) -> Node | None:
    """Operators that change nothing.

    Over a stream they stay: workers cannot divide it behind them, and its elements are numbered
    here as they are there.
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
    """Picks elements before the function is called, not after; only where picking is arithmetic.

    A function that gets random numbers by the element's index must stay where the index is. One
    without order stays as well, so that a state fits whatever the number of its parallel calls.
    """
    match node:
        case Take() | Skip() | Shard() | Shuffle() if isinstance(node.input, Map):
            function = node.input
            loose = function.deterministic is False
            if function.random is None and function.blocked is None and not loose:
                return replace(function, input=node.with_inputs((function.input,)))
    return None


def prefetch_last(node: Node) -> Node | None:
    """Prefetching happens behind what only picks elements."""
    match node:
        case Take(Prefetch(source, size)) | Skip(Prefetch(source, size)):
            return Prefetch(node.with_inputs((source,)), size)
        case Shard(Prefetch(source, size)):
            return Prefetch(node.with_inputs((source,)), size)
    return None


def shuffle_ahead(node: Node) -> Node | None:
    """A shuffle of indices asks for elements out of order, so prefetching below it is in vain."""
    match node:
        case Shuffle(Prefetch(source, size)) if source.blocked is None:
            return Prefetch(node.with_inputs((source,)), size)
    return None


def joined_counts(node: Node) -> Node | None:
    """Two counts in a row are one.

    Repetitions of a stream are not joined: a prefetch between them would keep them apart, and
    the states of plans that differ in their prefetches must fit each other.
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
    shuffle_ahead,
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
    """The plan that is really run: options settled and taken out of it, then optimised."""
    options = options_of(node)
    node = without_options(node)
    if options.deterministic is False:
        node = loosened(node)
    return optimize(node, rules_for(options))


def without_options(node: Node) -> Node:
    """The plan itself: rules must not see a difference where somebody sets an option."""
    if node.sealed:
        return node
    node = node.with_inputs(tuple(without_options(part) for part in node.inputs))
    return node.input if isinstance(node, WithOptions) else node


def loosened(node: Node) -> Node:
    """Order given up wherever calls are made in parallel and nobody asked to keep it."""
    if node.sealed:
        return node
    node = node.with_inputs(tuple(loosened(part) for part in node.inputs))
    if isinstance(node, Unordered):
        if node.parallel is not None and node.deterministic is None:
            return replace(node, deterministic=False)
    return node
