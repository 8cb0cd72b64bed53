"""Delivery to the devices of a sharding of JAX: each device gets its part of every array.

The parts travel as a strategy's portions do. When an element is received, JAX makes one global
array of them, without a copy.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from penstock.delivery import Delivery
from penstock.delivery.jax_berths import Handle
from penstock.delivery.jax_delivery import open_delivery
from penstock.delivery.moving import ColumnDelivery, is_movable
from penstock.element import nest
from penstock.element.chunk import Chunk
from penstock.element.columns import Array, Column
from penstock.element.dtypes import to_native
from penstock.errors import InvalidArgumentError

Index = tuple[slice, ...]

_UNFIT = (ValueError, AssertionError, IndexError)
"""What JAX raises for arrays that a sharding does not fit; the last two if axes are missing."""


def open_sharded(where: str, sharding: Any, ahead: int) -> Delivery:
    """A delivery of arrays split by a sharding; errors begin with `where`."""
    devices = sorted(sharding.addressable_devices, key=lambda device: device.id)
    ordinary = {None, devices[0].default_memory().kind}
    if not sharding.is_fully_addressable or sharding.memory_kind not in ordinary:
        return ColumnDelivery([sharding], None, partial(_move_process_rows, where))
    inner = open_delivery(list(map(Handle, devices)), None, ahead)
    return ShardedDelivery(Parts(where, sharding, devices), inner)


def _move_process_rows(where: str, array: Array, alone: bool, sharding: Any) -> list[Any]:
    """Makes global arrays of which every process contributes its own rows."""
    rows = to_native(array).copy()
    try:
        make = jax.make_array_from_process_local_data
        return [make(sharding, rows[i, ...]) for i in range(len(rows))]
    except _UNFIT as error:
        raise refuse_shape(where, array.shape[1:], sharding) from error


def refuse_shape(where: str, shape: tuple[int, ...], sharding: Any) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{where}: an array of shape {shape} cannot be split as {sharding} says; make "
        "batches that all devices get an equal part of, batch(..., drop_remainder=True), or "
        "let a strategy fill up the last one, InputOptions(last_batch='pad')"
    )


class Parts:
    """The part of an array that each device of a sharding gets."""

    def __init__(self, where: str, sharding: Any, devices: Sequence[Any]) -> None:
        self.devices = devices
        self._where = where
        self._sharding = sharding
        self._counts: dict[int, tuple[int, ...]] = {}
        """By the number of axes: into how many parts each axis is split."""

    def find(self, shape: tuple[int, ...]) -> list[Index]:
        """The part of an array of this shape, for each device."""
        try:
            self._sharding.shard_shape(shape)
            found = self._sharding.addressable_devices_indices_map(shape)
        except _UNFIT as error:
            raise refuse_shape(self._where, shape, self._sharding) from error
        return [found[device] for device in self.devices]

    def split_rows_only(self, shape: tuple[int, ...]) -> bool:
        """Whether batches of rows of this shape are split between rows, and no row is split."""
        try:
            parts = self.find((self._sharding.num_devices, *shape))
        except InvalidArgumentError:
            return False
        return all(axis == slice(None) for part in parts for axis in part[1:])

    def cut(self, column: Column) -> list[Column]:
        """The parts of all leaves of a column, for each device; strings stay whole."""
        if isinstance(column, np.ndarray) and is_movable(column):
            return [column[(slice(None), *part)] for part in self.find(column.shape[1:])]
        if not isinstance(column, list):
            return [column] * len(self.devices)
        cut = [self._cut_leaf(leaf) for leaf in column]
        return [[leaf[i] for leaf in cut] for i in range(len(self.devices))]

    def _cut_leaf(self, leaf: Any) -> list[Any]:
        if not is_movable(leaf):
            return [leaf] * len(self.devices)
        return [np.asarray(leaf)[part] for part in self.find(leaf.shape)]

    def join(self, parts: list[Any]) -> Any:
        """One leaf, of the parts of all devices."""
        first = parts[0]
        if not isinstance(first, jax.Array):
            return first
        counts = self._count_parts(first.ndim)
        shape = tuple(size * count for size, count in zip(first.shape, counts, strict=True))
        return jax.make_array_from_single_device_arrays(shape, self._sharding, parts)

    def _count_parts(self, axes: int) -> tuple[int, ...]:
        if axes not in self._counts:
            whole = (self._sharding.num_devices,) * axes
            part = self._sharding.shard_shape(whole)
            self._counts[axes] = tuple(map(operator.floordiv, whole, part))
        return self._counts[axes]


class ShardedDelivery(Delivery):
    """Sends the parts of all devices by `inner`, and joins them when they are received.

    Its chunks in transit have a column for each device and leaf: first all leaves of the first
    device.
    """

    def __init__(self, parts: Parts, inner: Delivery) -> None:
        self._parts = parts
        self._inner = inner

    def of_rows(self, rows: Chunk) -> ShardedRows | None:
        """A delivery for chunks of row numbers; None if GPUs cannot read them, or rows are split.

        All leaves are split in the same way, so that one column of numbers serves all of them.
        """
        shapes = [c.shape[1:] for c in rows.columns if isinstance(c, np.ndarray) and is_movable(c)]
        if len(shapes) < len(rows.columns) or not all(map(self._parts.split_rows_only, shapes)):
            return None
        inner = self._inner.of_rows(rows)
        return None if inner is None else ShardedRows(self._parts, inner, rows)

    def send(self, chunk: Chunk) -> Chunk:
        parts = zip(*map(self._parts.cut, chunk.columns), strict=True)
        return self._send_parts(chunk, [part for leaves in parts for part in leaves])

    def _send_parts(self, chunk: Chunk, parts: list[Column]) -> Chunk:
        sent = self._inner.send(Chunk(nest.tuple_of(len(parts)), parts, len(chunk)))
        return Chunk(chunk.tree, sent.columns, len(chunk))

    def receive(self, values: list[Any]) -> list[Any]:
        arrived = self._inner.receive(values)
        leaves = len(arrived) // len(self._parts.devices)
        return [self._parts.join(arrived[i::leaves]) for i in range(leaves)]

    def close(self) -> None:
        self._inner.close()


class ShardedRows(ShardedDelivery):
    """Sends each device the numbers of its rows, which `inner` fetches."""

    def __init__(self, parts: Parts, inner: Delivery, rows: Chunk) -> None:
        super().__init__(parts, inner)
        self._rows = rows

    def send(self, chunk: Chunk) -> Chunk:
        (numbers,) = chunk.columns
        whole = Chunk(self._rows.tree, [], len(chunk))
        if isinstance(numbers, np.ndarray):
            return self._send_parts(whole, [numbers[:, rows] for rows in self._find(numbers[0])])
        cut = [[batch[rows] for rows in self._find(batch)] for batch in numbers]
        return self._send_parts(whole, [list(part) for part in zip(*cut, strict=True)])

    def _find(self, batch: Array) -> list[slice]:
        """The rows of a batch that each device gets."""
        first: Any = self._rows.columns[0]
        return [part[0] for part in self._parts.find((len(batch), *first.shape[1:]))]
