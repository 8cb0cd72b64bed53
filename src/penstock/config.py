"""`config`: which devices there are, and how many logical CPUs strategies see.

A change applies to strategies made after it; existing strategies keep their devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.distribute.devices import KINDS, LogicalCpus, LogicalDevice, load_backend
from penstock.errors import InvalidArgumentError, InvalidTypeError, UnimplementedError
from penstock.missing_names import refuse_names

__all__ = [
    "LogicalDevice",
    "LogicalDeviceConfiguration",
    "PhysicalDevice",
    "get_logical_device_configuration",
    "list_logical_devices",
    "list_physical_devices",
    "set_logical_device_configuration",
]


@dataclass(frozen=True)
class PhysicalDevice:
    """A device of this machine; all CPUs together are one.

    >>> list_physical_devices()[0].device_type
    'CPU'
    """

    name: str
    device_type: str


@dataclass(frozen=True)
class LogicalDeviceConfiguration:
    """One logical device. A logical CPU is a place for a replica, not a share.

    Args:
        memory_limit: Of a GPU, which cannot be divided here; a CPU takes none.
        experimental_priority: Accepted and ignored.
        experimental_device_ordinal: Accepted and ignored.

    >>> four = [LogicalDeviceConfiguration()] * 4
    >>> cpu = list_physical_devices("CPU")[0]
    >>> set_logical_device_configuration(cpu, four)
    >>> len(list_logical_devices("CPU"))
    4
    >>> set_logical_device_configuration(cpu, four[:1])
    """

    memory_limit: int | None = None
    experimental_priority: int | None = None
    experimental_device_ordinal: int | None = None


def list_physical_devices(
    device_type: str | None = None, *, backend: str = "numpy"
) -> list[PhysicalDevice]:
    """The devices of this machine, as a backend knows them; NumPy knows only the CPU.

    >>> list_physical_devices()
    [PhysicalDevice(name='/physical_device:CPU:0', device_type='CPU')]
    """
    call = "config.list_physical_devices"
    known = load_backend(backend, call)
    return [
        PhysicalDevice(f"/physical_device:{kind}:{index}", kind)
        for kind in _kinds(device_type, call)
        for index in range(1 if kind == "CPU" else len(known.handles(kind)))
    ]


def list_logical_devices(
    device_type: str | None = None, *, backend: str = "numpy"
) -> list[LogicalDevice]:
    """The devices that a strategy may use, as a backend knows them.

    >>> list_logical_devices("CPU")
    [LogicalDevice(name='/device:CPU:0', device_type='CPU')]
    """
    call = "config.list_logical_devices"
    known = load_backend(backend, call)
    return [
        LogicalDevice(f"/device:{kind}:{index}", kind)
        for kind in _kinds(device_type, call)
        for index in range((kind == "CPU" and LogicalCpus.count) or len(known.handles(kind)))
    ]


def set_logical_device_configuration(device: Any, logical_devices: Any) -> None:
    """Lets strategies that name no devices see as many logical CPUs as there are configurations.

    Unlike TensorFlow's, it may be called at any time; strategies made before it do not change.

    >>> cpu = list_physical_devices("CPU")[0]
    >>> set_logical_device_configuration(cpu, [LogicalDeviceConfiguration()] * 4)
    >>> [device.name for device in list_logical_devices("CPU")][2:]
    ['/device:CPU:2', '/device:CPU:3']
    >>> set_logical_device_configuration(cpu, [LogicalDeviceConfiguration()])
    """
    call = "config.set_logical_device_configuration"
    if not isinstance(device, PhysicalDevice):
        raise InvalidTypeError(
            f"{call}: device must be one of list_physical_devices(), got {device!r}"
        )
    if device.device_type != "CPU":
        raise UnimplementedError(
            f"{call}: only the CPU can be divided into logical devices, got {device.name!r}; "
            "name more CPUs, or give every replica a device of its own"
        )
    _check_configurations(logical_devices, call)
    LogicalCpus.count = len(logical_devices)


def _check_configurations(given: Any, call: str) -> None:
    wrong = not isinstance(given, list | tuple) or any(
        not isinstance(one, LogicalDeviceConfiguration) for one in given
    )
    if wrong:
        raise InvalidTypeError(
            f"{call}: logical_devices must be a list of LogicalDeviceConfiguration, got {given!r}"
        )
    if not given:
        raise InvalidArgumentError(
            f"{call}: logical_devices must not be empty; [LogicalDeviceConfiguration()] is one CPU"
        )
    for one in given:
        if one.memory_limit is not None:
            raise InvalidArgumentError(
                f"{call}: a CPU takes no memory_limit, got {one.memory_limit!r}; leave it out"
            )


def get_logical_device_configuration(device: Any) -> list[LogicalDeviceConfiguration] | None:
    """The logical devices that were set for a device, or None.

    >>> cpu = list_physical_devices("CPU")[0]
    >>> set_logical_device_configuration(cpu, [LogicalDeviceConfiguration()])
    >>> len(get_logical_device_configuration(cpu))
    1
    """
    if not isinstance(device, PhysicalDevice):
        raise InvalidArgumentError(
            "config.get_logical_device_configuration: device must be one of "
            f"list_physical_devices(), got {device!r}"
        )
    if device.device_type != "CPU" or LogicalCpus.count is None:
        return None
    return [LogicalDeviceConfiguration()] * LogicalCpus.count


def _kinds(device_type: str | None, call: str) -> Sequence[str]:
    if device_type is None:
        return KINDS
    if not isinstance(device_type, str):
        raise InvalidTypeError(f"{call}: device_type must be a string, got {device_type!r}")
    return [kind for kind in KINDS if kind == device_type.upper()]


if not TYPE_CHECKING:  # A type checker would take any name.
    __getattr__ = refuse_names("config", __all__)
