"""The input of replicas equals a list model of the rules, for random datasets and options."""

import contextlib
import itertools
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as tf
from penstock.errors import InvalidArgumentError, InvalidTypeError, UnbatchedError
from tests.effort import times
from tests.integration.clusters import Cluster

POLICIES = tf.data.experimental.AutoShardPolicy


def build_strategy(replicas: int) -> Any:
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def with_policy(dataset: tf.data.Dataset, policy: str) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = POLICIES[policy]
    return dataset.with_options(options)


def portions(strategy: Any, value: Any) -> list[Any]:
    return [np.asarray(one).tolist() for one in strategy.experimental_local_results(value)]


def steps_of(strategy: Any, distributed: Any) -> list[list[Any]]:
    return [portions(strategy, value) for value in distributed]


def outcomes(strategy: Any, iterator: Any) -> list[Any]:
    """All remaining steps; a failure is a word."""
    found: list[Any] = []
    while True:
        try:
            found.append(portions(strategy, next(iterator)))
        except StopIteration:
            return found
        except ValueError:
            found.append("failed")


def check_every_state(strategy: Any, distributed: Any) -> None:
    """A state saved before each step gives exactly what follows."""
    everything = outcomes(strategy, iter(distributed))
    iterator = iter(distributed)
    for count in range(len(everything) + 1):
        other = iter(distributed)
        other.load_state_dict(json.loads(json.dumps(iterator.state_dict())))
        assert outcomes(strategy, other) == everything[count:]
        with contextlib.suppress(ValueError):
            next(iterator, None)


def stream_rule(rows: list[int], batch: int, replicas: int) -> list[list[list[int]]]:
    """The model: rows are cut by one vector of sizes, which is repeated."""
    least, more = divmod(batch, replicas)
    sizes = [least + (i < more) for i in range(replicas)]
    steps, start = [], 0
    while start < len(rows):
        step = []
        for size in sizes:
            step.append(rows[start : start + size])
            start += size
        steps.append(step)
    return steps


def batch_rule(batches: list[list[int]], replicas: int) -> list[list[list[int]]]:
    """The model: each batch in portions of its length divided by the replicas, rounded up."""
    steps = []
    for batch in batches:
        each = -(-len(batch) // replicas)
        steps.append([batch[i * each : (i + 1) * each] for i in range(replicas)])
    return steps


sizes = st.integers(1, 9)
counts = st.integers(0, 40)


@given(
    counts, sizes, st.integers(2, 5), st.integers(1, 3), st.sampled_from(["AUTO", "DATA", "OFF"])
)
def test_the_two_rules(count: int, batch: int, replicas: int, rounds: int, policy: str) -> None:
    strategy = build_strategy(replicas)
    dataset = with_policy(tf.data.Dataset.range(count).batch(batch).repeat(rounds), policy)
    got = steps_of(strategy, strategy.experimental_distribute_dataset(dataset))
    batches = [b.tolist() for b in dataset]
    rows = list(itertools.chain(*batches))
    by_stream = policy == "OFF"
    assert got == (
        stream_rule(rows, batch, replicas) if by_stream else batch_rule(batches, replicas)
    )


class DeliveredDataset:
    """A shuffled dataset, and the rows that its replicas got."""

    def __init__(self, count: int, batch: int, replicas: int, mode: str, policy: str) -> None:
        strategy = build_strategy(replicas)
        dataset = with_policy(tf.data.Dataset.range(count).shuffle(7, seed=3).batch(batch), policy)
        options = tf.distribute.InputOptions(last_batch=mode)
        self.batches = [one.tolist() for one in dataset]
        self.rows: list[int] = []
        self.shapes = set()
        for value in strategy.experimental_distribute_dataset(dataset, options):
            for one in strategy.experimental_local_results(value):
                rows, mask = one if mode == "pad" else (one, np.ones(len(one), bool))
                self.shapes.add(rows.shape)
                self.rows += rows[mask].tolist()


policies = st.sampled_from(["AUTO", "OFF"])


@given(counts, sizes, st.integers(1, 5), st.sampled_from(["short", "pad"]), policies)
def test_portions_are_the_dataset(
    count: int, batch: int, replicas: int, mode: str, policy: str
) -> None:
    delivered = DeliveredDataset(count, batch, replicas, mode, policy)
    assert delivered.rows == list(itertools.chain(*delivered.batches))
    if mode == "pad":
        assert len(delivered.shapes) <= 1


@given(counts, sizes, st.integers(1, 5), policies)
def test_dropping_leaves_out_the_short_batch(
    count: int, each: int, replicas: int, policy: str
) -> None:
    batch = each * replicas
    delivered = DeliveredDataset(count, batch, replicas, "drop", policy)
    whole = [one for one in delivered.batches if len(one) == batch]
    assert delivered.rows == list(itertools.chain(*whole))
    assert len(delivered.shapes) <= 1


@given(counts, sizes, st.integers(1, 5), policies)
def test_repeating_fills_every_batch_with_its_own_rows(
    count: int, batch: int, replicas: int, policy: str
) -> None:
    delivered = DeliveredDataset(count, batch, replicas, "repeat", policy)
    rows = -(-batch // replicas) * replicas
    filled = [np.resize(one, rows).tolist() for one in delivered.batches]
    assert delivered.rows == list(itertools.chain(*filled))
    assert len(delivered.shapes) <= 1


def test_repeat_fills_with_the_batch_itself() -> None:
    strategy = build_strategy(2)
    options = tf.distribute.InputOptions(last_batch="repeat")
    dataset = tf.data.Dataset.range(7).batch(4)
    got = steps_of(strategy, strategy.experimental_distribute_dataset(dataset, options))
    assert got == [[[0, 1], [2, 3]], [[4, 5], [6, 4]]]


def test_pad_fills_with_zeros_and_a_mask() -> None:
    strategy = build_strategy(2)
    options = tf.distribute.InputOptions(last_batch="pad")
    rows = tf.data.Dataset.from_tensor_slices((np.arange(1, 6), [b"a", b"b", b"c", b"d", b"e"]))
    distributed = strategy.experimental_distribute_dataset(rows.batch(4), options)
    (numbers, texts), mask = list(distributed)[-1]
    assert [v.tolist() for v in numbers.values] == [[5, 0], [0, 0]]
    assert [v.tolist() for v in texts.values] == [[b"e", b""], [b"", b""]]
    assert [v.tolist() for v in mask.values] == [[True, False], [False, False]]
    assert repr(distributed.element_spec[1]).startswith("PerReplicaSpec(TensorSpec(shape=(2,)")


def test_ragged_batches_are_padded_and_repeated() -> None:
    strategy = build_strategy(2)
    rows = tf.data.Dataset.range(1, 4).map(lambda x: np.full(x, x)).ragged_batch(4)
    padded = tf.distribute.InputOptions(last_batch="pad")
    (value, mask) = next(iter(strategy.experimental_distribute_dataset(rows, padded)))
    assert [v.to_list() for v in value.values] == [[[1], [2, 2]], [[3, 3, 3], []]]
    assert [v.tolist() for v in mask.values] == [[True, True], [True, False]]
    repeated = tf.distribute.InputOptions(last_batch="repeat")
    value = next(iter(strategy.experimental_distribute_dataset(rows, repeated)))
    assert [v.to_list() for v in value.values] == [[[1], [2, 2]], [[3, 3, 3], [1]]]


@pytest.mark.filterwarnings("ignore:.*the same order as the one before")
@pytest.mark.parametrize("policy", ["AUTO", "OFF"])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("batch", [4, 5])
def test_a_state_fits_other_numbers_of_replicas(policy: str, streamed: bool, batch: int) -> None:
    dataset = tf.data.Dataset.range(23).shuffle(9, seed=5)
    dataset = dataset.filter(lambda x: x != 3) if streamed else dataset
    dataset = with_policy(dataset.batch(batch).repeat(2), policy)
    rows = [int(x) for b in dataset for x in b]
    for before, after in itertools.product((2, 3, 4), repeat=2):
        first, second = build_strategy(before), build_strategy(after)
        iterator = iter(first.experimental_distribute_dataset(dataset))
        seen: list[int] = []
        while True:
            state = json.loads(json.dumps(iterator.state_dict()))
            other = iter(second.experimental_distribute_dataset(dataset))
            other.load_state_dict(state)
            rest = [x for value in other for one in portions(second, value) for x in one]
            assert seen + rest == rows
            value = next(iterator, None)
            if value is None:
                break
            seen += [x for one in portions(first, value) for x in one]
        assert seen == rows


def test_one_replica_continues_where_two_were() -> None:
    dataset = tf.data.Dataset.range(12).batch(4)
    iterator = iter(build_strategy(2).experimental_distribute_dataset(dataset))
    next(iterator)
    alone = iter(build_strategy(1).experimental_distribute_dataset(dataset))
    alone.load_state_dict(iterator.state_dict())
    assert [value.tolist() for value in alone] == [[4, 5, 6, 7], [8, 9, 10, 11]]


def rest_of(strategy: Any, dataset: Any, state: Any) -> list[int]:
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    iterator.load_state_dict(state)
    return [x for value in iterator for one in portions(strategy, value) for x in one]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (1, 1), (3, 1)])
@pytest.mark.parametrize("policies", list(itertools.product(["OFF", "DATA"], repeat=2)))
@pytest.mark.parametrize("streamed", [False, True])
def test_a_state_fits_the_other_rule(
    before: int, after: int, policies: tuple[str, str], streamed: bool
) -> None:
    dataset = tf.data.Dataset.range(5)
    dataset = dataset.filter(lambda x: True) if streamed else dataset
    dataset = dataset.batch(4).repeat(3)
    rows = [int(x) for b in dataset for x in b]
    strategy = build_strategy(before)
    saved = iter(strategy.experimental_distribute_dataset(with_policy(dataset, policies[0])))
    seen: list[int] = []
    for value in saved:
        seen += [x for one in portions(strategy, value) for x in one]
        state = json.loads(json.dumps(saved.state_dict()))
        other = build_strategy(after)
        assert seen + rest_of(other, with_policy(dataset, policies[1]), state) == rows


def test_a_state_of_batches_does_not_fit_a_function() -> None:
    strategy = build_strategy(2)
    dataset = tf.data.Dataset.range(8).batch(4)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    other = iter(strategy.distribute_datasets_from_function(lambda context: dataset))
    with pytest.raises(InvalidArgumentError, match="cut by the batch rule, this one is cut by"):
        other.load_state_dict(iterator.state_dict())


@pytest.mark.parametrize("state", [None, 3, {}, {"rule": "batch"}, {"version": 1}])
def test_states_of_something_else_are_refused(state: Any) -> None:
    iterator = iter(
        build_strategy(2).experimental_distribute_dataset(tf.data.Dataset.range(4).batch(2))
    )
    with pytest.raises(InvalidArgumentError, match="load_state_dict"):
        iterator.load_state_dict(state)
    assert portions(build_strategy(2), next(iterator)) == [[0], [1]]


def test_the_epoch_after_a_resumed_one_does_not_change() -> None:
    def build() -> Any:
        dataset = tf.data.Dataset.range(12).shuffle(12, seed=3).batch(4)
        return build_strategy(2).experimental_distribute_dataset(dataset)

    strategy, whole, first = build_strategy(2), build(), build()
    epochs = [steps_of(strategy, whole) for _ in range(4)]
    steps_of(strategy, first), steps_of(strategy, first)
    iterator = iter(first)
    next(iterator)
    resumed = build()
    again = iter(resumed)
    again.load_state_dict(iterator.state_dict())
    assert [portions(strategy, value) for value in again] == epochs[2][1:]
    assert steps_of(strategy, resumed) == epochs[3]


@pytest.mark.parametrize("size", [0, 1, 3, 8])
@pytest.mark.parametrize("mapped", [False, True])
def test_a_state_counts_what_was_given_not_what_was_made_ahead(size: int, mapped: bool) -> None:
    options = tf.distribute.InputOptions(experimental_per_replica_buffer_size=size)
    dataset = tf.data.Dataset.range(60)
    dataset = (dataset.map(lambda x: x) if mapped else dataset).batch(2)
    strategy = build_strategy(2)
    for distributed in (
        strategy.experimental_distribute_dataset(dataset, options),
        strategy.distribute_datasets_from_function(lambda context: dataset, options),
    ):
        check_every_state(strategy, distributed)


def test_nothing_is_read_before_the_first_step() -> None:
    calls: list[int] = []
    dataset = tf.data.Dataset.from_generator(
        lambda: (calls.append(i) or i for i in range(8)),  # type: ignore[func-returns-value]
        output_signature=tf.TensorSpec([], tf.int64),
    )
    iterator = iter(build_strategy(2).experimental_distribute_dataset(dataset.batch(2)))
    assert calls == []
    next(iterator)
    assert calls
    iterator.close()


@pytest.mark.parametrize(
    ("dataset", "text"),
    [
        (lambda: tf.data.Dataset.range(4), "elements must be batches"),
        (lambda: tf.data.Dataset.range(4).batch(2).enumerate(), "call batch"),
    ],
)
def test_what_is_not_batched_is_refused(dataset: Any, text: str) -> None:
    with pytest.raises(UnbatchedError, match=text):
        build_strategy(2).experimental_distribute_dataset(dataset())


def test_single_values_whose_rank_is_not_known_are_refused_when_met() -> None:
    dataset = tf.data.Dataset.from_generator(
        lambda: iter([1]), output_signature=tf.TensorSpec(None, tf.int64)
    )
    iterator = iter(build_strategy(2).experimental_distribute_dataset(dataset))
    with pytest.raises(UnbatchedError, match="an element is a single value"):
        next(iterator)


def test_wrong_options() -> None:
    dataset = tf.data.Dataset.range(8).batch(3)
    with pytest.raises(InvalidArgumentError, match="last_batch must be one of"):
        tf.distribute.InputOptions(last_batch="fill")
    with pytest.raises(InvalidTypeError, match="must be an InputReplicationMode"):
        tf.distribute.InputOptions(experimental_replication_mode="PER_WORKER")  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError, match="options must be InputOptions"):
        build_strategy(2).experimental_distribute_dataset(dataset, {"last_batch": "drop"})
    drop = tf.distribute.InputOptions(last_batch="drop")
    with pytest.raises(InvalidArgumentError, match="batches of 3 cannot be cut into 2 equal"):
        build_strategy(2).experimental_distribute_dataset(dataset, drop)
    pad = tf.distribute.InputOptions(last_batch="pad")
    inner = tf.data.Dataset.range(2).flat_map(lambda x: tf.data.Dataset.range(3).batch(2))
    with pytest.raises(InvalidArgumentError, match="is not known behind flat_map"):
        build_strategy(2).experimental_distribute_dataset(inner, pad)
    with pytest.raises(InvalidArgumentError, match="is for batches that are cut"):
        build_strategy(2).distribute_datasets_from_function(lambda c: dataset, drop)


def test_rows_added_behind_batch_are_refused() -> None:
    dataset = tf.data.Dataset.range(4).batch(2).map(lambda x: np.concatenate([x, x]))
    options = tf.distribute.InputOptions(last_batch="pad")
    iterator = iter(build_strategy(2).experimental_distribute_dataset(dataset, options))
    with pytest.raises(InvalidArgumentError, match="batches of 2 rows are expected"):
        next(iterator)


def test_not_a_dataset() -> None:
    with pytest.raises(InvalidTypeError, match="is not a dataset"):
        build_strategy(2).experimental_distribute_dataset([1, 2])
    with pytest.raises(InvalidTypeError, match="dataset_fn must return"):
        build_strategy(2).distribute_datasets_from_function(lambda c: 3)
    with pytest.raises(InvalidTypeError, match="dataset_fn must be a function"):
        build_strategy(2).distribute_datasets_from_function(3)


def test_explain_says_policy_rule_and_what_is_read() -> None:
    dataset = tf.data.Dataset.range(8).batch(4)
    told = build_strategy(2).experimental_distribute_dataset(dataset).explain()
    assert "auto_shard_policy DATA" in told
    assert "cut by the batch rule" in told
    assert "range(" in told
    off = build_strategy(2).experimental_distribute_dataset(with_policy(dataset, "OFF")).explain()
    assert "cut by the stream rule: batches have 4 rows" in off
    alone = build_strategy(1).experimental_distribute_dataset(dataset).explain()
    assert "not cut: there is one replica" in alone


def test_a_failing_element_costs_its_step_and_nothing_else() -> None:
    def fails(x: Any) -> Any:
        if x == 5:
            raise ValueError("five")
        return x

    for policy, expected in (("DATA", [0, 1, 2, 3, 6, 7]), ("OFF", [0, 1, 2, 3, 6, 7])):
        dataset = with_policy(tf.data.Dataset.range(8).map(fails).batch(2), policy)
        strategy = build_strategy(2)
        iterator = iter(strategy.experimental_distribute_dataset(dataset))
        got: list[int] = []
        failures = 0
        while True:
            try:
                got += [x for one in portions(strategy, next(iterator)) for x in one]
            except StopIteration:
                break
            except ValueError:
                failures += 1
        assert (got, failures) == (expected, 1)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("size", [0, 1, 4])
@pytest.mark.parametrize("failing", [{4}, {4, 5}, {1, 8}, {0}, {10}])
def test_a_state_knows_the_failures_inside_a_step(
    whole: bool, size: int, failing: set[int]
) -> None:
    def fails(x: Any) -> Any:
        if int(x) in failing:
            raise ValueError("this one")
        return x

    strategy = build_strategy(3)
    options = tf.distribute.InputOptions(experimental_per_replica_buffer_size=size)
    rows = tf.data.Dataset.range(11).map(fails)
    if whole:
        made = strategy.distribute_datasets_from_function(lambda context: rows.batch(1), options)
    else:
        dataset = with_policy(rows.batch(2).repeat(2), "OFF")
        made = strategy.experimental_distribute_dataset(dataset, options)
    check_every_state(strategy, made)


def test_per_replica_datasets_of_different_lengths() -> None:
    mode = tf.distribute.InputReplicationMode.PER_REPLICA
    options = tf.distribute.InputOptions(experimental_replication_mode=mode)
    strategy = build_strategy(2)

    def build(ctx: Any) -> tf.data.Dataset:
        return tf.data.Dataset.range(4 if ctx.input_pipeline_id else 2).batch(2)

    distributed = strategy.distribute_datasets_from_function(build, options)
    assert steps_of(strategy, distributed) == [[[0, 1], [0, 1]], [[], [2, 3]]]
    iterator = iter(distributed)
    next(iterator)
    other = iter(distributed)
    other.load_state_dict(iterator.state_dict())
    assert [portions(strategy, value) for value in other] == [[[], [2, 3]]]
    with pytest.raises(InvalidArgumentError, match="PER_REPLICA needs as many replicas as before"):
        iter(build_strategy(1).distribute_datasets_from_function(build, options)).load_state_dict(
            iterator.state_dict()
        )


def test_iterators_cannot_be_pickled() -> None:
    iterator = iter(
        build_strategy(2).experimental_distribute_dataset(tf.data.Dataset.range(4).batch(2))
    )
    with pytest.raises(InvalidTypeError, match="cannot be pickled"):
        iterator.__reduce__()


def test_shapes_that_samples_show_lose_no_rows() -> None:
    """Two samples of one length do not mean that the last batch has it, too."""
    strategy = build_strategy(2)
    inner = tf.data.Dataset.range(5).batch(2).flat_map(tf.data.Dataset.from_tensors)
    from_function = strategy.distribute_datasets_from_function(lambda context: inner)
    assert steps_of(strategy, from_function) == [[[0, 1], [2, 3]], [[4], []]]
    cut = tf.data.Dataset.range(10).batch(4).map(lambda x: x[:3])
    distributed = strategy.experimental_distribute_dataset(with_policy(cut, "OFF"))
    assert steps_of(strategy, distributed) == [[[0, 1], [2]], [[4, 5], [6]], [[8], [9]]]
    assert "shape=(None,)" in repr(distributed.element_spec)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_an_incomplete_step_is_dropped_only_while_shapes_are_the_same(backend: str) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], backend=backend)

    def steps(make: Any) -> list[Any]:
        dataset = tf.data.Dataset.range(5).map(make)
        return steps_of(strategy, strategy.distribute_datasets_from_function(lambda _: dataset))

    assert steps(lambda x: x * 2) == [[0, 2], [4, 6]]
    growing = steps(lambda x: np.full(1 + x // 3, x))
    assert growing == [[[0], [1]], [[2], [3, 3]], [[4, 4], []]]


@pytest.mark.parametrize("size", [0, 1, 4])
def test_a_state_knows_that_shapes_were_not_the_same(size: int) -> None:
    strategy = build_strategy(2)
    options = tf.distribute.InputOptions(experimental_per_replica_buffer_size=size)
    dataset = tf.data.Dataset.range(7).map(lambda x: np.zeros(5 if x == 4 else 3))
    distributed = strategy.distribute_datasets_from_function(lambda context: dataset, options)
    assert [len(one) for one in steps_of(strategy, distributed)[-1]] == [3, 0]
    check_every_state(strategy, distributed)


@pytest.mark.parametrize("policy", ["AUTO", "OFF"])
@pytest.mark.parametrize("mode", ["short", "pad", "repeat"])
def test_none_goes_to_every_replica(policy: str, mode: str) -> None:
    strategy = build_strategy(2)
    dataset = with_policy(tf.data.Dataset.range(5).map(lambda x: (x, None)).batch(4), policy)
    options = tf.distribute.InputOptions(last_batch=mode)
    for value in strategy.experimental_distribute_dataset(dataset, options):
        numbers, nothing = value[0] if mode == "pad" else value
        assert nothing.values == (None, None)
        assert len(numbers.values) == 2


def test_datasets_of_replicas_must_be_alike() -> None:
    mode = tf.distribute.InputReplicationMode.PER_REPLICA
    options = tf.distribute.InputOptions(experimental_replication_mode=mode)

    def build(context: Any) -> tf.data.Dataset:
        rows = tf.data.Dataset.range(4)
        return (rows.map(lambda x: (x, x)) if context.input_pipeline_id else rows).batch(2)

    with pytest.raises(InvalidArgumentError, match="for replica 0 but of .* for replica 1"):
        build_strategy(2).distribute_datasets_from_function(build, options)


@pytest.mark.parametrize("size", [-1, 2.5, True, "a"])
def test_wrong_buffer_sizes(size: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="buffer_size must be an int from 0 on, got"):
        tf.distribute.InputOptions(experimental_per_replica_buffer_size=size)


def test_other_wrong_options_and_states() -> None:
    with pytest.raises(InvalidTypeError, match="fetch_to_device must be a bool or None, got 'no'"):
        tf.distribute.InputOptions(experimental_fetch_to_device="no")  # type: ignore[arg-type]
    distributed = build_strategy(2).experimental_distribute_dataset(
        tf.data.Dataset.range(4).batch(2)
    )
    iterator = iter(distributed)
    for wrong in ({"replicas": 5}, {**iterator.state_dict(), "at": {"from": {}}}):
        with pytest.raises(InvalidArgumentError, match="DistributedIterator.load_state_dict"):
            iterator.load_state_dict(wrong)
    plain = iter(tf.data.Dataset.range(4).batch(2))
    with pytest.raises(InvalidArgumentError, match="the state of a distributed iterator"):
        plain.load_state_dict(iterator.state_dict())
    with pytest.raises(InvalidTypeError, match="DistributedDataset: cannot be pickled"):
        pickle.dumps(distributed)


ENDING = """
import sys
import penstock as tf
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"], backend=sys.argv[1])
dataset = tf.data.Dataset.range(10**9).batch(6).prefetch(2)
iterator = iter(strategy.experimental_distribute_dataset(dataset))
for _ in range(500):
    next(iterator)
"""


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_a_program_may_end_in_the_middle(backend: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(ENDING)
    for _ in range(times(1)):
        command = [sys.executable, str(tmp_path / "program.py"), backend]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr


SERVED: dict[str, Any] = {
    "random access": lambda: tf.data.Dataset.range(23).map(lambda x: x + 1),
    "stream": lambda: tf.data.Dataset.range(23).filter(lambda x: x != 3),
    "cut": lambda: tf.data.Dataset.range(23).map(lambda x: x + 1).filter(bool).shuffle(5, seed=2),
}


@pytest.fixture(scope="module")
def cluster() -> Any:
    with Cluster(1) as found:
        yield found


@pytest.mark.parametrize("policy", ["OFF", "DATA"])
@pytest.mark.parametrize("kind", SERVED)
def test_a_state_moves_to_a_service_and_back(cluster: Any, kind: str, policy: str) -> None:
    """States are exchanged between local and service datasets, and numbers of replicas."""
    local = with_policy(SERVED[kind]().batch(5), policy)
    served = with_policy(SERVED[kind]().apply(cluster.distribute()).batch(5), policy)
    rows = [int(x) for b in local for x in b]
    for source, target in [(local, served), (served, local)]:
        strategy = build_strategy(2)
        iterator = iter(strategy.experimental_distribute_dataset(source))
        seen: list[int] = []
        for taken in range(4):
            state = json.loads(json.dumps(iterator.state_dict()))
            replicas = build_strategy(2 + taken % 2)
            other = iter(replicas.experimental_distribute_dataset(target))
            other.load_state_dict(state)
            assert other.position == iterator.position
            rest = [x for value in other for one in portions(replicas, value) for x in one]
            assert seen + rest == rows, (kind, taken)
            seen += [x for one in portions(strategy, next(iterator)) for x in one]


def test_a_moved_state_moves_on(cluster: Any) -> None:
    local = SERVED["stream"]().batch(5)
    served = SERVED["stream"]().apply(cluster.distribute()).batch(5)
    strategy, state, seen = build_strategy(2), None, []
    for dataset in (local, served, local, served):
        iterator = iter(strategy.experimental_distribute_dataset(dataset))
        if state is not None:
            iterator.load_state_dict(state)
        seen += [x for one in portions(strategy, next(iterator)) for x in one]
        state = iterator.state_dict()
    assert seen == [x for x in range(23) if x != 3][:20]


def test_a_state_does_not_move_to_a_shared_job_or_another_dataset(cluster: Any) -> None:
    local = SERVED["stream"]().batch(5)
    iterator = iter(build_strategy(2).experimental_distribute_dataset(local))
    next(iterator)
    shared = SERVED["stream"]().apply(cluster.distribute(job_name="shared")).batch(5)
    another = SERVED["cut"]().apply(cluster.distribute()).batch(5)
    for dataset, reason in (
        (shared, "does not move to or from a service"),
        (another, "was saved by another pipeline"),
    ):
        other = iter(build_strategy(2).experimental_distribute_dataset(dataset))
        with pytest.raises(ValueError, match=reason):
            other.load_state_dict(iterator.state_dict())


@pytest.mark.parametrize(("drop", "total"), [(True, 120.0), (False, 190.0)])
def test_ragged_rows_do_not_keep_an_incomplete_last_step(drop: bool, total: float) -> None:
    lengths = np.arange(20) % 4
    rows = tf.Ragged.from_rows([np.full(n, float(i)) for i, n in enumerate(lengths)])

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        dense = np.arange(20.0)
        return tf.data.Dataset.from_tensor_slices((dense, rows)).batch(4, drop_remainder=drop)

    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    found = [
        strategy.run(lambda pair: pair[0].sum(), args=(step,)).values
        for step in strategy.distribute_datasets_from_function(make)
    ]
    assert sum(map(sum, found)) == total
