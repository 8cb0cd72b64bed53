"""`tf.config`: the devices of `penstock.config`, and settings of TensorFlow without effect here.

A setting is accepted if a program computes the same without it: how TensorFlow places, compiles
and threads its operations. Its getter returns what was set.
"""

from __future__ import annotations

from typing import Any

from penstock.config import (
    LogicalDeviceConfiguration,
    PhysicalDevice,
    get_logical_device_configuration,
    list_logical_devices,
    list_physical_devices,
    set_logical_device_configuration,
)
from penstock.distribute.devices import LogicalDevice
from penstock.errors import InvalidArgumentError
from penstock.tf.missing_operations import Namespace, refuse_names_of_tf

__all__ = [
    "LogicalDevice",
    "LogicalDeviceConfiguration",
    "PhysicalDevice",
    "experimental",
    "experimental_functions_run_eagerly",
    "experimental_run_functions_eagerly",
    "functions_run_eagerly",
    "get_logical_device_configuration",
    "get_soft_device_placement",
    "get_visible_devices",
    "list_logical_devices",
    "list_physical_devices",
    "optimizer",
    "run_functions_eagerly",
    "set_logical_device_configuration",
    "set_soft_device_placement",
    "set_visible_devices",
    "threading",
]


class _Settings:
    """What the program has set; a class, as the settings are those of the process."""

    eager_functions = False
    soft_placement = True
    inter_op_threads = 0
    intra_op_threads = 0
    jit = ""
    optimizations: dict[str, Any] = {}  # noqa: RUF012


def run_functions_eagerly(run_eagerly: bool) -> None:
    """Has no effect: functions always run as they are written."""
    _Settings.eager_functions = bool(run_eagerly)


def functions_run_eagerly() -> bool:
    """What was set by `run_functions_eagerly`."""
    return _Settings.eager_functions


experimental_run_functions_eagerly = run_functions_eagerly
experimental_functions_run_eagerly = functions_run_eagerly


def set_soft_device_placement(enabled: bool) -> None:
    """Has no effect: tensors are in the memory of the host."""
    _Settings.soft_placement = bool(enabled)


def get_soft_device_placement() -> bool:
    """What was set by `set_soft_device_placement`; True by default."""
    return _Settings.soft_placement


def get_visible_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """All devices of this machine, as `list_physical_devices` returns them."""
    return list_physical_devices(device_type)


def set_visible_devices(devices: Any, device_type: str | None = None) -> None:
    """Accepts all devices that there are, and no GPUs or TPUs: tensors are in the host's memory."""
    given = list(devices) if isinstance(devices, list | tuple) else [devices]
    known = list_physical_devices()
    for device in given:
        if device not in known:
            raise InvalidArgumentError(
                "config.set_visible_devices: devices must be of list_physical_devices(), "
                f"got {device!r}"
            )
    if set(given) != set(list_physical_devices(device_type)):
        raise InvalidArgumentError(
            f"config.set_visible_devices: devices must be all {device_type or 'CPU'} devices, "
            f"got {given}; tensors are in the host's memory, which cannot be hidden, and a "
            "strategy gets the names of its devices: MirroredStrategy(['CPU:0'])"
        )


class ConfigThreading(Namespace, module="config.threading"):
    """Numbers of threads, without effect: `Dataset.with_options` sets those of a dataset."""

    @staticmethod
    def set_inter_op_parallelism_threads(num_threads: int) -> None:
        """Has no effect."""
        _Settings.inter_op_threads = int(num_threads)

    @staticmethod
    def get_inter_op_parallelism_threads() -> int:
        """What was set; 0 by default."""
        return _Settings.inter_op_threads

    @staticmethod
    def set_intra_op_parallelism_threads(num_threads: int) -> None:
        """Has no effect."""
        _Settings.intra_op_threads = int(num_threads)

    @staticmethod
    def get_intra_op_parallelism_threads() -> int:
        """What was set; 0 by default."""
        return _Settings.intra_op_threads


class ConfigOptimizer(Namespace, module="config.optimizer"):
    """Settings of TensorFlow's compiler, without effect: nothing is compiled."""

    @staticmethod
    def set_jit(enabled: bool | str) -> None:
        """Has no effect."""
        _Settings.jit = "autoclustering" if enabled in (True, "autoclustering") else ""

    @staticmethod
    def get_jit() -> str:
        """What was set: "autoclustering" or, by default, ""."""
        return _Settings.jit

    @staticmethod
    def set_experimental_options(options: dict[str, Any]) -> None:
        """Has no effect."""
        _Settings.optimizations = {**_Settings.optimizations, **options}

    @staticmethod
    def get_experimental_options() -> dict[str, Any]:
        """What was set."""
        return dict(_Settings.optimizations)


class ConfigExperimental(Namespace, module="config.experimental"):
    """Older names of the same, and `set_memory_growth`."""

    VirtualDeviceConfiguration = LogicalDeviceConfiguration
    get_virtual_device_configuration = staticmethod(get_logical_device_configuration)
    get_visible_devices = staticmethod(get_visible_devices)
    list_logical_devices = staticmethod(list_logical_devices)
    list_physical_devices = staticmethod(list_physical_devices)
    set_virtual_device_configuration = staticmethod(set_logical_device_configuration)
    set_visible_devices = staticmethod(set_visible_devices)

    @staticmethod
    def set_memory_growth(device: Any, enable: bool) -> None:
        """Has no effect: penstock reserves no memory of GPUs."""
        if not isinstance(device, PhysicalDevice) or device.device_type == "CPU":
            raise InvalidArgumentError(
                f"config.experimental.set_memory_growth: device must be a GPU, got {device!r}"
            )


threading = ConfigThreading
optimizer = ConfigOptimizer
experimental = ConfigExperimental

__getattr__ = refuse_names_of_tf("config", __all__)
