"""`IndexedSlices`: some rows of an array and their numbers, which replicas add up as they are."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.distribute.backends.numpy_backend import as_kind_of
from penstock.errors import UnimplementedError


@dataclass(frozen=True, slots=True, eq=False, repr=False)
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

    values: Any
    indices: Any
    dense_shape: Any = None

    __leaf__ = True

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of the larger array; None if it is not known."""
        shape = self.dense_shape
        return None if shape is None else tuple(int(size) for size in np.asarray(shape))

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    def __neg__(self) -> IndexedSlices:
        return replace(self, values=-self.values)

    def copy(self) -> IndexedSlices:
        """The same rows in memory of their own."""
        return replace(self, values=copy.copy(self.values), indices=copy.copy(self.indices))

    def __str__(self) -> str:
        values, indices = np.asarray(self.values), np.asarray(self.indices)
        shape = "" if self.dense_shape is None else f", dense_shape={self.shape}"
        return f"IndexedSlices(indices={indices}, values={values}{shape})"

    __repr__ = __str__


def add_slices(parts: Sequence[IndexedSlices], divisor: int) -> IndexedSlices:
    """The rows of all replicas, side by side; for their mean, divided by the number of replicas."""
    first = parts[0]
    values = np.concatenate([np.asarray(part.values) for part in parts])
    if divisor > 1:
        values = (values / divisor).astype(values.dtype)
    indices = np.concatenate([np.asarray(part.indices) for part in parts])
    return replace(
        first,
        values=as_kind_of(first.values, values),
        indices=as_kind_of(first.indices, indices),
    )


def gather_slices(
    rows: IndexedSlices, gather: Callable[[Any], Sequence[Any]]
) -> list[IndexedSlices]:
    """Every process's rows, in the order of the workers, as the kind of array that these are."""
    values, indices = gather(np.asarray(rows.values)), gather(np.asarray(rows.indices))
    return [
        replace(rows, values=as_kind_of(rows.values, one), indices=as_kind_of(rows.indices, where))
        for one, where in zip(values, indices, strict=True)
    ]


def refuse_slices(values: Sequence[Any], call: str) -> None:
    """Raises for rows with numbers, which cannot be joined along an axis."""
    if any(isinstance(value, IndexedSlices) for value in values):
        raise UnimplementedError(
            f"{call}: IndexedSlices cannot be gathered; make an array of them first, with "
            "tf.convert_to_tensor"
        )
