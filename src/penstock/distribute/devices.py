"""Devices: finds the devices of this machine by the names of TensorFlow or of a framework.

`resolve` is the only function that turns a user's argument into devices. It imports a framework
only if the user named it, by the backend or by one of its devices; it does not matter what is
installed.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.distribute.backends import Backend, load
from penstock.engine.tracebacks import users_level
from penstock.errors import (
    DisagreementError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    OpError,
)

KINDS = ("CPU", "GPU", "TPU")
LOCAL = "/job:localhost/replica:0/task:0"

# The package that a device object comes from, and the backend that it means.
FRAMEWORKS = {"torch": "torch", "jax": "jax", "jaxlib": "jax"}

NAME = re.compile(
    r"(?P<job>/job:(?P<job_name>\w+))?(/replica:\d+)?(/task:\d+)?/?"
    r"(device:)?(?P<kind>[A-Za-z]+)(:(?P<index>\d+))?"
)
TORCH_NAME = re.compile(r"cuda(:\d+)?")


@dataclass(frozen=True)
class Device:
    """The device of a replica; `handle` is the framework's own device (None with numpy)."""

    kind: str
    index: int
    handle: Any = None
    task: str = LOCAL

    @property
    def name(self) -> str:
        """`GPU:0`."""
        return f"{self.kind}:{self.index}"

    def __str__(self) -> str:
        return f"{self.task}/device:{self.name}"


@dataclass(frozen=True)
class LogicalDevice:
    """A device in `config.list_logical_devices`; several may share one real CPU.

    >>> import penstock
    >>> penstock.config.list_logical_devices("CPU")[0] == LogicalDevice("/device:CPU:0", "CPU")
    True
    """

    name: str
    device_type: str


class LogicalCpus:
    """The number of CPUs that strategies use; None for as many as the backend has."""

    count: int | None = None


def resolve(devices: Any, backend: str | None, call: str) -> tuple[Backend, tuple[Device, ...]]:
    """The backend and the devices for a user's arguments; errors begin with `call`.

    >>> [str(device) for device in resolve(["CPU:1"], None, "MirroredStrategy")[1]]
    ['/job:localhost/replica:0/task:0/device:CPU:1']
    """
    given = _as_list(devices, call)
    chosen = load_backend(choose_backend(devices, backend, call), call)
    if not given:
        return chosen, all_devices(chosen)
    _check_jobs(given, call)
    names = [_kind_and_index(device, chosen, call) for device in given]
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise DisagreementError(
            f"{call}: devices must differ, but {_join_names(repeated)} is named more than once; "
            "name each device once (CPU:0, CPU:1, ... are logical: there are as many as you name)"
        )
    return chosen, _place_devices(names, chosen, call)


def choose_backend(devices: Any, backend: str | None, call: str) -> str:
    """The name of the backend, from the argument or from the devices; imports nothing."""
    return backend if backend is not None else _infer_backend(_as_list(devices, call), call)


def load_backend(name: str, call: str) -> Backend:
    """The backend with this name; errors begin with `call`."""
    try:
        return load(name)
    except OpError as error:
        raise type(error)(f"{call}: {error}") from error.__cause__


def all_devices(backend: Backend) -> tuple[Device, ...]:
    """The accelerators, if the backend has any, else all logical CPUs."""
    for kind in ("GPU", "TPU"):
        if handles := backend.handles(kind):
            return tuple(Device(kind, index, handle) for index, handle in enumerate(handles))
    count = LogicalCpus.count or len(backend.handles("CPU"))
    return tuple(Device("CPU", index, _cpu_handle(backend, index)) for index in range(count))


def _as_list(devices: Any, call: str) -> list[Any]:
    if devices is None:
        return []
    if isinstance(devices, str) or _framework(devices) or isinstance(devices, LogicalDevice):
        raise InvalidArgumentError(
            f"{call}: devices must be a list, got {devices!r}; write [{devices!r}]"
        )
    if not isinstance(devices, Sequence):
        raise InvalidTypeError(
            f"{call}: devices must be a list of names such as 'GPU:0', got {devices!r}"
        )
    return [one.name if isinstance(one, LogicalDevice) else one for one in devices]


def framework_of(value: object) -> str | None:
    """The framework that defines the type of a value; None for NumPy and Python."""
    return FRAMEWORKS.get(type(value).__module__.partition(".")[0])


def _framework(device: object) -> str | None:
    """The backend that a device belongs to by its type or spelling; imports nothing."""
    if isinstance(device, str):
        return "torch" if TORCH_NAME.fullmatch(device) else None
    return framework_of(device)


def _infer_backend(devices: list[Any], call: str) -> str:
    found = {name for device in devices if (name := _framework(device))}
    if len(found) > 1:
        raise InvalidArgumentError(
            f"{call}: the devices {devices} belong to {' and '.join(sorted(found))}; "
            "use those of one framework"
        )
    return found.pop() if found else "numpy"


def _check_jobs(devices: list[Any], call: str) -> None:
    matches = [NAME.fullmatch(device) for device in devices if isinstance(device, str)]
    jobs = {match["job_name"] for match in matches if match}
    if len(jobs) > 1:
        raise FailedPreconditionError(
            f"{call}: devices with and without a job cannot be mixed, got {devices}; "
            "name all of them without one, such as 'CPU:0'"
        )
    if remote := jobs - {None, "localhost"}:
        raise InvalidArgumentError(
            f"{call}: job {remote.pop()!r} in {devices} is another process; "
            "pass devices of this process, such as 'CPU:0'"
        )


def _kind_and_index(device: Any, backend: Backend, call: str) -> tuple[str, int]:
    if found := backend.identify(device):
        return found
    if isinstance(device, str):
        return _parse_name(device, backend, call)
    if _framework(device):
        raise InvalidArgumentError(
            f"{call}: {device!r} is no device of backend {backend.name!r}; leave backend out, "
            "or name devices as 'CPU:0', 'GPU:1'"
        )
    raise InvalidTypeError(
        f"{call}: a device is a name such as 'GPU:0' or a framework's device, got {device!r}"
    )


def _parse_name(name: str, backend: Backend, call: str) -> tuple[str, int]:
    match = NAME.fullmatch(name)
    kind = match["kind"].upper() if match else ""
    if match is None or kind not in KINDS:
        raise InvalidArgumentError(
            f"{call}: {name!r} is no device of backend {backend.name!r}; "
            "write 'CPU:0', 'GPU:1' or 'TPU:0'"
        )
    return kind, int(match["index"] or 0)


def _place_devices(
    names: Sequence[tuple[str, int]], backend: Backend, call: str
) -> tuple[Device, ...]:
    missing = [
        (kind, index)
        for kind, index in names
        if kind != "CPU" and index >= len(backend.handles(kind))
    ]
    if missing:
        _warn(missing, backend, call)
    return tuple(
        Device(kind, index, _cpu_handle(backend, index))
        if kind == "CPU" or (kind, index) in missing
        else Device(kind, index, backend.handles(kind)[index])
        for kind, index in names
    )


def _cpu_handle(backend: Backend, index: int) -> Any:
    """The handle of a logical CPU; CPUs that the framework lacks share the existing ones."""
    handles = backend.handles("CPU")
    return handles[index % len(handles)]


def _warn(missing: Sequence[tuple[str, int]], backend: Backend, call: str) -> None:
    remedy = "; for real ones pass backend='torch' or 'jax'" if backend.name == "numpy" else ""
    warnings.warn(
        f"{call}: backend {backend.name!r} has no {_join_names(missing)} on this machine; "
        f"their replicas are logical ones on the CPU{remedy}",
        stacklevel=users_level(),
    )


def _join_names(names: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{kind}:{index}" for kind, index in names)
