"""The numpy backend: all devices are logical, and tensors are NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from penstock.delivery import Delivery


class NumpyBackend:
    name = "numpy"

    def handles(self, kind: str) -> Sequence[None]:
        return (None,) if kind == "CPU" else ()

    def identify(self, device: object) -> tuple[str, int] | None:
        return None

    def put(self, value: Any, handle: None) -> Any:
        return value

    def delivery(self, handles: Sequence[None], columns: Sequence[int], ahead: int) -> Delivery:
        return Delivery()

    def numpy(self, tensor: Any) -> Any:
        return tensor

    def is_tensor(self, value: object) -> bool:
        return isinstance(value, np.ndarray | np.generic)

    def is_traced(self, value: object) -> bool:
        return False

    def sum(self, tensor: Any, axis: int | tuple[int, ...]) -> Any:
        array = np.asarray(tensor)
        return as_kind_of(tensor, array.sum(axis, dtype=array.dtype))

    def divide(self, tensor: Any, count: float) -> Any:
        array = np.asarray(tensor)
        dtype = array.dtype
        if dtype.kind in "iu":
            dtype = np.dtype(np.float32 if dtype.itemsize < 4 else np.float64)
        with np.errstate(invalid="ignore"):  # The mean of no values is NaN.
            made = np.true_divide(array.astype(dtype), count).astype(dtype)[()]
        return as_kind_of(tensor, made)

    def concatenate(self, tensors: Sequence[Any], axis: int, handle: None) -> Any:
        return as_kind_of(tensors[0], np.concatenate(tensors, axis))

    def use_device(self, handle: None) -> AbstractContextManager[Any]:
        return nullcontext()

    def thread_settings(self) -> AbstractContextManager[Any]:
        return nullcontext()


def as_kind_of(given: Any, made: Any) -> Any:
    """A result as an array of the class of what it was made of, if that has a class of its own."""
    kind = type(given)
    if kind is np.ndarray or not isinstance(given, np.ndarray):
        return made
    return np.asarray(made).view(kind)


BACKEND = NumpyBackend()
