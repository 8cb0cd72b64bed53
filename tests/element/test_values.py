"""Which values may be a leaf, and the errors for values that may not."""

import collections
import types
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import penstock as tf
from penstock import Ragged
from penstock.data import Dataset
from penstock.element.chunk import Chunk
from penstock.element.values import as_value
from penstock.errors import InvalidArgumentError, InvalidTypeError

UNSUPPORTED = [
    (np.array(["2020-01-01"], "M8[D]"), r"datetime64\[D\] is not .*; convert it with .astype\('in"),
    (np.array([5], "m8[s]"), r"timedelta64\[s\] is not a data type of elements; convert it"),
    (np.zeros(2, [("a", "i8")]), r"\[\('a', '<i8'\)\] is not .*; make a dict of its fields"),
    (np.zeros(2, "V3"), r"\|V3 is not a data type of elements; convert it with .astype\(\.\.\.\)"),
    (
        np.zeros(2, ml_dtypes.float8_e5m2),
        "float8_e5m2 is not a data type of elements; .* there are bfloat16, bool",
    ),
    (Ragged.from_rows([np.zeros(2, "m8[s]")]), r"timedelta64\[s\] is not"),
    ([np.datetime64(0, "s")], r"datetime64\[s\] is not a data type"),
]


@pytest.mark.parametrize(("value", "match"), UNSUPPORTED)
def test_dtypes_that_elements_do_not_have(value: Any, match: str) -> None:
    with pytest.raises(InvalidTypeError, match=f"Dataset.from_tensors: {match}"):
        Dataset.from_tensors(value)
    with pytest.raises(InvalidTypeError, match=f"Dataset.from_tensor_slices: {match}"):
        Dataset.from_tensor_slices({"a": value})


def test_a_function_must_not_return_them_either() -> None:
    ds = Dataset.range(5).map(lambda x: np.datetime64(int(x), "D"))
    with pytest.raises(
        InvalidTypeError, match=r"for element 0: datetime64\[D\] is not a data type"
    ):
        next(iter(ds))
    with pytest.raises(InvalidTypeError, match=r"Dataset.map: <lambda> at .* for element 3: datet"):
        ds[3]


OTHER_ORDER = np.array([[1, 2], [3, 4]], np.dtype(np.int32).newbyteorder())


@pytest.mark.parametrize(
    "make",
    [
        lambda: Dataset.from_tensors(OTHER_ORDER),
        lambda: Dataset.from_tensor_slices(OTHER_ORDER),
        lambda: Dataset.from_tensor_slices({"a": OTHER_ORDER}).map(lambda row: row["a"]),
        lambda: Dataset.from_tensors(Ragged.from_row_splits(OTHER_ORDER, [0, 0, 2])),
        lambda: Dataset.from_tensors(
            Ragged.from_row_splits(Ragged.from_row_splits(OTHER_ORDER, [0, 1, 2]), [0, 2])
        ),
        lambda: Dataset.range(2).map(lambda _: OTHER_ORDER),
        lambda: Dataset.range(2).map(lambda _: (OTHER_ORDER, OTHER_ORDER)).map(lambda a, b: b),
        lambda: Dataset.range(2).map(lambda _: OTHER_ORDER).unbatch(),
        lambda: Dataset.range(2).map(lambda _: OTHER_ORDER).batch(2),
        lambda: Dataset.range(1, 3).map(
            lambda rows: rows[:, None].astype(OTHER_ORDER.dtype), vectorized=True
        ),
        lambda: Dataset.range(2).scan(OTHER_ORDER, lambda state, _: (state, state)),
    ],
)
def test_elements_have_the_byte_order_of_the_machine(make: Any) -> None:
    ds = make()
    for element in ds:
        assert element.dtype.isnative
        assert element.dtype == ds.element_spec.dtype.as_numpy_dtype == np.int32
        values = element.flat_values if isinstance(element, Ragged) else element
        assert set(values.ravel().tolist()) <= {1, 2, 3, 4}


def test_bfloat16_is_one_of_them() -> None:
    array = np.zeros(3, ml_dtypes.bfloat16)
    assert as_value(array) is array
    assert Dataset.from_tensor_slices(array).element_spec.dtype == tf.bfloat16
    assert len(list(Dataset.range(2).map(lambda _: array))) == 2
    with pytest.raises(InvalidTypeError, match="'word' is not a data type; use one of bfloat16, b"):
        tf.as_dtype("word")


@pytest.mark.parametrize(
    "value", [collections.Counter(a=1), types.MappingProxyType({"a": 1}), collections.UserDict()]
)
def test_other_mappings_must_be_made_dicts(value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"cannot be an element; convert it with dict\("):
        Dataset.from_tensors(value)


def test_an_iterator_must_be_made_a_list_or_a_generator() -> None:
    with pytest.raises(InvalidArgumentError, match=r"make a list of it, or use .*from_generator"):
        Dataset.from_tensor_slices(x for x in range(3))


def test_other_objects_are_refused() -> None:
    with pytest.raises(
        InvalidArgumentError, match="a value of type object cannot be an element; use"
    ):
        as_value(object())
    with pytest.raises(
        InvalidArgumentError, match=r"map returned \(1, <object.* for element 7: a v"
    ):
        Chunk.of([(1, object())], "map", 7)


def test_floats_of_a_list_are_not_rounded_on_their_way_to_float64() -> None:
    assert as_value([0.1], np.float64).tolist() == [0.1]
    assert as_value([[0.1]]).dtype == np.float32
    wide = tf.TensorSpec((None,), tf.float64)
    (found,) = Dataset.from_generator(lambda: iter([[0.1]]), output_signature=wide)
    assert found.tolist() == [0.1]


@pytest.mark.parametrize(
    ("first", "then", "remedy"),
    [
        (1, np.int64(2), r"dtypes: convert it yourself, e.g. numpy.int64\(...\)"),
        (np.float64(1), 2.0, r"dtypes: convert it yourself, e.g. numpy.float64\(...\)"),
        (1, 2.5, r"dtypes: convert it yourself, e.g. numpy.float32\(...\)"),
        ({"a": 1, "b": np.int8(1)}, {"a": 1, "b": np.uint8(1)}, r"numpy.int16\(...\)"),
        (1, "a", "same structure and dtypes$"),
        (1, (1, 2), "same structure and dtypes$"),
    ],
)
def test_a_change_of_width_raises_with_its_remedy(first: Any, then: Any, remedy: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"map returned .* for element 4; .*{remedy}"):
        Chunk.of([first, then], "map", 3)


HASH = 2**63 + 1

LARGE = {
    "a list": lambda: as_value([1, HASH]),
    "alone": lambda: as_value([HASH]),
    "beyond uint64": lambda: as_value([2**64]),
    "below int64": lambda: as_value([0, -HASH]),
    "nested": lambda: as_value([[1, HASH], [2, 3]]),
    "beside a NumPy number": lambda: as_value([np.int64(1), HASH]),
    "for int64": lambda: as_value([1, HASH], tf.int64),
    "rows": lambda: Dataset.from_tensor_slices({"id": [5, HASH]}),
    "constant": lambda: tf.constant((5, HASH)),
    "ragged rows": lambda: Ragged.from_rows([[1, HASH], [2]]),
    "a function": lambda: next(iter(Dataset.range(2).map(lambda x: [5, HASH]))),
}


@pytest.mark.parametrize("make", LARGE.values(), ids=LARGE)
def test_integers_of_a_list_are_refused_if_they_do_not_fit_into_int64(make: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="do not all fit into int64; .* numpy.uint64"):
        make()


def test_integers_of_a_list_are_exact_if_uint64_is_wanted() -> None:
    spec = tf.TensorSpec((2, 1), tf.uint64)
    for value in ([[1], [HASH]], ((2**64 - 1,), (0,))):
        (found,) = Dataset.from_generator(lambda v=value: iter([v]), output_signature=spec)
        assert (found.dtype, found.tolist()) == (np.uint64, [list(row) for row in value])
        assert as_value(value, tf.uint64).tolist() == found.tolist()
    assert as_value([np.uint64(1), np.uint64(HASH)]).tolist() == [1, HASH]


def test_large_numbers_of_a_list_may_be_floats() -> None:
    assert as_value([1.5, 2**63]).dtype == np.float32
    assert as_value([1, 2**63], tf.float64).tolist() == [1.0, 2.0**63]
    assert as_value([1e30, float("nan")]).dtype == np.float32
    assert Ragged.from_rows([[1.5, 2**63], [1]]).dtype == np.float64


def test_a_range_is_an_array() -> None:
    assert as_value(range(3)).tolist() == [0, 1, 2]
    assert as_value(range(0)).dtype == as_value(range(3)).dtype == np.int32
    assert as_value(range(0), np.float64).dtype == np.float64
    some = Dataset.range(3).flat_map(lambda x: Dataset.from_tensor_slices(range(x)))
    assert [int(number) for number in some] == [0, 0, 1]
    assert as_value(range(3)).dtype == np.int32
    assert as_value([range(2), range(2)]).tolist() == [[0, 1], [0, 1]]
    assert as_value(range(2), np.float64).tolist() == [0.0, 1.0]
    assert [int(x) for x in Dataset.from_tensor_slices(range(3))] == [0, 1, 2]
    (found,) = Dataset.from_generator(lambda: [range(2)], np.int64)
    assert found.tolist() == [0, 1]
    assert [x.tolist() for x in Dataset.range(2).map(lambda x: range(2))] == [[0, 1]] * 2


def test_masked_values_are_no_data() -> None:
    masked = np.ma.array([1, -999, 3], mask=[0, 1, 0])
    with pytest.raises(InvalidTypeError, match=r"from_tensor_slices: an array with masked values"):
        Dataset.from_tensor_slices(masked)
    with pytest.raises(InvalidTypeError, match=r"convert it with .filled\(value\)"):
        next(iter(Dataset.range(1).map(lambda x: masked)))
    whole = Dataset.from_tensor_slices(np.ma.array([1, 2], mask=[0, 0]))
    assert [int(x) for x in whole] == [1, 2]


class OnDevice:
    """Like a tensor of torch that needs a gradient, or that is in the memory of a GPU."""

    shape, dtype = (3,), np.dtype("float32")

    def __array__(self, *arguments: Any, **options: Any) -> Any:
        raise RuntimeError("Use tensor.detach().numpy() instead.")


def test_an_object_that_refuses_to_become_an_array_names_the_call() -> None:
    text = "a value of type OnDevice cannot be an element: Use tensor.detach"
    with pytest.raises(InvalidTypeError, match=f"Dataset.from_tensor_slices: {text}"):
        Dataset.from_tensor_slices(OnDevice())
    with pytest.raises(InvalidTypeError, match=f"failed for element 0 .*{text}"):
        list(Dataset.range(1).map(lambda x: OnDevice()))
