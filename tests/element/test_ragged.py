import numpy as np
import pytest

from penstock.element.ragged import Ragged
from penstock.errors import InvalidArgumentError, InvalidTypeError, OutOfRangeError

ROWS = [[1], [2, 3], [], [4, 5, 6]]
DEEP = [[[1], [2, 3]], [], [[4]]]


def deep() -> Ragged:
    return Ragged.from_rows([Ragged.from_rows(rows or [[1]])[: len(rows)] for rows in DEEP])


@pytest.mark.parametrize(
    "key", [slice(None), slice(1, 3), slice(2, 1), slice(None, None, 2), slice(None, None, -1)]
)
def test_slices_are_those_of_the_list_of_rows(key):
    assert Ragged.from_rows(ROWS)[key].to_list() == ROWS[key]


@pytest.mark.parametrize("index", [0, 3, -1, -4])
def test_rows_are_views(index):
    ragged = Ragged.from_rows(ROWS)
    assert ragged[index].tolist() == ROWS[index]
    assert np.shares_memory(ragged[index], ragged.values)


@pytest.mark.parametrize("index", [4, -5])
def test_rows_that_do_not_exist_are_an_error(index):
    with pytest.raises(OutOfRangeError, match=rf"Ragged\[{index}\]: there are 4 rows"):
        Ragged.from_rows(ROWS)[index]


def test_a_slice_has_only_the_values_of_its_rows():
    part = Ragged.from_rows(ROWS)[1:3]
    assert part.flat.tolist() == part.flat_values.tolist() == [2, 3]
    assert part.row_lengths.tolist() == [2, 0]
    assert part.nbytes == 2 * 8 + 3 * 8


@pytest.mark.parametrize("make", [lambda: Ragged.from_rows(ROWS), deep], ids=["rows", "deep"])
def test_rows_are_taken_in_any_order(make):
    ragged = make()
    rows = ragged.to_list()
    assert ragged.take(np.array([2, 0, 0])).to_list() == [rows[2], rows[0], rows[0]]


@pytest.mark.parametrize("make", [lambda: Ragged.from_rows(ROWS), deep], ids=["rows", "deep"])
def test_parts_are_joined(make):
    ragged = make()
    assert Ragged.concat([ragged[1:], ragged[:2]]).to_list() == [
        *ragged.to_list()[1:],
        *ragged.to_list()[:2],
    ]


def test_ragged_values_can_be_ragged_again():
    ragged = deep()
    assert ragged.to_list() == DEEP
    assert (ragged.ragged_rank, ragged.shape) == (2, (3, None, None))
    assert ragged.flat_values.tolist() == [1, 2, 3, 4]


def test_strings_are_bytes_with_all_their_zeros():
    ragged = Ragged.from_rows([["a"], [b"b\0", "c"]])
    assert ragged.to_list() == [[b"a"], [b"b\0", b"c"]]
    assert ragged.dtype == object


def test_rows_without_values_have_the_dtype_that_is_given():
    assert Ragged.from_rows([[], []], np.int32).dtype == np.int32
    assert Ragged.from_rows([[1], []], np.float64).dtype == np.float64
    assert Ragged.from_rows([]).dtype == np.float32


@pytest.mark.parametrize("splits", [[0, 2], [1, 3], [0, 2, 1, 3], [], [[0, 3]], 3])
def test_row_splits_must_fit_the_values(splits):
    with pytest.raises(InvalidArgumentError, match=r"must rise from 0 to the number of values \(3"):
        Ragged.from_row_splits(np.arange(3), splits)


def test_rows_of_different_lengths_inside_a_row_are_an_error():
    with pytest.raises(InvalidArgumentError, match="differ in length; make it a Ragged first"):
        Ragged.from_rows([[[1], [2, 3]]])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (5, "rows must be a list of rows, got 5"),
        ([[1], 2], r"row 1 must be a list or an array, got 2; write a row of one value as \[value"),
        ([[1], None], "row 1 must be a list or an array, got None; "),
        ([np.ones(1), np.ones(())], r"row 1 must be a list or an array, got array\(1.\); "),
        (["ab", "c"], "row 0 must be a list or an array, got 'ab'; "),
        ([{1, 2}], r"row 0 must be a list or an array, got \{1, 2\}; "),
    ],
)
def test_what_is_no_row_is_refused(rows, message):
    with pytest.raises(InvalidTypeError, match=f"^Ragged.from_rows: {message}"):
        Ragged.from_rows(rows)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1], ["a"]], "the rows mix strings and numbers; make a Ragged of each"),
        ([np.ones((1, 2)), np.ones((1, 3))], r"the values of all rows must have one shape, got"),
    ],
)
def test_rows_that_do_not_go_together_are_refused(rows, message):
    with pytest.raises(InvalidArgumentError, match=f"^Ragged.from_rows: {message}"):
        Ragged.from_rows(rows)


@pytest.mark.parametrize(
    "rows", [np.array([[1, 2], [3, 4]]), ((1, 2), (3, 4)), iter([[1, 2], [3, 4]])]
)
def test_rows_may_be_an_array_or_an_iterator(rows):
    assert Ragged.from_rows(rows).to_list() == [[1, 2], [3, 4]]


def test_numpy_is_an_array_of_rows():
    rows = Ragged.from_rows(ROWS).numpy()
    assert (rows.dtype, [row.tolist() for row in rows]) == (object, ROWS)


def test_ragged_values_are_compared_by_their_rows_and_cannot_be_hashed():
    ragged = Ragged.from_rows(ROWS)
    assert ragged[1:] == Ragged.from_rows(ROWS[1:])
    assert ragged != ROWS
    with pytest.raises(TypeError, match="unhashable"):
        hash(ragged)
