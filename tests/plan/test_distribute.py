"""The node of a distributed dataset: its properties, and that no rewrite rule crosses it."""

import pickle
import threading

import numpy as np
import pytest

from penstock.data.dataset import Dataset
from penstock.data.file_datasets import TextLineDataset
from penstock.element.spec import TensorSpec
from penstock.errors import NotFoundError
from penstock.plan import nodes as n
from penstock.plan.codec import decode, encode, fingerprint
from penstock.plan.functions import Function
from penstock.plan.optimize import prepare
from penstock.plan.options import AutoShardPolicy, Options, ShardingPolicy
from penstock.plan.resume import seeds_of, structure, with_seeds
from penstock.plan.shard import shard_plan
from penstock.plan.show import explain


def distribute_plan(dataset, **fields):
    plan = dataset if isinstance(dataset, n.Node | None) else dataset.__plan__
    return n.Distribute(plan, **{"service": "grpc://a:1", "mode": 1, **fields})


def double_number(x):
    return x * 2


TEN = Dataset.range(10)
UNKNOWN = distribute_plan(None, dataset_id="7", element=TensorSpec([3], np.int32))


def test_what_it_knows():
    node = distribute_plan(TEN)
    assert node.label == "distribute"
    assert node.blocked == "distribute: the service decides which worker computes which elements"
    assert node.cardinality == 10
    assert distribute_plan(TEN, job_name="shared").cardinality == n.UNKNOWN
    assert distribute_plan(TEN, mode=ShardingPolicy.OFF).cardinality == n.UNKNOWN
    assert distribute_plan(TEN.filter(bool)).cardinality == n.UNKNOWN
    assert distribute_plan(TEN.repeat()).cardinality == n.INFINITE
    assert Dataset(node).element_spec == TEN.element_spec


@pytest.mark.parametrize("mode", ShardingPolicy)
def test_an_empty_dataset_has_no_elements_in_any_mode(mode):
    assert distribute_plan(TEN.take(0), mode=mode).cardinality == 0
    assert distribute_plan(TEN.take(0), mode=mode, job_name="shared").cardinality == 0
    assert distribute_plan(None, mode=mode, known=0).cardinality == 0


@pytest.mark.parametrize("mode", ShardingPolicy)
def test_an_endless_dataset_may_end_where_its_source_is_divided(mode):
    stays = mode in (ShardingPolicy.OFF, ShardingPolicy.DYNAMIC, ShardingPolicy.DATA)
    expected = n.INFINITE if stays else n.UNKNOWN
    assert distribute_plan(TEN.repeat(), mode=mode).cardinality == expected
    assert distribute_plan(None, mode=mode, known=n.INFINITE).cardinality == expected


def test_a_dataset_that_only_the_dispatcher_knows():
    assert UNKNOWN.cardinality == n.UNKNOWN
    assert distribute_plan(None, known=n.INFINITE).cardinality == n.INFINITE
    assert distribute_plan(None, known=n.INFINITE).inputs == ()
    assert Dataset(UNKNOWN).element_spec == TensorSpec([3], np.int32)
    assert Dataset(UNKNOWN).batch(2).element_spec == TensorSpec([None, 3], np.int32)


# Iterations


def test_repetitions_are_counted():
    repetitions = n.IterationCounter()
    assert [repetitions.begin(), repetitions.begin()] == [0, 1]
    repetitions.resume(6)
    repetitions.resume(2)
    assert repetitions.begin() == 7
    assert pickle.loads(pickle.dumps(repetitions)).begin() == 0


def test_repetitions_are_counted_once_by_many_threads():
    repetitions, found = n.IterationCounter(), []
    threads = [
        threading.Thread(target=lambda: found.extend(repetitions.begin() for _ in range(200)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(800))


def test_repetitions_are_no_part_of_a_plans_identity():
    first, second = distribute_plan(TEN), distribute_plan(TEN)
    assert first != second
    assert fingerprint(first) == fingerprint(second)
    assert structure(first) == structure(second)
    assert distribute_plan(TEN, iterations=first.iterations) == first


def test_plans_travel_without_what_was_found_out_about_them():
    plan = n.Batch(distribute_plan(TEN.map(double_number)), 2)
    data = encode(plan)
    hash(plan), plan.blocked, plan.inputs[0].cardinality
    assert encode(plan) == data
    again = decode(data)
    assert fingerprint(again) == fingerprint(plan)
    assert set(again.__dict__) == {"input", "size", "drop_remainder", "parallel", "deterministic"}


def test_specs_that_are_known_travel():
    calls = []

    def note_call(x):
        calls.append(x)
        return x

    dataset = Dataset.range(10).map(note_call).ragged_batch(2)
    assert dataset.element_spec is not None
    again = decode(encode(dataset.__plan__))
    assert again.found_spec == (dataset.element_spec, True)


# States


@pytest.mark.parametrize(
    "fields",
    [
        {"service": "local://3"},
        {"transfer": "tcp"},
        {"compression": "AUTO"},
        {"max_outstanding": 3},
        {"target": "LOCAL"},
        {"dataset_id": "1001"},
        {"job_name": "other"},
        {"consumer_index": 1},
    ],
)
def test_states_fit_wherever_it_is_computed(fields):
    assert structure(distribute_plan(TEN, **fields)) == structure(distribute_plan(TEN))


@pytest.mark.parametrize("fields", [{"mode": 0}, {"num_consumers": 2}])
def test_states_do_not_fit_where_elements_differ(fields):
    assert structure(distribute_plan(TEN, **fields)) != structure(distribute_plan(TEN))
    assert structure(distribute_plan(Dataset.range(11))) != structure(distribute_plan(TEN))


def test_seeds_inside_belong_to_the_state():
    node = distribute_plan(TEN.shuffle(10, seed=3))
    assert seeds_of(node) == seeds_of(node.input)
    again = with_seeds(node, [9])
    assert again.input.seed == 9
    assert again.iterations is node.iterations


# The seal


def test_what_is_inside_stays_as_it_is_written():
    inside = TEN.map(double_number, 2).take(5).with_options(Options(deterministic=False)).__plan__
    outside = n.Take(n.Take(n.Prefetch(distribute_plan(inside), 2), 5), 3)
    run = prepare(outside)
    assert isinstance(run, n.Prefetch)
    assert run.input.count == 3
    assert run.input.input.input is inside


def test_nothing_moves_across():
    for plan in (n.Take(distribute_plan(TEN), 2), n.Shuffle(distribute_plan(TEN), 5, 1)):
        assert prepare(plan) is plan


def test_options_count_on_their_side():
    inner, outer = Options(deterministic=False), Options(executor="inline")
    node = distribute_plan(TEN.with_options(inner))
    mapped = n.Map(node, Function(double_number), 2)
    assert n.options_of(node) == inner
    assert n.options_of(mapped) == Options()
    assert n.options_of(n.WithOptions(mapped, outer)) == outer
    assert prepare(mapped).deterministic is None


# Sharding by a strategy


def with_policy(plan, policy):
    options = Options()
    options.experimental_distribute.auto_shard_policy = policy
    return n.WithOptions(plan, options.make_frozen())


@pytest.mark.parametrize("policy", ["AUTO", "DATA", "FILE"])
def test_readers_of_a_named_job_share_already(policy):
    plan = with_policy(distribute_plan(TEN, job_name="a"), AutoShardPolicy[policy])
    found = shard_plan(plan, 2, 0)
    assert (found.plan, found.policy) == (plan, AutoShardPolicy.OFF)
    assert "distribute gives each worker its own elements already" in found.reason


@pytest.mark.parametrize("policy", ["AUTO", "DATA"])
def test_an_anonymous_job_is_sharded_by_element(policy):
    plan = with_policy(distribute_plan(TEN.map(double_number, 2)), AutoShardPolicy[policy])
    sharding = shard_plan(plan, 2, 1)
    assert sharding.policy is AutoShardPolicy.DATA
    shard = sharding.plan.input
    assert isinstance(shard, n.Shard)
    assert n.options_of(shard.input).deterministic is True


def test_an_anonymous_job_has_no_files():
    plan = with_policy(distribute_plan(TextLineDataset(["a", "b"])), AutoShardPolicy.FILE)
    with pytest.raises(NotFoundError, match="distribute needs the elements of all files"):
        shard_plan(plan, 2, 0)


# explain()


@pytest.mark.parametrize(
    ("node", "lines"),
    [
        (distribute_plan(TEN.map(double_number)), ["random access: any worker computes any range"]),
        (distribute_plan(TEN.filter(bool)), ["10 pieces, delivered in order"]),
        (distribute_plan(TEN.repeat().filter(bool)), ["pieces without end, delivered in order"]),
        (distribute_plan(Dataset.range(1).filter(bool)), ["1 piece: there is nothing to divide"]),
        (distribute_plan(TextLineDataset(["a", "b"])), ["2 pieces, delivered in order"]),
        (distribute_plan(TEN.unique()), ["one stream: one worker after the other"]),
        (
            distribute_plan(TEN.filter(bool).batch(2)),
            [
                "distributed_epoch of filter and all before it, 10 pieces, delivered in order",
                "batch and all after it run in the client",
            ],
        ),
        (
            distribute_plan(TEN.filter(bool).batch(2), job_name="a"),
            ["one stream", "all readers of the job 'a' share the elements"],
        ),
        (distribute_plan(TEN, mode=0), ["parallel_epochs: every worker makes all of it"]),
        (distribute_plan(TEN, mode=3), ["DATA: each worker makes its own part"]),
        (UNKNOWN, ["the dispatcher knows how it is divided"]),
    ],
)
def test_explain_says_how_the_work_is_shared(node, lines):
    text = explain(n.Batch(node, 2))
    assert "distribute(service='grpc://a:1'" in text
    found = [line.strip() for line in text.splitlines() if line.strip().startswith("- ")]
    [memory] = [line for line in found if line.startswith("- a reader requests up to")]
    assert memory.endswith("ahead, and at most an eighth of the machine's memory")
    found.remove(memory)
    assert len(found) == len(lines)
    for line, words in zip(found, lines, strict=True):
        assert words in line


def test_explain_says_how_much_a_reader_holds():
    options = Options()
    options.service.reader_memory = 123456
    assert "at most 123456 bytes" in explain(
        n.WithOptions(distribute_plan(TEN), options.make_frozen())
    )
    limited = distribute_plan(TEN, max_outstanding=7)
    assert "- a reader requests up to 7 elements ahead" in explain(limited)


def test_explain_says_what_each_worker_does_to_its_share():
    options = Options()
    options.service.stateful = "per_worker"
    text = explain(distribute_plan(TEN.filter(bool).batch(2).with_options(options)))
    assert "every worker runs all operators on its share of the source" in text


def test_policies_are_those_of_tensorflow():
    assert [policy.name for policy in ShardingPolicy] == [
        *("OFF", "DYNAMIC", "FILE", "DATA", "FILE_OR_DATA", "HINT")
    ]
