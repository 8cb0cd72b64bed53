"""`tf.function`: the function runs as it is, and returns tensors."""

import collections
import pickle

import cloudpickle
import numpy as np
import pytest

import penstock.tf as tf
from penstock.errors import InvalidTypeError

Pair = collections.namedtuple("Pair", ["first", "second"])


@tf.function
def double(x):
    """Doubles."""
    return x * 2


@pytest.mark.parametrize(
    ("value", "dtype", "result"),
    [
        ("hello", tf.string, b"hello"),
        (b"hello", tf.string, b"hello"),
        (True, tf.bool, True),
        (5, tf.int32, 5),
        (1 << 40, tf.int64, 1 << 40),
        (2.5, tf.float32, 2.5),
        (np.float64(2.5), tf.float64, 2.5),
        (np.int64(3), tf.int64, 3),
    ],
)
def test_values_of_python_and_numpy_are_returned_as_tensors(value, dtype, result):
    made = tf.function(lambda: value)()
    assert tf.is_tensor(made)
    assert (made.dtype, made.shape.as_list(), made.numpy()) == (dtype, [], result)


def test_an_array_is_returned_as_a_tensor():
    made = tf.function(lambda: np.arange(2))()
    assert tf.is_tensor(made)
    assert made.numpy().tolist() == [0, 1]


def test_structures_keep_their_types():
    made = tf.function(lambda: ([1, (2.0,)], {"a": Pair("b", None)}))()
    numbers, named = made
    assert (type(numbers), type(numbers[1])) == (list, tuple)
    assert (numbers[0].dtype, numbers[1][0].dtype) == (tf.int32, tf.float32)
    assert isinstance(named["a"], Pair)
    assert (named["a"].first.numpy(), named["a"].second) == (b"b", None)


def test_tensors_datasets_and_other_objects_are_returned_as_they_are():
    dataset, thing = tf.data.Dataset.range(3), object()
    tensor, ragged = tf.constant([1]), tf.ragged.constant([[1], []])
    for value in (dataset, thing, tensor, ragged, tf.Variable(3)):
        assert tf.function(lambda value=value: value)() is value


def test_methods_are_bound():
    class Model:
        factor = 3

        @tf.function
        def call(self, x):
            return self.factor * x

        @tf.function(input_signature=[tf.TensorSpec([], tf.int32)])
        def multiply(self, x):
            return self.factor * x

    assert Model().call(2).numpy() == Model.call(Model(), 2).numpy() == 6
    assert Model().multiply(2).numpy() == 6
    with pytest.raises(InvalidTypeError, match="x: 'a' .str. cannot become int32"):
        Model().multiply("a")
    built_in = type("Holder", (), {"length": tf.function(len)})()
    assert built_in.length([1, 2]).numpy() == 2


def test_it_keeps_the_name_and_the_signature():
    assert (double.__name__, double.__doc__) == ("double", "Doubles.")
    signed = tf.function(lambda x: x, input_signature=[tf.TensorSpec([], tf.int32)])
    assert signed.input_signature == (tf.TensorSpec([], tf.int32),)


def test_datasets_call_it():
    assert [int(x) for x in tf.data.Dataset.range(3).map(double)] == [0, 2, 4]
    assert double.__wrapped__(4) == 8
    with pytest.raises(InvalidTypeError, match="there is no argument signature"):
        tf.function(signature=[])


def test_results_of_a_strategy_are_tensors():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    results = strategy.experimental_local_results(strategy.run(tf.function(lambda: 2.5)))
    assert [result.numpy() for result in results] == [2.5, 2.5]


def test_a_pickled_function_is_the_same():
    assert pickle.loads(cloudpickle.dumps(double))(4).numpy() == 8
