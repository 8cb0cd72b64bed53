from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.element import chunk as chunk_module
from penstock.element import columns
from penstock.element.chunk import Chunk, describe, describe_spec
from penstock.element.ragged import Ragged
from penstock.element.spec import NoneTensorSpec, TensorSpec
from penstock.errors import InvalidArgumentError
from tests.effort import examples

Point = namedtuple("Point", "x y")

ELEMENTS = {
    "numbers": [np.int64(1), np.int64(2)],
    "python numbers": [1.5, 2.5],
    "strings": [b"a\0", b""],
    "arrays": [np.ones(2), np.zeros(2)],
    "arrays of different shapes": [np.ones(2), np.zeros(3)],
    "pairs": [(np.int64(1), b"a"), (np.int64(2), b"b")],
    "dicts": [{"b": np.int64(1), "a": b"x"}, {"b": np.int64(2), "a": b"y"}],
    "named tuples": [Point(np.int64(1), {"z": b"a"}), Point(np.int64(2), {"z": b"b"})],
    "ragged": [Ragged.from_rows([[1], []]), Ragged.from_rows([[2, 3]])],
    "none": [(None, np.int64(1)), (None, np.int64(2))],
    "empty structures": [(), ()],
}


def convert_to_lists(value):
    if isinstance(value, Ragged):
        return value.to_list()
    if isinstance(value, dict):
        return {key: convert_to_lists(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return type(value), [convert_to_lists(part) for part in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


@pytest.mark.parametrize("elements", ELEMENTS.values(), ids=ELEMENTS)
def test_elements_come_out_as_they_went_in(elements):
    chunk = Chunk.of(elements)
    assert len(chunk) == 2
    assert [convert_to_lists(x) for x in chunk.elements()] == [
        convert_to_lists(x) for x in elements
    ]


@pytest.mark.parametrize("elements", ELEMENTS.values(), ids=ELEMENTS)
def test_chunks_are_sliced_taken_and_joined(elements):
    chunk = Chunk.of(elements).with_numbers(np.array([7, 8]))
    joined = Chunk.join([chunk.rows(1, 9), chunk.take(np.array([0]))])
    assert [convert_to_lists(x) for x in joined.elements()] == [
        convert_to_lists(x) for x in elements[::-1]
    ]
    assert joined.numbers.tolist() == [8, 7]
    assert joined.kind == chunk.kind


def test_slices_share_memory_and_all_rows_are_the_chunk_itself():
    chunk = Chunk.of([np.arange(3), np.arange(3)])
    assert chunk.rows(0, 5) is chunk
    assert np.shares_memory(chunk.rows(1, 2).columns[0], chunk.columns[0])


def test_numbers_are_kept_only_if_all_chunks_have_them():
    chunk = Chunk.of([np.int64(1)])
    assert Chunk.join([chunk, chunk.with_numbers(np.array([3]))]).numbers is None


def test_one_element_many_times():
    assert Chunk.of([(np.int64(4), b"a")]).again(3).elements() == [(4, b"a")] * 3


def test_frozen_chunks_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        Chunk.of([np.ones(2)]).as_read_only().columns[0][0] = 0


@pytest.mark.parametrize(
    ("second", "described"),
    [
        (np.float32(1), "float32 for element 11; .*: convert it yourself, e.g. numpy.float32"),
        (b"a", "string for element 11"),
        ((np.int64(1),), r"\(int64,\) for element 11"),
    ],
)
def test_elements_must_have_one_structure_and_one_dtype(second, described):
    with pytest.raises(InvalidArgumentError, match=f"int64 for element 10 but {described}"):
        Chunk.of([np.int64(1), second], "Dataset.map: f", 10)


def test_a_value_that_cannot_be_an_element_is_named_with_its_number():
    with pytest.raises(InvalidArgumentError, match="f returned .* for element 5: a value of type"):
        Chunk.of([object()], "f", 5)


def test_ints_of_different_sizes_are_different_dtypes():
    with pytest.raises(InvalidArgumentError, match="int32 for element 0 but int64 for element 1"):
        Chunk.of([1, 1 << 40])


LEAVES = {
    "bool": st.booleans(),
    "int": st.integers(-3, 3) | st.sampled_from([2**31 - 1, 2**31, -(2**31) - 1, 2**62, 2**63]),
    "float": st.floats(width=32, allow_nan=False),
    "str": st.text(max_size=3, alphabet="aé\0"),
    "bytes": st.binary(max_size=3),
    "int64": st.integers(-3, 3).map(np.int64),
    "array": st.lists(st.integers(0, 9), max_size=3).map(np.int32),
    "list of int": st.lists(st.integers(-3, 3) | st.just(2**40), min_size=1, max_size=3),
    "list of float": st.lists(st.floats(-3, 3), min_size=1, max_size=3),
    "list of bool": st.lists(st.booleans(), max_size=2),
    "list of numbers": st.lists(st.integers(-3, 3) | st.floats(-3, 3), min_size=1, max_size=2),
    "list of str": st.lists(st.text(max_size=2), min_size=1, max_size=2),
    "list of lists": st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=2), min_size=1),
}


@st.composite
def like_elements(draw: st.DrawFn) -> list[Any]:
    """Elements whose leaves are mostly of the same kinds."""
    kinds = draw(st.lists(st.sampled_from(sorted(LEAVES)), min_size=1, max_size=2))
    one = st.tuples(*(LEAVES[kind] for kind in kinds))
    form: Any = draw(st.sampled_from([lambda x: x, lambda x: x[0], lambda x: {"a": x, "b": x[0]}]))
    return draw(st.lists(one.map(form), min_size=1, max_size=4))


def made_of(elements: list[Any]) -> Any:
    try:
        chunk = Chunk.of(elements)
    except InvalidArgumentError as error:
        return error.message
    return chunk.tree, [(columns.kind(c), repr(c)) for c in chunk.columns]


@given(elements=like_elements())
@examples(300)
def test_values_of_python_are_converted_at_once_as_one_by_one(elements: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_module, "_build", lambda values: None)
        expected = made_of(elements)
    assert made_of(elements) == expected


@pytest.mark.parametrize("first", [0, 2**63])
def test_an_int_of_more_than_64_bits_is_an_error(first):
    with pytest.raises(InvalidArgumentError, match="9223372036854775808 does not fit into 64 bits"):
        Chunk.of([first, 2**63])


def test_structures_are_described_alike_by_elements_and_specs():
    element = (np.int64(1), {"a": b"x", "b": None})
    spec = (TensorSpec((), "int64"), {"a": TensorSpec((), "string"), "b": NoneTensorSpec()})
    assert describe(element) == describe_spec(spec) == "(int64, {'a': string, 'b': nonetensor})"
