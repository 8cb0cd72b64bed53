"""Autosharding: what each worker reads, which policy is chosen and why; no element is lost."""

import itertools
from collections import Counter

import numpy as np
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.data import experimental
from penstock.data.dataset import ENVIRONMENT, SHARD_HINT, Dataset
from penstock.data.experimental.csv_files import CsvDataset
from penstock.data.file_datasets import FixedLengthRecordDataset, TextLineDataset, TFRecordDataset
from penstock.data.iterator import Iterator
from penstock.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from penstock.io import TFRecordWriter
from penstock.plan import nodes as n
from penstock.plan.codec import decode, encode
from penstock.plan.optimize import prepare
from penstock.plan.options import AutoShardPolicy, Options
from penstock.plan.resume import seeds_of, with_seeds
from penstock.plan.seeds import draw, set_seed
from penstock.plan.shard import Sharding, shard_plan
from tests.conformance.random_plans import plans
from tests.effort import examples
from tests.engine.driving import MOST, take_elements
from tests.engine.example_plans import fresh

AUTO, FILE, DATA = AutoShardPolicy.AUTO, AutoShardPolicy.FILE, AutoShardPolicy.DATA
OFF, HINT = AutoShardPolicy.OFF, AutoShardPolicy.HINT


@pytest.fixture(scope="session")
def lines(tmp_path_factory):
    """Text files; file k has k + 1 lines, each with a letter and a number."""
    folder = tmp_path_factory.mktemp("lines")
    paths = [folder / f"{letter}.txt" for letter in "abcdef"]
    for count, path in enumerate(paths, 1):
        path.write_text("".join(f"{path.stem}{i}\n" for i in range(count)))
    return [str(path) for path in paths]


def with_policy(dataset, policy):
    options = Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def sharding(dataset, policy, workers=2, index=0) -> Sharding:
    return shard_plan(with_policy(dataset, policy).__plan__, workers, index)


def plan_of(dataset, policy, workers=2, index=0):
    """The plan of one worker, without its sharding options."""
    plan = sharding(dataset, policy, workers, index).plan
    assert isinstance(plan, n.WithOptions)
    return plan.input


def parts(dataset, policy, workers):
    """The elements that each worker reads."""
    plan = with_policy(dataset, policy).__plan__
    return [list(Dataset(shard_plan(plan, workers, i).plan)) for i in range(workers)]


def spell_workers(workers):
    return [b" ".join(found).decode() for found in workers]


# Which policy, and why


def test_off_leaves_the_plan_alone():
    dataset = with_policy(Dataset.range(4), OFF)
    found = shard_plan(dataset.__plan__, 2, 1)
    assert found == Sharding(dataset.__plan__, OFF, "OFF: every worker reads the whole dataset")


@pytest.mark.parametrize(
    ("make", "operator"),
    [
        (lambda lines: Dataset.range(4), "range does not read files"),
        (lambda lines: Dataset.list_files(lines), "list_files does not read files"),
        (lambda lines: CsvDataset(lines, [b""]), "CsvDataset is not divided by files"),
        (lambda lines: lines_of(lines).enumerate(), "enumerate needs the elements of all files"),
        (lambda lines: lines_of(lines).unique(), "unique needs the elements of all files"),
        (lambda lines: lines_of(lines).take_while(bool), "take_while needs the elements of all"),
        (
            lambda lines: lines_of(lines).concatenate(lines_of(lines).apply(group_pairs)),
            "group_by_",
        ),
        (lambda lines: Dataset.zip((lines_of(lines), Dataset.range(9))), "range does not read"),
    ],
)
def test_what_cannot_be_divided_by_files(lines, make, operator):
    dataset = make(lines)
    with pytest.raises(NotFoundError, match=f"AutoShardPolicy.FILE: {operator}.*use .*DATA"):
        sharding(dataset, FILE)
    found = sharding(dataset, AUTO)
    assert found.policy is DATA
    assert found.reason.startswith(f"AUTO: {operator}")
    assert found.reason.endswith(", so each worker makes all elements and keeps one in 2")


@pytest.fixture(scope="session")
def tables(tmp_path_factory):
    """Three files of rows in each format of tables, and a saved dataset of three shards."""
    folder = tmp_path_factory.mktemp("tables")
    for number in range(3):
        values = np.arange(number * 10, number * 10 + number + 2)
        np.save(folder / f"{number}.npy", values)
        pyarrow.parquet.write_table(pyarrow.table({"x": values}), folder / f"{number}.parquet")
        pyarrow.feather.write_feather(pyarrow.table({"x": values}), f"{folder}/{number}.feather")
    rows = Dataset.from_numpy(f"{folder}/*.npy")
    rows.save(folder / "saved", shard_func=lambda x: x // 10)
    return {
        "from_numpy": rows,
        "from_parquet": Dataset.from_parquet(f"{folder}/*.parquet").map(lambda row: row["x"]),
        "from_arrow": Dataset.from_arrow(f"{folder}/*.feather").map(lambda row: row["x"]),
        "load": Dataset.load(folder / "saved"),
    }


@pytest.mark.parametrize("source", ["from_numpy", "from_parquet", "from_arrow", "load"])
def test_tables_are_divided_by_files_if_that_is_asked_for(tables, source):
    dataset = tables[source]
    assert parts(dataset, FILE, 2) == [[0, 1, 20, 21, 22, 23], [10, 11, 12]]
    assert parts(dataset.batch(2).unbatch(), FILE, 3) == [[0, 1], [10, 11, 12], [20, 21, 22, 23]]
    assert parts(dataset, FILE, 1) == [list(dataset)]
    assert sharding(dataset, FILE).reason == "FILE: each worker reads its own files"
    with pytest.raises(InvalidArgumentError, match=f"{source} reads 3 files, fewer than the 4"):
        sharding(dataset, FILE, workers=4)
    found = sharding(dataset, AUTO)
    assert found.policy is DATA
    assert found.reason.startswith(f"AUTO: {source} can be divided by elements, so each worker")


def test_a_table_in_memory_has_no_files():
    table = Dataset.from_arrow(pyarrow.table({"x": [1, 2]}))
    with pytest.raises(NotFoundError, match="AutoShardPolicy.FILE: from_arrow is not divided by"):
        sharding(table, FILE)


def lines_of(paths) -> Dataset:
    return TextLineDataset(paths)


def group_pairs(dataset):
    return dataset.group_by_window(lambda x: np.int64(0), lambda key, window: window, 2)


@pytest.mark.parametrize(
    ("operator", "make"),
    [
        ("take", lambda ds: ds.take(2)),
        ("skip", lambda ds: ds.skip(1)),
        ("shard", lambda ds: ds.shard(2, 0)),
        ("window", lambda ds: ds.window(2).flat_map(lambda window: window)),
        ("zip", lambda ds: Dataset.zip((ds, ds))),
    ],
)
def test_auto_divides_the_elements_where_an_operator_counts_them(lines, operator, make):
    dataset = make(lines_of(lines))
    found = sharding(dataset, AUTO)
    assert found.policy is DATA
    assert found.reason.startswith(f"AUTO: {operator} depends on the place of an element")
    assert sharding(dataset, FILE).policy is FILE
    alone = sharding(dataset, AUTO, workers=1)
    assert (alone.policy, alone.plan) == (FILE, with_policy(dataset, AUTO).__plan__)


def test_auto_divides_the_elements_where_files_are_few(lines):
    found = sharding(lines_of(lines[:2]), AUTO, workers=3)
    assert found.policy is DATA
    assert found.reason == (
        "AUTO: TextLineDataset reads 2 files, fewer than the 3 workers, so each worker makes all "
        "elements and keeps one in 3"
    )
    few = Dataset.list_files(lines[0]).repeat(2).interleave(TextLineDataset)
    assert "interleave reads 1 file, fewer" in sharding(few, AUTO).reason


@pytest.mark.parametrize("index", range(3))
def test_file_refuses_few_files_on_every_worker(lines, index):
    message = "AutoShardPolicy.FILE: TextLineDataset reads 2 files, fewer than the 3 workers; write"
    with pytest.raises(InvalidArgumentError, match=message):
        sharding(lines_of(lines[:2]), FILE, 3, index)


def test_an_unknown_number_of_files_is_trusted(lines):
    names = Dataset.from_tensor_slices(lines[:1]).filter(lambda name: True)
    assert sharding(names.interleave(TextLineDataset), AUTO).policy is FILE
    assert sharding(TextLineDataset([]), FILE).policy is FILE


def test_every_source_reads_files(lines):
    found = sharding(lines_of(lines).concatenate(lines_of(lines[:3])).batch(4), AUTO)
    assert found.policy is FILE
    assert found.reason == "AUTO: every source reads files, so each worker reads its own files"
    assert sharding(lines_of(lines), FILE).reason == "FILE: each worker reads its own files"


@pytest.mark.parametrize(
    ("policy", "applied", "reason"),
    [
        (AUTO, DATA, "AUTO: range does not read files, so the one worker keeps every element"),
        (DATA, DATA, "DATA: the one worker keeps every element"),
        (FILE, FILE, "FILE: the one worker reads them all"),
    ],
)
def test_one_worker_reads_everything(policy, applied, reason):
    dataset = Dataset.range(4).prefetch(1)
    plan = with_policy(dataset, policy).__plan__
    assert sharding(dataset, policy, workers=1) == Sharding(plan, applied, reason)


@pytest.mark.parametrize("policy", [AUTO, FILE, HINT])
def test_one_worker_keeps_its_caches_and_its_random_numbers(lines, policy):
    dataset = lines_of(lines).cache().map(lambda line, dice: dice.integers(9), random=3)
    assert sharding(dataset, policy, workers=1).plan == with_policy(dataset, policy).__plan__


def test_the_last_options_decide():
    assert sharding(with_policy(Dataset.range(4), OFF), DATA).policy is DATA
    assert sharding(Dataset.range(4).map(abs), AUTO).policy is DATA


@pytest.mark.parametrize("policy", list(AutoShardPolicy))
@pytest.mark.parametrize(
    ("workers", "index", "message"),
    [
        (0, 0, "shard_plan: workers must be at least 1, got 0"),
        (2, 2, r"shard_plan: index must be from 0 to 1 for 2 worker\(s\), got 2"),
        (2, -1, r"shard_plan: index must be from 0 to 1 for 2 worker\(s\), got -1"),
    ],
)
def test_workers_are_numbered_from_zero(policy, workers, index, message):
    with pytest.raises(InvalidArgumentError, match=message):
        sharding(Dataset.range(4), policy, workers, index)


@n.node
class FromElsewhere(n.Range):
    """Elements that were divided between workers before this plan reads them."""

    traits = n.Trait.NONE

    @property
    def sharded_elsewhere(self):
        return True


@pytest.mark.parametrize("policy", [AUTO, DATA, FILE])
def test_what_is_sharded_elsewhere_is_not_sharded_again(policy):
    dataset = Dataset(FromElsewhere(0, 4, 1, n.int64_dtype)).batch(2)
    found = sharding(dataset, policy)
    assert (found.plan, found.policy) == (with_policy(dataset, policy).__plan__, OFF)
    reason = f"{policy.name}: from_elsewhere gives each worker its own elements already"
    assert found.reason == reason


# Where the shard is inserted


def test_elements_are_divided_at_the_end_before_the_prefetch():
    source = Dataset.range(10).batch(2)
    shard = n.Shard(source.__plan__, 3, 1)
    assert plan_of(source.prefetch(2), DATA, 3, 1) == n.Prefetch(shard, 2)
    optional = source.with_options(Options()).prefetch(2)
    assert plan_of(optional, DATA, 3, 1).input.input == shard
    assert (
        plan_of(source.prefetch(2).map(abs), DATA, 3, 1).input.input == source.prefetch(2).__plan__
    )


def test_names_are_divided_in_front_of_the_reader(lines):
    names = Dataset.from_tensor_slices(lines)
    expected = n.Batch(n.Records(n.Shard(names.__plan__, 2, 1), "text", OPTIONS), 4)
    assert plan_of(TextLineDataset(names).batch(4), FILE, 2, 1) == expected


OPTIONS = (("compression", None), ("buffer_size", None))


def test_names_are_divided_below_a_shuffle(lines):
    names = Dataset.list_files(lines).map(bytes.strip).repeat(2)
    repeat = plan_of(names.interleave(TextLineDataset), FILE).input
    mapped = repeat.input
    assert isinstance(repeat, n.Repeat)
    assert isinstance(mapped, n.Map)
    assert isinstance(mapped.input, n.Shuffle)
    assert mapped.input.input == n.Shard(names.__plan__.input.input.input, 2, 0)


@pytest.mark.parametrize(
    "change",
    [lambda names: names.take(4), lambda names: names.map(lambda name, dice: name, random=True)],
)
def test_names_are_divided_above_what_counts_them(lines, change):
    names = change(Dataset.list_files(lines))
    assert plan_of(TextLineDataset(names), FILE).input == n.Shard(names.__plan__, 2, 0)


def test_parallel_calls_keep_their_order_where_it_is_counted():
    source = Dataset.range(10).interleave(one, 2, 1, 2, deterministic=False)
    source = source.map(abs, num_parallel_calls=4, deterministic=False).map(abs).batch(2, False, 2)
    shard = plan_of(source, DATA)
    assert isinstance(shard, n.Shard)
    batch = shard.input
    found = [batch, batch.input, batch.input.input, batch.input.input.input]
    assert [part.deterministic for part in found] == [True, None, True, True]


def test_the_order_is_kept_even_if_the_options_give_it_up():
    options = Options()
    options.deterministic = False
    source = Dataset.range(10).map(abs, num_parallel_calls=2).with_options(options)
    shard = prepare(plan_of(source, DATA))
    assert [node.deterministic for node in (shard, shard.input) if isinstance(node, n.Map)] == [
        True
    ]


def one(x):
    return Dataset.from_tensors(x)


def test_a_worker_has_a_cache_of_its_own(lines, tmp_path):
    assert spell_workers(parts(lines_of(lines[:2]).cache(), AUTO, 2)) == ["a0", "b0 b1"]
    whole = lines_of(lines[:2]).cache(str(tmp_path / "kept"))
    for _ in range(2):
        assert spell_workers(parts(whole, AUTO, 2)) == ["a0", "b0 b1"]
    assert {path.name for path in tmp_path.glob("*.index")} == {
        "kept_0_of_2.index",
        "kept_1_of_2.index",
    }
    assert spell_workers(parts(whole, DATA, 2)) == ["a0 b1", "b0"]


def test_workers_draw_different_random_numbers(lines):
    dataset = lines_of([lines[0]] * 2).map(lambda line, dice: dice.integers(1 << 60), random=3)
    (first,), (second,) = parts(dataset, FILE, 2)
    assert first != second
    assert parts(dataset, FILE, 2) == [[first], [second]]


def test_hints_are_filled_in():
    dataset = Dataset.range(12).shard(SHARD_HINT, SHARD_HINT).batch(2)
    found = sharding(dataset, HINT, 3, 1)
    assert found.plan.input == Dataset.range(12).shard(3, 1).batch(2).__plan__
    assert found.policy is HINT
    assert found.reason == ("HINT: shard(SHARD_HINT, SHARD_HINT) gives each worker its part")
    assert sharding(dataset, HINT, 1).plan.input == Dataset.range(12).batch(2).__plan__


def test_a_hint_below_a_cache():
    dataset = Dataset.range(4).shard(SHARD_HINT, SHARD_HINT).cache()
    assert parts(dataset, HINT, 2) == [[0, 2], [1, 3]]


def test_hint_without_a_hint_gives_every_worker_everything():
    found = sharding(Dataset.range(4).shard(2, 0), HINT)
    assert found.plan.input == Dataset.range(4).shard(2, 0).__plan__
    assert found.reason == (
        "HINT: there is no shard(SHARD_HINT, SHARD_HINT), so every worker reads it all"
    )


@pytest.mark.parametrize("policy", [OFF, AUTO, DATA])
@pytest.mark.parametrize("make", [lambda ds: ds, lambda ds: ds.batch(2), lambda ds: ds.map(abs)])
def test_a_hint_under_another_policy_fails_when_it_is_reached(policy, make):
    dataset = make(Dataset.range(12).shard(SHARD_HINT, SHARD_HINT))
    found = Dataset(sharding(dataset, policy).plan)
    with pytest.raises(FailedPreconditionError, match="Dataset.shard: SHARD_HINT is filled in"):
        next(iter(found))


# What the workers read


def test_file_runs_what_counts_on_every_worker(lines):
    assert spell_workers(parts(lines_of(lines[1:3]).take(2), FILE, 2)) == ["b0 b1", "c0 c1"]
    assert spell_workers(parts(lines_of(lines[1:3]).take(2), AUTO, 2)) == ["b0", "b1"]


def test_names_may_come_with_labels(lines):
    labelled = Dataset.zip((Dataset.from_tensor_slices(lines[:2]), Dataset.range(2)))
    dataset = labelled.flat_map(lambda name, label: TextLineDataset(name).map(lambda x: (x, label)))
    assert sharding(dataset, AUTO).policy is FILE
    assert parts(dataset, AUTO, 2) == [[(b"a0", 0)], [(b"b0", 1), (b"b1", 1)]]


def test_numbers_may_stand_for_files(lines):
    dataset = Dataset.range(1, 3).flat_map(lambda i: TextLineDataset(lines[i]))
    assert spell_workers(parts(dataset, AUTO, 2)) == ["b0 b1", "c0 c1 c2"]


@pytest.mark.parametrize(
    "names",
    [
        lambda lines: Dataset.from_tensor_slices(
            [
                Dataset.from_tensor_slices(part).map(TextLineDataset)
                for part in (lines[:3], lines[3:])
            ]
        ).flat_map(lambda readers: readers),
        lambda lines: Dataset.range(0, 6, 2).flat_map(
            lambda i: Dataset.from_tensor_slices(lines[i : i + 2]).map(TextLineDataset)
        ),
    ],
)
def test_readers_may_come_from_datasets_of_them(lines, names):
    dataset = names(lines[:4] + lines[:2]).prefetch(1).interleave(lambda x: x, cycle_length=1)
    assert sharding(dataset, AUTO).policy is FILE
    assert spell_workers(parts(dataset, AUTO, 3)) == [
        "a0 d0 d1 d2 d3",
        "b0 b1 a0",
        "c0 c1 c2 b0 b1",
    ]


@pytest.mark.parametrize("policy", [AUTO, FILE])
def test_a_stated_number_is_that_of_all_workers(lines, policy):
    def state(count):
        return lines_of(lines[1:3]).apply(experimental.assert_cardinality(count))

    assert sharding(state(5), policy).policy is FILE
    assert spell_workers(parts(state(5), policy, 2)) == ["b0 b1", "c0 c1 c2"]
    assert spell_workers(parts(state(5), policy, 1)) == ["b0 b1 c0 c1 c2"]
    with pytest.raises(FailedPreconditionError, match="expected 7 elements"):
        parts(state(7), policy, 1)
    endless = lines_of(lines[1:3]).repeat().apply(experimental.assert_cardinality(-1))
    assert sharding(endless, policy).plan.cardinality == n.INFINITE


@pytest.mark.parametrize(
    "function",
    [
        lambda name: Dataset.from_tensors(name),
        lambda name: CsvDataset(name, [b""]),
        lambda name: 1 // 0,
        lambda name: 3,
    ],
)
def test_functions_that_read_no_files(lines, function):
    plan = n.FlatMap(Dataset.from_tensor_slices(lines).__plan__, n.Function(function))
    assert sharding(Dataset(plan), AUTO).policy is DATA


def test_functions_that_cannot_be_tried_read_what_their_input_reads(lines):
    dataset = lines_of(lines).map(lambda line: lines[len(line)]).flat_map(TextLineDataset)
    assert plan_of(dataset, AUTO).input.input.input == n.Shard(
        Dataset.from_tensor_slices(lines).__plan__, 2, 0
    )


def test_readers_inside_readers(lines):
    nested = Dataset.from_tensor_slices([lines[:2], lines[2:4]])
    dataset = nested.flat_map(lambda names: TextLineDataset(names, num_parallel_reads=2))
    assert spell_workers(parts(dataset, AUTO, 2)) == ["a0 b0 b1", "c0 d0 c1 d1 c2 d2 d3"]
    assert sharding(TextLineDataset([], num_parallel_reads=2), FILE).policy is FILE


@pytest.mark.parametrize(
    "make",
    [
        lambda ds: ds.map(bytes.split).padded_batch(2),
        lambda ds: ds.map(bytes.split).ragged_batch(2),
        lambda ds: ds.batch(2).rebatch(3),
        lambda ds: ds.snapshot("kept"),
        lambda ds: ds.cache("kept"),
    ],
)
def test_what_does_the_same_to_some_files_as_to_all(lines, make):
    assert sharding(make(lines_of(lines)), AUTO).policy is FILE


def test_files_behind_ignore_errors_are_not_divided(lines):
    assert sharding(lines_of(lines).ignore_errors(), AUTO).policy is DATA


def test_a_worker_has_a_snapshot_of_its_own(lines, tmp_path):
    dataset = lines_of(lines[:2]).snapshot(str(tmp_path))
    for _ in range(2):
        assert spell_workers(parts(dataset, FILE, 2)) == ["a0", "b0 b1"]


def test_other_formats(lines, tmp_path):
    dataset = FixedLengthRecordDataset(lines[:2], 3)
    assert parts(dataset, AUTO, 2) == [[b"a0\n"], [b"b0\n", b"b1\n"]]
    paths = [str(tmp_path / name) for name in "ab"]
    for path in paths:
        with TFRecordWriter(path) as writer:
            writer.write(path[-1].encode())
    assert parts(TFRecordDataset(paths), AUTO, 2) == [[b"a"], [b"b"]]
    assert sharding(TFRecordDataset(paths), AUTO).policy is FILE


def test_trying_a_function_uses_up_no_seeds(lines):
    dataset = Dataset.from_tensor_slices(lines).flat_map(lambda x: TextLineDataset(x).shuffle(3))
    set_seed(1)
    expected = draw()
    set_seed(1)
    assert sharding(dataset, AUTO).policy is FILE
    assert draw() == expected
    set_seed(None)


# Plans that sharding does not change


def test_random_access_stays():
    dataset = Dataset.range(20).shuffle(20, seed=1).map(abs).batch(2).prefetch(1)
    whole = list(dataset)
    for index in range(3):
        part = Dataset(sharding(dataset, AUTO, 3, index).plan)
        assert part.__plan__.blocked is None
        assert len(part) == len(whole[index::3])
        for place, expected in enumerate(whole[index::3]):
            np.testing.assert_array_equal(part[place], expected)


@pytest.mark.parametrize("policy", [AUTO, FILE, DATA, HINT])
def test_plans_of_workers_travel(lines, policy):
    dataset = Dataset.list_files(lines).shard(SHARD_HINT, SHARD_HINT)
    dataset = TextLineDataset(dataset if policy is HINT else lines).shuffle(3).batch(2)
    plan = sharding(dataset, policy).plan
    assert decode(encode(plan)) == plan


@pytest.mark.parametrize("policy", [AUTO, DATA])
def test_states_fit_a_plan_that_is_divided_again(lines, policy):
    def begin_reading():
        dataset = TextLineDataset(Dataset.list_files(lines, seed=1)).shuffle(4, seed=2)
        return Iterator(sharding(dataset.batch(2), policy, 2, 1).plan, ENVIRONMENT)

    expected = take_elements(begin_reading())
    for count in range(len(expected) + 1):
        first, again = begin_reading(), begin_reading()
        take_elements(first, count)
        again.load_state_dict(first.state_dict())
        assert take_elements(again) == expected[count:]


def test_a_state_of_another_worker_is_refused():
    first, second = (
        Iterator(sharding(Dataset.range(9), DATA, 2, i).plan, ENVIRONMENT) for i in range(2)
    )
    with pytest.raises(InvalidArgumentError, match="state"):
        second.load_state_dict(first.state_dict())


# No element is lost, none comes twice

workers = st.integers(1, 5)


@given(plans(), workers, st.sampled_from([AUTO, DATA]))
@examples(130)
def test_elements_are_dealt_out_in_turn(plan, workers, policy):
    whole = take_elements(Iterator(fresh(plan), ENVIRONMENT))
    assume(len(whole) < MOST and "FAULT" not in whole)
    dataset = with_policy(Dataset(plan), policy)
    for index in range(workers):
        part = shard_plan(fresh(dataset.__plan__), workers, index)
        assert part.policy is DATA
        assert take_elements(Iterator(part.plan, ENVIRONMENT)) == whole[index::workers]


def double_line(line):
    return Dataset.from_tensors(line).repeat(2)


ANYWHERE = [
    lambda ds: ds.map(bytes.upper),
    lambda ds: ds.filter(lambda line: not line.endswith(b"2")),
    lambda ds: ds.flat_map(double_line),
    lambda ds: ds.interleave(double_line, 3),
    lambda ds: ds.batch(3).unbatch(),
    lambda ds: ds.batch(4).rebatch(3).unbatch(),
    lambda ds: ds.shuffle(5, 1),
    lambda ds: ds.repeat(2),
    lambda ds: ds.cache(),
    lambda ds: ds.prefetch(2),
    lambda ds: ds.concatenate(ds.map(bytes.lower)),
]
LOOSE = [lambda ds: ds.map(bytes.upper, num_parallel_calls=2, deterministic=False)]
COUNTING = [
    lambda ds: ds.take(7),
    lambda ds: ds.skip(3),
    lambda ds: ds.shard(2, 1),
    lambda ds: ds.window(3, shift=2).flat_map(lambda window: window),
    lambda ds: Dataset.zip((ds, ds)).map(lambda first, second: first + second),
    lambda ds: ds.enumerate().map(lambda i, line: line * int(i % 3)),
    lambda ds: ds.unique(),
    lambda ds: ds.scan(np.int64(0), lambda seen, line: (seen + 1, line * int(seen % 2))),
    lambda ds: ds.concatenate(Dataset.from_tensor_slices([b"x", b"y"])),
]
READERS = [
    lambda paths: TextLineDataset(paths),
    lambda paths: TextLineDataset(paths, num_parallel_reads=2),
    lambda paths: TextLineDataset(Dataset.list_files(paths, seed=1)),
    lambda paths: Dataset.list_files(paths, seed=1).repeat(2).interleave(TextLineDataset, 2),
    lambda paths: Dataset.from_tensor_slices(paths).shuffle(9, 1).map(bytes.strip).flat_map(upper),
]


def upper(name):
    return TextLineDataset(name).map(bytes.upper)


def lines_read(plan, workers):
    """How often the workers together read each line. Each worker shuffles by seeds of its own."""
    dice = itertools.count(7)
    found = Counter()
    for index in range(workers):
        own = with_seeds(fresh(plan), [next(dice) for _ in seeds_of(plan)])
        found.update(take_elements(Iterator(shard_plan(own, workers, index).plan, ENVIRONMENT)))
    return found


def build_dataset(lines, files, reader, steps):
    dataset = reader(lines[:files])
    for step in steps:
        dataset = step(dataset)
    return dataset


files = st.integers(1, 6)
readers = st.sampled_from(READERS)


@given(files, readers, st.lists(st.sampled_from([*ANYWHERE, *LOOSE]), max_size=3), workers)
@examples(100)
def test_files_are_read_once_by_one_worker(lines, files, reader, steps, workers):
    assume(workers <= files)
    dataset = build_dataset(lines, files, reader, steps)
    whole = Counter(take_elements(Iterator(fresh(dataset.__plan__), ENVIRONMENT)))
    assume(whole.total() < MOST)
    for policy in (AUTO, FILE):
        assert sharding(dataset, policy, workers).policy is FILE
        assert lines_read(with_policy(dataset, policy).__plan__, workers) == whole


@given(
    files,
    readers,
    st.lists(st.sampled_from(ANYWHERE), max_size=2),
    st.sampled_from(COUNTING),
    st.lists(st.sampled_from([*ANYWHERE, *COUNTING]), max_size=2),
    workers,
)
@examples(100)
def test_auto_never_loses_a_line(lines, files, reader, before, counting, after, workers):
    dataset = build_dataset(lines, files, reader, [*before, counting, *after])
    whole = take_elements(Iterator(fresh(dataset.__plan__), ENVIRONMENT))
    assume(len(whole) < MOST)
    plan = with_policy(dataset, AUTO).__plan__
    for index in range(workers):
        part = take_elements(Iterator(shard_plan(fresh(plan), workers, index).plan, ENVIRONMENT))
        assert part == whole[index::workers]
