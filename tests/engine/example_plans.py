"""A small plan for every operator, over every kind of source: the contract is checked on them.

Each operator is a function from a source of int64 numbers to a plan. Sources with random access
and plain streams run different code of the engine, and so do failing elements.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from penstock.data.dataset import Dataset
from penstock.element import nest
from penstock.element.chunk import Chunk
from penstock.element.dtypes import int64
from penstock.element.spec import TensorShape, TensorSpec
from penstock.plan import nodes as n
from penstock.plan.functions import Function
from penstock.plan.nodes import Node
from penstock.plan.options import Options

NUMBER = TensorSpec((), int64)
VECTOR = TensorSpec((None,), int64)
LENGTH = 11


def numbers(stop: int, start: int = 0) -> Node:
    return n.Range(start, stop, 1, int64)


def rows(*values: int) -> Node:
    return n.Slices(n.Data(Chunk.of(list(map(np.int64, values)))))


POSITIONS = rows(3, 1, 1, 9, 0, 7, 5, 5)


def always(x):
    return True


def is_odd(x):
    return x % 2 == 1


def small(x):
    return x < 7


def square(x):
    return x * x


def double(columns):
    return columns * 2


def pair(x):
    return x, {"a": x * 10, "b": np.full(2, x)}


def two(x):
    return x, np.full(2, x)


def text(x):
    return b"t" * int(x % 4)


def noisy(x, random):
    return x + random.integers(1000)


def noisy_pair(x, y, random):
    return x + random.integers(1000), y


def vector(x):
    return np.full(int(x) % 4, x)


def uneven_vectors(x):
    return np.full(2, x), np.full(2 if x % 3 else 3, x)


def features(x):
    return {"x": np.full(int(x) % 6, x), "y": np.arange(int(x) % 6, dtype=np.float32)}


def mask_tokens(x):
    return {"x": np.full(int(x) % 4, x), "loss_mask": np.arange(int(x) % 4) % 2 == 1}


def without_multiples_of_4(x):
    if x % 4 == 0:
        raise ValueError(f"{x} is not wanted")
    return x


def odd_or_not_5(x):
    if x == 5:
        raise ValueError("5 is neither")
    return x % 2 == 1


def columns_without_6(columns):
    if np.any(columns == 6):
        raise ValueError("6 is not wanted")
    return columns + 1


def sums(state, x):
    return state + x, state * 100 + x


def sums_without_3(state, x):
    if x == 3:
        raise ValueError("3 is not wanted")
    return state + x, state


def some(x):
    """Between no and three numbers."""
    return Dataset(n.Map(numbers(int(x) % 4), Function(lambda y: x * 10 + y)))


def some_failing(x):
    if x == 2:
        raise ValueError("2 is not wanted")
    return Dataset(n.Map(some(x).__plan__, Function(without_multiples_of_4)))


def shuffled_some(x):
    return Dataset(n.Shuffle(numbers(int(x) % 5), 3, 5))


def filtered_some(x):
    return Dataset(n.Filter(n.Map(numbers(5), Function(lambda y: x * 10 + y)), Function(is_odd)))


def batches(window):
    return Dataset(n.Batch(window.__plan__, 2))


def batches_of_one(window):
    return Dataset(n.Unbatch(n.Batch(window.__plan__, 1)))


def zipped_windows(first, second):
    return Dataset(n.Zip((first.__plan__, second["a"].__plan__), nest.PAIR))


def by_three(x):
    return x % 3


def by_three_without_4(x):
    if x == 4:
        raise ValueError("4 is not wanted")
    return x % 3


def group_batches(key, window):
    return batches(window)


def group_without_1(key, window):
    if key == 1:
        raise ValueError("group 1 is not wanted")
    return batches(window)


def key_size(key):
    return key + 1


def count_up(stop):
    yield from range(stop)


def count_and_fail(stop):
    yield from range(stop)
    raise ValueError("no more")


def generate_numbers(call: Callable, stop: int) -> Node:
    return n.Generator(Function(call), (np.int64(stop),), NUMBER)


def map_plan(source: Node, call: Callable, **fields) -> Node:
    return n.Map(source, Function(call), **fields)


def filter_plan(source: Node, call: Callable = always) -> Node:
    return n.Filter(source, Function(call))


def pairs(source: Node) -> Node:
    return map_plan(source, pair)


def vectors(source: Node) -> Node:
    return map_plan(source, vector, signature=VECTOR)


def interleave_plan(
    source: Node, call: Callable, cycle: int, block: int, parallel=None, deterministic=None
) -> Node:
    return n.Interleave(source, Function(call), cycle, block, parallel, deterministic)


def scan_plan(source: Node, call: Callable) -> Node:
    return n.Scan(source, n.Data(Chunk.of([np.int64(0)])), Function(call))


def group_plan(source: Node, key: Callable, reduce: Callable, size) -> Node:
    return n.GroupByWindow(source, Function(key), Function(reduce), size)


def reduce_groups(source: Node, key: Callable, reduce: Callable) -> Node:
    def first(key):
        return np.int64(key) * 100, b""

    def last(total, text):
        return total, text

    functions = (Function(one) for one in (key, first, reduce, last))
    return n.GroupByReducer(source, *functions)


def add_and_join(state, x):
    return state[0] + x, state[1] + b"%d," % x


def add_without_5(state, x):
    if x == 5:
        raise ValueError(x)
    return add_and_join(state, x)


def choosing(source: Node, stop: bool, other: int = 3) -> Node:
    choice = n.Repeat(rows(0, 1, 1, 0, 0), 5)
    return n.Choose(choice, (source, numbers(50 + other, 50)), stop)


def mixing(source: Node, on_end: str) -> Node:
    parts = (source, filter_plan(numbers(58, 50), is_odd), numbers(73, 70))
    return n.Mix(parts, ("a", "b", "c"), (0.5, 0.3, 0.2), (on_end,) * 3)


SOURCES: dict[str, Node] = {
    "access": numbers(LENGTH),
    "stream": filter_plan(numbers(LENGTH)),
    "generator": generate_numbers(count_up, LENGTH),
    "failing access": map_plan(numbers(LENGTH), without_multiples_of_4),
    "failing stream": filter_plan(map_plan(numbers(LENGTH), without_multiples_of_4)),
    "failing generator": generate_numbers(count_and_fail, LENGTH - 1),
    "empty": numbers(0),
}

OPERATORS: dict[str, Callable[[Node], Node]] = {
    "nothing": lambda s: s,
    "map": lambda s: map_plan(s, square),
    "map to pairs": pairs,
    "map to strings": lambda s: map_plan(s, text),
    "map failing": lambda s: map_plan(s, without_multiples_of_4),
    "map parallel": lambda s: map_plan(s, without_multiples_of_4, parallel=3),
    "map autotuned": lambda s: map_plan(s, square, parallel=-1),
    "map vectorized": lambda s: map_plan(s, double, vectorized=True),
    "map vectorized failing": lambda s: map_plan(s, columns_without_6, vectorized=True),
    "map random": lambda s: map_plan(s, noisy, random=3),
    "map random parallel": lambda s: map_plan(map_plan(s, two), noisy_pair, random=3, parallel=2),
    "filter": lambda s: filter_plan(s, is_odd),
    "filter failing": lambda s: filter_plan(s, odd_or_not_5),
    "take_while": lambda s: n.TakeWhile(s, Function(small)),
    "take_while failing": lambda s: n.TakeWhile(
        map_plan(s, without_multiples_of_4), Function(small)
    ),
    "flat_map": lambda s: n.FlatMap(s, Function(some)),
    "flat_map failing": lambda s: n.FlatMap(s, Function(some_failing)),
    "flat_map shuffled": lambda s: n.FlatMap(s, Function(shuffled_some)),
    "interleave": lambda s: interleave_plan(s, some, 2, 1),
    "interleave blocks": lambda s: interleave_plan(s, filtered_some, 3, 2),
    "interleave failing": lambda s: interleave_plan(s, some_failing, 3, 2),
    "interleave wide": lambda s: interleave_plan(s, some, 20, 3),
    "interleave parallel": lambda s: interleave_plan(s, some_failing, 2, 2, 2),
    "scan": lambda s: scan_plan(s, sums),
    "scan failing": lambda s: scan_plan(s, sums_without_3),
    "ignore_errors": lambda s: n.IgnoreErrors(map_plan(s, without_multiples_of_4)),
    "ignore_errors of batches": lambda s: n.IgnoreErrors(n.Batch(s, 3)),
    "batch": lambda s: n.Batch(s, 3),
    "batch of batches": lambda s: n.Batch(n.Batch(s, 2), 2),
    "batch dropping": lambda s: n.Batch(s, 3, True),
    "batch of pairs": lambda s: n.Batch(pairs(s), 4),
    "batch of failing": lambda s: n.Batch(map_plan(s, without_multiples_of_4), 3),
    "batch of failing dropping": lambda s: n.Batch(map_plan(s, without_multiples_of_4), 5, True),
    "batch unstackable": lambda s: n.Batch(vectors(s), 2),
    "padded_batch": lambda s: n.PaddedBatch(vectors(s), 3, values=(np.int64(-1),)),
    "padded_batch to shape": lambda s: n.PaddedBatch(vectors(s), 3, shapes=(TensorShape([5]),)),
    "padded_batch too small": lambda s: n.PaddedBatch(vectors(s), 2, shapes=(TensorShape([2]),)),
    "padded_batch of scalars": lambda s: n.PaddedBatch(map_plan(s, two), 2, True),
    "ragged_batch": lambda s: n.RaggedBatch(vectors(s), 3),
    "ragged_batch of scalars": lambda s: n.RaggedBatch(s, 3),
    "unbatch": lambda s: n.Unbatch(n.Batch(s, 3)),
    "unbatch of vectors": lambda s: n.Unbatch(vectors(s)),
    "unbatch of ragged": lambda s: n.Unbatch(n.RaggedBatch(vectors(s), 3)),
    "unbatch uneven": lambda s: n.Unbatch(map_plan(s, uneven_vectors)),
    "rebatch": lambda s: n.Rebatch(n.Unbatch(n.Batch(s, 4)), (3,)),
    "rebatch in turns": lambda s: n.Rebatch(
        n.Unbatch(n.Batch(map_plan(s, two), 4)), (2, 0, 3), True
    ),
    "rebatch with an empty end": lambda s: n.Rebatch(
        n.Unbatch(n.Batch(map_plan(s, two), 4)), (1, 0)
    ),
    "pack": lambda s: n.Pack(vectors(s), 3, "first_fit", 7, open_rows=2),
    "pack best_fit": lambda s: n.Pack(
        map_plan(s, features), 4, "best_fit", (("x", 7), ("y", -1)), (("x", 9),), 3, "split"
    ),
    "pack concat_split": lambda s: n.Pack(
        map_plan(s, mask_tokens), 2, "concat_split", 7, too_long="split"
    ),
    "window": lambda s: n.Window(s, 3, 3),
    "window sliding": lambda s: n.Window(s, 3, 1),
    "window strided": lambda s: n.Window(s, 3, 2, 2, True),
    "window with gaps": lambda s: n.Window(s, 2, 5),
    "window batches": lambda s: n.FlatMap(n.Window(s, 3, 2), Function(batches)),
    "window of pairs": lambda s: n.FlatMap(n.Window(pairs(s), 2, 2), Function(zipped_windows)),
    "group_by_window": lambda s: group_plan(s, by_three, group_batches, 2),
    "group_by_window failing": lambda s: group_plan(s, by_three_without_4, group_without_1, 3),
    "group_by_window sized": lambda s: group_plan(s, by_three, group_batches, Function(key_size)),
    "group_by_window unstackable": lambda s: n.FlatMap(
        group_plan(vectors(s), len, group_batches, 3), Function(lambda x: some(np.int64(len(x))))
    ),
    "group_by_reducer": lambda s: reduce_groups(s, by_three, add_and_join),
    "group_by_reducer failing": lambda s: reduce_groups(s, by_three_without_4, add_without_5),
    "shuffle": lambda s: n.Shuffle(s, 4, 1),
    "shuffle all": lambda s: n.Shuffle(s, 100, 1),
    "shuffle blocks": lambda s: n.ShuffleBlocks(s, 100, 1, blocks=2),
    "shuffle batches": lambda s: n.Shuffle(n.Batch(s, 2), 3, 1),
    "shuffle of map": lambda s: n.Shuffle(map_plan(s, without_multiples_of_4), 4, 1),
    "shuffle prefetched": lambda s: n.Shuffle(n.Prefetch(s, 2), 4, 1),
    "repeat": lambda s: n.Repeat(s, 3),
    "repeat of repeat": lambda s: n.Repeat(n.Repeat(s, 2), 2),
    "repeat forever": lambda s: n.Take(n.Repeat(s), 40),
    "repeat never": lambda s: n.Repeat(s, 0),
    "repeat shuffled": lambda s: n.Repeat(n.Shuffle(s, 5, 1), 3),
    "repeat shuffled alike": lambda s: n.Repeat(n.Shuffle(s, 5, 1, False), 2),
    "repeat some": lambda s: n.Repeat(filter_plan(n.Take(n.Shuffle(s, 20, 1), 2), is_odd), 9),
    "batch across repeats": lambda s: n.Batch(n.Repeat(n.Shuffle(s, 5, 1), 3), 4),
    "shuffle repeated": lambda s: n.Shuffle(n.Repeat(s, 2), 5, 1),
    "repeat of counter": lambda s: n.Zip((n.Repeat(n.Counter(0, 1, int64), 2), s), nest.PAIR),
    "take": lambda s: n.Take(s, 5),
    "take of take": lambda s: n.Take(n.Take(s, 5), 3),
    "take of map": lambda s: n.Take(map_plan(s, without_multiples_of_4), 5),
    "take more": lambda s: n.Take(s, 50),
    "skip": lambda s: n.Skip(s, 3),
    "skip of skip": lambda s: n.Skip(n.Skip(s, 3), 2),
    "skip of map": lambda s: n.Skip(map_plan(s, without_multiples_of_4), 4),
    "skip nothing": lambda s: n.Skip(s, 0),
    "skip prefetched": lambda s: n.Skip(n.Prefetch(s, 2), 3),
    "shard": lambda s: n.Shard(s, 3, 1),
    "shard of map": lambda s: n.Shard(map_plan(s, without_multiples_of_4), 2, 0),
    "shard prefetched": lambda s: n.Shard(n.Prefetch(s, 2), 3, 1),
    "select": lambda s: n.Zip((s, n.Select(numbers(30, 20), POSITIONS)), nest.PAIR),
    "select of map": lambda s: n.Zip(
        (s, n.Select(map_plan(n.Prefetch(numbers(20), 2), without_multiples_of_4), POSITIONS)),
        nest.PAIR,
    ),
    "enumerate": lambda s: n.Enumerate(s, 5),
    "enumerate of batches": lambda s: n.Enumerate(n.Batch(s, 3)),
    "unique": lambda s: n.Unique(map_plan(s, by_three)),
    "unique strings": lambda s: n.Unique(map_plan(s, text)),
    "assert_cardinality": lambda s: n.AssertCardinality(s, LENGTH),
    "assert_cardinality of few": lambda s: n.AssertCardinality(s, LENGTH + 1),
    "assert_cardinality of many": lambda s: n.AssertCardinality(s, 4),
    "zip": lambda s: n.Zip((s, numbers(30, 20)), nest.PAIR),
    "zip with failing": lambda s: n.Zip(
        (map_plan(numbers(9), without_multiples_of_4), s), nest.PAIR
    ),
    "zip with shorter": lambda s: n.Zip((s, filter_plan(numbers(4))), nest.PAIR),
    "zip of pairs": lambda s: n.Zip((pairs(s), n.Enumerate(s)), nest.PAIR),
    "concatenate": lambda s: n.Concatenate(s, numbers(23, 20)),
    "concatenate twice": lambda s: n.Concatenate(n.Concatenate(numbers(2), s), filter_plan(s)),
    "batch across concatenation": lambda s: n.Batch(n.Concatenate(s, numbers(23, 20)), 4),
    "choose": lambda s: choosing(s, True),
    "choose on": lambda s: choosing(s, False),
    "choose failing": lambda s: n.Choose(
        n.Repeat(rows(1, 0, 0, 1), 6), (map_plan(s, without_multiples_of_4), n.Take(s, 3)), True
    ),
    "choose failing on": lambda s: n.Choose(
        n.Repeat(rows(1, 0, 0, 1), 6), (map_plan(s, without_multiples_of_4), n.Take(s, 3)), False
    ),
    "choose wrongly": lambda s: n.Choose(s, (numbers(3), numbers(9)), False),
    "sample": lambda s: n.Choose(n.Choices((0.5, 0.2), 1), (s, numbers(4)), False),
    "mix": lambda s: mixing(s, "stop"),
    "mix repeating": lambda s: n.Take(mixing(n.Shuffle(s, 20, 1), "repeat"), 40),
    "mix dropping": lambda s: mixing(map_plan(s, without_multiples_of_4), "drop"),
    "random": lambda s: n.Zip((n.Random(4), s), nest.PAIR),
    "prefetch": lambda s: n.Prefetch(s, 2),
    "prefetch autotuned": lambda s: n.Prefetch(map_plan(s, without_multiples_of_4, parallel=2), -1),
    "prefetch of prefetch": lambda s: n.Prefetch(n.Batch(n.Prefetch(s, 1), 2), 1),
    "cache": lambda s: n.Cache(s, "", n.Store()),
    "repeat cached": lambda s: n.Repeat(n.Cache(s, "", n.Store()), 2),
    "repeat cached shuffle": lambda s: n.Repeat(n.Cache(n.Shuffle(s, 9, 1), "", n.Store()), 3),
    "options": lambda s: n.WithOptions(n.Batch(s, 2), Options()),
}


def holds_data(plan: Node) -> bool:
    """Whether states of this plan hold elements, so that they are no JSON."""
    grouping = n.Window | n.GroupByWindow | n.GroupByReducer
    holds = isinstance(plan, n.Shuffle | n.Scan | grouping | n.Unique | n.Pack)
    holds = holds or (isinstance(plan, n.Rebatch) and 0 in plan.sizes)
    return plan.blocked is not None and (holds or any(map(holds_data, plan.inputs)))


def plan_of(operator: str, source: str) -> Node:
    return OPERATORS[operator](SOURCES[source])


def fresh(plan: Node) -> Node:
    """The same plan with empty caches."""
    plan = plan.with_inputs(tuple(map(fresh, plan.inputs)))
    return replace(plan, store=n.Store()) if isinstance(plan, n.Cache) else plan


def plans_over_sources(operator: str) -> Iterator[tuple[str, Node]]:
    """The operator over every source, and the name of the source."""
    return ((source, plan_of(operator, source)) for source in SOURCES)


def for_every_operator(
    plans: Callable[[str], Iterator[tuple[str, Node]]] = plans_over_sources,
) -> Callable[[Callable[[Node], None]], Callable[[str], None]]:
    """Turns a check of one plan into a test for each operator; a failure names the plan."""

    def decorate(check: Callable[[Node], None]) -> Callable[[str], None]:
        @pytest.mark.parametrize("operator", OPERATORS)
        def test(operator: str) -> None:
            for name, plan in plans(operator):
                try:
                    check(plan)
                except Exception as error:
                    error.add_note(f"plan: {operator}, {name}")
                    raise

        return test

    return decorate
