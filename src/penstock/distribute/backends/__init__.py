"""Backends: what a strategy needs from the framework whose tensors it returns.

`Backend` is the whole interface; `load` returns one by name and imports its framework only then.
`tests/distribute/backends/test_backends.py` tests this contract for every backend.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from penstock.delivery import Delivery, Tensor
from penstock.errors import InvalidArgumentError, UnavailableError

NAMES = ("numpy", "torch", "jax")

Handle = Any
"""A framework's own device (`torch.device`, `jax.Device`); None with numpy."""


class Backend(Protocol):
    """What strategies use of a framework."""

    name: str

    def handles(self, kind: str) -> Sequence[Handle]:
        """This machine's devices of a kind ("CPU", "GPU", "TPU"), in order."""

    def identify(self, device: object) -> tuple[str, int] | None:
        """Kind and index of a device in the framework's own form (`cuda:1`, a `jax.Device`)."""

    def put(self, value: Any, handle: Handle) -> Tensor:
        """A value (NumPy's, a Python number, or a tensor on any device) as a tensor on a device.

        The tensor shares no memory with a NumPy array (except in the numpy backend, which returns
        values unchanged). Values of types that the framework lacks, such as strings, are returned
        unchanged.
        """

    def delivery(self, handles: Sequence[Handle], columns: Sequence[int], ahead: int) -> Delivery:
        """A delivery of chunks whose column i goes to the device handles[columns[i]]."""

    def numpy(self, tensor: Tensor) -> Any:
        """A tensor as a NumPy value."""

    def is_tensor(self, value: object) -> bool:
        """Whether it is a value of this framework (for numpy: an array or a NumPy scalar)."""

    def is_traced(self, value: object) -> bool:
        """Whether it is a placeholder for a value known only when a compiled function runs."""

    def sum(self, tensor: Tensor, axis: int | tuple[int, ...]) -> Tensor:
        """The sum over one axis or several, on the device of the tensor."""

    def divide(self, tensor: Tensor, count: float) -> Tensor:
        """The quotient: float64 for integers, float32 for integers of 8 or 16 bits, else the
        tensor's own dtype."""

    def concatenate(self, tensors: Sequence[Tensor], axis: int, handle: Handle) -> Tensor:
        """The tensors concatenated along an axis, on a device."""

    def use_device(self, handle: Handle) -> AbstractContextManager[Any]:
        """A context manager inside which new tensors are created on this device by default."""

    def thread_settings(self) -> AbstractContextManager[Any]:
        """Captures the calling thread's own settings, such as disabled gradients.

        Another thread that continues the computation enters the result, once.
        """


def load(name: str) -> Backend:
    """The backend with this name; imports its framework.

    >>> load("numpy").name
    'numpy'
    """
    if name not in NAMES:
        raise InvalidArgumentError(
            f"backend must be one of {', '.join(map(repr, NAMES))}, got {name!r}"
        )
    try:
        module = importlib.import_module(f"penstock.distribute.backends.{name}_backend")
    except ModuleNotFoundError as error:
        raise UnavailableError(
            f"backend {name!r}: {error.name} is not installed; install it with: "
            f"pip install 'penstock[{name}]'"
        ) from error
    backend: Backend = module.BACKEND
    return backend
