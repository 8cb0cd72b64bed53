"""Names of devices as users write them, and the devices of a strategy."""

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jax
import pytest
import torch

from penstock import config
from penstock.config import LogicalDeviceConfiguration, PhysicalDevice
from penstock.distribute.devices import Device, LogicalCpus, LogicalDevice, resolve
from penstock.errors import (
    DisagreementError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    UnimplementedError,
)

CPU = PhysicalDevice("/physical_device:CPU:0", "CPU")


@pytest.fixture(autouse=True)
def own_configuration() -> Iterator[None]:
    """The number of logical CPUs belongs to the process; no test inherits another's."""
    before = LogicalCpus.count
    LogicalCpus.count = None
    yield
    LogicalCpus.count = before


def names(devices: Any, backend: str | None = None) -> list[str]:
    return [device.name for device in resolve(devices, backend, "MirroredStrategy")[1]]


@pytest.mark.parametrize(
    "name",
    [
        "CPU:2",
        "cpu:2",
        "/cpu:2",
        "/CPU:2",
        "device:CPU:2",
        "/device:CPU:2",
        "/job:localhost/replica:0/task:0/device:CPU:2",
        LogicalDevice("/device:CPU:2", "CPU"),
    ],
)
def test_names_as_in_tensorflow(name: str) -> None:
    assert names([name]) == ["CPU:2"]


def test_a_name_without_an_index_is_the_first() -> None:
    assert names(["/cpu"]) == ["CPU:0"]


def test_devices_print_as_in_tensorflow() -> None:
    assert str(Device("GPU", 1)) == "/job:localhost/replica:0/task:0/device:GPU:1"


@pytest.mark.parametrize("devices", [None, [], ()])
def test_no_devices_are_all_logical_cpus(devices: Any) -> None:
    assert names(devices) == ["CPU:0"]
    config.set_logical_device_configuration(CPU, [LogicalDeviceConfiguration()] * 3)
    assert names(devices) == ["CPU:0", "CPU:1", "CPU:2"]


def test_no_devices_are_all_cpus_of_jax() -> None:
    found, devices = resolve(None, "jax", "MirroredStrategy")
    assert found.name == "jax"
    assert [device.handle for device in devices] == jax.local_devices(backend="cpu")


@pytest.mark.parametrize(
    ("devices", "backend"),
    [
        (["CPU:0", "/cpu:1"], "numpy"),
        ([torch.device("cpu")], "torch"),
        ([jax.devices("cpu")[0]], "jax"),
        ([], "numpy"),
    ],
    ids=str,
)
def test_devices_imply_the_backend(devices: list[Any], backend: str) -> None:
    assert resolve(devices, None, "MirroredStrategy")[0].name == backend


def test_the_argument_decides_over_names() -> None:
    found, devices = resolve(["CPU:0", "CPU:1"], "torch", "MirroredStrategy")
    assert found.name == "torch"
    assert [device.handle for device in devices] == [torch.device("cpu")] * 2


def test_names_alone_load_no_framework() -> None:
    program = (
        "import sys; from penstock.distribute.devices import resolve;"
        "resolve(['CPU:0', '/cpu:1'], None, 'MirroredStrategy');"
        "print({'torch', 'jax', 'keras'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr


def test_missing_devices_are_logical_ones_with_one_warning() -> None:
    message = (
        "MirroredStrategy: backend 'numpy' has no GPU:0, GPU:1 on this machine; their replicas "
        "are logical ones on the CPU; for real ones pass backend='torch' or 'jax'"
    )
    with pytest.warns(UserWarning, match=re.escape(message)) as caught:
        assert names(["GPU:0", "GPU:1", "CPU:0"]) == ["GPU:0", "GPU:1", "CPU:0"]
    assert [one.filename for one in caught] == [__file__]


def test_a_missing_device_of_a_framework_is_on_its_cpu() -> None:
    with pytest.warns(UserWarning, match="backend 'torch' has no GPU:97 on this machine; their"):
        found, devices = resolve(["cuda:97"], None, "MirroredStrategy")
    assert found.name == "torch"
    assert devices == (Device("GPU", 97, torch.device("cpu")),)


def test_a_cpu_is_never_missing() -> None:
    assert names(["CPU:99"]) == ["CPU:99"]


@pytest.mark.parametrize(
    ("devices", "backend", "kind", "message"),
    [
        ("CPU:0", None, InvalidArgumentError, r"must be a list, got 'CPU:0'; write \['CPU:0'\]"),
        (torch.device("cpu"), None, InvalidArgumentError, "devices must be a list, got device"),
        (3, None, InvalidTypeError, "must be a list of names such as 'GPU:0', got 3"),
        ([3], None, InvalidTypeError, "a name such as 'GPU:0' or a framework's device, got 3"),
        (["xyz"], None, InvalidArgumentError, "'xyz' is no device of backend 'numpy'; write 'CPU"),
        (["CPU:-1"], None, InvalidArgumentError, "'CPU:-1' is no device of backend"),
        (["disk:0"], "jax", InvalidArgumentError, "'disk:0' is no device of backend 'jax'"),
        (
            ["CPU:0", "/cpu:0", "CPU:1"],
            None,
            DisagreementError,
            "MirroredStrategy: devices must differ, but CPU:0 is named more than once; name each",
        ),
        (
            ["/device:CPU:1", "/job:localhost/replica:0/task:0/device:CPU:2"],
            None,
            FailedPreconditionError,
            "devices with and without a job cannot be mixed",
        ),
        (
            ["/job:worker/replica:0/task:1/device:CPU:0"],
            None,
            InvalidArgumentError,
            "job 'worker' in .* is another process; pass devices of this process",
        ),
        (
            [torch.device("cpu"), jax.devices("cpu")[0]],
            None,
            InvalidArgumentError,
            "belong to jax and torch; use those of one framework",
        ),
        (
            [torch.device("cpu")],
            "jax",
            InvalidArgumentError,
            r"device\(type='cpu'\) is no device of backend 'jax'; leave backend out",
        ),
        (None, "tf", InvalidArgumentError, "MirroredStrategy: backend must be one of 'numpy', 't"),
    ],
)
def test_wrong_devices(
    devices: Any, backend: str | None, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        resolve(devices, backend, "MirroredStrategy")


def test_repeated_devices_are_an_assertion_error_too() -> None:
    with pytest.raises(AssertionError, match="devices must differ"):
        names(["CPU:0", "CPU:0"])


def test_listing_devices() -> None:
    assert config.list_physical_devices() == [CPU]
    assert config.list_physical_devices("cpu") == [CPU]
    assert config.list_physical_devices("GPU") == []
    assert config.list_physical_devices("CPU", backend="torch") == [CPU]
    config.set_logical_device_configuration(CPU, [LogicalDeviceConfiguration()] * 2)
    expected = [LogicalDevice("/device:CPU:0", "CPU"), LogicalDevice("/device:CPU:1", "CPU")]
    assert config.list_logical_devices() == expected
    assert config.list_logical_devices("CPU") == expected
    assert config.list_logical_devices("TPU") == []


def test_listing_logical_devices_of_a_backend() -> None:
    found = config.list_logical_devices("CPU", backend="jax")
    assert len(found) == len(jax.local_devices(backend="cpu"))


def test_what_is_listed_can_be_used() -> None:
    config.set_logical_device_configuration(CPU, [LogicalDeviceConfiguration()] * 2)
    assert names(config.list_logical_devices("CPU")) == ["CPU:0", "CPU:1"]


@pytest.mark.parametrize(
    ("device", "configurations", "kind", "message"),
    [
        ("CPU:0", [LogicalDeviceConfiguration()], InvalidTypeError, "one of list_physical_devices"),
        (CPU, [], InvalidArgumentError, "logical_devices must not be empty"),
        (CPU, 2, InvalidTypeError, "a list of LogicalDeviceConfiguration, got 2"),
        (CPU, [1], InvalidTypeError, r"a list of LogicalDeviceConfiguration, got \[1\]"),
        (
            PhysicalDevice("/physical_device:GPU:0", "GPU"),
            [LogicalDeviceConfiguration()],
            UnimplementedError,
            "only the CPU can be divided into logical devices, got '/physical_device:GPU:0'",
        ),
    ],
)
def test_wrong_configurations(
    device: Any, configurations: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        config.set_logical_device_configuration(device, configurations)


def test_wrong_questions() -> None:
    with pytest.raises(InvalidTypeError, match="list_logical_devices: device_type must be a str"):
        config.list_logical_devices(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="list_physical_devices: backend must be one"):
        config.list_physical_devices("CPU", backend="mxnet")
