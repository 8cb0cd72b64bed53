"""Cuts: what workers do of a plan that cannot be divided, and what stays with the client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from penstock.element import nest
from penstock.element.spec import DatasetSpec
from penstock.plan import nodes
from penstock.plan.nodes import OPAQUE, Node, options_of
from penstock.plan.options import Options
from penstock.plan.pieces import pieces_of
from penstock.plan.shard import in_order
from penstock.plan.traits import Trait


def cut(plan: Node, remote: Callable[[Node], Node]) -> tuple[Node, str | None]:
    """A plan that is neither random nor split, what workers can do of it replaced by `remote(it)`.

    Also says in words what stays with the client, why, and how to change that; None if workers do
    it all. What needs all elements in one place stays, with everything behind it, and so does
    what neither calls a function nor reads a file.
    """
    cutter = _Cutter(plan, remote)
    made = cutter.cut(plan)
    if not cutter.made and not _gives_datasets(plan):
        return remote(plan), None
    if made is not plan and not cutter.above:
        return made, None
    return made, cutter.words


class _Cutter:
    """One walk from the end of a plan; notes the operators that stay directly above a cut."""

    def __init__(self, plan: Node, remote: Callable[[Node], Node]) -> None:
        self._plan = plan
        self._remote = remote
        self.made = 0
        self.above: list[Node] = []

    def cut(self, node: Node) -> Node:
        if not _works(node):
            return node
        if not _gives_datasets(node) and (_divides(node) or not _haspieces_of(node)):
            self.made += 1
            return self._remote(self._with_options(node))
        before = self.made
        inputs = tuple(map(self.cut, node.inputs))
        if self.made > before and not self.above:
            self.above.append(node)
        return node.with_inputs(inputs)

    def _with_options(self, node: Node) -> Node:
        """A part has the options of the whole plan, wherever they stood."""
        options = options_of(self._plan)
        if node is self._plan or options == Options():
            return node
        return nodes.WithOptions(node, options.frozen())

    @property
    def words(self) -> str:
        if not self.above:
            return "nothing in it can be computed elsewhere, so the client does it all"
        return _words(self.above[0])


def _works(node: Node) -> bool:
    """Whether a function is called or a file read; what others run is not looked at."""
    if node.sealed:
        return False
    works = bool(node.functions) or Trait.READS_FILES in node.traits
    return works or any(map(_works, node.inputs))


def _divides(node: Node) -> bool:
    return pieces_of(in_order(node)) is not None


def _haspieces_of(node: Node) -> bool:
    """Whether something below is worth to be divided."""
    return any((_works(part) and _divides(part)) or _haspieces_of(part) for part in _below(node))


def _below(node: Node) -> tuple[Node, ...]:
    return () if node.sealed else node.inputs


def _gives_datasets(node: Node) -> bool:
    """Whether elements hold datasets, as far as the plan tells: those do not travel."""
    return any(isinstance(leaf, DatasetSpec) for leaf in nest.flatten(_spec(node))[0])


def _spec(node: Node) -> Any:
    """The spec, or OPAQUE where only a call would tell it."""
    if node.found_spec is not None:
        return node.found_spec.spec
    inputs = list(map(_spec, node.inputs))
    if OPAQUE in inputs and node.declared_spec is None:
        return OPAQUE
    return node.spec_from(*inputs)


def _words(node: Node) -> str:
    """Why an operator stays with the client, and what to do about it."""
    blocker = next(_blockers(node), None)
    per_worker = 'Options.service.stateful = "per_worker" lets each worker do it with its own share'
    advice = per_worker
    if blocker is not None and node.obstacle is None and len(node.inputs) == 1:
        advice = f"put {blocker.label} after {node.label} if that gives what you want, or: {advice}"
    return f"{node.label} and all after it run in the client: {_why(node)}; {advice}"


def _why(node: Node) -> str:
    if node.obstacle is not None:
        return node.obstacle
    if len(node.inputs) > 1:
        return "it takes elements of several datasets in turn"
    return f"it counts elements, and their numbers are not known in advance ({node.blocked})"


def _blockers(node: Node) -> Iterator[Node]:
    """The operators below that keep a plan from random access."""
    for part in _below(node):
        if part.obstacle is not None:
            yield part
        yield from _blockers(part)
