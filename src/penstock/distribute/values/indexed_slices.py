"""`IndexedSlices`: some rows of an array and their numbers, which replicas add up as they are."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.distribute.backends.numpy_backend import as_kind_of
from penstock.errors import UnimplementedError


class IndexedSlices:
    """Rows of a larger array: row i of `values` belongs to row `indices[i]`.

    Args:
        values: The rows.
        indices: Their numbers; a number may occur several times.
        dense_shape: The shape of the larger array, if it is known.

    >>> rows = IndexedSlices(np.array([[1.0, 2.0]]), np.array([3]), (5, 2))
    >>> print(rows)
    IndexedSlices(indices=[3], values=[[1. 2.]], dense_shape=(5, 2))
    >>> rows.shape, rows.dtype, (-rows).values
    ((5, 2), dtype('float64'), array([[-1., -2.]]))
    """

    __slots__ = ("_dense_shape", "_indices", "_values")

    def __init__(self, values: Any, indices: Any, dense_shape: Any = None) -> None:
        self._values, self._indices, self._dense_shape = values, indices, dense_shape

    @property
    def values(self) -> Any:
        return self._values

    @property
    def indices(self) -> Any:
        return self._indices

    @property
    def dense_shape(self) -> Any:
        return self._dense_shape

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of the larger array; None if it is not known."""
        shape = self._dense_shape
        return None if shape is None else tuple(int(size) for size in np.asarray(shape))

    @property
    def dtype(self) -> Any:
        return self._values.dtype

    def __neg__(self) -> IndexedSlices:
        return type(self)(-self._values, self._indices, self._dense_shape)

    def copy(self) -> IndexedSlices:
        """The same rows in memory of their own."""
        return type(self)(copy.copy(self._values), copy.copy(self._indices), self._dense_shape)

    def __str__(self) -> str:
        values, indices = np.asarray(self._values), np.asarray(self._indices)
        shape = "" if self._dense_shape is None else f", dense_shape={self.shape}"
        return f"IndexedSlices(indices={indices}, values={values}{shape})"

    __repr__ = __str__


def add_slices(parts: Sequence[IndexedSlices], divisor: int) -> IndexedSlices:
    """The rows of all replicas, side by side; for their mean, divided by the number of replicas."""
    first = parts[0]
    values = np.concatenate([np.asarray(part.values) for part in parts])
    if divisor > 1:
        values = (values / divisor).astype(values.dtype)
    indices = np.concatenate([np.asarray(part.indices) for part in parts])
    return type(first)(
        as_kind_of(first.values, values), as_kind_of(first.indices, indices), first.dense_shape
    )


def refuse_slices(values: Sequence[Any], call: str) -> None:
    """Raises for rows with numbers, which cannot be joined along an axis."""
    if any(isinstance(value, IndexedSlices) for value in values):
        raise UnimplementedError(
            f"{call}: IndexedSlices cannot be gathered; make an array of them first, with "
            "tf.convert_to_tensor"
        )
