"""Results of operations as JSON, of TensorFlow and of `penstock.tf` alike."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def describe(value: Any) -> Any:
    """A result: its kind, dtype, shape and values."""
    if hasattr(value, "to_list") and hasattr(value, "row_splits"):
        return {"ragged": _plain(value.to_list()), "dtype": value.dtype.name}
    if hasattr(value, "dense_shape"):
        parts = value.indices, value.values, value.dense_shape
        return {"sparse": [describe(part) for part in parts]}
    if hasattr(value, "_fields"):
        value = tuple(value)
    if isinstance(value, list | tuple):
        return {"list": [describe(one) for one in value]}
    if isinstance(value, dict):
        return {"dict": {key: describe(one) for key, one in value.items()}}
    if hasattr(value, "numpy"):
        array = np.asarray(value.numpy())
        flat = [_plain(one) for one in array.ravel().tolist()]
        return {"tensor": flat, "dtype": value.dtype.name, "shape": list(array.shape)}
    if isinstance(value, np.ndarray | np.generic):
        return {"numpy": _plain(value.tolist()), "dtype": str(value.dtype)}
    return {"python": _plain(value)}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, complex):
        return [value.real, value.imag]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, float):
        return float(f"{value:.8g}")
    return value


def is_close(found: Any, expected: Any) -> bool:
    """Whether two descriptions are equal, and floats close."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return found.keys() == expected.keys() and all(
            is_close(found[key], expected[key]) for key in expected
        )
    if isinstance(expected, list) and isinstance(found, list):
        pairs = zip(found, expected, strict=False)
        return len(found) == len(expected) and all(is_close(*pair) for pair in pairs)
    if isinstance(expected, float) and isinstance(found, float | int):
        return math.isclose(found, expected, rel_tol=2e-5, abs_tol=2e-5)
    return type(found) is type(expected) and bool(found == expected)
