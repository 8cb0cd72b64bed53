"""Backends: the few things that a strategy asks of the framework whose tensors it hands out.

`Backend` is the whole of it; `load` gives one by name and imports a framework only when it is asked
for. What is here in words, `tests/distribute/backends/test_backends.py` asks of all of them alike.
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
    """Moves chunks of steps to the replicas' devices, some ahead of their use."""

    def of_rows(self, rows: Chunk) -> Delivery | None:
        """A delivery to the same devices for chunks that hold numbers of these rows: a column of
        numbers for each replica arrives as the rows' leaves. None where nothing is gained."""

    def send(self, chunk: Chunk) -> Chunk:
        """The same chunk, each column on the device of its replica; may return before the copies
        are done. Called by the thread that prefetches."""

    def receive(self, values: list[Tensor]) -> list[Tensor]:
        """One step's leaves, fit for use by the thread (and the stream) that calls."""

    def close(self) -> None:
        """Gives back what is held; twice is fine."""


class Backend(Protocol):
    """A framework, as far as strategies know it."""

    name: str

    def handles(self, kind: str) -> Sequence[Handle]:
        """This machine's devices of a kind ("CPU", "GPU", "TPU"), in order."""

    def identify(self, device: object) -> tuple[str, int] | None:
        """Kind and index of a device in the framework's own form (`cuda:1`, a `jax.Device`)."""

    def put(self, value: Any, handle: Handle) -> Tensor:
        """A value (NumPy's, a Python number, or a tensor on any device) as a tensor on a device.

        Never shares memory with a NumPy array that somebody else may change or must not see
        changed. Strings and what else the framework lacks stay as they are.
        """

    def delivery(self, handles: Sequence[Handle], columns: Sequence[int], ahead: int) -> Delivery:
        """Column i of the chunks that it will move belongs to the device handles[columns[i]]."""

    def numpy(self, tensor: Tensor) -> Any:
        """A tensor as a NumPy value."""

    def is_tensor(self, value: object) -> bool:
        """Whether it is a value of this framework (for numpy: an array or a NumPy scalar)."""

    def is_traced(self, value: object) -> bool:
        """Whether it stands for a value that is known only when a compiled function runs."""

    def add(self, tensors: Sequence[Tensor], handle: Handle) -> Tensor:
        """The sum of tensors of one shape, from any devices, on a device."""

    def sum(self, tensor: Tensor, axis: int | tuple[int, ...]) -> Tensor:
        """The sum over one axis or several, where it lies."""

    def divide(self, tensor: Tensor, count: float) -> Tensor:
        """The quotient; float64 for whole numbers, float32 for those of 8 or 16 bits, else the
        tensor's own dtype."""

    def concatenate(self, tensors: Sequence[Tensor], axis: int, handle: Handle) -> Tensor:
        """The tensors one after the other along an axis, on a device."""

    def use_device(self, handle: Handle) -> AbstractContextManager[Any]:
        """While it is entered, what is made without naming a device is made on this one."""

    def thread_settings(self) -> AbstractContextManager[Any]:
        """What the calling thread has set for itself (gradients off, say), to be entered again by
        another thread that goes on in its place."""


def load(name: str) -> Backend:
    """The backend of that name.

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
