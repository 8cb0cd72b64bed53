"""`explain()`: a plan as text, as written and as run, and which operators have random access."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from penstock.element.spec import TypeSpec
from penstock.plan.cuts import cut
from penstock.plan.functions import Function, travel_problem
from penstock.plan.nodes import INFINITE, UNKNOWN, Data, Distribute, Map, Node, Store, options_of
from penstock.plan.optimize import prepare, without_options
from penstock.plan.options import Options, ShardingPolicy
from penstock.plan.shape import ENDLESS, Form, Shape
from penstock.plan.splits import shape_of


def explain(node: Node) -> str:
    """The plan, the optimised plan, and the access mode of every operator."""
    run, options = prepare(node), options_of(node)
    parts = ["plan, as written:", *tree(node, options=options)]
    if run == node:
        parts += ["", "run as written"]
    else:
        parts += ["", "as it is run:", *tree(run, options=options)]
    return "\n".join([*parts, "", _access(run)])


def _access(node: Node) -> str:
    if node.blocked is None:
        return (
            "random access: yes. ds[i] works, an iterator's state is one number, and shuffling, "
            "sharding and skipping are arithmetic on indices."
        )
    return f"random access: no, because of {node.blocked}"


def tree(node: Node, depth: int = 0, options: Options | None = None) -> Iterator[str]:
    """One line per operator, the last one first, inputs indented."""
    options = Options() if options is None else options
    mode = "random access" if node.blocked is None else "stream"
    own = f" ({node.obstacle})" if node.obstacle is not None else ""
    yield f"  {'  ' * depth}{title(node)}  [{count(node)}; {mode}{own}]"
    if isinstance(node, Distribute):
        yield from (f"  {'  ' * depth}  - {line}" for line in _sharing(node, options))
    if isinstance(node, Map) and node.parallel is not None and not node.vectorized:
        yield f"  {'  ' * depth}  - {calls_place(node.function, options.executor or 'auto')}"
    for part in node.inputs:
        yield from tree(part, depth + 1, options)


def calls_place(function: Function, executor: str) -> str:
    """Where the parallel calls of a function run, and why."""
    if executor == "inline":
        return "calls run in the caller's thread"
    if executor == "threads":
        return "calls run in threads"
    place, reason = function.calls_run
    if place != "processes" and (problem := travel_problem(function)):
        place, reason = "threads", problem
    if place and (reason or executor == "auto"):
        return f"calls run in {place}: {reason}"
    if executor == "processes":
        return "calls run in processes"
    return "calls run in threads, and move to processes if threads do not scale"


def title(node: Node) -> str:
    """`batch(size=4, drop_remainder=True)`: an operator and its settings."""
    shown = []
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        if isinstance(node, Distribute) and field.name in _SHOWN_BY_SHARING:
            continue
        if _worth_showing(value, field.default):
            shown.append(f"{field.name}={value!r:.60}" if field.name != "function" else str(value))
    return f"{node.label}({', '.join(shown)})"


_SHOWN_BY_SHARING = ("mode", "element", "known")


def _sharing(node: Distribute, options: Options) -> Iterator[str]:
    """How workers of a service share the work, and how readers share the elements."""
    match ShardingPolicy(node.mode):
        case ShardingPolicy.OFF:
            yield "parallel_epochs: every worker makes all of it"
        case ShardingPolicy.DYNAMIC:
            yield from _division(node)
        case policy:
            yield f"{policy.name}: each worker makes its own part, which is settled beforehand"
    yield _reader_memory(node, options_of(node).merge(options))
    if node.job_name is not None:
        yield f"all readers of the job {node.job_name!r} share the elements"


def _reader_memory(node: Distribute, options: Options) -> str:
    """How much a reader holds that it has not handed out."""
    if node.max_outstanding is not None and node.max_outstanding > 0:
        return f"a reader requests up to {node.max_outstanding} elements ahead"
    memory = options.service.reader_memory
    most = f"{memory} bytes" if memory else "an eighth of the machine's memory"
    return f"a reader requests up to 64 MB, or 3 elements per worker, ahead, and at most {most}"


def _division(node: Distribute) -> Iterator[str]:
    if node.input is None:
        yield "distributed_epoch: the dispatcher knows how it is divided"
        return
    shape = shape_of(node.input)
    if shape.kind == Form.SINGLE and options_of(node).service.stateful == "per_worker":
        yield "distributed_epoch: every worker runs all operators on its share of the source"
        return
    parts: list[Node] = []

    def collect(part: Node) -> Node:
        parts.append(part)
        return part

    reason = cut(node.input, collect)[1]
    if shape.kind != Form.SINGLE or node.job_name is not None or reason is None:
        yield f"distributed_epoch, {_pieces(shape)}"
        return
    for part in parts:
        shown = without_options(part).label
        yield f"distributed_epoch of {shown} and all before it, {_pieces(shape_of(part))}"
    yield reason


def _pieces(shape: Shape) -> str:
    if shape.kind == Form.RANDOM:
        return "random access: any worker computes any range of the elements"
    if shape.kind == Form.SINGLE:
        return "one stream: one worker after the other can make it, but not two at once"
    count = "pieces without end" if shape.streams == ENDLESS else f"{shape.streams} pieces"
    if shape.streams == 1:
        return "1 piece: there is nothing to divide"
    return f"{count}, delivered in order"


def _worth_showing(value: Any, default: Any) -> bool:
    hidden = isinstance(value, Node | Store | TypeSpec) or value is None
    if hidden or (isinstance(value, tuple) and (not value or isinstance(value[0], Node))):
        return False
    kinds = (int, float, str, Function, Data, Options, tuple)
    return isinstance(value, kinds) and not (type(value) is type(default) and value == default)


def count(node: Node) -> str:
    """`5 elements`: how many there are, in words."""
    words = {INFINITE: "endless", UNKNOWN: "unknown number of elements"}
    known = node.cardinality
    return words.get(known, f"{known} element{'' if known == 1 else 's'}")
