"""Texts of arrays and of every framework's tensors, in the form of TensorFlow's tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.distribute.backends import load
from penstock.distribute.devices import framework_of
from penstock.element.dtypes import of_numpy


def as_array(value: Any) -> Any:
    """A tensor as a NumPy value (bytes for a single string); None for anything else."""
    if isinstance(value, np.ndarray):
        return np.asarray(value)  # Subclasses have texts of their own.
    if isinstance(value, np.generic | bytes):
        return value
    framework = framework_of(value)
    if framework is None:
        return None
    backend = load(framework)
    return backend.numpy(value) if backend.is_tensor(value) else None


def short(value: Any) -> str:
    """As `str` shows it.

    >>> short(np.arange(2)), short("x")
    ('tf.Tensor([0 1], shape=(2,), dtype=int64)', 'x')
    """
    if (array := as_array(value)) is None:
        return str(value)
    text = str(array)
    return f"tf.Tensor({_own_lines(text)}, shape={np.shape(array)}, dtype={dtype_name(array)})"


def full(value: Any) -> str:
    """As `repr` shows it.

    >>> full(np.float32(1.5))
    '<tf.Tensor: shape=(), dtype=float32, numpy=1.5>'
    """
    if (array := as_array(value)) is None:
        return repr(value)
    dtype, text = dtype_name(array), numpy_text(array)
    return f"<tf.Tensor: shape={np.shape(array)}, dtype={dtype}, numpy={text}>"


def numpy_text(array: Any) -> str:
    """The text after `numpy=`; a single number is written with all of its digits."""
    if np.ndim(array):
        return _own_lines(repr(array))
    return str(array if isinstance(array, bytes) else np.asarray(array).item())


def _own_lines(text: str) -> str:
    return "\n" + text if "\n" in text else text


def dtype_name(array: Any) -> str:
    return "string" if isinstance(array, bytes) else of_numpy(array.dtype).name
