"""Strategies: their constructors, their properties, and the values and updates they distribute."""

import copy
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import penstock as tf
from penstock.distribute import (
    Mirrored,
    MirroredStrategy,
    OneDeviceStrategy,
    PerReplica,
    RunOptions,
    Strategy,
    TPUStrategy,
    get_replica_context,
    get_strategy,
)
from penstock.distribute.devices import LogicalCpus
from penstock.errors import (
    DisagreementError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
)


def local(index: int) -> str:
    return f"/job:localhost/replica:0/task:0/device:CPU:{index}"


@pytest.fixture
def two() -> MirroredStrategy:
    return MirroredStrategy(["CPU:0", "CPU:1"])


def test_what_a_strategy_reports(two: MirroredStrategy) -> None:
    assert isinstance(two, Strategy)
    assert two.num_replicas_in_sync == 2
    assert two.cluster_resolver is None
    assert two.extended.worker_devices == (local(0), local(1))
    assert two.extended.parameter_devices == two.extended.worker_devices
    assert repr(two) == "<MirroredStrategy numpy CPU:0, CPU:1>"


def test_all_devices_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogicalCpus, "count", 3)
    assert MirroredStrategy().num_replicas_in_sync == 3
    assert MirroredStrategy([]).num_replicas_in_sync == 3


def test_devices_are_checked() -> None:
    with pytest.raises(DisagreementError, match="MirroredStrategy: devices must differ"):
        MirroredStrategy(["CPU:0", "CPU:0"])
    with pytest.raises(InvalidArgumentError, match="OneDeviceStrategy: 'xyz' is no device"):
        OneDeviceStrategy("xyz")
    with pytest.raises(InvalidArgumentError, match="MirroredStrategy: backend must be one of"):
        MirroredStrategy(["CPU:0"], "tensorflow")


def test_one_device() -> None:
    strategy = OneDeviceStrategy("CPU:1")
    assert strategy.num_replicas_in_sync == 1
    assert strategy.extended.worker_devices == (local(1),)
    assert strategy.run(lambda: get_replica_context().devices) == (local(1),)  # type: ignore[union-attr]


def test_tpus_or_as_many_logical_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogicalCpus, "count", 2)
    with pytest.warns(UserWarning, match="TPUStrategy: backend 'jax' has no TPU:0, TPU:1"):
        strategy = TPUStrategy()
    assert strategy.num_replicas_in_sync == 2
    assert all(isinstance(one, jax.Array) for one in strategy.run(lambda: jnp.ones(1)).values)
    with pytest.warns(UserWarning, match="TPUStrategy: backend 'numpy' has no TPU:0"):
        assert tf.distribute.experimental.TPUStrategy(backend="numpy").num_replicas_in_sync == 2


def test_run_options_are_accepted(two: MirroredStrategy) -> None:
    assert two.run(lambda: None, options=RunOptions()) is None


def test_values_from_a_function(two: MirroredStrategy) -> None:
    make = two.experimental_distribute_values_from_function
    value = make(lambda c: {"a": (c.replica_id_in_sync_group, [c.num_replicas_in_sync]), "n": None})
    assert value["a"][0].values == (0, 1)
    assert value["a"][1][0].values == (2, 2)
    assert value["n"].values == (None, None)
    assert isinstance(make(lambda c: "same"), PerReplica)
    one = MirroredStrategy(["CPU:0"]).experimental_distribute_values_from_function(lambda c: 1)
    assert one.values == (1,)


def test_values_from_a_function_are_bare_without_replicas() -> None:
    for strategy in (OneDeviceStrategy("CPU:0"), get_strategy()):
        make = strategy.experimental_distribute_values_from_function
        assert make(lambda c: [c.replica_id_in_sync_group, c.num_replicas_in_sync]) == [0, 1]


def test_values_from_a_function_stand_on_their_devices() -> None:
    strategy = MirroredStrategy(["CPU:0", "CPU:1"], "torch")
    value = strategy.experimental_distribute_values_from_function(lambda c: (np.ones(2), "text"))
    assert all(isinstance(one, torch.Tensor) for one in value[0].values)
    assert value[1].values == ("text", "text")


def test_values_from_a_function_refuses(two: MirroredStrategy) -> None:
    make = two.experimental_distribute_values_from_function
    name = "Strategy.experimental_distribute_values_from_function"
    with pytest.raises(InvalidTypeError, match=f"{name}: needs a function to call, got 3"):
        make(3)  # type: ignore[arg-type]
    with pytest.raises(DisagreementError, match=f"{name}: value_fn returned different structures"):
        make(lambda c: (1,) * c.replica_id_in_sync_group)
    with pytest.raises(FailedPreconditionError, match=f"{name}: called inside Strategy.run"):
        two.run(lambda: make(lambda c: 1))


def test_local_results(two: MirroredStrategy) -> None:
    value = two.run(lambda: {"id": get_replica_context().replica_id_in_sync_group})  # type: ignore[union-attr]
    assert two.experimental_local_results(value) == ({"id": 0}, {"id": 1})
    assert two.experimental_local_results(4) == (4,)
    assert two.experimental_local_results([4.0]) == ([4.0], [4.0])
    assert tf.distribute.get_strategy().experimental_local_results([4.0]) == ([4.0],)


def test_the_default_strategy_leaves_datasets_alone() -> None:
    default, dataset = get_strategy(), tf.data.Dataset.range(3)
    assert default.experimental_distribute_dataset(dataset) is dataset
    seen: list[int] = []

    def make(context: Any) -> Any:
        seen.append(context.num_input_pipelines)
        return dataset

    assert default.distribute_datasets_from_function(make) is dataset
    assert default.experimental_distribute_datasets_from_function(make) is dataset
    assert seen == [1, 1]


def test_datasets_under_their_old_name(two: MirroredStrategy) -> None:
    distributed = two.experimental_distribute_datasets_from_function(
        lambda context: tf.data.Dataset.range(4).batch(1)
    )
    assert [[int(x[0]) for x in value.values] for value in distributed] == [[0, 1], [2, 3]]


def test_reduce_to(two: MirroredStrategy) -> None:
    with two.scope():
        variable = tf.Variable(0.0)
    value = PerReplica((np.float32(1), np.float32(2)))
    total = two.extended.reduce_to("SUM", value, destinations="CPU:0")
    assert total == 3.0
    mirrored = two.extended.reduce_to("MEAN", value, destinations=variable)
    assert isinstance(mirrored, Mirrored)
    assert mirrored.values == (1.5, 1.5)
    results = two.extended.batch_reduce_to("SUM", [(value, variable), (value, "CPU:1")])
    assert [type(one) for one in results] == [Mirrored, np.float32]
    with pytest.raises(InvalidArgumentError, match="StrategyExtended.reduce_to: reduce_op must be"):
        two.extended.reduce_to("MAX", value, variable)


def test_update_changes_each_copy_by_its_own_arguments(two: MirroredStrategy) -> None:
    with two.scope():
        variable = tf.Variable(1.0)
    result = two.extended.update(
        variable,
        lambda v, x, k: v.assign_add(x * k),
        args=(PerReplica((np.float32(1), np.float32(2))),),
        kwargs={"k": Mirrored((np.float32(10), np.float32(10)))},
    )
    assert isinstance(result, Mirrored)
    assert result.values == (11.0, 21.0)
    assert [float(copy) for copy in variable.values] == [11.0, 21.0]


def test_update_without_a_group_gives_what_each_copy_gave(two: MirroredStrategy) -> None:
    with two.scope():
        variable = tf.Variable(1.0)
    update = two.extended.update
    assert update(variable, lambda v: v + 1, group=False) == (2.0, 2.0)
    assert update(variable, lambda v: [v + 1, None], group=False) == [(2.0, 2.0), (None,)]
    assert update(tf.Variable(1.0), lambda v: v + 1, group=False) == (2.0,)
    grouped = update(variable, lambda v: (v + 1, 5))
    assert (type(grouped[0]), grouped[1]) == (Mirrored, 5)


def test_update_of_anything_else(two: MirroredStrategy) -> None:
    alone = MirroredStrategy(["CPU:0"])
    with alone.scope():
        one = tf.Variable(1.0)
    assert alone.extended.update(one, lambda v: v.assign(2.0)) == 2.0
    plain = tf.Variable(1.0)
    assert two.extended.update(plain, lambda v, x: v.assign_sub(x), args=(3.0,)) == -2.0
    with pytest.raises(InvalidTypeError, match="StrategyExtended.update: needs a function"):
        two.extended.update(plain, 3)  # type: ignore[arg-type]


def test_update_results_must_have_one_structure(two: MirroredStrategy) -> None:
    with two.scope():
        variable = tf.Variable(1.0)
    with pytest.raises(DisagreementError, match="StrategyExtended.update: fn returned different"):
        two.extended.update(variable, lambda v, n: (v,) * n, args=(PerReplica((0, 1)),))


@pytest.mark.parametrize("call", ["reduce_to", "update"])
def test_extended_calls_belong_outside_of_run(two: MirroredStrategy, call: str) -> None:
    calls = {
        "reduce_to": lambda: two.extended.reduce_to("SUM", 1, "CPU:0"),
        "update": lambda: two.extended.update(1, lambda v: v),
    }
    with pytest.raises(FailedPreconditionError, match=f"StrategyExtended.{call}: called inside"):
        two.run(calls[call])


def test_who_made_a_variable(two: MirroredStrategy) -> None:
    with two.scope():
        variable = tf.Variable(1.0)
    assert two.extended.variable_created_in_scope(variable)
    assert not two.extended.variable_created_in_scope(tf.Variable(1.0))
    assert two.extended.value_container(variable.values[1]) is variable
    assert two.extended.value_container(variable) is variable


def test_a_strategy_is_not_copied(two: MirroredStrategy) -> None:
    assert copy.deepcopy({"strategy": two})["strategy"] is two
    assert copy.copy(two) is two


def test_a_strategy_is_not_pickled(two: MirroredStrategy) -> None:
    for strategy in (two, get_strategy()):
        message = (
            f"pickle: a {type(strategy).__name__} belongs to its process and its devices; make"
        )
        with pytest.raises(InvalidTypeError, match=message):
            pickle.dumps(strategy)


def test_run_compiles_one_program_with_jax() -> None:
    cpus = jax.devices("cpu")
    strategy = MirroredStrategy(cpus[:1])

    def step(x: Any) -> Any:
        replica = get_replica_context()
        assert replica is not None
        return replica.all_reduce("SUM", x) * 2

    assert float(strategy.run(step, args=(jnp.float32(3),), jit=True)) == 6.0
