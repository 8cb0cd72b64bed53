"""Assigned slices of variables, and `scatter_*`: their errors, and which copies change.

`strategy_programs` compares their results with TensorFlow.
"""

from typing import Any

import numpy as np
import pytest
import torch

import penstock.tf as tf
from penstock.errors import InvalidArgumentError, InvalidTypeError, UnimplementedError


@pytest.fixture
def two() -> Any:
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def rows(values: Any, indices: Any, shape: Any = None) -> Any:
    return tf.IndexedSlices(values, indices, shape)


def test_a_slice_of_a_mirrored_variable_changes_every_copy(two: Any) -> None:
    with two.scope():
        v = tf.Variable([1.0, 2.0], aggregation=tf.VariableAggregation.MEAN)
    assert v[0].assign(9.0) is v
    assert [copy.numpy().tolist() for copy in v.values] == [[9.0, 2.0], [9.0, 2.0]]

    def change() -> Any:
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        return v[1].assign(float(number))

    changed = two.run(change)
    assert [value.numpy().tolist() for value in changed.values] == [[9.0, 0.0], [9.0, 1.0]]
    assert [copy.numpy().tolist() for copy in v.values] == [[9.0, 0.0], [9.0, 1.0]]


def test_a_slice_is_a_tensor_of_its_time() -> None:
    v = tf.Variable([[1, 2], [3, 4]])
    part = v[0]
    v.assign([[5, 6], [7, 8]])
    assert part.numpy().tolist() == [1, 2]
    assert type(part + 1) is type(part[0]) is tf.Tensor
    assert np.add(part, part).numpy().tolist() == [2, 4]
    assert np.concatenate([part, part]).tolist() == [1, 2, 1, 2]
    assert tf.stack([part, part]).shape == [2, 2]
    assert next(tf.data.Dataset.from_tensors(part).as_numpy_iterator()).tolist() == [1, 2]
    assert next(iter(tf.data.Dataset.range(1).map(lambda _: v[1]))).numpy().tolist() == [7, 8]
    part.assign([0, 0])
    assert v.numpy().tolist() == [[0, 0], [7, 8]]


def test_only_slices_are_assigned(two: Any) -> None:
    v = tf.Variable([1.0, 2.0])
    assert not hasattr(v[tf.constant([True, False])], "assign")
    assert not hasattr(v.read_value()[0], "assign")
    with pytest.raises(InvalidTypeError, match="Tensor.assign: only a slice of a variable can"):
        v[0].reshape(1).view(type(v[0])).assign(1.0)
    with two.scope():
        on_read = tf.Variable([1.0], synchronization=tf.VariableSynchronization.ON_READ)
    with pytest.raises(InvalidArgumentError, match="copies are not one value"):
        on_read[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v[0].assign([1.0, 2.0]), r"a value of shape \(2,\) does not fit a slice of sha"),
        (lambda v: v[0].assign(tf.constant(1)), "has the dtype float32, got a tensor of int32; us"),
        (lambda v: v.scatter_add(rows([1.0], [2])), r"scatter_add: the index 2 is not in \[0, 2\)"),
        (lambda v: v.scatter_add(rows([[1.0]], [0])), r"values of shape \(1, 1\) do not fit the s"),
        (lambda v: v.scatter_nd_add([[0, 0]], [1.0]), r"scatter_nd_add: indices of shape \(1, 2\)"),
        (lambda v: tf.Variable(1.0).scatter_add(rows([1.0], [0])), "is a single value and has no"),
        (lambda v: tf.convert_to_tensor(rows(tf.ones(1), [0])), "the IndexedSlices have no dense"),
    ],
)
def test_wrong_values_are_refused(change: Any, message: str) -> None:
    v = tf.Variable([1.0, 2.0])
    with pytest.raises(InvalidArgumentError, match=message):
        change(v)
    assert v.numpy().tolist() == [1.0, 2.0]


def test_wrong_types_are_refused() -> None:
    v = tf.Variable([1.0, 2.0])
    with pytest.raises(InvalidTypeError, match="scatter_min: needs tf.IndexedSlices.values, indi"):
        v.scatter_min([1.0])
    with pytest.raises(InvalidTypeError, match="scatter_max: indices must be integers, got float"):
        v.scatter_max(rows([1.0], [0.5]))
    assert v.scatter_mul(rows([], [])).numpy().tolist() == [1.0, 2.0]


def test_replicas_do_not_sum_what_is_no_sum(two: Any) -> None:
    with two.scope():
        v = tf.Variable([1.0], aggregation=tf.VariableAggregation.SUM)
        on_read = tf.Variable([1.0], synchronization=tf.VariableSynchronization.ON_READ)
    with pytest.raises(UnimplementedError, match="scatter_update: replicas cannot do it with the"):
        two.run(lambda: v.scatter_update(rows([1.0], [0])))
    with pytest.raises(UnimplementedError, match="scatter_add: 'Variable:0' is ON_READ; use assi"):
        on_read.scatter_add(rows([1.0], [0]))
    with pytest.raises(UnimplementedError, match="gather: IndexedSlices cannot be gathered; make"):
        two.gather(rows(tf.ones(1), tf.constant([0])), axis=0)
    each = two.run(lambda: rows(tf.ones(1), tf.constant([0]), (2,)))
    with pytest.raises(UnimplementedError, match="reduce: IndexedSlices are not added over an ax"):
        two.reduce("SUM", each, axis=0)
    assert tf.convert_to_tensor(two.reduce("SUM", each, axis=None)).numpy().tolist() == [2.0, 0.0]


def test_variables_of_a_framework_are_assigned_whole() -> None:
    v = tf.Variable(torch.ones(2))
    with pytest.raises(
        UnimplementedError, match="scatter_add: the variable holds tensors of torch"
    ):
        v.scatter_add(rows([1.0], [0]))


def test_slices_describe_themselves() -> None:
    made = rows(tf.constant([[1.0]]), tf.constant([2]))
    assert repr(made) == "IndexedSlices(indices=[2], values=[[1.]])"
    assert (made.shape, made.dense_shape, made.dtype) == (None, None, tf.float32)
    assert (-made).values.numpy().tolist() == [[-1.0]]
    assert made.copy().indices.numpy().tolist() == [2]
