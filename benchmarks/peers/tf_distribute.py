"""The steps of replicas in tf.distribute, on logical CPUs, iterated eagerly as users do."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import tensorflow as tf

from benchmarks.distribute import REPLICAS
from benchmarks.peers import material
from benchmarks.peers.serve import Program, serve
from benchmarks.peers.steps import ENDING, Stretch, devices


def make_logical_devices(count: int) -> None:
    (cpu,) = tf.config.list_physical_devices("CPU")
    logical = [tf.config.LogicalDeviceConfiguration()] * count
    tf.config.set_logical_device_configuration(cpu, logical)


def steps(replicas: int, repeats: int | None, n: int) -> Iterable[Any]:
    rows = material.features()
    dataset = tf.data.Dataset.from_tensor_slices(rows).shuffle(len(rows)).batch(256)
    strategy = tf.distribute.MirroredStrategy(devices(replicas))
    return Stretch(strategy.experimental_distribute_dataset(dataset.repeat(repeats)), n)


PROGRAMS: dict[str, Program] = {
    **{f"replicas_{count}": partial(steps, count, None) for count in REPLICAS},
    **{f"replicas_{count}_ending": partial(steps, count, ENDING) for count in REPLICAS},
}

if __name__ == "__main__":
    make_logical_devices(max(REPLICAS))
    serve(PROGRAMS, "tensorflow-cpu")
