"""`tf.Module`: the variables and modules among its attributes."""

from typing import Any

import pytest

import penstock.tf as tf
from penstock.errors import InvalidArgumentError


class Dense(tf.Module):
    def __init__(self, size: int, name: str | None = None) -> None:
        super().__init__(name=name)
        self.weights = tf.Variable([1.0] * size)
        self.bias = tf.Variable([0.0], trainable=False)


class TwoLayers2(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [Dense(1), (Dense(2),)]
        self.zoom = tf.Variable(1.0)
        self.again = self.layers[0]
        self.by_name = {"last": Dense(3, name="last")}
        self.rate = 0.5

    @tf.Module.with_name_scope
    def __call__(self, x: Any) -> Any:
        with self.name_scope:
            return x * self.zoom


def test_variables_are_found_at_any_depth() -> None:
    net = TwoLayers2()
    shapes = [v.shape.as_list() for v in net.variables]
    assert shapes == [[], [1], [1], [1], [3], [1], [2]]
    assert [v.shape.as_list() for v in net.trainable_variables] == [[], [1], [3], [2]]
    assert len(net.non_trainable_variables) == 3
    assert [one.name for one in net.submodules] == ["dense", "last", "dense"]
    assert net(2.0).numpy() == 2.0


def test_names_are_those_of_classes() -> None:
    assert TwoLayers2().name == "two_layers2"
    assert tf.Module(name="x").name == "x"
    with pytest.raises(InvalidArgumentError, match="Module: name must be an identifier of Python"):
        tf.Module(name="a b")


def test_a_checkpoint_saves_a_module(tmp_path: Any) -> None:
    net = TwoLayers2()
    path = tf.train.Checkpoint(net=net).save(tmp_path / "checkpoint")
    names = [name for name, _ in tf.train.list_variables(path)]
    assert "net/layers/1/0/weights/.ATTRIBUTES/VARIABLE_VALUE" in names
    assert "net/by_name/last/bias/.ATTRIBUTES/VARIABLE_VALUE" in names
    net.zoom.assign(5.0)
    net.by_name["last"].weights.assign([7.0, 8.0, 9.0])
    other = TwoLayers2()
    other.zoom.assign(5.0)
    for one in (net, other):
        tf.train.Checkpoint(net=one).restore(path).assert_consumed()
        assert one.zoom.numpy() == 1.0
        assert one.by_name["last"].weights.numpy().tolist() == [1.0, 1.0, 1.0]
