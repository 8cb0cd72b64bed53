"""Delivery to JAX's devices: arrays that share no memory with arrays of the dataset.

On the CPU JAX uses NumPy's memory where it can, so it gets only arrays that the engine made for one
element, or copies.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax

from penstock.delivery.cuda import driver
from penstock.delivery.jax_berths import Handle
from penstock.delivery.jax_cuda import JaxCudaDelivery
from penstock.delivery.moving import Array, ColumnDelivery, may_keep_memory, to_native

_NVIDIA = ("gpu", "cuda")


def open_delivery(
    handles: Sequence[Handle], columns: Sequence[int] | None, ahead: int
) -> ColumnDelivery:
    """A delivery of chunks whose column i goes to the device handles[columns[i]]."""
    is_nvidia = all(handle.device.platform in _NVIDIA for handle in handles)
    cuda = driver() if is_nvidia else None
    if cuda is not None:
        return JaxCudaDelivery(handles, columns, ahead=ahead, cuda=cuda)
    return ColumnDelivery(handles, columns, _move_rows)


def find_default_device() -> jax.Device:
    """The device that JAX uses in this thread unless it is configured otherwise."""
    (device,) = jax.numpy.zeros(()).devices()
    return device


def _move_rows(array: Array, alone: bool, handle: Handle) -> Sequence[jax.Array]:
    if not may_keep_memory(array, alone) and handle.device.platform == "cpu":
        array = to_native(array).copy()
    rows: list[jax.Array] = handle.put(list(to_native(array)))
    return rows
