"""Backends: what a strategy needs from the framework whose tensors it returns.

`Backend` is the whole interface; `load` returns one by name and imports its framework only then.
`tests/distribute/backends/test_backends.py` tests this contract for every backend.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from penstock.element.chunk import Chunk
from penstock.errors import InvalidArgumentError, UnavailableError

NAMES = ("numpy", "torch", "jax")

Handle = Any
"""A framework's own device (`torch.device`, `jax.Device`); None with numpy."""

Tensor = Any
"""A value of the framework, or a NumPy value of a kind that it does not have (strings)."""


class Delivery(Protocol):
    """Moves chunks of steps to the replicas' devices, ahead of their use."""

    def of_rows(self, rows: Chunk) -> Delivery | None:
        """A delivery to the same devices for chunks of row numbers; None if it would not be faster.

        Each replica has one column of numbers, and receives the leaves of the rows they mean.
        """

    def send(self, chunk: Chunk) -> Chunk:
        """The same chunk, each column on the device of its replica.

        Called by the thread that prefetches; may return before the copies are done.
        """

    def receive(self, values: list[Tensor]) -> list[Tensor]:
        """One step's leaves, ready for use by the calling thread and its CUDA stream."""

    def close(self) -> None:
        """Frees buffers and threads; calling it again does nothing."""


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

    def add(self, tensors: Sequence[Tensor], handle: Handle) -> Tensor:
        """The sum of tensors of one shape, from any devices, on a device."""

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
