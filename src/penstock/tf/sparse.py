"""`tf.sparse`: only what makes the results of `parse_example` dense."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.element.ragged import Ragged
from penstock.errors import InvalidArgumentError
from penstock.tf.missing_operations import refuse_names_of_tf
from penstock.tf.ragged_values import RaggedTensor, SparseTensor, default_filling, fill_rows
from penstock.tf.values import Tensor, as_tensor, plain_leaf, to_array

__all__ = ["SparseTensor", "from_dense", "to_dense"]


def to_dense(
    sp_input: Any, default_value: Any = None, validate_indices: bool = True, name: str | None = None
) -> Tensor:
    """The values in an array, and `default_value` (0 or an empty string) elsewhere.

    It takes ragged rows and arrays as well: an element of a dataset is never sparse.
    """
    if isinstance(sp_input, RaggedTensor):
        return sp_input.to_tensor(default_value)
    if isinstance(sp_input, Tensor):
        return sp_input
    if isinstance(sp_input.__dict__.get("rows"), Ragged):
        return as_tensor(fill_rows(sp_input.rows, default_value, None))
    values = plain_leaf(sp_input.values)
    filling = default_filling(default_value, values.dtype)
    result = np.full(plain_leaf(sp_input.dense_shape), filling, values.dtype)
    try:
        result[tuple(plain_leaf(sp_input.indices).T)] = values
    except IndexError as error:
        raise InvalidArgumentError(f"tf.sparse.to_dense: {error}") from None
    return as_tensor(result)


def from_dense(tensor: Any, name: str | None = None) -> SparseTensor:
    """The values that are not 0 or empty."""
    array = to_array(tensor)
    kept = array != (b"" if array.dtype.kind == "O" else 0)
    return SparseTensor(np.argwhere(kept), array[kept], array.shape)


__getattr__ = refuse_names_of_tf("sparse", __all__)
