"""Random plans: every operator over every other, with functions that may fail.

Plans are drawn by what their elements are: numbers, pairs, vectors of one or of many lengths,
matrices and ragged values. `plans()` gives finite ones; a few of them have endless parts.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from penstock.element import nest
from penstock.element.dtypes import int64
from penstock.plan import nodes as n
from penstock.plan.functions import Function
from penstock.plan.nodes import Node
from penstock.plan.options import Options
from tests.engine import example_plans as e

Step = Callable[[Any, Node], Node]


def add(x, y):
    return x + y


def total(x):
    return np.int64(x.sum())


def not_10(x):
    return x != 10


def never(x):
    return False


def first_part(x, y):
    return x


def reversed_rows(x):
    return x[::-1]


FUNCTIONS = [e.square, e.without_multiples_of_4, e.by_three]
PREDICATES = [e.always, e.is_odd, e.odd_or_not_5, not_10, never]
DATASETS = [e.some, e.some_failing, e.shuffled_some, e.filtered_some]
small = st.integers(0, 6)
size = st.integers(1, 5)
seed = st.integers(0, 3)
parallel = st.sampled_from([None, None, 1, 3, -1])


def function(draw: Any, pool: list[Callable[..., Any]]) -> Function:
    return Function(draw(st.sampled_from(pool)))


def numbers_of(draw: Any) -> Node:
    """A source of a few numbers."""
    count = draw(st.integers(0, 12))
    match draw(st.integers(0, 4)):
        case 0:
            return n.Range(draw(small), draw(small) + count, draw(st.integers(1, 3)), int64)
        case 1:
            return e.rows(*draw(st.lists(st.integers(-5, 20), min_size=1, max_size=12)))
        case 2:
            return e.generate_numbers(draw(st.sampled_from([e.count_up, e.count_and_fail])), count)
        case 3:
            return n.Take(endless(draw), count)
    return e.numbers(count)


def endless(draw: Any) -> Node:
    """Numbers without end, mapped, picked and shuffled."""
    plan: Node = n.Counter(draw(small), draw(st.integers(-2, 2)), int64)
    if draw(st.booleans()):
        plan = n.Repeat(e.rows(*draw(st.lists(small, min_size=1, max_size=5))))
    steps = [map_numbers, skip, shard, shuffle, prefetch, repeat_endless]
    for step in draw(st.lists(st.sampled_from(steps), max_size=3)):
        plan = step(draw, plan)
    return plan


def map_numbers(draw: Any, plan: Node) -> Node:
    if draw(st.booleans()):
        return n.Map(plan, function(draw, FUNCTIONS), draw(parallel))
    extra = draw(st.sampled_from([{"vectorized": True}, {"random": 3, "parallel": draw(parallel)}]))
    pool = [e.double, e.columns_without_6] if "vectorized" in extra else [e.noisy]
    return n.Map(plan, function(draw, pool), **extra)


def skip(draw: Any, plan: Node) -> Node:
    return n.Skip(plan, draw(small))


def shard(draw: Any, plan: Node) -> Node:
    shards = draw(st.integers(1, 4))
    return n.Shard(plan, shards, draw(st.integers(0, shards - 1)))


def shuffle(draw: Any, plan: Node) -> Node:
    return n.Shuffle(plan, draw(st.integers(1, 30)), draw(seed), draw(st.booleans()))


def prefetch(draw: Any, plan: Node) -> Node:
    return n.Prefetch(plan, draw(st.integers(-1, 3)))


def repeat_endless(draw: Any, plan: Node) -> Node:
    return n.Repeat(plan, draw(st.sampled_from([-1, 1, 2])))


def take(draw: Any, plan: Node) -> Node:
    return n.Take(plan, draw(st.integers(0, 12)))


def repeat(draw: Any, plan: Node) -> Node:
    return n.Repeat(plan, draw(st.integers(0, 3)))


def take_repeat(draw: Any, plan: Node) -> Node:
    return n.Take(n.Repeat(plan), draw(st.integers(0, 20)))


def cache(draw: Any, plan: Node) -> Node:
    return plan if endless_inside(plan) else n.Cache(plan, "", n.Store())


def draw_mix(draw: Any, parts: tuple[Node, ...]) -> Node:
    weights = (draw(st.sampled_from([0.3, 2])), draw(st.sampled_from([0, 0.7])))
    ends = st.sampled_from(["stop", "repeat", "drop"])
    return n.Mix(parts, ("a", "b"), weights, (draw(ends), draw(ends)))


def endless_inside(plan: Node) -> bool:
    return plan.cardinality == n.INFINITE or any(map(endless_inside, plan.inputs))


SAME: list[Step] = [
    *(skip, shard, shuffle, prefetch, take, repeat, take_repeat, cache),
    lambda draw, plan: n.IgnoreErrors(plan),
    lambda draw, plan: n.WithOptions(plan, Options()),
    lambda draw, plan: n.Concatenate(plan, draw(st.sampled_from([plan, n.Take(plan, 2)]))),
    lambda draw, plan: n.Choose(
        n.Repeat(e.rows(*draw(st.lists(st.integers(0, 1), min_size=1, max_size=4))), 5),
        (plan, n.Skip(plan, 1)),
        draw(st.booleans()),
    ),
    lambda draw, plan: n.Choose(
        n.Choices((0.3, 0.7), draw(seed), draw(st.booleans())), (plan, n.Take(plan, 3)), False
    ),
    lambda draw, plan: n.Take(draw_mix(draw, (plan, n.Take(plan, 3))), draw(st.integers(0, 20))),
]
"""Operators that accept elements of every kind and do not change them."""

STEPS: dict[str, list[tuple[str, Step]]] = {
    "number": [
        ("number", map_numbers),
        ("number", lambda d, p: n.Filter(p, function(d, PREDICATES))),
        ("number", lambda d, p: n.TakeWhile(p, function(d, [e.small, not_10]))),
        ("number", lambda d, p: n.FlatMap(p, function(d, DATASETS))),
        (
            "number",
            lambda d, p: n.Interleave(p, function(d, DATASETS), d(size), d(size), d(parallel)),
        ),
        ("number", lambda d, p: e.scan_plan(p, d(st.sampled_from([e.sums, e.sums_without_3])))),
        ("number", lambda d, p: n.Unique(p)),
        ("number", lambda d, p: n.Concatenate(p, numbers_of(d))),
        ("number", lambda d, p: n.Concatenate(numbers_of(d), p)),
        ("number", lambda d, p: n.FlatMap(windows(d, p), Function(e.batches_of_one))),
        ("pair", lambda d, p: n.Enumerate(p, d(small))),
        ("pair", lambda d, p: n.Zip((p, numbers_of(d)), nest.PAIR)),
        ("pair", lambda d, p: n.Zip((endless(d), p), nest.PAIR)),
        ("vector", lambda d, p: n.Batch(p, d(size), d(st.booleans()))),
        ("vector", lambda d, p: n.FlatMap(windows(d, p), Function(e.batches))),
        (
            "vector",
            lambda d, p: e.group_plan(
                p,
                d(st.sampled_from([e.by_three, e.by_three_without_4])),
                d(st.sampled_from([e.group_batches, e.group_without_1])),
                d(size),
            ),
        ),
        ("uneven", lambda d, p: e.vectors(e.map_plan(p, abs))),
    ],
    "pair": [
        ("number", lambda d, p: e.map_plan(p, d(st.sampled_from([add, first_part])))),
        ("pair", lambda d, p: e.map_plan(p, e.noisy_pair, random=d(seed), parallel=d(parallel))),
    ],
    "vector": [
        ("number", lambda d, p: n.Unbatch(p)),
        ("number", lambda d, p: e.map_plan(p, d(st.sampled_from([total, len_64])))),
        ("vector", lambda d, p: n.Rebatch(n.Unbatch(p), d(sizes), d(st.booleans()))),
        ("vector", lambda d, p: e.map_plan(p, reversed_rows)),
        ("matrix", lambda d, p: n.PaddedBatch(p, d(size), d(st.booleans()))),
        ("matrix", lambda d, p: n.Batch(p, d(size), d(st.booleans()))),
    ],
    "uneven": [
        ("number", lambda d, p: n.Unbatch(p)),
        ("number", lambda d, p: e.map_plan(p, len_64)),
        ("vector", lambda d, p: n.Rebatch(n.Unbatch(p), d(sizes), d(st.booleans()))),
        ("vector", lambda d, p: e.map_plan(draw_pack(d, p), tokens)),
        ("matrix", lambda d, p: n.PaddedBatch(p, d(size), d(st.booleans()))),
        ("ragged", lambda d, p: n.RaggedBatch(p, d(size), d(st.booleans()))),
    ],
    "matrix": [("vector", lambda d, p: n.Unbatch(p))],
    "ragged": [("uneven", lambda d, p: n.Unbatch(p))],
}
sizes = st.lists(st.integers(0, 4), min_size=1, max_size=3).filter(any).map(tuple)


def len_64(x):
    return np.int64(len(x))


def tokens(row):
    return row["tokens"]


def draw_pack(draw: Any, plan: Node) -> Node:
    strategy = draw(st.sampled_from(["first_fit", "best_fit", "concat_split"]))
    too_long = "split" if strategy == "concat_split" else draw(st.sampled_from(["error", "split"]))
    separator = draw(st.sampled_from([None, 9]))
    return n.Pack(plan, draw(size), strategy, separator, 0, draw(size), too_long)


def windows(draw: Any, plan: Node) -> Node:
    return n.Window(plan, draw(size), draw(size), draw(st.integers(1, 3)), draw(st.booleans()))


@st.composite
def plans(draw: Any, depth: int = 6) -> Node:
    """A finite plan of up to `depth` operators over a source."""
    kind, plan = "number", numbers_of(draw)
    for _ in range(draw(st.integers(0, depth))):
        steps = [*STEPS[kind], *((kind, step) for step in SAME)]
        kind, step = draw(st.sampled_from(steps))
        plan = step(draw, plan)
    return plan


def otherwise_parallel(plan: Node, calls: int | None) -> Node:
    """The same plan without prefetching and with another number of calls at once."""
    plan = plan.with_inputs(tuple(otherwise_parallel(part, calls) for part in plan.inputs))
    match plan:
        case n.Prefetch(source):
            return source
        case n.Map() | n.Interleave():
            return replace(plan, parallel=calls)
    return plan


def add_prefetches(plan: Node) -> Node:
    """The same plan with options and a prefetch behind every operator."""
    plan = plan.with_inputs(tuple(map(add_prefetches, plan.inputs)))
    return n.Prefetch(n.WithOptions(plan, Options()), 2)
