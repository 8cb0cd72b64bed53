"""Values that a generator yields become the dtype of its signature, without a silent loss."""

from typing import Any

import numpy as np
import pytest

from penstock.data import Dataset
from penstock.element.spec import TensorSpec
from penstock.errors import InvalidArgumentError


def element_of(value: Any, dtype: Any) -> Any:
    signature = TensorSpec(np.shape(value), dtype)
    (element,) = Dataset.from_generator(lambda: iter([value]), output_signature=signature)
    return element


@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [0, value], np.asarray])
@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1.5, np.int32),
        (np.float32(1.5), np.int64),
        (2**40, np.int32),
        (np.int64(2**40), np.int32),
        (300, np.uint8),
        (-1, np.uint8),
        (np.int64(-1), np.uint64),
        (2.0**63, np.int64),
        (float("nan"), np.int32),
        (float("inf"), np.int32),
        (2, np.bool_),
        (0.5, np.bool_),
        (1e300, np.float32),
        (np.float64(-1e300), np.float32),
        (70000, np.float16),
    ],
)
def test_a_value_that_does_not_fit_is_named(value: Any, dtype: Any, wrap: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be stored as .* without loss") as caught:
        element_of(wrap(value), dtype)
    assert str(np.asarray(value)) in caught.value.message
    assert "<lambda> at test_fitting.py" in caught.value.message


@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [value], np.asarray])
def test_a_complex_number_is_not_a_real_one(wrap: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="a complex number is not a real one"):
        element_of(wrap(1j), np.float32)


@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [0, value], np.asarray])
@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (2.0, np.int32, 2),
        (True, np.int32, 1),
        (1, np.bool_, True),
        (0.1, np.float32, np.float32(0.1)),
        (2**53 + 1, np.float64, 2.0**53),
        (float("inf"), np.float32, np.inf),
        (np.float64(3.5), np.float16, 3.5),
        (7, np.complex64, 7),
    ],
)
def test_a_value_that_fits_is_converted(value: Any, dtype: Any, expected: Any, wrap: Any) -> None:
    element = np.asarray(element_of(wrap(value), dtype))
    assert element.dtype == dtype
    assert element.flat[-1] == expected


def test_a_number_may_be_missing() -> None:
    assert np.isnan(element_of(float("nan"), np.float32))
    assert np.isnan(element_of([1.0, float("nan")], np.float16)[1])
