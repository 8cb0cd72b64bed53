"""`run(..., jit=True)` and global arrays: one program for all replicas, nothing copied."""

from __future__ import annotations

import json
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import penstock as tf
from penstock.distribute import Mirrored, MirroredStrategy, PerReplica, get_replica_context
from penstock.distribute.backends import jax_compiled
from penstock.distribute.backends.jax_global import from_global, to_global
from penstock.errors import (
    DisagreementError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    UnimplementedError,
)
from tests.distribute.workers.team import addresses, run_processes

COUNT = 4


@pytest.fixture
def strategy():
    return MirroredStrategy([f"CPU:{i}" for i in range(COUNT)], backend="jax")


def place_arrays(strategy, *arrays) -> PerReplica:
    handles = [device.handle for device in strategy._replicas.devices]
    return PerReplica([jax.device_put(a, h) for a, h in zip(arrays, handles, strict=True)])


@pytest.fixture
def rows(strategy) -> PerReplica:
    return place_arrays(
        strategy, *[np.arange(6.0, dtype=np.float32).reshape(3, 2) + i for i in range(COUNT)]
    )


def values(distributed) -> list:
    return [np.asarray(value).tolist() for value in distributed.values]


def test_every_replica_gets_its_own_value_and_gives_its_own_result(strategy, rows):
    doubled, total = strategy.run(lambda x: (2 * x, x.sum()), args=(rows,), jit=True)
    assert values(doubled) == [(2 * np.asarray(x)).tolist() for x in rows.values]
    assert values(total) == [float(np.asarray(x).sum()) for x in rows.values]
    for i, value in enumerate(doubled.values):
        assert value.devices() == rows.values[i].devices()
        assert total.values[i].shape == ()


def test_numbers_of_replicas_common_arrays_and_named_arguments_go_in(strategy):
    factors = place_arrays(strategy, *np.arange(COUNT, dtype=np.float32))
    common = np.array([1.0, 10.0], np.float32)
    result = strategy.run(
        lambda factor, *, rows, more: {"found": factor * rows + more},
        args=(factors,),
        kwargs={"rows": common, "more": 1},
        jit=True,
    )
    assert values(result["found"]) == [[i + 1.0, 10.0 * i + 1] for i in range(COUNT)]


def test_what_is_no_array_is_a_constant_and_comes_back_as_it_is(strategy, rows):
    def step(x, mode):
        return {"mode": mode, "nothing": None, "rows": x if mode == "same" else -x}

    result = strategy.run(step, args=(rows, "same"), jit=True)
    assert result["mode"] == "same"
    assert result["nothing"] is None
    assert values(result["rows"]) == values(rows)
    other = strategy.run(step, args=(rows, "negative"), jit=True)
    assert values(other["rows"]) == [(-np.asarray(x)).tolist() for x in rows.values]


def test_a_function_of_nothing_runs(strategy):
    def who():
        context = get_replica_context()
        return context.replica_id_in_sync_group, context.num_replicas_in_sync

    numbers, count = strategy.run(who, jit=True)
    assert values(numbers) == [0, 1, 2, 3]
    assert values(count) == [COUNT] * COUNT


@pytest.mark.parametrize(("op", "expected"), [("SUM", 6.0), (tf.distribute.ReduceOp.MEAN, 1.5)])
def test_all_reduce_is_part_of_the_program(strategy, op, expected):
    numbers = place_arrays(strategy, *np.arange(COUNT, dtype=np.float32))

    def step(x):
        found = get_replica_context().all_reduce(op, {"x": [x, x[None]]})
        return found["x"]

    first, second = strategy.run(step, args=(numbers,), jit=True)
    assert values(first) == [expected] * COUNT
    assert values(second) == [[expected]] * COUNT


def test_the_mean_of_whole_numbers_has_fractions(strategy):
    numbers = place_arrays(strategy, *np.arange(COUNT, dtype=np.int32))
    step = lambda x: get_replica_context().all_reduce("mean", x)  # noqa: E731
    assert values(strategy.run(step, args=(numbers,), jit=True)) == [1.5] * COUNT


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_all_gather_is_part_of_the_program(strategy, rows, axis):
    step = lambda x: get_replica_context().all_gather(x, axis)  # noqa: E731
    found = strategy.run(step, args=(rows,), jit=True)
    expected = np.concatenate([np.asarray(x) for x in rows.values], axis).tolist()
    assert values(found) == [expected] * COUNT


def test_the_program_is_compiled_once_for_each_kind_of_arguments(strategy, rows):
    traced = []

    def step(x):
        traced.append(x.shape)
        return x + 1

    for _ in range(3):
        strategy.run(step, args=(rows,), jit=True)
    assert traced == [(3, 2)]
    strategy.run(step, args=(place_arrays(strategy, *[np.ones(5)] * COUNT),), jit=True)
    assert traced == [(3, 2), (5,)]


def test_arguments_and_results_are_not_copied(strategy, rows):
    pointers = [x.unsafe_buffer_pointer() for x in rows.values]
    seen = []
    run = jax_compiled._Program.__call__

    def note_pointers(self, arrays, here):
        seen.extend(shard.data.unsafe_buffer_pointer() for shard in arrays[0].addressable_shards)
        return run(self, arrays, here)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax_compiled._Program, "__call__", note_pointers)
        strategy.run(lambda x: x + 1, args=(rows,), jit=True)
    assert seen == pointers


def test_one_replica_gets_and_gives_bare_values():
    strategy = tf.distribute.OneDeviceStrategy(jax.devices()[2])
    found = strategy.run(lambda x: x + 1, args=(np.arange(3),), jit=True)
    assert found.tolist() == [1, 2, 3]
    assert found.devices() == {jax.devices()[2]}


def test_a_step_of_training_is_the_same_as_without_jit(strategy):
    dataset = tf.data.Dataset.from_tensor_slices(
        (np.arange(32, dtype=np.float32).reshape(16, 2), np.arange(16, dtype=np.float32))
    ).batch(8)

    def step(weights, batch):
        x, y = batch
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(weights)
        gradient = get_replica_context().all_reduce("MEAN", gradient)
        return weights - 1e-4 * gradient, loss

    weights = {}
    for jit in (False, True):
        current = np.zeros(2, np.float32)
        for batch in strategy.experimental_distribute_dataset(dataset):
            current, _ = strategy.run(step, args=(current, batch), jit=jit)
        weights[jit] = [np.asarray(value) for value in current.values]
    np.testing.assert_allclose(weights[True], weights[False], rtol=1e-5)
    np.testing.assert_allclose(weights[True], [weights[True][0]] * COUNT)


def test_portions_of_different_lengths_are_refused(strategy):
    uneven = place_arrays(strategy, *[np.ones(n) for n in (3, 3, 3, 1)])
    with pytest.raises(InvalidArgumentError, match="jit=True.*different shapes.*last_batch='pad'"):
        strategy.run(lambda x: x, args=(uneven,), jit=True)


def test_arguments_of_different_structures_are_refused(strategy):
    odd = PerReplica([(1, 2), (1, 2), (1, 2), (1,)])
    with pytest.raises(DisagreementError, match="arguments have different structures"):
        strategy.run(lambda x: 0, args=(odd,), jit=True)


def test_what_cannot_be_a_constant_is_refused(strategy):
    for value in ({1, 2}, PerReplica(["a", "b", "a", "a"])):
        with pytest.raises(InvalidArgumentError, match="neither an array nor a constant"):
            strategy.run(lambda x: 0, args=(value,), jit=True)


def test_merge_call_is_refused(strategy):
    step = lambda: get_replica_context().merge_call(lambda strategy: 0)  # noqa: E731
    with pytest.raises(UnimplementedError, match="merge_call: not possible inside.*jit=True"):
        strategy.run(step, jit=True)


def test_single_numbers_cannot_be_gathered(strategy):
    step = lambda: get_replica_context().all_gather(jnp.float32(1), 0)  # noqa: E731
    with pytest.raises(InvalidArgumentError, match=r"all_gather: axis 0 .*value\[None\]"):
        strategy.run(step, jit=True)


def test_strings_are_refused_by_their_place(strategy, rows):
    strings = np.array([b"a"], object)
    message = r"args\[1\]\['name'\] holds strings, which JAX does not have; leave it out"
    differing = PerReplica([b"a", b"b", b"a", b"a"])
    for names in (strings, PerReplica([strings] * COUNT), np.array(["a"]), differing):
        with pytest.raises(InvalidArgumentError, match=message):
            strategy.run(lambda x, d: x, args=(rows, {"name": names}), jit=True)
    with pytest.raises(InvalidArgumentError, match=r"kwargs\['x'\] holds strings"):
        strategy.run(lambda x: x, kwargs={"x": strings}, jit=True)
    assert (
        strategy.run(lambda x, name: name, args=(rows, b"same"), jit=True).values == (b"same",) * 4
    )


def test_tensors_of_torch_are_refused(strategy):
    with pytest.raises(InvalidArgumentError, match="jit=True.: got a tensor of torch.*'torch'"):
        strategy.run(lambda x: 0, args=(torch.ones(2),), jit=True)


def test_a_function_without_a_hash_is_refused(strategy):
    @dataclass
    class Step:
        size: int

        def __call__(self):
            return self.size

    with pytest.raises(
        InvalidTypeError, match="programs are kept by their function, but .* has no h"
    ):
        strategy.run(Step(1), jit=True)


@pytest.mark.parametrize(
    ("step", "error", "message"),
    [
        (lambda c: c.all_gather(jnp.ones(2), "a"), InvalidTypeError, "gather: axis must be an int"),
        (
            lambda c: c.all_gather(jnp.ones(2), 1),
            InvalidArgumentError,
            "axis 1 does not fit values",
        ),
        (
            lambda c: c.all_gather({"a": "x"}, 0),
            InvalidArgumentError,
            r"gather: value\['a'\] must be",
        ),
        (
            lambda c: c.all_reduce("SUM", "x"),
            InvalidArgumentError,
            "value must be an array or a num",
        ),
        (
            lambda c: c.all_reduce("SUM", [None]),
            InvalidArgumentError,
            r"value\[0\] is None, and needs",
        ),
        (
            lambda c: c.all_reduce("SUM", jnp.array(True)),
            InvalidArgumentError,
            "needs numbers, got tru",
        ),
        (lambda c: c.all_reduce("MAX", 1.0), InvalidArgumentError, "all_reduce: reduce_op must be"),
    ],
)
def test_what_is_wrong_inside_a_program_is_said(strategy, step, error, message):
    with pytest.raises(error, match=message) as caught:
        strategy.run(lambda: step(get_replica_context()), jit=True)
    assert caught.value.__notes__[0] == "while tracing for all 4 replicas"


def test_truth_values_are_no_numbers_with_and_without_jit(strategy):
    for jit in (False, True):
        step = lambda: get_replica_context().all_reduce("SUM", jnp.array(True))  # noqa: E731
        with pytest.raises(InvalidArgumentError, match="all_reduce: needs numbers.*bool"):
            strategy.run(step, jit=jit)


def test_variables_are_refused(strategy):
    with strategy.scope():
        variable = tf.Variable(1.0)
    with pytest.raises(FailedPreconditionError, match="variables, devices and input"):
        strategy.run(lambda: variable + 1, jit=True)


def test_replicas_that_share_a_device_are_refused():
    with pytest.warns(UserWarning, match="GPU:0"):
        strategy = MirroredStrategy(["GPU:0", "CPU:0"], backend="jax")
    with pytest.raises(InvalidArgumentError, match="several replicas share a device"):
        strategy.run(lambda: 0, jit=True)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_global_array_is_the_same_memory(strategy, rows, axis):
    whole = to_global(rows, axis)
    expected = np.concatenate([np.asarray(x) for x in rows.values], axis)
    np.testing.assert_array_equal(whole, expected)
    assert isinstance(whole.sharding, jax.sharding.NamedSharding)
    back = PerReplica.from_global(whole)
    assert repr(rows.to_global(axis).sharding) == repr(whole.sharding)
    assert isinstance(back, PerReplica)
    for piece, value in zip(back.values, rows.values, strict=True):
        assert piece.unsafe_buffer_pointer() == value.unsafe_buffer_pointer()
        assert piece.devices() == value.devices()


def test_trees_and_mirrored_values_become_global(strategy):
    one = place_arrays(strategy, *[np.arange(3)] * COUNT)
    tree = to_global({"whole": Mirrored(one.values), "parts": (one, 7)})
    assert tree["whole"].shape == (3,)
    assert tree["whole"].is_fully_replicated
    assert tree["parts"][0].shape == (12,)
    assert tree["parts"][1] == 7
    assert values(from_global(tree["whole"])) == [[0, 1, 2]] * COUNT


def test_what_cannot_be_global_is_refused(strategy, rows):
    with pytest.raises(InvalidTypeError, match="to_global: needs arrays of JAX"):
        to_global(PerReplica([np.arange(3), np.arange(3)]))
    with pytest.raises(InvalidArgumentError, match="to_global: axis 2 does not fit values"):
        to_global(rows, 2)
    with pytest.raises(InvalidArgumentError, match="to_global: the replicas' values.*different"):
        to_global(place_arrays(strategy, *[np.ones(n) for n in (1, 2, 3, 4)]))
    with pytest.raises(InvalidTypeError, match="from_global: needs a jax.Array, got"):
        from_global(np.arange(3))
    with pytest.raises(InvalidArgumentError, match="to_global: several replicas share a device"):
        to_global(PerReplica([rows.values[0]] * 2))


MEMBER = """
import json, sys
import numpy as np
from penstock.distribute import PerReplica, get_replica_context
from penstock.distribute.cluster_resolver import SimpleClusterResolver
from penstock.distribute.multiworker import MultiWorkerMirroredStrategy
from tests.distribute.workers.team import say

index, where = json.loads(sys.argv[1])
strategy = MultiWorkerMirroredStrategy(
    SimpleClusterResolver(where, task_id=index), backend="jax", devices=["CPU:0", "CPU:1"]
)
first = 10.0 * strategy._replicas.first

def step(x, common):
    context = get_replica_context()
    return context.replica_id_in_sync_group, context.all_reduce("SUM", x) + common

own = PerReplica([np.array([first]), np.array([first + 10])])
found = strategy.run(step, args=(own, np.float32(0.5)), jit=True)
say("found", [[np.asarray(value).tolist() for value in part.values] for part in found])
"""


def test_replicas_of_all_processes_are_one_program():
    where = addresses(2)
    said = run_processes([["-c", MEMBER, json.dumps([index, where])] for index in range(2)])
    for index, one in enumerate(said):
        assert one["found"] == [[2 * index, 2 * index + 1], [[60.5], [60.5]]]
