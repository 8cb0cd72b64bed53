"""Strings keep every byte, also zeros at their end, from every source."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as tf
from penstock import Ragged
from penstock.data import Dataset, TextLineDataset
from penstock.element import strings
from penstock.element.values import as_value
from penstock.errors import InvalidArgumentError

VECTOR = tf.TensorSpec((None,), tf.string)


def generate_value(value: Any) -> Any:
    return Dataset.from_generator(lambda: iter([value]), output_signature=VECTOR)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([b"\x08\x00", b"\x00"], [b"\x08\x00", b"\x00"]),
        (["x\0", b"y"], [b"x\0", b"y"]),
        ([["a\0"], ["b"]], [[b"a\0"], [b"b"]]),
        ([("a", "b\0"), ("c", "d")], [[b"a", b"b\0"], [b"c", b"d"]]),
        ([[["\0"]]], [[[b"\0"]]]),
        (np.array([b"x\0"], object), [b"x\0"]),
        (np.array(["x", "yz"]), [b"x", b"yz"]),
        (np.array([b"x", b"yz"]), [b"x", b"yz"]),
    ],
)
def test_lists_and_arrays_become_bytes(value: Any, expected: Any) -> None:
    array = as_value(value)
    assert array.dtype == object
    assert array.tolist() == expected


def test_every_way_into_a_dataset() -> None:
    assert list(Dataset.from_tensor_slices([b"\x08\x00", b"\x00"])) == [b"\x08\x00", b"\x00"]
    assert [a.tolist() for a in Dataset.from_tensors([b"x\0"])] == [[b"x\0"]]
    assert [a.tolist() for a in generate_value([b"x\0"])] == [[b"x\0"]]
    mapped = Dataset.range(1).map(lambda _: {"a": ["x\0"]})
    assert [element["a"].tolist() for element in mapped] == [[b"x\0"]]


def test_constants() -> None:
    assert tf.constant([b"x\0"]).tolist() == [b"x\0"]
    assert tf.constant([["x\0"]], tf.string).tolist() == [[b"x\0"]]


@pytest.mark.parametrize(
    "value", [[["a"], ["b", "c"]], [["a"], "b"], ["ab", ["c", "d"]], [["a"], []]]
)
def test_rows_of_different_lengths_are_refused(value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"use penstock.Ragged.from_rows\(rows\)"):
        as_value(value)
    with pytest.raises(ValueError, match="rows differ in length"):
        strings.from_list(value)


def test_other_objects_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="an object array holds strings only, got int"):
        as_value(np.array(["a", 1], object))
    with pytest.raises(InvalidArgumentError, match=r"\['a', 1\] mixes strings and numbers"):
        as_value(["a", 1])


class TestRagged:
    @pytest.mark.parametrize(
        ("rows", "expected"),
        [
            ([[b"a\0"], []], [[b"a\0"], []]),
            ([[], ["b", "c\0"]], [[], [b"b", b"c\0"]]),
            ([[["a\0"], ["b"]], [["c"]]], [[[b"a\0"], [b"b"]], [[b"c"]]]),
            ([np.array(["a"]), np.array([b"b\0"], object)], [[b"a"], [b"b\0"]]),
        ],
    )
    def test_from_rows(self, rows: Any, expected: Any) -> None:
        ragged = Ragged.from_rows(rows)
        assert ragged.dtype == object
        assert ragged.to_list() == expected

    @pytest.mark.parametrize("dtype", [str, bytes, object, tf.string])
    def test_from_rows_of_a_dtype(self, dtype: Any) -> None:
        assert Ragged.from_rows([["a\0"], []], dtype).to_list() == [[b"a\0"], []]
        assert Ragged.from_rows([[], []], dtype).dtype == object

    def test_from_flat_values(self) -> None:
        assert Ragged.from_row_splits(["a\0", "b"], [0, 2]).to_list() == [[b"a\0", b"b"]]

    def test_a_row_that_is_no_array(self) -> None:
        for rows in ([[["a"], ["b", "c"]]], [[[1], [2, 3]]]):
            with pytest.raises(
                InvalidArgumentError, match="Ragged: the rows of .* in length; make"
            ):
                Ragged.from_rows(rows)


@pytest.mark.parametrize("wrap", [str, np.str_, lambda x: [x], lambda x: {"k": (x, 1)}])
@pytest.mark.parametrize("options", [{}, {"num_parallel_calls": 2}])
def test_text_with_half_a_character_fails_for_its_element_only(wrap: Any, options: Any) -> None:
    """`os.listdir` gives such text for names that are not UTF-8."""
    made = Dataset.range(6).map(lambda i: wrap("\udcff" if i == 3 else "a"), **options)
    with pytest.raises(
        InvalidArgumentError, match=r"for element 3: .*has half a character .* with os.fsencode"
    ):
        list(made)
    assert len(list(made.ignore_errors())) == 5


def test_text_with_half_a_character_is_refused_as_data() -> None:
    for make in (
        lambda: Dataset.from_tensor_slices(["a", "\udcff"]),
        lambda: tf.constant("\ud83d"),
    ):
        with pytest.raises(InvalidArgumentError, match="has half a character"):
            make()


def test_a_file_whose_name_is_not_utf8_fails_alone(tmp_path: Path) -> None:
    for name in (b"a", b"\xff"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_text("line\n")
    names = Dataset.list_files(f"{tmp_path}/*", shuffle=False)
    for lines in (TextLineDataset(names), names.interleave(TextLineDataset)):
        with pytest.raises(
            InvalidArgumentError, match=r"a path must be UTF-8, got b'.*\\xff'; rename"
        ):
            list(lines)
        assert list(lines.ignore_errors()) == [b"line"]
