"""`DynamicRaggedShape`: what `tf.shape` returns for a ragged tensor.

Other tensors get this shape from `zeros`, `ones`, `fill`, `reshape` and `broadcast_to`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.element.dtypes import DType, as_dtype
from penstock.errors import InvalidArgumentError, NoSuchEntryError
from penstock.tf.ragged_values import RaggedTensor, fill_rows
from penstock.tf.values import Array, Tensor, as_tensor


class DynamicRaggedShape:
    """The lengths of a ragged tensor's rows.

    >>> shape = DynamicRaggedShape(RaggedTensor.from_row_lengths([1, 2, 3], [2, 0, 1]))
    >>> shape
    <DynamicRaggedShape lengths=[3, (2, 0, 1)] num_row_partitions=1>
    >>> shape[0].numpy(), shape.is_uniform(1)
    (np.int32(3), False)
    """

    def __init__(self, rows: RaggedTensor, dtype: Any = np.int32) -> None:
        self._rows, self._dtype = rows, as_dtype(dtype)

    @property
    def dtype(self) -> DType:
        return self._dtype

    @property
    def rank(self) -> int:
        return len(self._rows.shape)

    @property
    def num_row_partitions(self) -> int:
        return len(self._rows.nested_row_splits)

    @property
    def inner_shape(self) -> Tensor:
        """The shape of the flat values."""
        return as_tensor(np.array(self._rows.flat_values.shape, self._dtype.dtype))

    @property
    def inner_rank(self) -> int:
        return len(self.inner_shape)

    def with_dtype(self, dtype: Any) -> DynamicRaggedShape:
        return DynamicRaggedShape(self._rows, dtype)

    def is_uniform(self, axis: int) -> bool:
        """Whether all rows of a dimension have the same length by their type."""
        if not 0 <= axis < self.rank:
            raise NoSuchEntryError(
                f"DynamicRaggedShape.is_uniform: axis must be less than {self.rank}, got {axis}"
            )
        return axis == 0 or axis > self.num_row_partitions

    def static_lengths(self, ragged_lengths: bool = True) -> list[Any]:
        """The length of each dimension: a tuple where rows differ, or None."""
        inner = [int(one) for one in self.inner_shape[1:]]
        lengths = [tuple(one.numpy().tolist()) for one in self._rows.nested_row_lengths()]
        return [len(self._rows), *(lengths if ragged_lengths else [None] * len(lengths)), *inner]

    def __getitem__(self, index: Any) -> Any:
        """The length of a dimension whose rows have one length."""
        if isinstance(index, slice):
            return self._take(index)
        place = int(index) + (self.rank if index < 0 else 0)
        if not 0 <= place < self.rank:
            raise NoSuchEntryError(
                f"tf.shape of a ragged tensor: there are {self.rank} dimensions, so none with "
                f"index {int(index)}"
            )
        if not self.is_uniform(place):
            raise InvalidArgumentError(
                f"tf.shape of a ragged tensor: Index {place} is not uniform; use row_lengths() or "
                "bounding_shape() of the ragged tensor"
            )
        length = self.static_lengths()[place]
        return as_tensor(np.asarray(length, self._dtype.dtype))

    def _take(self, index: slice) -> Any:
        """The whole shape, or the lengths of uniform dimensions as a tensor."""
        places = range(*index.indices(self.rank))
        if list(places) == list(range(self.rank)):
            return self
        return as_tensor(np.array([int(self[place]) for place in places], self._dtype.dtype))

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, DynamicRaggedShape):
            return NotImplemented
        return as_tensor(np.bool_(self.static_lengths() == other.static_lengths()))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"<DynamicRaggedShape lengths={self.static_lengths()} "
            f"num_row_partitions={self.num_row_partitions}>"
        )

    def fill(self, values: Array) -> RaggedTensor:
        """Values of this many rows, in these rows: one for each, or one after another."""
        return self._rows.with_flat_values(values.reshape(self._rows.flat_values.shape))

    def broadcast(self, array: Array) -> RaggedTensor:
        """An array, repeated to these rows."""
        ones = self._rows.with_flat_values(np.ones(self._rows.flat_values.shape, bool))
        has = fill_rows(ones.ragged, False, None)
        return self.fill(np.broadcast_to(array, has.shape)[has])
