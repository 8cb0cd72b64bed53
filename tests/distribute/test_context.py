"""The context of code: under which strategy and as which replica it runs."""

import contextvars
import threading
from typing import Any

import pytest

import penstock as tf
from penstock.distribute import (
    MirroredStrategy,
    OneDeviceStrategy,
    ReplicaContext,
    experimental_set_strategy,
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)
from penstock.distribute.replica_context import require_cross_replica
from penstock.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError


@pytest.fixture
def two() -> MirroredStrategy:
    return MirroredStrategy(["CPU:0", "CPU:1"])


def test_outside_of_everything() -> None:
    replica = get_replica_context()
    assert replica is not None
    assert (replica.replica_id_in_sync_group, replica.num_replicas_in_sync) == (0, 1)
    assert not in_cross_replica_context()
    assert not has_strategy()
    assert get_strategy() is replica.strategy
    assert get_strategy().num_replicas_in_sync == 1
    assert repr(replica) == "<ReplicaContext replica 0 of 1>"


def test_the_default_context_merges_alone() -> None:
    replica = get_replica_context()
    assert replica is not None
    assert replica.all_reduce("SUM", 3.0) == 3.0
    assert replica.all_gather(tf.constant([1, 2]), axis=0).tolist() == [1, 2]
    seen = replica.merge_call(
        lambda strategy, x, k: (strategy is get_strategy(), in_cross_replica_context(), x, k),
        args=(1,),
        kwargs={"k": 2},
    )
    assert seen == (True, True, 1, 2)
    assert not in_cross_replica_context()


def test_under_a_scope(two: MirroredStrategy) -> None:
    with two.scope() as entered:
        assert entered is two
        assert get_strategy() is two
        assert has_strategy()
        assert in_cross_replica_context()
        assert get_replica_context() is None
        with two.scope():
            assert get_strategy() is two
        assert get_strategy() is two
    assert not has_strategy()


def test_a_scope_is_entered_again(two: MirroredStrategy) -> None:
    scope = two.scope()
    with scope, two.scope(), scope:
        assert get_strategy() is two
    assert not has_strategy()
    with scope:
        assert get_strategy() is two
    assert not has_strategy()


def test_the_scope_of_the_default_strategy_changes_nothing(two: MirroredStrategy) -> None:
    default = get_strategy()
    with default.scope() as entered, default.scope():
        assert entered is default is get_strategy()
        assert get_replica_context() is not None
        assert not in_cross_replica_context()
        assert default.run(lambda: get_replica_context().merge_call(lambda _: 3)) == 3
        tf.Variable(1.0)
        with (
            two.scope(),
            pytest.raises(FailedPreconditionError, match="Variable: called under a scope inside"),
        ):
            tf.Variable(1.0)
    with two.scope():
        tf.Variable(1.0)
        with pytest.raises(FailedPreconditionError, match="Strategy.scope: called under the scope"):
            default.scope().__enter__()


def test_a_scope_ends_with_an_error(two: MirroredStrategy) -> None:
    with pytest.raises(KeyError, match="x"), two.scope():
        raise KeyError("x")
    assert not has_strategy()


def test_inside_of_run(two: MirroredStrategy) -> None:
    def ask() -> Any:
        replica = get_replica_context()
        assert replica is not None
        assert get_strategy() is two is replica.strategy
        assert has_strategy()
        assert not in_cross_replica_context()
        return replica.replica_id_in_sync_group, replica.num_replicas_in_sync, replica.devices

    ids, total, (devices,) = two.run(ask)
    assert ids.values == (0, 1)
    assert total == 2
    assert devices.values == tuple(
        f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(2)
    )


def test_scopes_of_two_strategies_do_not_mix(two: MirroredStrategy) -> None:
    other = OneDeviceStrategy("CPU:0")
    message = "Strategy.scope: called under the scope of another strategy, and mixing strategies"
    entered = other.scope()
    with two.scope():
        with pytest.raises(FailedPreconditionError, match=message):
            entered.__enter__()
        with pytest.raises(FailedPreconditionError, match=message), other.scope():
            pass
        with pytest.raises(FailedPreconditionError, match="Strategy.run: called under the scope"):
            other.run(lambda: 1)


def test_places_belong_to_threads(two: MirroredStrategy) -> None:
    found: list[bool] = []
    with two.scope():
        thread = threading.Thread(target=lambda: found.append(has_strategy()))
        if hasattr(thread, "_context"):  # Python 3.14 may copy the context.
            thread = threading.Thread(
                target=lambda: found.append(contextvars.Context().run(has_strategy))
            )
        thread.start()
        thread.join()
    assert found == [False]


def test_set_strategy(two: MirroredStrategy) -> None:
    experimental_set_strategy(two)
    try:
        assert get_strategy() is two
        assert has_strategy()
        assert in_cross_replica_context()
        with pytest.raises(FailedPreconditionError, match="Strategy.scope: called under the scope"):
            OneDeviceStrategy("CPU:0").scope().__enter__()
        with two.scope():
            experimental_set_strategy(None)
            assert get_strategy() is two
    finally:
        experimental_set_strategy(None)
    assert not has_strategy()


def test_setting_the_default_strategy_is_setting_none(two: MirroredStrategy) -> None:
    default = get_strategy()
    experimental_set_strategy(two)
    experimental_set_strategy(default)
    assert not in_cross_replica_context()


def test_set_strategy_refuses(two: MirroredStrategy) -> None:
    with pytest.raises(InvalidTypeError, match="experimental_set_strategy: needs a strategy or"):
        experimental_set_strategy("two")
    with pytest.raises(
        FailedPreconditionError, match="experimental_set_strategy: called inside Strategy.run"
    ):
        two.run(lambda: experimental_set_strategy(None))
    for other in (two, None):
        with (
            two.scope(),
            pytest.raises(FailedPreconditionError, match="set_strategy: called under the scope of"),
        ):
            experimental_set_strategy(other)


def test_contexts_made_by_hand_only_report(two: MirroredStrategy) -> None:
    replica = ReplicaContext(two, 1)
    assert replica.replica_id_in_sync_group == 1
    assert replica.devices == ("/job:localhost/replica:0/task:0/device:CPU:1",)
    with pytest.raises(FailedPreconditionError, match="merge_call: this is not the context of a"):
        replica.merge_call(lambda strategy: 1)


def test_contexts_do_not_outlive_their_run(two: MirroredStrategy) -> None:
    kept: list[Any] = []
    two.run(lambda: kept.append(get_replica_context()))
    with pytest.raises(FailedPreconditionError, match="merge_call: this is not the context of a"):
        kept[0].merge_call(lambda strategy: 1)


def test_merge_call_needs_a_function(two: MirroredStrategy) -> None:
    with pytest.raises(InvalidTypeError, match="merge_call: needs a function to call, got 3"):
        two.run(lambda: get_replica_context().merge_call(3))  # type: ignore[union-attr]


def test_input_is_asked_for_outside_of_run(two: MirroredStrategy) -> None:
    def ask() -> None:
        require_cross_replica(two, "DistributedIterator.get_next")

    ask()
    with two.scope():
        ask()
    with pytest.raises(InvalidArgumentError, match="get_next: called inside Strategy.run, as rep"):
        two.run(ask)
    with (
        OneDeviceStrategy("CPU:0").scope(),
        pytest.raises(FailedPreconditionError, match="get_next: called under the scope of another"),
    ):
        ask()
