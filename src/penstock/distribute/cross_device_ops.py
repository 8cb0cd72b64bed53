"""TensorFlow's choices of how a strategy reduces between devices, for ported code.

The backend reduces by its own means: each class is accepted, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.errors import InvalidArgumentError, InvalidTypeError


class CrossDeviceOps:
    """How values of several devices are reduced: the base of the classes here.

    >>> isinstance(NcclAllReduce(), CrossDeviceOps)
    True
    """


class _AllReduce(CrossDeviceOps):
    def __init__(self, num_packs: int = 1) -> None:
        if num_packs < 0:
            raise InvalidArgumentError(
                f"{type(self).__name__}: num_packs must be at least 0, got {num_packs}"
            )
        self.num_packs = num_packs


class HierarchicalCopyAllReduce(_AllReduce):
    """`tf.distribute.HierarchicalCopyAllReduce`: accepted, the backend reduces.

    Args:
        num_packs: Into how many packs TensorFlow divides gradients.

    >>> HierarchicalCopyAllReduce(num_packs=2).num_packs
    2
    """


class NcclAllReduce(_AllReduce):
    """`tf.distribute.NcclAllReduce`: accepted; the torch and JAX backends use NCCL on GPUs.

    Args:
        num_packs: Into how many packs TensorFlow divides gradients.

    >>> NcclAllReduce().num_packs
    1
    """


class ReductionToOneDevice(CrossDeviceOps):
    """`tf.distribute.ReductionToOneDevice`: accepted, the backend reduces.

    Args:
        reduce_to_device: The device on which TensorFlow reduces.
        accumulation_fn: The function that adds values there.

    >>> ReductionToOneDevice("CPU:0").reduce_to_device
    'CPU:0'
    """

    def __init__(
        self, reduce_to_device: Any = None, accumulation_fn: Callable[..., Any] | None = None
    ) -> None:
        self.reduce_to_device = reduce_to_device
        self.accumulation_fn = accumulation_fn


def check_cross_device_ops(where: str, given: Any) -> None:
    """Raises unless `given` is None or one of the classes here."""
    if given is not None and not isinstance(given, CrossDeviceOps):
        raise InvalidTypeError(
            f"{where}: cross_device_ops must be a distribute.CrossDeviceOps, got {given!r:.60}; "
            "leave it out: the backend reduces"
        )
