"""Variables: plain ones, and those with a copy on every replica."""

import copy
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import penstock as tf
from penstock.distribute import MirroredStrategy, OneDeviceStrategy, PerReplica, get_replica_context
from penstock.distribute.backends import load
from penstock.distribute.devices import Device
from penstock.distribute.replicas import Replicas
from penstock.distribute.strategy import Strategy
from penstock.distribute.values.mirrored import MirroredVariable, SyncOnReadVariable
from penstock.element.ragged import Ragged
from penstock.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError

SUM, MEAN = tf.VariableAggregation.SUM, tf.VariableAggregation.MEAN
FIRST, NONE = tf.VariableAggregation.ONLY_FIRST_REPLICA, tf.VariableAggregation.NONE
ON_READ = tf.VariableSynchronization.ON_READ


@pytest.fixture
def two() -> MirroredStrategy:
    return MirroredStrategy(["CPU:0", "CPU:1"])


def make_variable(strategy: Any, *args: Any, **kwargs: Any) -> Any:
    with strategy.scope():
        return tf.Variable(*args, **kwargs)


def copies(variable: Any) -> list[Any]:
    return [np.asarray(one).tolist() for one in variable.values]


def number() -> int:
    replica = get_replica_context()
    assert replica is not None
    return replica.replica_id_in_sync_group


def test_a_plain_variable() -> None:
    v = tf.Variable([1.0, 2.0], name="w")
    assert type(v) is tf.Variable
    assert (v.name, v.shape, v.dtype, v.trainable) == ("w:0", (2,), np.float32, True)
    assert v.device == "/job:localhost/replica:0/task:0/device:CPU:0"
    assert v.assign([3.0, 4.0]).tolist() == [3.0, 4.0]
    assert v.assign_add(np.ones(2)).tolist() == [4.0, 5.0]
    assert v.assign_sub([1.0, 1.0], read_value=False) is None
    assert v.numpy().tolist() == v.read_value().tolist() == [3.0, 4.0]
    assert v.value().dtype == np.float32
    assert v.get_shape() == (2,)
    assert str(v) == repr(v)


@pytest.mark.parametrize("mirrored", [False, True])
def test_calls_on_samples_leave_variables_as_they_are(
    mirrored: bool, two: MirroredStrategy
) -> None:
    calls = make_variable(two, 0) if mirrored else tf.Variable(0)

    def count(x: Any) -> Any:
        calls.assign_add(1)
        calls.assign_add(1)
        return calls.numpy()

    counted = tf.Dataset.range(3).map(count)
    assert counted.element_spec.shape == ()
    tf.Dataset.range(3).filter(lambda x: count(x) > 0)
    assert calls.numpy() == 0
    assert list(counted) == [2, 4, 6]
    assert calls.numpy() == 6


def test_variables_print_as_tensorflows_do() -> None:
    assert repr(tf.Variable(1)) == "<tf.Variable 'Variable:0' shape=() dtype=int32, numpy=1>"
    text = "<tf.Variable 's:0' shape=(1,) dtype=string, numpy=array([b'a'], dtype=object)>"
    assert repr(tf.Variable(["a"], name="s")) == text
    for value, dtype, shown in (
        (1 / 3, "float32", "0.3333333432674408"),
        (65504.0, "float16", "65504.0"),
        (2 / 3, "bfloat16", "0.66796875"),
        (1e20, "float32", "1.0000000200408773e+20"),
        ("a", "string", "b'a'"),
    ):
        text = f"<tf.Variable 'v:0' shape=() dtype={dtype}, numpy={shown}>"
        assert repr(tf.Variable(value, dtype=dtype, name="v")) == text
    text = "shape=(2, 1) dtype=int32, numpy=\narray([[1],\n       [2]], dtype=int32)>"
    assert repr(tf.Variable([[1], [2]], name="m")) == f"<tf.Variable 'm:0' {text}"


def test_arithmetic_is_that_of_the_value() -> None:
    v = tf.Variable([1.0, 2.0])
    x = np.array([3.0, 4.0], np.float32)
    assert (v * 2).tolist() == (2 * v).tolist() == [2.0, 4.0]
    assert (x - v).tolist() == [2.0, 2.0]
    assert (v * [1.0, 2.0]).dtype == ([1.0, 2.0] - v).dtype == np.float32
    assert (tf.Variable([0.1, 0.2]) == [0.1, 0.3]).tolist() == [True, False]
    assert (tf.Variable([0.1]) != [0.1]).tolist() == [False]
    assert (tf.Variable([2]) * [1.5]).tolist() == [3.0]
    assert (v @ v) == 5.0
    assert (v**2).tolist() == [1.0, 4.0]
    assert v[1] == 2.0
    assert np.dot(v, x) == 11.0
    assert np.exp(v).dtype == np.float32
    assert tf.reduce_sum(v) == 3.0
    assert tf.constant(v).tolist() == [1.0, 2.0]
    assert float(tf.Variable(2.5)) == 2.5
    assert tf.Variable(3) == 3
    assert bool(tf.Variable(0)) is False
    assert len({v, v}) == 1


def test_a_string_variable() -> None:
    v = tf.Variable("a")
    assert (v.shape, v.dtype) == ((), np.dtype(object))
    assert v.assign("b") == b"b"
    with pytest.raises(InvalidTypeError, match="Variable.assign: 1.0 cannot be .*; pass strings"):
        v.assign(1.0)
    rows = tf.Variable(["a", "b"])
    assert v.dtype.name == rows.dtype.name == "string"
    assert rows.assign(["c", "d"]).tolist() == [b"c", b"d"]


def test_initial_values() -> None:
    assert tf.Variable(lambda: 2.0).numpy() == 2.0
    assert tf.Variable(1, dtype=tf.float64).dtype == np.float64
    assert tf.Variable(tf.Variable(4)).numpy() == 4
    assert tf.Variable(np.float64(1.5)).dtype == np.float64
    with pytest.raises(InvalidArgumentError, match="Variable: initial_value is missing; pass an"):
        tf.Variable()


def test_a_variable_cannot_be_changed_by_accident() -> None:
    start = np.zeros(2)
    v = tf.Variable(start)
    start[0] = 5
    assert v.numpy().tolist() == [0.0, 0.0]
    new = np.ones(2)
    v.assign(new)
    new[0] = 5
    assert v.numpy().tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="read-only"):
        v.value()[0] = 7
    before = v.value()
    v.assign_add([1.0, 1.0])
    assert before.tolist() == [1.0, 1.0]


def test_assignments_are_checked() -> None:
    v = tf.Variable([1.0, 2.0], name="w")
    message = r"Variable.assign: 'w:0' has the shape \(2,\), got a value of shape \(\); a variable"
    with pytest.raises(InvalidArgumentError, match=message):
        v.assign(1.0)
    message = "Variable.assign_add: a value of dtype float64 cannot become int32; convert it first"
    with pytest.raises(InvalidTypeError, match=message):
        tf.Variable(1).assign_add(1.5)
    with pytest.raises(InvalidArgumentError, match="PerReplica: 2 values, one for each replica"):
        v.assign(PerReplica(([1.0, 2.0], [1.0, 2.0])))

    with pytest.raises(
        InvalidArgumentError, match=r"Variable.assign: \[\[1\], \[2, 3\]\] is not one"
    ):
        v.assign([[1], [2, 3]])


@pytest.mark.parametrize("make", [torch.tensor, jnp.asarray])
def test_a_variable_keeps_its_dtype(make: Any) -> None:
    whole, real = tf.Variable(make([1, 2])), tf.Variable(make([1.0, 2.0]), name="r")
    for v in (whole, real):
        dtype = v.dtype
        assert v.assign([3, 4]).dtype == v.assign_add(np.ones(2, np.int8)).dtype == dtype
    message = (
        r"Variable.assign: 'r:0' has the dtype .*float32, got a tensor of .*int\d+; convert it"
    )
    with pytest.raises(InvalidArgumentError, match=message):
        real.assign(make([1, 2]))
    for how in ("assign", "assign_add", "assign_sub"):
        with pytest.raises(
            InvalidArgumentError, match=f"Variable.{how}: .* got a tensor of .*float32"
        ):
            getattr(whole, how)(make([1.0, 2.0]))
    assert whole.numpy().tolist() == [4, 5]


@pytest.mark.parametrize(
    ("args", "named", "error", "message"),
    [
        (
            (object(),),
            {},
            InvalidArgumentError,
            "<object .* is no initial value: .*; pass an array",
        ),
        (([[1], [2, 3]],), {}, InvalidArgumentError, "is no initial value: the rows of .* differ"),
        (({"a": 1},), {}, InvalidArgumentError, "{'a': 1} is no initial value: .*; pass an array"),
        (("a",), {"dtype": "int32"}, InvalidTypeError, "'a' is no initial value: .*cannot be conv"),
        (
            (Ragged.from_rows([np.ones(1), np.ones(2)]),),
            {},
            InvalidArgumentError,
            "is no initial value; pass",
        ),
        ((1,), {"dtype": "nope"}, InvalidTypeError, "'nope' is not a data type; use one of"),
        (
            (1, True, "n"),
            {},
            InvalidTypeError,
            "takes initial_value and trainable by position, got 3",
        ),
    ],
)
def test_what_a_variable_is_made_of_is_checked(
    args: Any, named: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^Variable: .*{message}"):
        tf.Variable(*args, **named)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ((1, 2.5), "int64"),
        (1.5, "int32"),
        (1j, "int64"),
        (1j, "float32"),
        ([1.0, 2.0], "bool"),
        (1, "bool"),
    ],
)
def test_numbers_of_another_kind_are_refused(value: Any, dtype: str) -> None:
    with pytest.raises(InvalidTypeError, match=f"^Variable: .* cannot become {dtype}; convert it"):
        tf.Variable(value, dtype=dtype)


def test_numbers_of_a_narrower_kind_are_converted() -> None:
    assert tf.Variable(True, dtype=tf.float32).numpy() == 1.0
    assert tf.Variable(1, dtype=tf.complex64).numpy() == 1
    assert tf.Variable([], dtype=tf.int64).dtype == np.int64
    assert tf.Variable(np.array([1.5]), dtype=tf.int64).numpy().tolist() == [1]
    v = tf.Variable(1, dtype=tf.uint8)
    assert (v.assign(3), v.assign(np.int64(4)), v.assign(True)) == (3, 4, 1)
    assert tf.Variable(1.0, dtype=tf.bfloat16).assign(2.5) == 2.5
    assert tf.Variable(1.0).assign(np.float64(2.5)).dtype == np.float32


def test_none_is_not_assigned(two: MirroredStrategy) -> None:
    for v in (tf.Variable(1.0), make_variable(two, 1.0)):
        with pytest.raises(
            InvalidArgumentError, match="Variable.assign: None is no value; pass an"
        ):
            v.assign(None)


def test_the_shape_is_that_of_the_initial_value(two: MirroredStrategy) -> None:
    for make in (tf.Variable, lambda *a, **k: make_variable(two, *a, **k)):
        assert make([1.0, 2.0], shape=[2], validate_shape=False).shape == (2,)
        assert make(1.0, shape=tf.TensorShape(None)).shape == ()
        for shape in ([3], [None]):
            with pytest.raises(InvalidArgumentError, match="Variable: shape is .*, but the initia"):
                make([1.0, 2.0], shape=shape)


def test_what_is_kept_for_training_code(two: MirroredStrategy) -> None:
    for make in (tf.Variable, lambda *a, **k: make_variable(two, *a, **k)):
        assert make(1.0, constraint=abs).constraint is abs
        assert make(1.0).constraint is None
        assert make(1.0, aggregation=None).aggregation is NONE
    assert make_variable(two, 1.0, constraint=abs).values[1].constraint is abs


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_indices_are_checked(backend: str) -> None:
    strategy = MirroredStrategy(["CPU:0", "CPU:1"], backend)
    v = make_variable(strategy, [1.0, 2.0])
    assert (float(v[-1]), float(v[tf.Variable(1)]), np.asarray(v[:1]).tolist()) == (2.0, 2.0, [1.0])
    for key in (2, -3, np.int64(2), (0, 0)):
        with pytest.raises(InvalidArgumentError, match=r"index .* does not fit the shape \(2,\)"):
            v[key]
    with pytest.raises(IndexError, match=r"MirroredVariable: index 0 does not fit the shape \(\)"):
        make_variable(strategy, 1.0)[0]
    for key in ("a", 1.5, (0, "a")):
        with pytest.raises(InvalidTypeError, match="an index must be ints or slices, got"):
            v[key]


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("aggregation", [NONE, SUM, MEAN, FIRST])
def test_replicas_read_values_of_their_own(backend: str, aggregation: Any) -> None:
    strategy = MirroredStrategy(["CPU:0", "CPU:1"], backend)
    variables = [
        make_variable(strategy, [1.0, 2.0], aggregation=aggregation),
        make_variable(strategy, [1.0, 2.0], aggregation=aggregation, synchronization=ON_READ),
        tf.Variable([1.0, 2.0]),
        make_variable(OneDeviceStrategy("CPU:0", backend), [1.0, 2.0]),
    ]
    for v in variables:
        for read in (v.read_value, v.value, v.numpy):
            got = strategy.run(read)
            assert isinstance(got, PerReplica)
            assert [np.asarray(one).tolist() for one in got.values] == [[1.0, 2.0]] * 2
    total = strategy.reduce("SUM", strategy.run(variables[0].read_value), axis=0)
    assert float(total) == 6.0
    assert isinstance(strategy.run(variables[0].assign, args=([1.0, 2.0],)), PerReplica)


def test_single_numbers_are_read_anew(two: MirroredStrategy) -> None:
    for value in (1.5, 3, True, "a", 1j):
        v = make_variable(two, value)
        got = two.run(v.read_value)
        assert isinstance(got, PerReplica)
        assert got.values[0] == got.values[1] == v.numpy()


def changes(tensor: Any) -> None:
    """Everything that can be done to a tensor of torch in place."""
    tensor.requires_grad_()
    tensor.detach().add_(7)
    tensor.detach().numpy()[0] = 99


@pytest.mark.parametrize("distributed", [False, True])
def test_tensors_of_torch_share_no_memory_with_a_variable(distributed: bool) -> None:
    start = torch.zeros(3)
    strategy = MirroredStrategy(["CPU:0", "CPU:1"], "torch")
    v = make_variable(strategy, start) if distributed else tf.Variable(start)
    all_copies = v.values if distributed else [v]
    changes(start)
    changes(v.assign_add(torch.ones(3)))
    new = torch.ones(3)
    changes(v.assign(new))
    changes(new)
    for one in (v, *all_copies):
        for read in (
            one.value(),
            one.read_value(),
            +one,
            one[:2],
            torch.relu(one),
            next(iter(one))[None],
        ):
            assert not read.requires_grad
            changes(read)
        one.numpy()[0] = 99
    before = v.value()
    v.assign_sub([0.0, 1.0, 2.0])
    assert before.tolist() == [1.0, 1.0, 1.0]
    assert [one.numpy().tolist() for one in all_copies] == [[1.0, 0.0, -1.0]] * len(all_copies)
    assert not v.value().requires_grad


@pytest.mark.parametrize("aggregation", [NONE, SUM, MEAN, FIRST])
@pytest.mark.parametrize("how", ["assign", "assign_add", "assign_sub"])
def test_nothing_is_assigned_while_jax_traces(aggregation: Any, how: str) -> None:
    strategy = MirroredStrategy(["CPU:0", "CPU:1"], "jax")
    v = make_variable(strategy, [1.0, 1.0], aggregation=aggregation)
    message = f"Variable.{how}: called inside jax.jit or another transformation of JAX"
    for function in (lambda x: getattr(v, how)(x), lambda x: getattr(v, how)(np.ones(2))):
        with pytest.raises(FailedPreconditionError, match=message):
            strategy.run(lambda function=function: jax.jit(function)(jnp.ones(2)))
    with pytest.raises(FailedPreconditionError, match=message):
        jax.jit(lambda x: getattr(v, how)(x))(jnp.ones(2))
    assert copies(v) == [[1.0, 1.0]] * 2
    with (
        pytest.raises(FailedPreconditionError, match="Variable: called inside jax.jit"),
        strategy.scope(),
    ):
        jax.jit(tf.Variable)(1.0)


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_variables_are_not_pickled(backend: str) -> None:
    v = make_variable(MirroredStrategy(["CPU:0", "CPU:1"], backend), 1.0, name="w")
    for one in (v, v.values[1], tf.Variable(1.0, name="w")):
        with pytest.raises(
            InvalidTypeError, match="pickle: the variable 'w.* belongs to its strategy"
        ):
            pickle.dumps(one)


@pytest.mark.parametrize("name", ["synchronization", "aggregation"])
def test_modes_are_checked(two: MirroredStrategy, name: str) -> None:
    for make in (tf.Variable, lambda *a, **k: make_variable(two, *a, **k)):
        message = f"Variable: {name} must be a penstock.Variable{name.title()}, got 'SUM'"
        with pytest.raises(InvalidArgumentError, match=message):
            make(1.0, **{name: "SUM"})


def test_copies_of_variables(two: MirroredStrategy) -> None:
    plain, mirrored = tf.Variable([1.0]), make_variable(two, [1.0])
    for v in (plain, mirrored):
        with two.scope():
            others = [copy.deepcopy(v), copy.copy(v)]
        v.assign([2.0])
        for other in others:
            assert type(other) is type(v)
            assert np.asarray(other).tolist() == [1.0]


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_a_copy_has_copies_of_its_own(backend: str) -> None:
    strategy = MirroredStrategy(["CPU:0", "CPU:1"], backend)
    v = make_variable(strategy, [1.0], aggregation=MEAN)
    other = copy.deepcopy(v)
    other.assign([3.0])
    assert copies(other) == [[3.0], [3.0]]
    assert copies(v) == [[1.0], [1.0]]
    assert strategy.extended.variable_created_in_scope(other)
    assert strategy.extended.value_container(other.values[1]) is other


def test_a_mirrored_variable(two: MirroredStrategy) -> None:
    v = make_variable(two, [1.0, 2.0], name="w")
    assert isinstance(v, MirroredVariable)
    assert isinstance(v, tf.Variable)
    assert isinstance(v, tf.distribute.DistributedValues)
    assert [one.name for one in v.values] == ["w:0", "w/replica_1:0"]
    assert [one.device[-5:] for one in v.values] == ["CPU:0", "CPU:1"]
    assert (v.shape, v.dtype, v.device[-5:]) == ((2,), np.float32, "CPU:0")
    assert v.synchronization is tf.VariableSynchronization.ON_WRITE
    assert v.aggregation is NONE
    assert str(v.aggregation) == "VariableAggregation.NONE"
    assert v.trainable
    v.assign([5.0, 6.0])
    assert copies(v) == [[5.0, 6.0]] * 2
    with two.scope():
        assert v.assign_add([1.0, 1.0]).tolist() == [6.0, 7.0]
    assert copies(v) == [[6.0, 7.0]] * 2
    assert (v * 2).tolist() == [12.0, 14.0]
    assert v.numpy().tolist() == [6.0, 7.0]
    assert len({v}) == 1


def test_a_mirrored_variable_prints_its_copies(two: MirroredStrategy) -> None:
    v = make_variable(two, 1.0)
    text = (
        "MirroredVariable:{\n"
        "  0: <tf.Variable 'Variable:0' shape=() dtype=float32, numpy=1.0>,\n"
        "  1: <tf.Variable 'Variable/replica_1:0' shape=() dtype=float32, numpy=1.0>\n}"
    )
    assert str(v) == repr(v) == text


def test_one_initial_value_for_all_copies(two: MirroredStrategy) -> None:
    numbers = iter(range(5))
    assert copies(make_variable(two, lambda: next(numbers))) == [0, 0]


@pytest.mark.parametrize(
    ("aggregation", "new", "result"),
    [
        (NONE, (10.0, 20.0), (10.0, 20.0)),
        (SUM, (30.0, 30.0), (30.0, 30.0)),
        (MEAN, (15.0, 15.0), (15.0, 15.0)),
        (FIRST, (10.0, 10.0), (10.0, 10.0)),
    ],
)
def test_assigning_from_replicas(
    two: MirroredStrategy, aggregation: Any, new: tuple[float, ...], result: tuple[float, ...]
) -> None:
    v = make_variable(two, 1.0, aggregation=aggregation)
    for how, change in (("assign", 0.0), ("assign_add", 1.0), ("assign_sub", 1.0)):
        v.assign(1.0)
        sign = -1 if how == "assign_sub" else 1
        got = two.run(lambda how=how: getattr(v, how)(np.float32(10 * (number() + 1))))
        assert got.values == tuple(change + sign * one for one in result)
        assert copies(v) == [change + sign * one for one in new]


def test_a_constant_from_all_replicas(two: MirroredStrategy) -> None:
    for aggregation in (NONE, MEAN, FIRST):
        v = make_variable(two, 1.0, aggregation=aggregation)
        two.run(lambda v=v: v.assign_add(2.0))
        assert copies(v) == [3.0, 3.0]
    v = make_variable(two, 1.0, aggregation=SUM)
    one = np.float32(2)
    for value, text in ((2.0, "2.0"), (one, "np.float32")):
        message = (
            "MirroredVariable.assign_add: SUM needs a value of each replica's own, but all 2 gave "
            f"the same object, {text}.*; pass a value that each makes inside run"
        )
        with pytest.raises(InvalidArgumentError, match=message):
            two.run(lambda value=value: v.assign_add(value))
    assert copies(v) == [1.0, 1.0]
    two.run(lambda: v.assign_add(np.float32(2)))
    assert copies(v) == [5.0, 5.0]


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        (NONE, [[1.0, 2.0], [2.0, 2.0]]),
        (SUM, [[3.0, 4.0]] * 2),
        (MEAN, [[1.5, 2.0]] * 2),
        (FIRST, [[1.0, 2.0]] * 2),
    ],
)
def test_a_list_from_each_replica_is_one_array(
    backend: str, aggregation: Any, expected: list[Any]
) -> None:
    strategy = MirroredStrategy(["CPU:0", "CPU:1"], backend)
    v = make_variable(strategy, [0.0, 0.0], aggregation=aggregation)
    strategy.run(lambda: v.assign([1.0 + number(), 2.0]))
    assert copies(v) == expected


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_numbers_from_each_replica_keep_the_dtype(backend: str) -> None:
    strategy = MirroredStrategy(["CPU:0", "CPU:1"], backend)
    v = make_variable(strategy, 0, dtype=tf.int16, aggregation=SUM)
    dtype = v.dtype
    strategy.run(lambda: v.assign_add(number() + 1))
    assert copies(v) == [3, 3]
    assert v.dtype == dtype


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_whole_numbers_have_no_mean(backend: str) -> None:
    strategy = MirroredStrategy(["CPU:0", "CPU:1"], backend)
    message = "Variable: the aggregation MEAN needs a float variable, but 'n:0' has the dtype .*int"
    for synchronization in (ON_READ, tf.VariableSynchronization.AUTO):
        with pytest.raises(InvalidArgumentError, match=message):
            make_variable(strategy, 1, name="n", aggregation=MEAN, synchronization=synchronization)
    assert copies(make_variable(strategy, 1.0, dtype=tf.bfloat16, aggregation=MEAN)) == [1.0, 1.0]
    assert tf.Variable(1, aggregation=MEAN).numpy() == 1


@pytest.mark.parametrize("aggregation", [NONE, SUM, MEAN, FIRST])
def test_assigning_from_outside_aggregates_nothing(two: MirroredStrategy, aggregation: Any) -> None:
    v, w = make_variable(two, 4.0, aggregation=aggregation), make_variable(two, 3.0)
    kept = make_variable(two, 5.0, aggregation=SUM, synchronization=ON_READ)
    assert copies_after(v, "assign", v) == [4.0, 4.0]
    assert copies_after(v, "assign_add", w) == [7.0, 7.0]
    assert copies_after(v, "assign_sub", w) == [4.0, 4.0]
    assert copies_after(v, "assign", w) == [3.0, 3.0]
    assert copies_after(v, "assign", kept) == [5.0, 5.0]
    own = PerReplica((np.float32(1), np.float32(2)))
    assert copies_after(v, "assign", own) == [1.0, 2.0]
    two.run(lambda: get_replica_context().merge_call(lambda _: v.assign(own)))  # type: ignore[union-attr]
    assert copies(v) == [1.0, 2.0]


def copies_after(variable: Any, how: str, value: Any) -> list[Any]:
    getattr(variable, how)(value)
    return copies(variable)


def test_what_on_read_variables_are_assigned_from_outside(two: MirroredStrategy) -> None:
    w = make_variable(two, 3.0, aggregation=SUM, synchronization=ON_READ)
    v = make_variable(two, 1.0, aggregation=MEAN, synchronization=ON_READ)
    assert copies_after(v, "assign", w) == [6.0, 6.0]
    assert copies_after(v, "assign", PerReplica((1.0, 2.0))) == [1.0, 2.0]
    assert copies_after(w, "assign", make_variable(two, 3.0)) == [1.5, 1.5]
    assert copies_after(w, "assign", w) == [1.5, 1.5]


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_replicas_assign_other_variables(backend: str) -> None:
    strategy = MirroredStrategy(["CPU:0", "CPU:1"], backend)
    v = make_variable(strategy, 4.0, aggregation=SUM)
    kept = make_variable(strategy, 3.0, aggregation=SUM, synchronization=ON_READ)
    mirrored, plain = make_variable(strategy, 3.0), tf.Variable(3.0)
    for value in (kept, mirrored.read_value):
        strategy.run(lambda value=value: v.assign(value() if callable(value) else value))
        assert copies(v) == [6.0, 6.0]
    message = "MirroredVariable.assign: SUM needs a value of each replica's own, but all 2 gave"
    for value in (mirrored, v, plain) if backend == "numpy" else (mirrored, v):
        with pytest.raises(InvalidArgumentError, match=message):
            strategy.run(lambda value=value: v.assign(value))
    mean = make_variable(strategy, 4.0, aggregation=MEAN)
    strategy.run(lambda: mean.assign(mirrored))
    assert copies(mean) == [3.0, 3.0]
    strategy.run(lambda: mirrored.assign(mirrored + number()))
    for aggregation, expected in ((MEAN, [3.0, 4.0]), (FIRST, [3.0, 3.0])):
        v = make_variable(strategy, 0.0, aggregation=aggregation)
        strategy.run(lambda v=v: v.assign(mirrored))
        assert copies(v) == expected


def test_values_of_another_number_of_replicas_are_refused(two: MirroredStrategy) -> None:
    with pytest.raises(InvalidArgumentError, match="MirroredVariable.assign: the value has 3 repl"):
        make_variable(two, 0.0).assign(PerReplica((1.0, 2.0, 3.0)))


def test_a_replica_reads_its_own_copy(two: MirroredStrategy) -> None:
    v = make_variable(two, 1.0)
    two.run(lambda: v.assign(number() + 1.5))
    assert two.run(lambda: v * 2).values == (3.0, 5.0)
    assert two.run(lambda: v.read_value()).values == (1.5, 2.5)
    assert two.run(lambda: v.device[-5:]).values == ("CPU:0", "CPU:1")
    assert v.read_value() == 1.5
    assert two.run(lambda x: x is v, args=(v,)) is True
    assert two.experimental_local_results(v) == v.values


@pytest.mark.parametrize("synchronization", [tf.VariableSynchronization.AUTO, ON_READ])
def test_another_strategys_variable_is_refused(two: MirroredStrategy, synchronization: Any) -> None:
    v = make_variable(two, 1.0, aggregation=SUM, name="w", synchronization=synchronization)
    three = MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"])
    message = "Variable: 'w:0' is used inside the run of another strategy, and mixing strategies"
    for use in (lambda: v + 1, lambda: v.assign(np.float32(number())), v.numpy):
        with pytest.raises(FailedPreconditionError, match=message):
            three.run(use)
    message = "Variable.assign: called under the scope of another strategy, and mixing strategies"
    with three.scope():
        with pytest.raises(FailedPreconditionError, match=message):
            v.assign(4.0)
        assert float(v) == float(v.values[0]) * (2 if synchronization is ON_READ else 1)
    assert copies(v) == [1.0, 1.0]


def test_a_variable_from_outside_of_the_scope_is_one(two: MirroredStrategy) -> None:
    v = tf.Variable(1.0)
    two.run(lambda: v.assign_add(1.0))
    assert v.numpy() == 3.0


@pytest.mark.parametrize(
    ("aggregation", "first", "later", "assigned", "shares"),
    [
        (SUM, 2.0, 32.0, 8.0, [4.0, 4.0]),
        (MEAN, 1.0, 16.0, 8.0, [8.0, 8.0]),
        (FIRST, 1.0, 11.0, 8.0, [8.0, 8.0]),
    ],
)
def test_on_read(
    two: MirroredStrategy,
    aggregation: Any,
    first: float,
    later: float,
    assigned: float,
    shares: list[float],
) -> None:
    v = make_variable(two, 1.0, synchronization=ON_READ, aggregation=aggregation)
    assert isinstance(v, SyncOnReadVariable)
    assert not v.trainable
    assert v.synchronization is ON_READ
    assert v.read_value() == first
    got = two.run(lambda: (v.assign_add(10.0 * (number() + 1)), v.read_value()))
    assert got[0].values == got[1].values == (11.0, 21.0)
    assert v.read_value() == v.numpy() == later
    assert v + 1 == later + 1
    assert v.assign(8.0) == assigned
    assert copies(v) == shares


def test_on_read_without_aggregation(two: MirroredStrategy) -> None:
    v = make_variable(two, 1.0, name="n", synchronization=ON_READ)
    message = "SyncOnReadVariable.read_value: 'n:0' has the aggregation NONE, so its copies are no"
    for read in (v.read_value, v.numpy, lambda: v + 1):
        with pytest.raises(InvalidArgumentError, match=message):
            read()
    assert v.assign(8.0).values == (8.0, 8.0)
    assert v.assign_add(1.0).values == (9.0, 9.0)
    assert (v.shape, v.dtype) == ((), np.float32)
    assert "SyncOnReadVariable:{" in repr(v)


def test_on_read_sums_are_changed_by_replicas_only(two: MirroredStrategy) -> None:
    v = make_variable(two, 1.0, name="n", synchronization=ON_READ, aggregation=SUM)
    for how in ("assign_add", "assign_sub"):
        message = f"SyncOnReadVariable.{how}: 'n:0' is the sum of its copies, which only replicas"
        with pytest.raises(InvalidArgumentError, match=message):
            getattr(v, how)(1.0)
    assert make_variable(two, 1.0, synchronization=ON_READ, aggregation=MEAN).assign_add(1.0) == 2.0


def test_on_read_sums_of_whole_numbers_are_exact(two: MirroredStrategy) -> None:
    v = make_variable(two, 0, synchronization=ON_READ, aggregation=SUM)
    assert v.assign(7) == 7
    assert copies(v) == [4, 3]


def test_on_read_is_trainable_if_asked_for(two: MirroredStrategy) -> None:
    assert not make_variable(two, 1.0, synchronization=ON_READ).trainable
    assert make_variable(two, 1.0, trainable=True, synchronization=ON_READ).trainable


def test_replicas_combine_their_copies_of_an_on_read_variable(two: MirroredStrategy) -> None:
    first = tf.VariableAggregation.ONLY_FIRST_REPLICA
    v = make_variable(two, [0.0], synchronization=ON_READ, aggregation=first)

    def combine() -> Any:
        replica = get_replica_context()
        assert replica is not None
        v.assign([replica.replica_id_in_sync_group * 3.0])
        return replica.all_reduce("SUM", v), replica.all_gather(v, axis=0)

    total, parts = two.run(combine)
    assert [value.tolist() for value in total.values] == [[3.0], [3.0]]
    assert [value.tolist() for value in parts.values] == [[0.0, 3.0], [0.0, 3.0]]


def test_replicas_create_variables_by_one_name(two: MirroredStrategy) -> None:
    def create(name: str) -> Any:
        return tf.Variable(1.0, name=name)

    assert two.run(create, args=(PerReplica(("w_0", "w_1")),)).name == "w_0:0"
    with pytest.raises(FailedPreconditionError, match="create it by different names, .'w', 'b'.;"):
        two.run(create, args=(PerReplica(("w", "b")),))


def test_a_variable_knows_its_strategy(two: MirroredStrategy) -> None:
    v = make_variable(two, 1.0)
    assert v.distribute_strategy is two is v.values[1].distribute_strategy
    assert tf.Variable(1.0).distribute_strategy is tf.distribute.get_strategy()


def test_synchronization_none_needs_no_scope(two: MirroredStrategy) -> None:
    apart = tf.VariableSynchronization.NONE
    assert tf.Variable(1.0, synchronization=apart).synchronization is apart
    with pytest.raises(InvalidArgumentError, match="Variable: synchronization NONE is not poss"):
        make_variable(two, 1.0, synchronization=apart)


def test_replicas_make_a_variable_together(two: MirroredStrategy) -> None:
    seen = []

    def step() -> Any:
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        v = tf.Variable(1.0 + number, name="w", aggregation=SUM)
        seen.append(v)
        return v.assign_add(1.0 + number)

    assert two.experimental_local_results(two.run(step)) == (4.0, 4.0)
    assert seen[0] is seen[1]
    assert copies(seen[0]) == [4.0, 4.0]
    assert isinstance(seen[0], MirroredVariable)
    assert seen[0].name == "w:0"


def test_a_variable_of_run_may_be_synchronized_on_read(two: MirroredStrategy) -> None:
    def step() -> Any:
        v = tf.Variable(lambda: 0.0, synchronization=ON_READ, aggregation=SUM)
        v.assign_add(1.0)
        return v

    made_there = two.run(step)
    assert copies(made_there) == [1.0, 1.0]
    assert OneDeviceStrategy("CPU:0").run(lambda: tf.Variable(2.0)).numpy() == 2.0


def test_all_replicas_must_make_the_variable(two: MirroredStrategy) -> None:
    def step() -> None:
        if tf.distribute.get_replica_context().replica_id_in_sync_group == 0:
            tf.Variable(1.0)

    with pytest.raises(FailedPreconditionError, match="returned without calling it"):
        two.run(step)


def test_under_one_device_variables_are_plain() -> None:
    strategy = OneDeviceStrategy("CPU:1")
    v = make_variable(strategy, 1.0)
    assert type(v) is tf.Variable
    assert v.device.endswith("CPU:1")
    assert strategy.extended.variable_created_in_scope(v)
    assert strategy.run(lambda: v.assign_add(1.0)) == 2.0


def test_one_mirrored_copy() -> None:
    strategy = MirroredStrategy(["CPU:0"])
    v = make_variable(strategy, 1.0, aggregation=SUM)
    assert isinstance(v, MirroredVariable)
    assert strategy.run(lambda: v.assign_add(2.0)) == 3.0
    assert copies(v) == [3.0]
    for other in (make_variable(strategy, 4.0), tf.Variable(4.0)):
        assert strategy.run(lambda other=other: v.assign(other)) == 4.0


@pytest.mark.parametrize(
    ("backend", "kind"), [("torch", torch.Tensor), ("jax", jax.Array), ("numpy", np.ndarray)]
)
def test_variables_of_every_framework(backend: str, kind: type) -> None:
    strategy = MirroredStrategy(["CPU:0", "CPU:1"], backend)
    v = make_variable(strategy, [1.0, 2.0], aggregation=SUM)
    assert all(isinstance(one.value(), kind) for one in v.values)
    if backend == "jax":
        handles = [device.handle for device in strategy._replicas.devices]
        assert [one.value().device for one in v.values] == handles
    put = strategy._replicas.backend.put
    devices = strategy._replicas.devices

    def step() -> Any:
        delta = put(np.array([1.0, 1.0], np.float32), devices[number()].handle)
        v.assign_sub(delta * (number() + 1))
        return v * 2

    results = strategy.run(step).values
    assert [np.asarray(one).tolist() for one in results] == [[-4.0, -2.0]] * 2
    assert all(isinstance(one, kind) for one in results)
    assert v.numpy().tolist() == [-2.0, -1.0]
    assert "numpy=array([-2., -1.], dtype=float32)" in repr(v)
    v.assign([7.0, 8.0])
    assert copies(v) == [[7.0, 8.0]] * 2


def test_tensors_as_initial_values() -> None:
    tensor = torch.ones(2, requires_grad=True)
    v = tf.Variable(tensor)
    assert isinstance(v.value(), torch.Tensor)
    assert not v.value().requires_grad
    assert v.assign_add(torch.ones(2)).tolist() == [2.0, 2.0]
    assert v.numpy().tolist() == [2.0, 2.0]
    assert tf.Variable(torch.ones(2), dtype=tf.float64).dtype == np.float64
    array = tf.Variable(jnp.ones(2))
    assert isinstance(array.assign_add(1.0 + jnp.ones(2)), jax.Array)
    assert torch.dot(v, torch.ones(2)).item() == 4.0
    with pytest.raises(InvalidArgumentError, match=r"has the shape \(2,\), got a value of shape"):
        v.assign(torch.ones(3))


def test_gradients_by_torch() -> None:
    strategy = MirroredStrategy(["CPU:0", "CPU:1"], "torch")
    w = make_variable(strategy, 0.0, aggregation=SUM)
    x = PerReplica((torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])))

    def step(x: Any) -> None:
        weight = w.value().requires_grad_()
        loss = ((weight * x - 2 * x) ** 2).sum() / 4
        (gradient,) = torch.autograd.grad(loss, weight)
        w.assign_sub(0.05 * gradient)

    for _ in range(3):
        strategy.run(step, args=(x,))
    assert copies(w) == [1.96875, 1.96875]


class Neighbour:
    """Collectives with one other worker that contributes known arrays."""

    def __init__(self, *arrays: Any) -> None:
        self.theirs = [np.asarray(array) for array in arrays]

    def gather(self, array: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        raise AssertionError("variables do not gather")

    def all_reduce(self, tensor: Any) -> Any:
        return tensor + self.theirs.pop(0)

    def broadcast(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return self.theirs.pop(0)

    def barrier(self) -> None:
        raise AssertionError("variables need no barrier")


def second_worker(count: int, *arrays: Any) -> Strategy:
    devices = tuple(Device("CPU", index) for index in range(count))
    return Strategy(Replicas(load("numpy"), devices, 2, 1, Neighbour(*arrays)))


F = np.float32


def test_all_workers_begin_with_the_first_ones_value() -> None:
    assert copies(make_variable(second_worker(2, F(7)), 1.0)) == [7.0, 7.0]


def test_assignments_are_aggregated_across_workers() -> None:
    strategy = second_worker(1, F(0), F(10))
    v = make_variable(strategy, 0.0, aggregation=SUM)
    assert strategy.run(lambda: v.assign_add(F(1))) == 11.0
    strategy = second_worker(2, F(0), F(5))
    v = make_variable(strategy, 0.0, aggregation=FIRST)
    strategy.run(lambda: v.assign(F(number())))
    assert copies(v) == [5.0, 5.0]


def test_on_read_across_workers() -> None:
    strategy = second_worker(2, 0, 10, 5)
    v = make_variable(strategy, 0, synchronization=ON_READ, aggregation=SUM)
    strategy.run(lambda: v.assign_add(np.int32(1)))
    assert v.read_value() == 12
    assert v.assign(9) == 9
    assert copies(v) == [2, 2]  # Four replicas; the first worker's first one has the rest.


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("value", ["hello", np.array([True, False])])
def test_what_is_no_number_has_no_sum(backend, value):
    strategy = MirroredStrategy(["CPU:0", "CPU:1"], backend=backend)
    with strategy.scope(), pytest.raises(InvalidArgumentError, match="SUM needs numbers"):
        tf.Variable(
            value,
            aggregation=tf.VariableAggregation.SUM,
            synchronization=tf.VariableSynchronization.ON_READ,
        )
    with strategy.scope(), pytest.raises(InvalidArgumentError, match="use ONLY_FIRST_REPLICA"):
        tf.Variable(value, aggregation=tf.VariableAggregation.MEAN)


@pytest.mark.parametrize(
    ("start", "value"),
    [(1, 2**40), (1, 2**70), (np.int8(1), 300), (np.uint8(1), -1), (np.int8([1, 2]), [1, 200])],
)
def test_numbers_that_do_not_fit_are_refused(start, value):
    variable = tf.Variable(start)
    with pytest.raises(InvalidArgumentError, match="Variable.assign: .* does not fit into"):
        variable.assign(value)
    with pytest.raises(InvalidArgumentError, match="Variable: .* does not fit into"):
        tf.Variable(value, dtype=variable.dtype)


def test_memory_that_is_donated_is_not_that_of_a_variable():
    strategy = MirroredStrategy(["CPU:0", "CPU:1"], backend="jax")
    donating = jax.jit(lambda x: x + 1, donate_argnums=0)
    given = jax.numpy.ones(4)
    with strategy.scope():
        variable = tf.Variable(given)
    donating(given)
    donating(variable.value())
    np.testing.assert_array_equal(variable.numpy(), np.ones(4))
    given = jax.numpy.full(4, 3.0)
    variable.assign(given)
    donating(given)
    for one in strategy.experimental_local_results(variable):
        np.testing.assert_array_equal(one.numpy(), np.full(4, 3.0))
