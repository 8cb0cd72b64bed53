"""Values of replicas: how they print, what they refuse, and trees of them."""

import copy
import pickle
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.utils import _pytree

import penstock as tf
from penstock.distribute.values.per_replica import (
    DistributedValues,
    Mirrored,
    PerReplica,
    PerReplicaSpec,
    SyncOnRead,
    local_results,
    register_pytrees,
    regroup,
    select,
    spread,
)
from penstock.distribute.values.trees import container_of, describe, leaves, map_leaves, path_of
from penstock.element import nest
from penstock.errors import DisagreementError, InvalidArgumentError
from tests.test_nest import Masked, Point

Pair = namedtuple("Pair", "x y")
C = tf.constant

# What TensorFlow prints: str, then repr.
TEXTS: dict[str, tuple[Any, str, str]] = {
    "scalars": (
        (C(1), C(2)),
        "0: tf.Tensor(1, shape=(), dtype=int32)|1: tf.Tensor(2, shape=(), dtype=int32)",
        "0: <tf.Tensor: shape=(), dtype=int32, numpy=1>|"
        "1: <tf.Tensor: shape=(), dtype=int32, numpy=2>",
    ),
    "fractions": (
        (C(1 / 3), C(65504.0, tf.float16)),
        "0: tf.Tensor(0.33333334, shape=(), dtype=float32)|"
        "1: tf.Tensor(6.55e+04, shape=(), dtype=float16)",
        "0: <tf.Tensor: shape=(), dtype=float32, numpy=0.3333333432674408>|"
        "1: <tf.Tensor: shape=(), dtype=float16, numpy=65504.0>",
    ),
    "vectors": (
        (C([1, 2]), C([3, 4])),
        "0: tf.Tensor([1 2], shape=(2,), dtype=int32)|1: tf.Tensor([3 4], shape=(2,), dtype=int32)",
        "0: <tf.Tensor: shape=(2,), dtype=int32, numpy=array([1, 2], dtype=int32)>|"
        "1: <tf.Tensor: shape=(2,), dtype=int32, numpy=array([3, 4], dtype=int32)>",
    ),
    "matrices": (
        (C([[1.0, 2.0]]), C([[3.0, 4.0]])),
        "0: tf.Tensor([[1. 2.]], shape=(1, 2), dtype=float32)|"
        "1: tf.Tensor([[3. 4.]], shape=(1, 2), dtype=float32)",
        "0: <tf.Tensor: shape=(1, 2), dtype=float32, numpy=array([[1., 2.]], dtype=float32)>|"
        "1: <tf.Tensor: shape=(1, 2), dtype=float32, numpy=array([[3., 4.]], dtype=float32)>",
    ),
    "several rows": (
        (np.array([[0.5], [0.5]], np.float32),),
        "0: tf.Tensor(\n[[0.5]\n [0.5]], shape=(2, 1), dtype=float32)",
        "0: <tf.Tensor: shape=(2, 1), dtype=float32, numpy=\n"
        "array([[0.5],\n       [0.5]], dtype=float32)>",
    ),
    "strings": (
        (C("a"), C("b")),
        "0: tf.Tensor(b'a', shape=(), dtype=string)|1: tf.Tensor(b'b', shape=(), dtype=string)",
        "0: <tf.Tensor: shape=(), dtype=string, numpy=b'a'>|"
        "1: <tf.Tensor: shape=(), dtype=string, numpy=b'b'>",
    ),
    "python": ((1, "x"), "0: 1|1: x", "0: 1|1: 'x'"),
    "one": (
        (C(1),),
        "0: tf.Tensor(1, shape=(), dtype=int32)",
        "0: <tf.Tensor: shape=(), dtype=int32, numpy=1>",
    ),
    "none": ((None, None), "0: None|1: None", "0: None|1: None"),
    "long": (
        (np.arange(2000, dtype=np.int32),),
        "0: tf.Tensor([   0    1    2 ... 1997 1998 1999], shape=(2000,), dtype=int32)",
        "0: <tf.Tensor: shape=(2000,), dtype=int32, numpy=\n"
        "array([   0,    1,    2, ..., 1997, 1998, 1999],\n      shape=(2000,), dtype=int32)>",
    ),
    "torch": (
        (torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor(True)),
        "0: tf.Tensor([1. 2.], shape=(2,), dtype=float32)|1: tf.Tensor(True, shape=(), dtype=bool)",
        "0: <tf.Tensor: shape=(2,), dtype=float32, numpy=array([1., 2.], dtype=float32)>|"
        "1: <tf.Tensor: shape=(), dtype=bool, numpy=True>",
    ),
    "jax": (
        (jnp.arange(2),),
        "0: tf.Tensor([0 1], shape=(2,), dtype=int32)",
        "0: <tf.Tensor: shape=(2,), dtype=int32, numpy=array([0, 1], dtype=int32)>",
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_prints_as_tensorflow_does(name: str) -> None:
    values, short, full = TEXTS[name]
    for kind in (PerReplica, Mirrored):
        for text, lines in ((str(kind(values)), short), (repr(kind(values)), full)):
            rows = ",\n".join(f"  {line}" for line in lines.split("|"))
            assert text == f"{kind.__name__}:{{\n{rows}\n}}"


def test_a_framework_object_that_is_no_tensor_prints_as_itself() -> None:
    assert str(PerReplica((torch.float32,))) == "PerReplica:{\n  0: torch.float32\n}"


def test_no_values_are_allowed() -> None:
    assert PerReplica(()).values == ()


def test_kinds_of_values() -> None:
    for kind in (PerReplica, Mirrored, SyncOnRead):
        assert issubclass(kind, DistributedValues)
        assert kind([1, 2]).values == (1, 2)


def test_a_per_replica_is_no_array() -> None:
    value = PerReplica((np.float32(1), np.float32(2)))
    message = "PerReplica: 2 values, one for each replica, are not one array; use strategy"
    for convert in (np.asarray, lambda v: np.concatenate([v]), tf.reduce_sum):
        with pytest.raises(InvalidArgumentError, match=message):
            convert(value)


@pytest.mark.parametrize(
    "use",
    [
        lambda v: v + 1,
        lambda v: 1 + v,
        lambda v: np.float32(1) * v,
        lambda v: np.arange(3) * v,
        len,
        iter,
        float,
        lambda v: v[0],
    ],
)
def test_a_per_replica_has_no_arithmetic(use: Any) -> None:
    message = "unsupported operand|has no len|not iterable|must be a string or a real|subscriptable"
    with pytest.raises(TypeError, match=message):
        use(PerReplica((np.float32(1), np.float32(2))))


def test_a_per_replica_is_itself_and_true() -> None:
    value = PerReplica((np.float32(1), np.float32(2)))
    assert (value == value) is True
    assert value != PerReplica(value.values)
    assert value in {value}
    assert bool(value)


def test_copies_and_pickles() -> None:
    value = PerReplica((np.arange(2), "x"))
    for other in (copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert isinstance(other, PerReplica)
        assert other.values[0].tolist() == [0, 1]
        assert other.values[1] == "x"


def test_mirrored_acts_as_its_first_value_outside_of_run() -> None:
    value = Mirrored((np.array([1.0, 2.0]), np.array([1.0, 2.0])))
    assert (value + 1).tolist() == [2.0, 3.0]
    assert (1 - value).tolist() == [0.0, -1.0]
    assert (np.array([2.0, 2.0]) * value).tolist() == [2.0, 4.0]
    assert np.square(value).tolist() == [1.0, 4.0]
    assert np.asarray(value).tolist() == [1.0, 2.0]
    assert value[1] == 2.0
    assert (-value).tolist() == [-1.0, -2.0]
    assert (value < 2).tolist() == [True, False]
    assert (value == np.array([1.0, 0.0])).tolist() == [True, False]
    assert (value != np.array([1.0, 0.0])).tolist() == [False, True]
    assert value.shape == (2,)
    assert value.dtype == np.float64
    assert len(value) == 2
    assert list(value) == [1.0, 2.0]
    assert {value: "a key"}[value] == "a key"


def test_a_mirrored_number_converts() -> None:
    value = Mirrored((np.int64(2), np.int64(2)))
    assert (float(value), int(value), bool(value), [5, 6, 7][value]) == (2.0, 2, True, 7)
    assert f"{value:03d}" == "002"


def test_mirrored_with_mirrored_is_mirrored() -> None:
    one, two = Mirrored((np.float32(1), np.float32(1))), Mirrored((np.float32(2), np.float32(2)))
    total = one + two
    assert isinstance(total, Mirrored)
    assert total.values == (3.0, 3.0)
    assert (one / two).values == (0.5, 0.5)


def test_mirrored_acts_as_the_replicas_own_value_inside_of_run() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    value = Mirrored((np.float32(1), np.float32(2)))
    assert strategy.run(lambda: value + value).values == (2.0, 4.0)
    assert strategy.run(lambda: 10 * value).values == (10.0, 20.0)


def test_mirrored_works_with_frameworks() -> None:
    weights = Mirrored((torch.tensor([1.0, 2.0]),) * 2)
    assert torch.dot(weights, torch.tensor([1.0, 1.0])) == 3.0
    assert (torch.tensor([2.0, 2.0]) * weights).tolist() == [2.0, 4.0]
    arrays = Mirrored((jnp.array([1.0, 2.0]),) * 2)
    assert jnp.dot(jnp.ones(2), arrays + 0) == 3.0
    assert (jnp.ones(2) + arrays).tolist() == [2.0, 3.0]


@dataclass(frozen=True)
class FrozenPair:
    a: Any
    b: Any = 0


@dataclass
class Odd:
    """Its constructor does not take its fields."""

    a: Any = field(init=False)

    def __init__(self, twice: Any, note: str = "") -> None:
        self.a, self.note = twice * 2, note


def test_regroup_keeps_containers() -> None:
    def tree(i: int) -> Any:
        return {"a": (np.int64(i), [np.int64(i + 10)]), "p": Pair(np.int64(i), None), "e": []}

    grouped = regroup([tree(0), tree(1)], always=False)
    assert list(grouped) == ["a", "p", "e"]
    assert grouped["a"][0].values == (0, 1)
    assert grouped["a"][1][0].values == (10, 11)
    assert isinstance(grouped["p"], Pair)
    assert grouped["p"].x.values == (0, 1)
    assert grouped["p"].y is None
    assert grouped["e"] == []


def test_regroup_keeps_special_containers() -> None:
    first, second = defaultdict(list, a=1000001), defaultdict(list, a=1000002)
    grouped = regroup([first, second], always=False)
    assert grouped.default_factory is list
    assert grouped["a"].values == (1000001, 1000002)
    ordered = regroup([OrderedDict(b=1.5, a=1), OrderedDict(b=2.5, a=1)], always=False)
    assert list(ordered.items())[1] == ("a", 1)
    top = torch.tensor([1.0, 2.0]).max(0)
    assert isinstance(
        regroup([top, top._replace() if hasattr(top, "_replace") else top], True), tuple
    )
    assert regroup([FrozenPair(1, "x"), FrozenPair(2, "x")], always=False).a.values == (1, 2)
    odd = regroup([Odd(1, "kept"), Odd(2)], always=False)
    assert odd.a.values == (2, 4)
    assert odd.note == "kept"


def test_replicas_take_and_return_attrs_classes_and_classes_that_flatten_themselves() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    given = Point(PerReplica((1.5, 2.5)), Masked(True, [PerReplica((10, 20))]))

    def double(point: Any) -> Any:
        return Point(point.x * 2, Masked(point.y.mask, [point.y.value[0] * 2]))

    returned = strategy.run(double, args=(given,))
    assert returned.x.values == (3.0, 5.0)
    assert returned.y.mask is True
    assert returned.y.value[0].values == (20, 40)


def test_places_in_attrs_classes_and_classes_that_flatten_themselves_have_paths() -> None:
    leaf = object()
    assert path_of(leaf, [Point(1, leaf)]) == "value[0].y"
    assert path_of(leaf, Masked(True, leaf)) == "value.__tf_flatten__()[1][0]"


def test_dicts_are_matched_by_their_keys() -> None:
    grouped = regroup([{"a": 1.5, "b": 2.5}, {"b": 20.5, "a": 10.5}], always=False)
    assert grouped["a"].values == (1.5, 10.5)
    assert grouped["b"].values == (2.5, 20.5)


def test_the_same_object_stays_bare_unless_always() -> None:
    shared = np.arange(2)
    assert regroup([shared, shared], always=False) is shared
    assert regroup([shared, shared], always=True).values == (shared, shared)
    assert regroup([None, None], always=True).values == (None, None)


def test_interned_scalars_count_as_computed() -> None:
    """NumPy keeps one True, Python one b"a": two replicas that compute them share no object."""
    for one in (np.bool_(True), b"a", b""):
        assert regroup([one, one], always=False).values == (one, one)


def test_other_tuples_are_leaves() -> None:
    sizes = torch.zeros(2).shape, torch.zeros(3).shape
    assert regroup(sizes, always=False).values == sizes


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ((1,), (1, 2), "tuple of 1 from replica 0, tuple of 2 from replica 1"),
        ({"a": 1}, {"b": 1}, "dict of 'a' from replica 0, dict of 'b' from replica 1"),
        ((1,), [1], "tuple of 1 from replica 0, list of 1 from replica 1"),
        (None, (1,), "NoneType from replica 0, tuple of 1 from replica 1"),
        ({}, None, "dict of nothing from replica 0, NoneType from replica 1"),
        ([(1,)], [[1]], "tuple of 1 from replica 0, list of 1 from replica 1"),
    ],
)
def test_different_structures_are_refused(first: Any, second: Any, text: str) -> None:
    message = f"Strategy.run: the replicas returned different structures: {text}; every replica"
    with pytest.raises(DisagreementError, match=message):
        regroup([first, second], always=False)


def test_select_replaces_values_and_keeps_the_rest() -> None:
    log: list[int] = []
    tree = {"a": [PerReplica((1, 2))], "log": log, "m": Mirrored((3, 3)), "p": Pair(0, 1)}
    chosen = select(1, tree)
    assert chosen == {"a": [2], "log": [], "m": 3, "p": Pair(0, 1)}
    assert chosen["log"] is log
    assert chosen["p"] is tree["p"]


def test_spread_gives_every_replica_its_own() -> None:
    log: list[int] = []
    trees = spread((PerReplica((1, 2)), log, {"x": Mirrored((3, 4)), "y": 5}), 2, "call")
    assert trees == [(1, log, {"x": 3, "y": 5}), (2, log, {"x": 4, "y": 5})]
    assert trees[0][1] is trees[1][1] is log
    same = (1, [2])
    assert all(tree is same for tree in spread(same, 3, "call"))


def test_spread_refuses_another_strategys_values() -> None:
    message = "Strategy.run: the value has 2 replicas but this strategy has 4; pass a value"
    with pytest.raises(InvalidArgumentError, match=message):
        spread(({"a": PerReplica((1, 2))},), 4, "Strategy.run")


def test_local_results() -> None:
    value = PerReplica((1, 2))
    assert local_results(value, 2) == (1, 2)
    assert local_results({"a": value}, 2) == ({"a": 1}, {"a": 2})
    assert local_results([value, 7], 2) == ([1, 7], [2, 7])
    assert local_results("x", 2) == ("x",)
    assert local_results((1, 2), 3) == ((1, 2),) * 3
    assert local_results({}, 2) == ({}, {})


def test_trees_by_themselves() -> None:
    tree = [1, {"a": (2, None)}]
    assert list(leaves(tree)) == [1, 2, None]
    assert map_leaves(lambda leaf: leaf, tree) is tree
    assert map_leaves(str, tree) == ["1", {"a": ("2", "None")}]
    assert container_of(int) is None
    assert describe([1, 2]) == "list of 2"


def test_for_elements_they_are_leaves() -> None:
    value = PerReplica((1, 2))
    assert nest.flatten({"a": value})[0] == [value]


def test_they_are_nodes_of_jax_trees() -> None:
    tf.distribute.MirroredStrategy(["CPU:0"])  # Registers them.
    value = PerReplica((jnp.float32(1), jnp.float32(2)))
    doubled = jax.tree.map(lambda x: x * 2, {"a": value, "m": Mirrored((1, 1))})
    assert isinstance(doubled["a"], PerReplica)
    assert doubled["a"].values == (2.0, 4.0)
    assert isinstance(doubled["m"], Mirrored)
    assert jax.jit(lambda v: v)(value).values == value.values


def test_they_are_nodes_of_torch_trees() -> None:
    tf.distribute.MirroredStrategy(["CPU:0"])
    value = PerReplica((torch.tensor(1.0), torch.tensor(2.0)))
    doubled = _pytree.tree_map(lambda x: x * 2, {"a": value})
    assert isinstance(doubled["a"], PerReplica)
    assert doubled["a"].values == (2.0, 4.0)


def test_registering_twice_is_fine() -> None:
    register_pytrees()
    register_pytrees()
    assert jax.tree.leaves(PerReplica((1, 2))) == [1, 2]


SPEC = tf.TensorSpec([None], np.float32)


def test_specs_print_as_tensorflows_do() -> None:
    text = "TensorSpec(shape=(None,), dtype=tf.float32, name=None)"
    assert repr(PerReplicaSpec(SPEC, SPEC)) == f"PerReplicaSpec({text}, {text})"
    assert repr(PerReplicaSpec(SPEC)) == f"PerReplicaSpec({text},)"


def test_specs_are_values() -> None:
    assert PerReplicaSpec(SPEC, SPEC) == PerReplicaSpec(SPEC, SPEC)
    assert PerReplicaSpec(SPEC, SPEC) != PerReplicaSpec(SPEC)
    assert PerReplicaSpec(SPEC) != SPEC
    assert len({PerReplicaSpec(SPEC), PerReplicaSpec(SPEC)}) == 1
    assert nest.flatten({"a": PerReplicaSpec(SPEC)})[0] == [PerReplicaSpec(SPEC)]


@pytest.mark.parametrize("make", [np.zeros, torch.zeros, jnp.zeros])
def test_specs_know_what_fits(make: Any) -> None:
    spec = PerReplicaSpec(SPEC, SPEC)
    good = PerReplica((np.float32(make(3)) if make is np.zeros else make(3), torch.zeros(1)))
    assert spec.fits(good)
    assert not spec.fits(PerReplica(good.values[:1]))
    assert not spec.fits(PerReplica((make(3), torch.zeros(1, 1))))
    assert not spec.fits(good.values[0])
    assert spec.is_compatible_with(PerReplicaSpec(SPEC, SPEC))
    assert not spec.fits(PerReplicaSpec(SPEC))


def test_a_function_signature_may_hold_specs() -> None:
    @tf.function(input_signature=[PerReplicaSpec(SPEC, SPEC)])
    def double(value: Any) -> Any:
        return [one * 2 for one in value.values]

    rows = np.ones(2, np.float32)
    assert double(PerReplica((rows, rows)))[1].tolist() == [2.0, 2.0]
    with pytest.raises(TypeError, match="double: value must be PerReplicaSpec"):
        double(PerReplica((rows,)))


def test_a_mirrored_value_is_one_numpy_value() -> None:
    assert Mirrored((np.float32(2), np.float32(2))).numpy() == 2
    assert Mirrored((np.arange(2), np.arange(2))).numpy().tolist() == [0, 1]
    assert Mirrored((torch.ones(2), torch.ones(2))).numpy().tolist() == [1, 1]
