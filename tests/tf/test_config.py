"""`tf.config`: settings can be read back, and settings that penstock cannot follow fail."""

from collections.abc import Iterator

import pytest

import penstock.tf as tf
from penstock.distribute.devices import LogicalCpus
from penstock.tf.config import _Settings


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    before = dict(vars(_Settings))
    count = LogicalCpus.count
    yield
    LogicalCpus.count = count
    for name, value in before.items():
        if not name.startswith("__"):
            setattr(_Settings, name, value)


def test_settings_are_remembered() -> None:
    config = tf.config
    assert (config.get_soft_device_placement(), config.functions_run_eagerly()) == (True, False)
    config.set_soft_device_placement(False)
    config.run_functions_eagerly(True)
    assert (config.get_soft_device_placement(), config.functions_run_eagerly()) == (False, True)
    threading = config.threading
    assert threading.get_inter_op_parallelism_threads() == 0
    assert threading.get_intra_op_parallelism_threads() == 0
    threading.set_inter_op_parallelism_threads(3)
    threading.set_intra_op_parallelism_threads(2)
    assert threading.get_inter_op_parallelism_threads() == 3
    assert threading.get_intra_op_parallelism_threads() == 2
    assert config.optimizer.get_jit() == ""
    config.optimizer.set_jit(True)
    assert config.optimizer.get_jit() == "autoclustering"
    config.optimizer.set_jit(False)
    assert config.optimizer.get_jit() == ""
    config.optimizer.set_experimental_options({"constant_folding": True})
    assert config.optimizer.get_experimental_options()["constant_folding"]


def test_the_usual_lines_about_gpus_run() -> None:
    for gpu in tf.config.experimental.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.experimental.set_memory_growth(tf.config.PhysicalDevice("GPU:0", "GPU"), True)
    tf.config.set_visible_devices([], "GPU")
    tf.config.set_visible_devices([], "TPU")
    (cpu,) = tf.config.get_visible_devices()
    tf.config.set_visible_devices(cpu, "CPU")
    tf.config.experimental.set_visible_devices([cpu])


def test_what_would_have_an_effect_is_refused() -> None:
    (cpu,) = tf.config.list_physical_devices()
    for kind in ("CPU", None):
        with pytest.raises(ValueError, match="must be all CPU devices, got \\[\\]; tensors are in"):
            tf.config.set_visible_devices([], kind)
    with pytest.raises(ValueError, match="devices must be of list_physical_devices.., got 'x'"):
        tf.config.set_visible_devices("x")
    for device in (cpu, "x"):
        with pytest.raises(ValueError, match="set_memory_growth: device must be a GPU, got"):
            tf.config.experimental.set_memory_growth(device, True)


def test_logical_devices_have_settings() -> None:
    one = tf.config.LogicalDeviceConfiguration(memory_limit=1024)
    assert repr(one) == (
        "LogicalDeviceConfiguration(memory_limit=1024, experimental_priority=None, "
        "experimental_device_ordinal=None)"
    )
    assert tf.config.experimental.VirtualDeviceConfiguration(1024) == one
    (cpu,) = tf.config.list_physical_devices()
    with pytest.raises(ValueError, match="a CPU takes no memory_limit, got 1024; leave it out"):
        tf.config.set_logical_device_configuration(cpu, [one])
    LogicalCpus.count = None
    assert tf.config.get_logical_device_configuration(cpu) is None
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)
    assert tf.config.get_logical_device_configuration(cpu) == two
    with pytest.raises(ValueError, match="device must be one of list_physical_devices"):
        tf.config.get_logical_device_configuration("x")


@pytest.mark.parametrize("arguments", [{}, {"tpu": ""}, {"tpu": "local"}, {"zone": "x"}])
def test_programs_fall_back_to_other_strategies_without_a_tpu(arguments: dict[str, str]) -> None:
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver
    for make in (resolver, resolver.connect):
        with pytest.raises(ValueError, match="TPUClusterResolver: cannot connect to the TPU"):
            make(**arguments)
