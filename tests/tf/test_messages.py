"""`tf.train.Example` and its parts; the recorded cases hold the bytes that protobuf writes."""

import pickle

import numpy as np
import pytest

import penstock
import penstock.tf as tf
from penstock.errors import InvalidArgumentError, InvalidTypeError


def test_messages_are_filled_step_by_step():
    example = tf.train.Example()
    example.features.feature["x"].int64_list.value.extend([1, -2])
    example.features.feature["y"].bytes_list.value.append(b"a")
    assert example.SerializeToString() == penstock.io.serialize_example({"x": [1, -2], "y": [b"a"]})
    assert example.features.feature["x"].WhichOneof("kind") == "int64_list"
    assert example.features.feature["y"].HasField("bytes_list")
    assert tf.train.Feature().WhichOneof("kind") is None


def test_values_may_be_numpys_and_tensors():
    floats = tf.train.FloatList(value=np.array([0.1, 2.0]))
    assert floats.value[0] == float(np.float32(0.1))
    assert tf.train.Int64List(value=[np.int32(3), tf.constant(4)]).value == [3, 4]
    assert tf.train.Int64List(value=tf.constant([[1], [2]])).value == [1, 2]
    assert [type(one) for one in tf.train.Int64List(value=np.arange(2)).value] == [int, int]
    with pytest.raises(InvalidTypeError, match="Int64List: value must hold int"):
        tf.train.Int64List(value=np.ones(1))
    assert tf.train.BytesList(value=[tf.constant("a")]).value == [b"a"]


def test_bytes_become_the_same_message():
    steps = tf.train.FeatureList(
        feature=[tf.train.Feature(float_list=tf.train.FloatList(value=[0.5])), tf.train.Feature()]
    )
    made = tf.train.SequenceExample(
        context=tf.train.Features(
            feature={"n": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"x"]))}
        ),
        feature_lists=tf.train.FeatureLists(feature_list={"steps": steps}),
    )
    data = made.SerializeToString()
    read = tf.train.SequenceExample.FromString(tf.constant(data))
    assert read == made
    assert read.feature_lists.feature_list["steps"].feature[0].float_list.value == [0.5]
    assert tf.train.Example().ParseFromString(b"") == 0
    assert tf.train.Example.FromString(b"") == tf.train.Example()


def test_errors():
    with pytest.raises(InvalidTypeError, match="Int64List: value must hold int, got"):
        tf.train.Int64List(value=["a"])
    with pytest.raises(InvalidTypeError, match="BytesList: value must be a list, got b'abc'"):
        tf.train.BytesList(value=b"abc")
    with pytest.raises(InvalidArgumentError, match="Int64List: "):
        tf.train.Feature(int64_list=tf.train.Int64List(value=[1 << 64])).as_values()
    with pytest.raises(InvalidArgumentError, match="Example: cannot be read"):
        tf.train.Example.FromString(b"\x0a\xff")
    with pytest.raises(AttributeError, match=r"tf.train.Feature has no field other_list"):
        tf.train.Feature().other_list  # noqa: B018


def test_a_list_that_was_only_looked_at_is_not_set():
    feature = tf.train.Feature()
    assert list(feature.int64_list.value) == []
    assert feature.WhichOneof("kind") is None
    feature.float_list.value.append(1.5)
    assert feature.WhichOneof("kind") == "float_list"
    assert str(feature) == "float_list {\n  value: 1.5\n}\n"
    feature.ParseFromString(tf.train.Feature().SerializeToString())
    assert feature.WhichOneof("kind") is None


def test_the_text_of_a_map_has_its_entries_in_order():
    one = tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))
    features = tf.train.Features(feature={"b": one, "a": tf.train.Feature()})
    entries = [line for line in str(features).splitlines() if "key" in line]
    assert entries == ['  key: "b"', '  key: "a"']


def test_parts_of_examples_have_bytes():
    feature = tf.train.Feature(float_list=tf.train.FloatList(value=[2.5]))
    assert feature.SerializeToString() == b"\x12\x06\n\x04\x00\x00 @"
    messages = [
        feature,
        tf.train.Feature(),
        tf.train.BytesList(value=[b"a", b"b" * 200]),
        tf.train.Int64List(value=[-1, 300]),
        tf.train.FloatList(),
        tf.train.Features(feature={"x": feature}),
    ]
    for message in messages:
        again = type(message).FromString(message.SerializeToString())
        assert again == message
        assert again.SerializeToString() == message.SerializeToString()
    nested = b"\n" + bytes([len(messages[-1].SerializeToString())])
    whole = tf.train.Example(features=messages[-1]).SerializeToString()
    assert whole == nested + messages[-1].SerializeToString()


def test_steps_of_sequences_are_added():
    example = tf.train.SequenceExample()
    steps = example.feature_lists.feature_list["tokens"].feature
    steps.add().int64_list.value.extend([1, 2])
    steps.add(int64_list=tf.train.Int64List(value=[3]))
    _, found = tf.io.parse_single_sequence_example(
        example.SerializeToString(), None, {"tokens": tf.io.RaggedFeature(tf.int64)}
    )
    assert found["tokens"].to_list() == [[1, 2], [3]]


def test_messages_are_copied_merged_and_cleared():
    one = tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))
    example, other = tf.train.Example(), tf.train.Example()
    example.features.feature["a"].CopyFrom(one)
    other.features.feature["b"].bytes_list.value.append(b"x")
    other.MergeFrom(example)
    assert sorted(other.features.feature) == ["a", "b"]
    assert other.ByteSize() == len(other.SerializeToString())
    assert other.IsInitialized()
    assert example.MergeFromString(other.SerializeToString()) == other.ByteSize()
    assert example == other
    numbers = tf.train.Int64List(value=[1])
    numbers.MergeFrom(tf.train.Int64List(value=[2, 3]))
    assert numbers.value == [1, 2, 3]
    one.MergeFrom(one)
    assert one.int64_list.value == [1, 1]
    one.MergeFrom(tf.train.Feature(float_list=tf.train.FloatList(value=[2])))
    assert one.WhichOneof("kind") == "float_list"
    example.features.feature["a"].ClearField("int64_list")
    assert example.features.feature["a"].WhichOneof("kind") is None
    example.ClearField("features")
    assert example.SerializeToString() == b""
    other.Clear()
    assert str(other) == ""
    with pytest.raises(InvalidTypeError, match="Example.CopyFrom: needs a message of its kind"):
        example.CopyFrom(one)


def test_parts_are_dicts_of_their_fields():
    train = tf.train
    lists = {"int64_list": {"value": [1, 2]}}
    made = train.Feature(int64_list=train.Int64List(value=[1, 2]))
    assert train.Feature(**lists) == made
    assert train.Features(feature={"a": lists}) == train.Features(feature={"a": made})
    assert train.Example(features={"feature": {"a": lists}}).features.feature["a"] == made
    steps = train.FeatureList(feature=[lists, made])
    assert steps == train.FeatureList(feature=[made, made])
    both = train.SequenceExample(
        context={"feature": {"a": lists}}, feature_lists={"feature_list": {"b": steps}}
    )
    assert both.context.feature["a"] == made
    assert both.feature_lists.feature_list["b"] == steps
    with pytest.raises(InvalidTypeError, match="Int64List: needs a message of its kind or a dict"):
        train.Feature(int64_list=[1])
    with pytest.raises(InvalidArgumentError, match="Int64List: has no field 'values'; its fields"):
        train.Feature(int64_list={"values": [1]})


def test_numbers_have_the_dtypes_of_their_lists():
    floats, integers = tf.train.FloatList(value=[0.1]).value, tf.train.Int64List(value=[1]).value
    assert (np.array(floats).dtype, np.array(integers).dtype) == (np.float32, np.int64)
    assert np.array(tf.train.Int64List().value).dtype == np.int64
    assert np.array(floats, np.float64).dtype == np.float64
    assert np.sum([floats, floats]).dtype == np.float32
    assert (tf.constant(floats).dtype, tf.constant(integers).dtype) == (tf.float32, tf.int64)
    assert tf.constant(integers, tf.int32).dtype == tf.int32
    assert floats == [np.float32(0.1).item()]
    again = pickle.loads(pickle.dumps(integers))
    assert again == [1]
    assert np.array(again).dtype == np.int64
