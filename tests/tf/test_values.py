"""Tensors: NumPy arrays that answer `.numpy()`, and that every framework takes as they are."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import penstock
import penstock.tf as tf
from penstock.errors import InvalidArgumentError, InvalidTypeError, UnimplementedError


@pytest.fixture
def x():
    return tf.constant([[1.0, 2.0], [3.0, 4.0]])


def test_numpy_gives_plain_values(x):
    assert type(x.numpy()) is np.ndarray
    assert type(tf.constant(3).numpy()) is np.int32
    assert type(tf.constant("a").numpy()) is bytes
    assert type(x[0, 1].numpy()) is np.float32


def test_a_static_value_is_what_numpy_gives(x):
    assert type(tf.get_static_value(x)) is np.ndarray
    assert type(tf.get_static_value(tf.constant(3))) is np.int32
    assert tf.get_static_value(tf.constant("a")) == b"a"
    assert type(tf.get_static_value(tf.constant("a"))) is bytes
    assert tf.get_static_value([1, 2]) == [1, 2]
    assert tf.get_static_value(tf.Variable(3)) is None


def test_numpy_takes_it_as_an_array(x):
    assert isinstance(x, np.ndarray)
    assert type(np.pad(x, 1)) is np.ndarray
    assert np.zeros(x.shape, x.dtype).dtype == np.float32
    assert np.concatenate([x, x]).shape == (4, 2)


@pytest.mark.parametrize("make", [torch.as_tensor, torch.from_numpy, torch.tensor])
def test_torch_takes_it(make):
    values = tf.constant([[1.0, 2.0]]) * 2
    assert make(values).tolist() == [[2.0, 4.0]]


@pytest.mark.parametrize("make", [jnp.asarray, jax.device_put, jax.jit(lambda value: value)])
def test_jax_takes_it(make, x):
    assert make(x).tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_shape_and_dtype_are_tensorflows(x):
    assert x.shape == tf.TensorShape([2, 2])
    assert x.shape.as_list() == [2, 2]
    assert x.get_shape()[0] == 2
    assert x.dtype is tf.float32
    assert x.dtype == np.float32
    assert {np.dtype("float32"): 1}[x.dtype] == 1


def test_set_shape_checks(x):
    x.set_shape([None, 2])
    with pytest.raises(InvalidArgumentError, match=r"\(None, 3\) does not fit the shape \(2, 2\)"):
        x.set_shape([None, 3])


def test_an_assignment_with_an_operator_makes_a_new_tensor(x):
    before = x
    x += 1
    assert before[0, 0] == 1
    assert x[0, 0] == 2


def test_items_cannot_be_assigned(x):
    with pytest.raises(InvalidTypeError, match=r"does not support item assignment; use x\.numpy"):
        x[0] = 1


def test_a_single_value_cannot_be_iterated():
    with pytest.raises(InvalidTypeError, match="a single value cannot be iterated over"):
        iter(tf.constant(1))


def test_it_is_no_key_but_its_reference_is(x):
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)
    assert {x.ref(): 5}[x.ref()] == 5
    assert x.ref().deref() is x
    assert x.ref() != (x + 1).ref()


def test_comparison_with_none(x):
    assert (x == None) is False  # noqa: E711
    assert (x != None) is True  # noqa: E711
    assert 3.0 in x


def test_strings_are_compared_and_joined_with_text():
    text = tf.constant("a")
    assert text == "a"
    assert text != "b"
    assert (text + "b").numpy() == b"ab"
    assert ("b" + text).numpy() == b"ba"


def test_it_is_pickled(x):
    copy = pickle.loads(pickle.dumps(x))
    assert type(copy) is tf.Tensor
    assert copy.numpy().tolist() == x.numpy().tolist()


def test_it_indexes_lists(x):
    assert ["a", "b"][tf.constant(1)] == "b"
    assert list(range(tf.constant(2))) == [0, 1]
    assert x.device.endswith("CPU:0")


def test_plain_penstock_stays_plain():
    assert type(next(iter(penstock.Dataset.range(1)))) is np.int64
    assert type(penstock.constant([1])) is np.ndarray


def test_slices_of_strings_and_scalars():
    assert tf.constant(["a", "b"])[1] == "b"
    assert f"{tf.constant(2.5):.2f} {tf.constant([1])}" == "2.50 [1]"


def test_shapes_have_tensorflows_calls():
    shape = tf.TensorShape([None, 2])
    assert shape.ndims == 2
    assert shape.num_elements() is None
    assert tf.TensorShape([3, 2]).num_elements() == 6
    assert shape + tf.TensorShape([3]) == [None, 2, 3]
    more = [1]
    assert more + shape == [1, None, 2]
    assert shape.concatenate(tf.TensorShape(None)).rank is None
    assert shape.is_compatible_with([5, 2])
    assert not shape.is_compatible_with([5, 3])
    assert shape.is_compatible_with(tf.TensorShape(None))


def test_dtypes_have_tensorflows_calls():
    assert (tf.uint8.max, tf.int8.min, tf.bool.max) == (255, -128, True)
    assert tf.float32.max == np.finfo(np.float32).max
    assert tf.uint8.is_unsigned
    assert tf.complex64.is_complex
    assert tf.int32.base_dtype is tf.int32
    assert tf.int32.kind == "i"
    assert not hasattr(tf.int32, "no_such_name")
    assert not hasattr(tf.int32, "_no_such_name")
    with pytest.raises(InvalidTypeError, match=r"DType.max: string has no max"):
        tf.string.max  # noqa: B018


def test_numbers_of_numpy_are_not_truncated():
    with pytest.raises(TypeError, match="cannot become int64; use tf.cast"):
        tf.constant(1, tf.int64) + np.float32(1.5)
    assert (tf.constant(1.0) + np.float64(1.5)).dtype == np.float32
    assert (tf.constant(1, tf.int64) + np.int32(2)).numpy() == 3


@pytest.mark.parametrize(
    "divide", [lambda x, y: x // y, lambda x, y: x % y, lambda x, y: divmod(x, y)]
)
def test_integers_are_not_divided_by_zero(divide):
    with pytest.raises(InvalidArgumentError, match="Integer division by zero"):
        divide(tf.constant([12, 1]), tf.constant([1, 0]))
    assert np.isinf((tf.constant(1.0) // tf.constant(0.0)).numpy())


def test_a_list_has_tensors_of_one_dtype_and_shape():
    with pytest.raises(InvalidArgumentError, match="a list has tensors of int32, float32; use tf"):
        tf.reduce_sum([tf.constant(1), tf.constant(2.0)])
    with pytest.raises(InvalidArgumentError, match=r"parts of the shapes \(1,\), \(2,\)"):
        tf.reduce_sum([tf.constant([1]), [2, 3]])
    with pytest.raises(UnimplementedError, match="convert_to_tensor: int32 cannot become string"):
        tf.convert_to_tensor([tf.constant(1)], tf.string)
    with pytest.raises(InvalidArgumentError, match="tf.add_n: the tensors have the dtypes int32, "):
        tf.add_n([[1], [1.5]])


def test_floats_of_numpy_beside_integers_keep_their_fractions():
    assert tf.multiply(2, np.array([1.5])).numpy().tolist() == [3.0]
    assert tf.concat([[1], np.array([1.5])], 0).numpy().tolist() == [1.0, 1.5]
    with pytest.raises(TypeError, match="cannot become int32; use tf.cast"):
        tf.concat([tf.constant([1]), np.array([1.5])], 0)


def test_a_generator_yields_lists_in_the_dtype_of_the_signature():
    spec = tf.TensorSpec([2], tf.float64)
    made = tf.data.Dataset.from_generator(lambda: [[tf.constant(1.0), 0.1]], output_signature=spec)
    assert next(iter(made)).numpy().tolist() == [1.0, 0.1]


def test_operators_name_what_they_refuse():
    with pytest.raises(InvalidArgumentError, match="add: operands could not be broadcast"):
        tf.constant([1, 2]) + tf.constant([1, 2, 3])
    with pytest.raises(InvalidArgumentError, match=r"matmul: needs matrices, .* use tf.tensordot"):
        tf.constant([1, 2]) @ tf.constant([1, 2])
    with pytest.raises(InvalidArgumentError, match="less: does not take values of string; use tf"):
        tf.constant("a") < "b"  # noqa: B015
    with pytest.raises(InvalidArgumentError, match="invert"):
        ~tf.constant(1.5)


def test_an_assignment_with_an_operator_multiplies_matrices():
    product = before = tf.constant([[1, 2]])
    product @= tf.constant([[3], [4]])
    assert product.numpy().tolist() == [[11]]
    assert before.numpy().tolist() == [[1, 2]]


@pytest.mark.parametrize(
    "make",
    [
        lambda: tf.constant([1, 2]),
        lambda: tf.convert_to_tensor(np.array([1, 2])),
        lambda: tf.Variable([1, 2]),
        lambda: next(iter(tf.data.Dataset.from_tensors([1, 2]))),
        lambda: next(iter(tf.data.Dataset.from_tensor_slices([[1, 2]]))),
        lambda: next(iter(tf.data.Dataset.from_tensor_slices(np.arange(1, 5)).batch(2))),
        lambda: next(iter(tf.data.Dataset.from_tensors([0, 1]).map(lambda x: x + 1).cache())),
    ],
)
def test_what_numpy_gives_can_be_written(make):
    tensor = make()
    tensor.numpy()[:] = 0
    assert tensor.numpy().tolist() == [1, 2]


@pytest.mark.parametrize("stack", [tf.stack, tf.ragged.stack])
def test_ragged_rows_are_stacked_along_every_axis(stack):
    rows = [tf.ragged.constant([[1, 2], [], [3]]), tf.ragged.constant([[4, 5], [], [6]])]
    inside = [[[1, 4], [2, 5]], [], [[3, 6]]]
    assert stack(rows, axis=2).to_list() == stack(rows, axis=-1).to_list() == inside
    assert stack(rows, axis=-3).to_list() == [row.to_list() for row in rows]


def test_rows_of_a_ragged_tensor_can_be_written():
    rows = tf.ragged.constant([[1, 2], [3]])
    rows.numpy()[0][:] = 0
    assert rows.to_list() == [[1, 2], [3]]


def test_numpy_functions_take_a_tensor_without_a_copy(x):
    assert np.shares_memory(np.asarray(x), x)
    assert not np.shares_memory(x.numpy(), x)
