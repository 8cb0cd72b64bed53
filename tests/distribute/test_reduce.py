"""Sums, means and concatenations over replicas, on every backend, and across workers."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import penstock as tf
from penstock.distribute import MirroredStrategy, OneDeviceStrategy, PerReplica, ReduceOp
from penstock.distribute.backends import load
from penstock.distribute.devices import Device
from penstock.distribute.replicas import Replicas
from penstock.distribute.strategy import Strategy
from penstock.errors import InvalidArgumentError, InvalidTypeError, UnimplementedError


def build_strategy(count: int, backend: str = "numpy") -> MirroredStrategy:
    return MirroredStrategy([f"CPU:{i}" for i in range(count)], backend)


def spread(strategy: Any, *values: Any) -> Any:
    return strategy.experimental_distribute_values_from_function(
        lambda context: np.array(values[context.replica_id_in_sync_group])
    )


def plain(strategy: Any, tensor: Any) -> Any:
    return strategy._replicas.backend.numpy(tensor).tolist()


@pytest.fixture(params=["numpy", "torch", "jax"])
def two(request: pytest.FixtureRequest) -> MirroredStrategy:
    return build_strategy(2, request.param)


F = np.float32


@pytest.mark.parametrize(
    ("values", "axis", "total", "mean"),
    [
        ([F(1), F(3)], None, 4.0, 2.0),
        ([[1, 2], [3, 5]], None, [4, 7], [2.0, 3.5]),
        ([F([1, 2]), F([3, 5])], 0, 11.0, 2.75),
        ([F([1, 2, 3]), F([10])], 0, 16.0, 4.0),
        ([F([1, 2, 3]), F([])], 0, 6.0, 2.0),
        ([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], 1, [14, 22], [3.5, 5.5]),
        ([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], -1, [14, 22], [3.5, 5.5]),
        ([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], (0, 1), 36, 4.5),
        ([[1, 2], [4]], 0, 7, 7 / 3),
        ([[1, 2], [4]], np.int64(0), 7, 7 / 3),
    ],
)
def test_sum_and_mean(
    two: MirroredStrategy, values: list[Any], axis: Any, total: Any, mean: Any
) -> None:
    value = spread(two, *values)
    assert plain(two, two.reduce(ReduceOp.SUM, value, axis)) == total
    assert plain(two, two.reduce("mean", value, axis)) == pytest.approx(mean)


def test_the_result_is_a_tensor_of_the_backend(two: MirroredStrategy) -> None:
    backend = two._replicas.backend
    for axis in (None, 0):
        assert backend.is_tensor(two.reduce("MEAN", spread(two, F([1]), F([2])), axis))
    assert backend.is_tensor(two.gather(spread(two, [1], [2]), 0))


def test_trees_are_reduced_leaf_by_leaf(two: MirroredStrategy) -> None:
    value = {"a": spread(two, 1, 2), "b": (spread(two, 3, 4), [spread(two, 5, 6)])}
    result = two.reduce("SUM", value, None)
    assert plain(two, result["a"]) == 3
    assert plain(two, result["b"][0]) == 7
    assert plain(two, result["b"][1][0]) == 11


def test_python_numbers_count(two: MirroredStrategy) -> None:
    value = PerReplica((1.5, 2))
    assert plain(two, two.reduce("SUM", value, None)) == 3.5


@pytest.mark.parametrize("call", ["reduce", "gather"])
def test_tensors_of_different_dtypes_are_refused(two: MirroredStrategy, call: str) -> None:
    value = spread(two, np.array([1], np.int32), np.array([1.5], np.float32))
    message = rf"Strategy.{call}: the replicas' values have the dtypes .*int32, .*float32; convert"
    calls = {"reduce": lambda: two.reduce("SUM", value, 0), "gather": lambda: two.gather(value, 0)}
    with pytest.raises(InvalidArgumentError, match=message):
        calls[call]()


def test_the_mean_of_nothing_is_no_number() -> None:
    strategy = build_strategy(2)
    assert np.isnan(strategy.reduce("MEAN", spread(strategy, F([]), F([])), 0))
    assert strategy.reduce("SUM", spread(strategy, F([]), F([])), 0) == 0.0


def test_a_value_for_all_replicas(two: MirroredStrategy) -> None:
    common = np.array([2.0, 4.0])
    assert two.reduce("MEAN", common, None) is common
    assert two.reduce("MEAN", "x", None) == "x"
    assert plain(two, two.reduce("MEAN", common, 0)) == 3.0
    assert plain(two, two.reduce("SUM", common, 0)) == 12.0
    assert plain(two, two.reduce("SUM", two.run(lambda: common), 0)) == 12.0
    with pytest.raises(InvalidArgumentError, match="axis 0 does not fit single numbers"):
        two.reduce("SUM", 5.0, 0)
    message = r"Strategy.reduce: SUM needs one value per replica, got 5.0 for all 2 together; pass"
    with pytest.raises(InvalidArgumentError, match=message):
        two.reduce("SUM", 5.0, None)


def test_one_replica_gives_what_it_has() -> None:
    for strategy in (build_strategy(1), OneDeviceStrategy("CPU:0"), tf.distribute.get_strategy()):
        value = strategy.run(lambda: np.array([1.0, 2.0]))
        assert strategy.reduce("SUM", value, None) is value
        assert strategy.reduce("SUM", 3, None) == 3
        assert strategy.reduce("MEAN", value, 0) == 1.5
        assert strategy.gather(value, 0) is value


def test_variables_are_reduced_as_their_values(two: MirroredStrategy) -> None:
    with two.scope():
        variable = tf.Variable([1.0, 2.0])
    assert plain(two, two.reduce("SUM", variable, None)) == [2.0, 4.0]
    assert plain(two, two.gather(variable, 0)) == [1.0, 2.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("kind", "value", "axis", "error", "message"),
    [
        ("MAX", 1, None, InvalidArgumentError, "reduce_op must be 'SUM' or 'MEAN', got 'MAX'"),
        (3, 1, None, InvalidTypeError, "reduce_op must be 'SUM' or 'MEAN', got 3"),
        (None, 1, None, InvalidTypeError, "reduce_op must be 'SUM' or 'MEAN', got None"),
        ("SUM", [[1], [2]], [0], InvalidTypeError, r"axis must be a tuple, got the list \[0\]"),
        ("SUM", [[1], [2]], "0", InvalidTypeError, "axis must be an int, ints or None, got '0'"),
        ("SUM", [[1], [2]], True, InvalidTypeError, "axis must be an int, ints or None, got True"),
        (
            "SUM",
            [[1], [2]],
            2,
            InvalidArgumentError,
            r"axis 2 does not fit values of shape \(1",
        ),
        ("SUM", [1, 2], 0, InvalidArgumentError, "axis 0 does not fit single numbers; pass axis="),
        ("SUM", [[1], [2]], (0, -1), InvalidArgumentError, r"axis \(0, -1\) names an axis twice"),
        (
            "SUM",
            [[1, 2], [1]],
            None,
            InvalidArgumentError,
            r"values of the shapes \(2,\), \(1,\) cannot be added; pass axis=0",
        ),
        (
            "SUM",
            [[True], [False]],
            0,
            InvalidArgumentError,
            r"needs numbers or .* \(bool\)",
        ),
    ],
)
def test_reduce_refuses(
    two: MirroredStrategy, kind: Any, value: Any, axis: Any, error: Any, message: str
) -> None:
    given = spread(two, *value) if isinstance(value, list) else value
    with pytest.raises(error, match=f"Strategy.reduce: {message}"):
        two.reduce(kind, given, axis)


def test_reduce_refuses_what_is_no_number() -> None:
    strategy = build_strategy(2)
    strings = PerReplica((np.array([b"a"], object),) * 2)
    for value, what in ((strings, "object"), (PerReplica(("a", "b")), "str")):
        message = rf"Strategy.reduce: needs numbers or tensors of backend 'numpy', got .*\({what}\)"
        with pytest.raises(InvalidArgumentError, match=message):
            strategy.reduce("SUM", value, None)


@pytest.mark.parametrize(
    ("backend", "tensor", "framework"),
    [
        ("numpy", torch.ones(2), "torch"),
        ("jax", torch.ones(2), "torch"),
        ("torch", jnp.ones(2), "jax"),
    ],
)
def test_tensors_of_another_framework_are_refused(
    backend: str, tensor: Any, framework: str
) -> None:
    strategy = build_strategy(2, backend)
    message = (
        f"got a tensor of {framework}, but here the backend is '{backend}'; make the strategy with "
        f"backend='{framework}'"
    )
    value = PerReplica((tensor, tensor))
    with pytest.raises(InvalidArgumentError, match=f"Strategy.reduce: {message}"):
        strategy.reduce("SUM", value, None)
    with pytest.raises(InvalidArgumentError, match=f"Strategy.gather: {message}"):
        strategy.gather(value, 0)
    with strategy.scope():
        variable = tf.Variable([1.0, 1.0])
        with pytest.raises(InvalidArgumentError, match=f"Variable: {message}"):
            tf.Variable(tensor)
    with pytest.raises(InvalidArgumentError, match=f"Variable.assign: {message}"):
        variable.assign(tensor)


def test_single_numbers_need_an_axis_to_be_gathered(two: MirroredStrategy) -> None:
    message = r"axis 0 does not fit single numbers; give them an axis first, with value\[None\]"
    with pytest.raises(InvalidArgumentError, match=f"Strategy.gather: {message}"):
        two.gather(spread(two, 1, 2), 0)


def test_an_array_is_no_reduce_op(two: MirroredStrategy) -> None:
    with pytest.raises(InvalidArgumentError, match=r"reduce_op must be 'SUM' or 'MEAN', got array"):
        two.reduce(np.array([1, 2]), spread(two, 1, 2), 0)


def test_values_of_another_strategy_are_refused() -> None:
    value = spread(build_strategy(2), [1], [2])
    message = "the value has 2 replicas but this strategy has 4; pass a value returned by this"
    calls: list[tuple[str, Callable[[Any], Any]]] = [
        ("reduce", lambda strategy: strategy.reduce("SUM", value, None)),
        ("gather", lambda strategy: strategy.gather({"a": value}, 0)),
    ]
    for name, call in calls:
        with pytest.raises(InvalidArgumentError, match=f"Strategy.{name}: {message}"):
            call(build_strategy(4))


@pytest.mark.parametrize(
    ("values", "axis", "expected"),
    [
        ([[1, 2], [3]], 0, [1, 2, 3]),
        ([[[1, 2]], [[3, 4]]], 1, [[1, 2, 3, 4]]),
        ([[[1, 2]], [[3]]], -1, [[1, 2, 3]]),
        ([[True], [False]], 0, [True, False]),
    ],
)
def test_gather(two: MirroredStrategy, values: list[Any], axis: int, expected: Any) -> None:
    assert plain(two, two.gather(spread(two, *values), axis)) == expected


def test_gather_of_trees_gathers_every_leaf(two: MirroredStrategy) -> None:
    result = two.gather({"a": spread(two, [1], [2]), "b": ("kept",)}, 0)
    assert plain(two, result["a"]) == [1, 2]
    assert result["b"] == ("kept",)


def test_gather_of_strings_and_ragged_rows(two: MirroredStrategy) -> None:
    strings = PerReplica((np.array([b"a"], object), np.array([b"b", b"c"], object)))
    assert two.gather(strings, 0).tolist() == [b"a", b"b", b"c"]
    ragged = tf.Ragged.from_rows([[1], [2, 3]])
    assert two.gather(PerReplica((ragged, ragged)), 0).to_list() == [[1], [2, 3]] * 2
    with pytest.raises(InvalidArgumentError, match="ragged values are joined along axis 0, got 1"):
        two.gather(PerReplica((ragged, ragged)), 1)


@pytest.mark.parametrize(
    ("values", "axis", "error", "message"),
    [
        ([[1], [2]], None, InvalidArgumentError, "axis must be an int, got None; 0 is the batch"),
        ([[1], [2]], (0,), InvalidTypeError, r"axis must be an int, got \(0,\)"),
        ([[1], [2]], 1, InvalidArgumentError, r"axis 1 does not fit values of shape \(1,\)"),
        ([1, 2], 0, InvalidArgumentError, "axis 0 does not fit single numbers"),
        (
            [[[1, 2]], [[1]]],
            0,
            InvalidArgumentError,
            r"values of the shapes \(1, 2\), \(1, 1\) cannot be joined along axis 0; only",
        ),
    ],
)
def test_gather_refuses(
    two: MirroredStrategy, values: list[Any], axis: Any, error: Any, message: str
) -> None:
    with pytest.raises(error, match=f"Strategy.gather: {message}"):
        two.gather(spread(two, *values), axis)


def test_gather_refuses_what_is_no_tensor() -> None:
    message = r"Strategy.gather: needs tensors of backend 'numpy', got None \(NoneType\)"
    with pytest.raises(InvalidTypeError, match=message):
        build_strategy(2).gather(PerReplica((None, None)), 0)


class Neighbour:
    """Collectives with one other worker that contributes known arrays."""

    def __init__(self, *arrays: Any) -> None:
        self.theirs = [np.asarray(array) for array in arrays]
        self.mine: list[Any] = []

    def gather(self, array: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        self.mine.append(array.tolist())
        return [array, self.theirs.pop(0)]

    def all_reduce(self, tensor: Any) -> Any:
        theirs = self.theirs.pop(0)
        return tensor + (torch.as_tensor(theirs) if isinstance(tensor, torch.Tensor) else theirs)

    def broadcast(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        raise AssertionError("reductions do not broadcast")

    def barrier(self) -> None:
        raise AssertionError("reductions need no barrier")


def join_neighbour(count: int, backend: str, *arrays: Any) -> Strategy:
    loaded = load(backend)
    handles: Sequence[Any] = loaded.handles("CPU")
    devices = tuple(Device("CPU", i, handles[i % len(handles)]) for i in range(count))
    return Strategy(Replicas(loaded, devices, 2, 0, Neighbour(*arrays)))


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_across_workers(backend: str) -> None:
    strategy = join_neighbour(2, backend, F(10))
    assert plain(strategy, strategy.reduce("SUM", spread(strategy, F(1), F(2)), None)) == 13.0
    strategy = join_neighbour(2, backend, F(9))
    assert plain(strategy, strategy.reduce("MEAN", spread(strategy, F(1), F(2)), None)) == 3.0
    strategy = join_neighbour(2, backend, F(19), 2)
    assert plain(strategy, strategy.reduce("MEAN", spread(strategy, F([1]), F([2, 3])), 0)) == 5.0
    assert strategy._replicas.collectives.mine == [3]  # type: ignore[union-attr]
    strategy = join_neighbour(2, backend, [7, 8])
    assert plain(strategy, strategy.gather(spread(strategy, [1], [2]), 0)) == [1, 2, 7, 8]


def test_one_replica_of_each_worker_counts_with_its_bare_value() -> None:
    assert join_neighbour(1, "numpy", 10).reduce("SUM", np.int64(1), None) == 11
    assert join_neighbour(1, "numpy", [10]).gather(np.array([1]), 0).tolist() == [1, 10]


def test_workers_must_agree_about_shapes() -> None:
    strategy = join_neighbour(2, "numpy", [[1, 2]])
    with pytest.raises(InvalidArgumentError, match=r"shapes \(2,\), \(1, 2\) cannot be joined"):
        strategy.gather(spread(strategy, [1], [2]), 0)


def test_what_cannot_travel_between_workers() -> None:
    strategy = join_neighbour(2, "numpy")
    strings = PerReplica((np.array([b"a"], object),) * 2)
    with pytest.raises(InvalidTypeError, match="strings cannot be gathered from other processes"):
        strategy.gather(strings, 0)
    ragged = tf.Ragged.from_rows([[1]])
    with pytest.raises(UnimplementedError, match="ragged values cannot be gathered from other"):
        strategy.gather(PerReplica((ragged, ragged)), 0)


def test_under_another_strategys_scope() -> None:
    other = build_strategy(2)
    with build_strategy(2).scope():
        for call in (lambda: other.reduce("SUM", 1, None), lambda: other.gather(1, 0)):
            with pytest.raises(RuntimeError, match="called under the scope of another strategy"):
                call()
