"""Rewrite rules, one by one: how each changes a plan, and which plans it must not change."""

from dataclasses import replace

import pytest

from penstock.element.dtypes import int64
from penstock.plan.functions import Function
from penstock.plan.nodes import (
    INFINITE,
    Batch,
    Filter,
    FlatMap,
    Map,
    Prefetch,
    Random,
    Range,
    Repeat,
    Select,
    Shard,
    Shuffle,
    Skip,
    Take,
    WithOptions,
)
from penstock.plan.optimize import (
    RULES,
    index_before_map,
    joined_counts,
    no_operation,
    optimize,
    prefetch_last,
    prepare,
    rules_for,
)
from penstock.plan.options import Options

SOURCE = Range(0, 10, 1, int64)
SQUARE = Function(lambda x: x * x)
PASSES = Function(lambda x: True)
STREAM = Filter(SOURCE, PASSES)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (Skip(SOURCE, 0), SOURCE),
        (Repeat(SOURCE, 1), SOURCE),
        (Shard(SOURCE, 1, 0), SOURCE),
        (Shuffle(SOURCE, 1, 5), SOURCE),
        (Take(SOURCE, 10), SOURCE),
        (Take(Skip(Repeat(SOURCE, 1), 0), 12), SOURCE),
        (Batch(Skip(SOURCE, 0), 2), Batch(SOURCE, 2)),
    ],
)
def test_no_operation_removes_what_changes_nothing(plan, expected):
    assert optimize(plan, (no_operation,)) == expected


@pytest.mark.parametrize(
    "plan",
    [
        Skip(SOURCE, 1),
        Repeat(SOURCE, 2),
        Repeat(SOURCE, INFINITE),
        Repeat(Shuffle(SOURCE, 2, 5), 1),
        Repeat(FlatMap(SOURCE, SQUARE), 1),
        Shard(SOURCE, 2, 0),
        Shuffle(SOURCE, 2, 5),
        Take(SOURCE, 9),
        Take(STREAM, 10),
        Take(Repeat(SOURCE), 10),
    ],
)
def test_no_operation_leaves_what_changes_something(plan):
    assert optimize(plan, (no_operation,)) == plan


@pytest.mark.parametrize(
    "pick",
    [
        lambda s: Take(s, 3),
        lambda s: Skip(s, 3),
        lambda s: Shard(s, 3, 1),
        lambda s: Shuffle(s, 3, 1),
        lambda s: Select(s, SOURCE),
        lambda s: Shuffle(Take(s, 8), 3, 1),
    ],
)
def test_index_before_map_picks_before_it_calls(pick):
    plan = pick(Map(SOURCE, SQUARE, parallel=2))
    assert optimize(plan, (index_before_map,)) == Map(pick(SOURCE), SQUARE, parallel=2)


@pytest.mark.parametrize(
    "function",
    [
        Map(STREAM, SQUARE),
        Map(SOURCE, SQUARE, random=1),
        Map(SOURCE, SQUARE, parallel=2, deterministic=False),
        Map(SOURCE, SQUARE, deterministic=False),
    ],
    ids=["over a stream", "random by index", "without order", "without order or calls at once"],
)
def test_index_before_map_stays_where_picking_is_no_arithmetic(function):
    assert optimize(Skip(function, 3), (index_before_map,)) == Skip(function, 3)


@pytest.mark.parametrize(
    "pick", [lambda s: Take(s, 3), lambda s: Skip(s, 3), lambda s: Shard(s, 3, 1)]
)
@pytest.mark.parametrize("source", [SOURCE, STREAM], ids=["access", "stream"])
def test_prefetch_last_prefetches_only_what_is_picked(pick, source):
    plan = pick(Prefetch(source, 4))
    assert optimize(plan, (prefetch_last,)) == Prefetch(pick(source), 4)


@pytest.mark.parametrize("pick", [lambda s: Shuffle(s, 3, 1), lambda s: Select(s, SOURCE)])
def test_prefetch_last_prefetches_what_is_shuffled(pick):
    plan = pick(Prefetch(SOURCE, 4))
    assert optimize(plan, (prefetch_last,)) == Prefetch(pick(SOURCE), 4)


def test_prefetch_last_leaves_a_buffer_that_is_filled_in_the_background():
    plan = Shuffle(Prefetch(STREAM, 4), 3, 1)
    assert optimize(plan, (prefetch_last,)) == plan


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (Take(Take(SOURCE, 5), 3), Take(SOURCE, 3)),
        (Take(Take(SOURCE, 3), 5), Take(SOURCE, 3)),
        (Skip(Skip(STREAM, 2), 3), Skip(STREAM, 5)),
        (Skip(Skip(Skip(SOURCE, 1), 1), 1), Skip(SOURCE, 3)),
    ],
)
def test_joined_counts_makes_one_of_two(plan, expected):
    assert optimize(plan, (joined_counts,)) == expected


@pytest.mark.parametrize(
    "plan",
    [
        Repeat(Repeat(Shuffle(SOURCE, 5, 1), 2), 3),
        Repeat(Repeat(STREAM, 2), 3),
        Repeat(Repeat(Map(SOURCE, SQUARE, random=1), 2), 3),
        Repeat(Repeat(Take(Random(1, rerandomize=True), 3), 2), 3),
        Skip(Take(SOURCE, 5), 3),
    ],
)
def test_joined_counts_keeps_epochs_apart(plan):
    assert optimize(plan, (joined_counts,)) == plan


def test_rules_are_applied_to_inputs_and_until_none_applies():
    plan = Batch(Skip(Take(Prefetch(Map(SOURCE, SQUARE), 2), 8), 0), 3)
    assert optimize(plan) == Batch(Prefetch(Map(Take(SOURCE, 8), SQUARE), 2), 3)


def test_a_plan_that_nothing_applies_to_is_the_same_object():
    plan = Batch(Map(SOURCE, SQUARE), 3)
    assert optimize(plan) is plan


def test_options_choose_the_rules():
    options = Options()
    assert rules_for(options) == RULES
    options.experimental_optimization.noop_elimination = False
    assert rules_for(options) == tuple(rule for rule in RULES if rule is not no_operation)
    options.experimental_optimization.apply_default_optimizations = False
    assert rules_for(options) == ()


def test_prepare_gives_up_order_only_where_the_user_did_not_ask_to_keep_it():
    parallel = Map(SOURCE, SQUARE, parallel=2)
    kept = Map(parallel, SQUARE, parallel=2, deterministic=True)
    plan = WithOptions(Map(kept, SQUARE), Options(deterministic=False))
    loose = replace(parallel, deterministic=False)
    assert prepare(plan) == Map(replace(kept, input=loose), SQUARE)


def test_prepare_looks_through_options():
    plan = Take(WithOptions(Take(WithOptions(STREAM, Options()), 5), Options()), 3)
    assert prepare(plan) == Take(STREAM, 3)
