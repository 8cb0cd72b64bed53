"""Arguments as arrays, for every function of this package.

Python values are converted only if no information is lost; arrays are cast.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.data.arguments import describe, element
from penstock.element.dtypes import DType, as_dtype, of_numpy
from penstock.element.strings import kinds
from penstock.element.values import as_value
from penstock.errors import InvalidArgumentError, InvalidTypeError


def is_literal(value: Any) -> bool:
    """Whether `value` is Python's own; NumPy's float64 is a float, but has a dtype already."""
    return isinstance(value, _LITERALS) and not isinstance(value, np.generic)


_LITERALS = (bool, int, float, complex, str, list, tuple)


def leaf_of(call: str, value: Any) -> Any:
    """`value` as an array, a NumPy scalar or bytes."""
    leaf = element(call, value, as_value)
    if not isinstance(leaf, np.ndarray | np.generic | bytes):
        raise InvalidArgumentError(f"{call}: needs an array or a number, got {describe(value)}")
    return leaf


def dtype_of(leaf: Any) -> DType:
    """The dtype of a leaf; bytes have one too."""
    return as_dtype(bytes) if isinstance(leaf, bytes) else of_numpy(leaf.dtype)


def convert_value(call: str, value: Any, dtype: DType) -> Any:
    """`value` in a dtype: arrays are cast, Python's values must be of that kind already."""
    literal = is_literal(value)
    if literal and dtype.is_integer and kinds(value) == {int}:
        try:
            return _of_literal(call, value, dtype)
        except InvalidArgumentError:
            raise
        except ValueError:
            pass  # Rows differ in length: `leaf_of` says so.
    leaf = leaf_of(call, value)
    source = dtype_of(leaf)
    if source == dtype:
        return leaf
    if np.size(leaf) and not _may_become(source, dtype, literal):
        raise InvalidTypeError(f"{call}: {describe(value)} cannot become {dtype.name}")
    return _of_literal(call, value, dtype) if literal else cast_array(leaf, dtype)


def _of_literal(call: str, value: Any, dtype: DType) -> Any:
    try:
        # From the value, not from the leaf, whose floats are float32 already.
        return scalar(np.array(value, dtype.dtype))
    except OverflowError:
        raise InvalidArgumentError(f"{call}: {value!r} does not fit into {dtype.name}") from None


def _may_become(source: DType, target: DType, literal: bool) -> bool:
    if "string" in (source.name, target.name):
        return False
    if not literal:
        return True
    return not source.is_bool and not target.is_bool and _width(source) <= _width(target)


def _width(dtype: DType) -> int:
    if dtype.is_integer:
        return 0
    return 1 if dtype.is_floating else 2


def cast_array(leaf: Any, dtype: DType) -> Any:
    """Numbers in another dtype, as a C cast: nothing is reported if information is lost."""
    if leaf.dtype.kind == "c" and dtype.dtype.kind != "c":
        leaf = leaf.real
    with np.errstate(all="ignore"):
        return leaf.astype(dtype.dtype)


def scalar(array: Any) -> Any:
    """A NumPy scalar for an array without dimensions."""
    return array[()] if np.ndim(array) == 0 else array
