"""Checks of shapes say which shape is wrong; tests/tf has what TensorFlow answers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from penstock import TensorShape, as_dtype
from penstock.errors import InvalidArgumentError

PAIR = TensorShape([None, 2])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: PAIR.merge_with([3]), r"\(None, 2\) and \(3,\) are not compatible"),
        (lambda: PAIR.with_rank(1), r"\(None, 2\) must have rank 1"),
        (lambda: PAIR.with_rank_at_least(3), r"\(None, 2\) must have a rank of at least 3"),
        (lambda: PAIR.with_rank_at_most(1), r"\(None, 2\) must have a rank of at most 1"),
        (lambda: PAIR.assert_same_rank([3]), r"\(None, 2\) and \(3,\) must have the same rank"),
        (lambda: PAIR.assert_is_fully_defined(), r"\(None, 2\) is not fully defined"),
        (lambda: as_dtype("string").limits, "DType.limits: string has no limits"),
    ],
)
def test_checks_name_the_shapes(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        call()


def test_other_kinds_have_nothing_in_common_with_shapes() -> None:
    assert PAIR.most_specific_common_supertype([(3, 2)]) is None
    assert PAIR.with_rank(None) is PAIR


def test_attributes_of_dtypes_are_those_of_numpy() -> None:
    assert as_dtype("int32").kind == "i"
    with pytest.raises(AttributeError, match="DType has no attribute limit$"):
        getattr(as_dtype("int32"), "limit")  # noqa: B009
    with pytest.raises(TypeError, match="None is not a data type"):
        as_dtype("float64").is_compatible_with(None)
    assert not as_dtype("int32").is_subtype_of(np.int32)
