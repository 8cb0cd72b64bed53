"""Concrete functions of `tf.function`, and its attributes that code uses."""

import pickle
from typing import Any

import pytest

import penstock.tf as tf
from penstock.errors import InvalidArgumentError, InvalidTypeError, OutOfRangeError


@tf.function
def multiply(x: Any, y: int = 2) -> Any:
    return x * y


class Model:
    def __init__(self, rate: int) -> None:
        self.rate = rate

    @tf.function
    def step(self, x: Any) -> Any:
        return x * self.rate

    @tf.function(input_signature=[tf.TensorSpec([], tf.int32)])
    def add_rate(self, x: Any) -> Any:
        return x + self.rate


def test_a_concrete_function_has_the_specs_of_its_arguments() -> None:
    concrete = multiply.get_concrete_function(tf.TensorSpec([None], tf.int32))
    assert concrete(tf.constant([1, 2])).numpy().tolist() == [2, 4]
    assert concrete(x=tf.constant([3])).numpy().tolist() == [6]
    assert concrete.structured_input_signature == ((tf.TensorSpec([None], tf.int32), 2), {})
    by_value = multiply.get_concrete_function(tf.constant([1]), y=3)
    assert by_value(tf.constant([4, 5])).numpy().tolist() == [12, 15]
    assert by_value.structured_input_signature[0] == (tf.TensorSpec([1], tf.int32), 3)


def test_arguments_of_a_concrete_function_are_checked() -> None:
    concrete = multiply.get_concrete_function(tf.TensorSpec([None], tf.int32))
    with pytest.raises(InvalidArgumentError, match="multiply: x must have the dtype int32, got f"):
        concrete(tf.constant([1.0]))
    with pytest.raises(InvalidTypeError, match="multiply: y is fixed: it is 2, got 5"):
        concrete(tf.constant([1]), 5)
    with pytest.raises(InvalidTypeError, match="multiply: x: a required argument is missing"):
        concrete()
    with pytest.raises(InvalidTypeError, match="multiply: too many positional arguments"):
        concrete(1, 2, 3)
    with pytest.raises(InvalidTypeError, match="get_concrete_function: missing a required argume"):
        multiply.get_concrete_function()
    pair = tf.function(lambda pair: pair[0]).get_concrete_function((tf.TensorSpec([]), 1))
    with pytest.raises(InvalidTypeError, match="pair must be"):
        pair(3)


def test_methods_have_concrete_functions() -> None:
    model = Model(3)
    assert model.step(tf.constant(2)).numpy() == 6
    assert model.step.get_concrete_function(tf.TensorSpec([], tf.int32))(tf.constant(2)) == 6
    assert model.add_rate.get_concrete_function()(tf.constant(2)).numpy() == 5
    assert Model.add_rate.input_signature == (tf.TensorSpec([], tf.int32),)
    assert multiply.python_function(3) == 6


def test_an_iterator_that_ends_inside_is_out_of_range() -> None:
    step = tf.function(lambda iterator: next(iterator))
    iterator = iter(tf.data.Dataset.range(1))
    assert step(iterator).numpy() == 0
    with pytest.raises(OutOfRangeError, match="<lambda>: the iterator has no more elements"):
        step(iterator)


def test_a_function_travels() -> None:
    assert pickle.loads(pickle.dumps(multiply)) is multiply
    assert tf.function(len) == tf.function(len)
    assert pickle.loads(pickle.dumps(tf.function(len)))([1, 2]) == 2
    assert tf.function(autograph=False)(len)([1]) == 1
    with pytest.raises(InvalidTypeError, match="function: there is no argument wrong"):
        tf.function(wrong=1)
