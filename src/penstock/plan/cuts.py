"""Cuts: which parts of a plan that cannot be divided run on workers, and which in the client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from penstock.element import nest
from penstock.element.spec import DatasetSpec
from penstock.plan import nodes
from penstock.plan.nodes import OPAQUE, Node, options_of, walk_plan, with_options_of
from penstock.plan.options import Options, ShardingPolicy
from penstock.plan.shard import in_order
from penstock.plan.splits import pieces_of
from penstock.plan.traits import Trait


def cut(plan: Node, remote: Callable[[Node], Node]) -> tuple[Node, str | None]:
    """Replaces the parts of a plan that workers can compute by `remote(part)`.

    The plan is one whose shape is `single`. An operator that needs all elements in one place stays
    in the client, with all operators after it. So do parts that neither call a function nor read
    a file. Also returns why an operator stays and how to change that; None if none does.
    """
    cutter = _Cutter(plan, remote)
    made = cutter.cut(plan)
    if not cutter.made and not _gives_datasets(plan):
        return remote(plan), None
    if made is not plan and not cutter.above:
        return made, None
    return made, cutter.words


def has_one_reader(node: nodes.Distribute, options: Options) -> bool:
    """Whether one reader gets all elements, in the order of the local dataset."""
    return (
        node.mode == ShardingPolicy.DYNAMIC
        and node.job_name is None
        and options_of(node).merge(options).service.stateful != "per_worker"
    )


class _Cutter:
    """Walks from the end of a plan to its sources; collects the operators just above a cut."""

    def __init__(self, plan: Node, remote: Callable[[Node], Node]) -> None:
        self._plan = plan
        self._remote = remote
        self.made = 0
        self.above: list[Node] = []

    def cut(self, node: Node) -> Node:
        if not _has_work(node):
            return node
        if not _gives_datasets(node) and (_is_divisible(node) or not _contains_divisible(node)):
            self.made += 1
            part = node if node is self._plan else with_options_of(self._plan, node)
            return self._remote(part)
        before = self.made
        inputs = tuple(map(self.cut, node.inputs))
        if self.made > before and not self.above:
            self.above.append(node)
        return node.with_inputs(inputs)

    @property
    def words(self) -> str:
        if not self.above:
            return "nothing in it can be computed elsewhere, so the client does it all"
        return _explain(self.above[0])


def _has_work(node: Node) -> bool:
    """Whether a plan calls a function or reads a file, outside of plans that a service computes."""
    return any(
        one.functions or Trait.READS_FILES in one.traits
        for one in walk_plan(node, into_services=False)
    )


def _is_divisible(node: Node) -> bool:
    return pieces_of(in_order(node)) is not None


def _contains_divisible(node: Node) -> bool:
    """Whether an input, at any depth, can be divided and has work worth dividing."""
    return any(_has_work(one) and _is_divisible(one) for one in _operators_before(node))


def _operators_before(node: Node) -> Iterator[Node]:
    """The operators that this one depends on, without the operators that a service runs."""
    return islice(walk_plan(node, into_services=False), 1, None)


def _gives_datasets(node: Node) -> bool:
    """Whether elements are known to contain datasets, which cannot be sent."""
    return any(isinstance(leaf, DatasetSpec) for leaf in nest.flatten(_static_spec(node))[0])


def _static_spec(node: Node) -> Any:
    """The spec, as far as it is known without a call of a function; else OPAQUE."""
    if node.found_spec is not None:
        return node.found_spec.spec
    inputs = list(map(_static_spec, node.inputs))
    if OPAQUE in inputs and node.declared_spec is None:
        return OPAQUE
    return node.spec_from(*inputs)


def _explain(node: Node) -> str:
    """Why an operator stays in the client, and how to change that."""
    blocker = next((one for one in _operators_before(node) if one.obstacle is not None), None)
    advice = 'Options.service.stateful = "per_worker" lets each worker do it with its own share'
    if blocker is not None and node.obstacle is None and len(node.inputs) == 1:
        advice = f"put {blocker.label} after {node.label} if that gives what you want, or: {advice}"
    return f"{node.label} and all after it run in the client: {_explain_obstacle(node)}; {advice}"


def _explain_obstacle(node: Node) -> str:
    if node.obstacle is not None:
        return node.obstacle
    if len(node.inputs) > 1:
        return "it takes elements of several datasets in turn"
    return f"it counts elements, and their numbers are not known in advance ({node.blocked})"
