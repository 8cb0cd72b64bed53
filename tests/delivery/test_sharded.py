"""Arrays split between devices: the parts are sent like portions, and joined on arrival."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from penstock.delivery import jax_delivery
from penstock.delivery.cuda import Driver
from penstock.delivery.jax_berths import Handle
from penstock.delivery.jax_sharded import Parts, ShardedDelivery, open_sharded
from penstock.element import nest
from penstock.element.chunk import Chunk
from penstock.errors import InvalidArgumentError
from tests.delivery.simulated_cuda import Library, deliver_chunk


def split(*axes: Any, mesh: tuple[int, ...] = (2,)) -> NamedSharding:
    devices = np.array(jax.devices("cpu")[: int(np.prod(mesh))]).reshape(mesh)
    return NamedSharding(jax.sharding.Mesh(devices, ("x", "y")[: len(mesh)]), PartitionSpec(*axes))


def on_gpus(sharding: NamedSharding, library: Library) -> ShardedDelivery:
    """A delivery to JAX's devices as if they were GPUs."""
    devices = sorted(sharding.addressable_devices, key=lambda device: device.id)
    handles = list(map(Handle, devices))
    inner = jax_delivery.JaxCudaDelivery(handles, None, 2, Driver(library))
    return ShardedDelivery(Parts("here", sharding, devices), inner)


SHARDINGS = [split("x"), split(), split("x", "y", mesh=(2, 2)), split("y", mesh=(2, 2))]


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("is_gpu", [False, True])
def test_each_device_gets_its_part(library, monkeypatch, sharding, is_gpu):
    monkeypatch.setattr(jax_delivery, "_LARGE", 64)
    delivery = on_gpus(sharding, library) if is_gpu else open_sharded("here", sharding, 2)
    rows = np.arange(2 * 8 * 4, dtype=np.float32).reshape(2, 8, 4)
    mixed = [np.zeros((4, 2), np.int32), b"word"]
    chunk = Chunk(nest.tuple_of(2), [rows, mixed], 2)
    for i, (array, other) in enumerate(deliver_chunk(delivery, chunk)):
        assert array.sharding.is_equivalent_to(sharding, 2)
        for part in array.addressable_shards:
            np.testing.assert_array_equal(part.data, rows[i][part.index])
        assert other == b"word" if i else other.shape == (4, 2)
    delivery.close()


@pytest.mark.parametrize("sharding", [split("x"), split(), split("y", mesh=(2, 2))])
def test_devices_fetch_their_rows_by_number(library, monkeypatch, sharding):
    monkeypatch.setattr(jax_delivery, "_LARGE", 64)
    rows, labels = np.arange(640, dtype=np.float32).reshape(40, 16), np.arange(40, dtype=np.int32)
    whole = Chunk(nest.PAIR, [rows, labels], 40)
    delivery = on_gpus(sharding, library).of_rows(whole)
    assert delivery is not None
    numbers: Any = np.array([[3, 2, 9, 8], [5, 6, 0, 39]])
    for column in (numbers, [numbers[0], numbers[1, :2]]):
        made = deliver_chunk(delivery, Chunk(nest.LEAF, [column], 2))
        for batch, (array, label) in zip(column, made, strict=True):
            assert array.sharding.is_equivalent_to(sharding, 2)
            np.testing.assert_array_equal(array, rows[batch])
            np.testing.assert_array_equal(label, labels[batch])
    assert library.copies
    delivery.close()


def test_rows_that_are_split_and_strings_have_no_numbers(library):
    rows = np.zeros((40, 16), np.float32)
    words = np.array([b"%d" % i for i in range(40)], object)
    split_rows = on_gpus(split("x", "y", mesh=(2, 2)), library)
    assert split_rows.of_rows(Chunk(nest.LEAF, [rows], 40)) is None
    by_row = on_gpus(split("x"), library)
    assert by_row.of_rows(Chunk(nest.PAIR, [rows, words], 40)) is None
    with pytest.raises(InvalidArgumentError, match=r"^here: an array of shape \(3, 16\) cannot be"):
        by_row.of_rows(Chunk(nest.LEAF, [rows], 40)).send(  # type: ignore[union-attr]
            Chunk(nest.LEAF, [np.array([[1, 2, 3]])], 1)
        )
