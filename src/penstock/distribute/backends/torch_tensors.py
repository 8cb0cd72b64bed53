"""NumPy's arrays as torch's tensors, and the dtypes of one in the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from penstock.distribute.backends.moving import Array, keeps, native


def tensor_of(array: Array, alone: bool) -> torch.Tensor:
    """An array as a tensor on the CPU, in the array's memory where that may be kept."""
    array = native(array) if keeps(array, alone) else native(array).copy()
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def dtype_of(dtype: np.dtype[Any]) -> torch.dtype:
    return tensor_of(np.empty(0, dtype), True).dtype


def locked(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[torch.Tensor, Array]:
    """Memory that a GPU may read, as a tensor and as an array; torch uses it again afterwards."""
    tensor = torch.empty(shape, dtype=dtype_of(dtype), pin_memory=True)
    raw = tensor.view(torch.int16) if dtype.name == "bfloat16" else tensor
    return tensor, raw.numpy().view(dtype.newbyteorder("="))
