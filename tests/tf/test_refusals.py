"""Operations name the argument that is wrong."""

import copy

import pytest

import penstock.tf as tf
from penstock.errors import InternalError, InvalidArgumentError, InvalidTypeError
from penstock.tf.missing_operations import OF_VALUES

RAGGED = tf.ragged.constant([[1, 2], [3]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tf.one_hot([0], -1), "tf.one_hot: depth must not be negative, got -1"),
        (lambda: tf.split([1, 2], 0), "tf.split: needs at least 1 part, got 0"),
        (lambda: tf.sequence_mask([1], -1), "maxlen must not be negative, got -1"),
        (lambda: tf.bitcast([1, 2, 3], tf.int64), r"dimension of \(3,\) must have 8 bytes"),
        (lambda: tf.argmax(5), "tf.argmax: needs at least one dimension"),
        (lambda: tf.math.top_k([1, 2], 5), r"k is 5, but the shape is \(2,\)"),
        (lambda: tf.scatter_nd([[-1]], [1], [3]), r"tf.scatter_nd: index -1 is not in \[0, 3\)"),
        (lambda: tf.dynamic_partition([1], [5], 2), r"dynamic_partition: index 5 is not in \[0, 2"),
        (lambda: tf.dynamic_partition([1], [0], 0), "num_partitions must be at least 1, got 0"),
        (lambda: tf.math.invert_permutation([1, 1]), "a number occurs twice"),
        (lambda: tf.reverse_sequence([[1, 2]], [5], 1), "a length of 5, but rows have 2 values"),
        (lambda: tf.math.segment_sum([1, 2], [1, 0]), "use tf.math.unsorted_segment_sum"),
        (lambda: tf.math.segment_sum([1, 2], [0]), r"one id for each row, got \(1,\)"),
        (lambda: tf.cumsum(5), "a single value cannot be cumulated"),
        (lambda: tf.io.decode_base64("!!"), r"b'!!' is not base64 of URLs"),
        (
            lambda: tf.shape(RAGGED)[1],
            r"Index 1 is not uniform; use row_lengths\(\) or bounding_sh",
        ),
        (lambda: tf.reverse(RAGGED, [2]), r"tf.reverse: axis must be in \[-2, 2\), got 2"),
        (lambda: tf.stack([RAGGED, RAGGED], 3), r"tf.stack: axis must be in \[-3, 3\), got 3"),
        (
            lambda: tf.ragged.stack([RAGGED, RAGGED], -4),
            r"tf.ragged.stack: axis must be in \[-3, 3\), got -4",
        ),
        (lambda: RAGGED.with_values([1]), r"with_values: 3 values are needed, got the shape \(1,"),
        (lambda: tf.add(RAGGED, [1, 2]), r"tf.add: \(2,\) does not fit the rows of .*; pass a"),
        (lambda: tf.shape(RAGGED)[2], "there are 2 dimensions, so none with index 2"),
        (lambda: tf.shape(RAGGED).is_uniform(2), "axis must be less than 2, got 2"),
        (lambda: tf.io.decode_csv('a"b', [""]), "record 0 has quotes or line breaks inside"),
    ],
)
def test_an_argument_is_refused(call, message):
    with pytest.raises(InvalidArgumentError, match=message):
        call()


def test_a_generator_is_not_copied_from_a_seed():
    with pytest.raises(InvalidTypeError, match="got 5; for a seed use tf.random.Generator.from_"):
        tf.random.Generator(5)


def test_numbers_are_needed():
    with pytest.raises(TypeError, match="tf.math.is_non_decreasing: needs numbers, got bool"):
        tf.math.is_non_decreasing([True])


def test_integers_are_not_divided_by_zero():
    with pytest.raises(InternalError, match="tf.truncatediv: Integer division by zero"):
        tf.truncatediv(1, 0)


def test_ragged_rows_are_refused():
    rows = tf.ragged.constant([[1, 2], [3]])
    with pytest.raises(InvalidArgumentError, match="tf.squeeze: dimension 1 of ragged rows is not"):
        tf.squeeze(rows, 1)
    with pytest.raises(InvalidArgumentError, match="tf.squeeze: axis must be given"):
        tf.squeeze(rows)
    with pytest.raises(InvalidArgumentError, match="multiples must have 2 values, got 1"):
        tf.tile(rows, [2])


@pytest.mark.parametrize("path", OF_VALUES)
def test_nothing_is_promised_in_place_of_an_attribute_that_is_here(path):
    owner, name = path.split(".")
    assert not hasattr(getattr(tf, owner), name)


@pytest.mark.parametrize(
    ("value", "name", "advice"),
    [
        (tf.constant(1), "graph", "tf.Tensor.graph: not here; functions always run"),
        (tf.constant("a"), "eval", r"tf.Tensor.eval: not here; write x.numpy\(\)"),
        (tf.constant(1), "something", "tf.Tensor.something: not here; a tensor is a NumPy array"),
        (tf.Variable(1), "load", "tf.Variable.load: not here; use assign"),
        (tf.Variable(1), "count_up_to", "tf.Variable.count_up_to: not here; assign to it"),
        (tf.sparse.from_dense([1]), "with_values", "tf.SparseTensor.with_values: not here; elem"),
        (tf.distribute.OneDeviceStrategy("cpu"), "unwrap", "call experimental_local_results"),
        (tf.distribute.OneDeviceStrategy("cpu"), "configure", "nothing: there are no sessions"),
        (
            tf.distribute.OneDeviceStrategy("cpu"),
            "gathe",
            "gathe does not exist; did you mean gather",
        ),
    ],
)
def test_a_name_that_an_object_does_not_have_says_what_to_write(value, name, advice):
    with pytest.raises(AttributeError, match=advice):
        getattr(value, name)


def test_names_of_other_libraries_are_absent():
    for value in (tf.constant(1), tf.Variable(1), tf.sparse.from_dense([1])):
        assert not hasattr(value, "__cuda_array_interface__")
        assert copy.deepcopy(value) is not None
