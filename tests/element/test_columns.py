import numpy as np
import pytest

from penstock.element import columns
from penstock.element.columns import UNSTACKABLE
from penstock.element.ragged import Ragged
from penstock.errors import InvalidArgumentError

ARRAY = np.arange(6).reshape(3, 2)
RAGGED = Ragged.from_rows([[1], [2, 3], []])
LEAVES = [np.zeros(1), np.zeros(2), np.zeros(3)]
KINDS = {"array": ARRAY, "ragged": RAGGED, "list": LEAVES}


def as_lists(column):
    return [np.asarray(leaf).tolist() for leaf in column]


def test_leaves_of_one_shape_become_an_array():
    made = columns.make([np.int64(1), np.int64(2)])
    assert (made.dtype, made.tolist()) == (np.int64, [1, 2])
    assert columns.make([np.ones(2), np.zeros(2)]).shape == (2, 2)


def test_strings_become_an_array_of_objects_with_all_their_bytes():
    made = columns.make([b"a\0", b""])
    assert (made.dtype, made.tolist()) == (object, [b"a\0", b""])


@pytest.mark.parametrize("leaves", [LEAVES, [None, None], [np.int64(1), b"a"]])
def test_other_leaves_become_a_list(leaves):
    assert columns.make(leaves) is leaves


@pytest.mark.parametrize("column", KINDS.values(), ids=KINDS)
def test_rows_are_taken_from_every_kind_of_column(column):
    rows = as_lists(column)
    taken = columns.take(column, np.array([2, 0, 2]))
    assert type(taken) is type(column)
    assert as_lists(taken) == [rows[2], rows[0], rows[2]]


@pytest.mark.parametrize("column", KINDS.values(), ids=KINDS)
def test_columns_of_one_kind_are_joined_to_that_kind(column):
    joined = columns.join([column, column])
    assert type(joined) is type(column)
    assert as_lists(joined) == as_lists(column) * 2
    assert columns.join([column]) is column


def test_columns_of_different_shapes_are_joined_to_a_list():
    assert as_lists(columns.join([np.zeros((1, 2)), np.zeros((1, 3))])) == [[0] * 2, [0] * 3]


@pytest.mark.parametrize("size", [2, 2000])
def test_a_repeated_row_equals_the_row_and_is_contiguous_once_it_is_stacked(size):
    row = np.arange(size)[None]
    many = columns.again(row, 4)
    assert np.array_equal(many, np.repeat(row, 4, axis=0))
    assert (many.strides[0] == 0) == (size == 2000)  # Large rows share their memory.
    stacked = columns.stack(many, 2)
    assert stacked.shape == (2, 2, size)
    assert stacked[0].flags.c_contiguous


@pytest.mark.parametrize("column", KINDS.values(), ids=KINDS)
def test_frozen_columns_are_read_only_views(column):
    frozen = columns.as_read_only(column)
    assert as_lists(frozen) == as_lists(column)
    memory = {"array": lambda c: c, "ragged": lambda c: c.values, "list": lambda c: c[0]}
    get = next(memory[kind] for kind, value in KINDS.items() if value is column)
    with pytest.raises(ValueError, match="read-only"):
        get(frozen)[...] = 1
    assert np.shares_memory(get(frozen), get(column))


def test_kinds_are_dtypes_or_types():
    assert [columns.kind(c) for c in (ARRAY, RAGGED, LEAVES)] == [np.int64, np.int64, np.float64]
    assert columns.kind([None]) is type(None)


def test_bytes_of_strings_count():
    assert columns.nbytes(ARRAY) == 48
    strings = np.array([b"12345", b"12345"], object)
    assert columns.nbytes(strings) == 2 * 8 + 2 * 5
    assert columns.nbytes([None, None]) == 128


def test_rows_are_stacked_in_groups():
    assert columns.stack(np.arange(4), 2).tolist() == [[0, 1], [2, 3]]
    assert columns.stack(LEAVES[:2], 2) is None
    assert [g.to_list() for g in columns.stack_each(RAGGED, [2, 1])] == [[[1], [2, 3]], [[]]]
    whole, differing = columns.stack_each([np.ones(1), *LEAVES], [2, 2])
    assert whole.tolist() == [[1], [0]]
    assert differing is UNSTACKABLE


def test_ragged_leaves_are_stacked_to_a_ragged_of_more_dimensions():
    stacked = columns.stack_leaves([RAGGED, RAGGED[:1]])
    assert stacked.to_list() == [[[1], [2, 3], []], [[1]]]
    assert columns.stack_leaves([None, None]) is None


@pytest.mark.parametrize("column", [ARRAY, RAGGED, LEAVES], ids=KINDS)
def test_unstacking_returns_the_rows_of_all_leaves_and_their_counts(column):
    rows, counts = columns.unstack(column)
    assert counts.tolist() == [len(leaf) for leaf in column]
    assert as_lists(rows) == [x for leaf in as_lists(column) for x in leaf]


def test_single_values_cannot_be_unstacked():
    with pytest.raises(InvalidArgumentError, match=r"Dataset.unbatch: .* has no rows"):
        columns.unstack(np.arange(3))


def test_a_missing_component_has_the_rows_of_the_other_components():
    (rows, counts), (nones, same) = columns.unstack_all([ARRAY, [None] * 3])
    assert (len(rows), nones) == (6, [None] * 6)
    assert counts is same or counts.tolist() == same.tolist()


@pytest.mark.parametrize("block", [1, 2])
def test_columns_are_woven_by_blocks(block):
    arrays = [np.arange(4) + 10 * i for i in range(3)]
    want = {
        1: [0, 10, 20, 1, 11, 21, 2, 12, 22, 3, 13, 23],
        2: [0, 1, 10, 11, 20, 21, 2, 3, 12, 13, 22, 23],
    }[block]
    assert columns.weave(arrays, block).tolist() == want
    assert columns.weave([list(array) for array in arrays], block) == want
    ragged = [Ragged.from_rows([[x] * (x % 3) for x in array]) for array in arrays]
    assert [len(row) for row in columns.weave(ragged, block)] == [x % 3 for x in want]
