"""Converts between values of replicas and JAX's global arrays, without copies.

A global array is one array whose shards are on the devices of a mesh. The value of a replica *is*
the shard on its device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from penstock.distribute.values.per_replica import DistributedValues, Mirrored, PerReplica
from penstock.distribute.values.trees import map_leaves
from penstock.errors import InvalidArgumentError, InvalidTypeError

AXIS = "replica"
"""The name of the only axis of the mesh."""


def to_global(value: Any, axis: int = 0) -> Any:
    """The values of this process's replicas, as global arrays over their devices.

    Args:
        value: A `PerReplica` of arrays of one shape, which are joined along `axis`, or a
            `Mirrored`, of which every device has a copy; or a tree of them.
        axis: The axis along which the array is divided among the devices.

    Returns:
        The same tree with every distributed value replaced by a `jax.Array` with a
        `NamedSharding` over the mesh axis "replica".
    """
    return map_leaves(lambda leaf: _join_leaf(leaf, axis), value)


def from_global(array: Any) -> PerReplica:
    """The shards of a global array on this process's devices, in the order of the mesh."""
    if not isinstance(array, jax.Array):
        raise InvalidTypeError(f"from_global: needs a jax.Array, got {array!r:.60}")
    return PerReplica(own_shards(array))


def own_shards(array: Any) -> list[Any]:
    """The shards of a global array that belong to this process."""
    return [shard.data for shard in array.addressable_shards]


def _join_leaf(leaf: Any, axis: int) -> Any:
    if not isinstance(leaf, DistributedValues):
        return leaf
    for value in leaf.values:
        if not isinstance(value, jax.Array) or len(value.devices()) != 1:
            raise InvalidTypeError(
                f"to_global: needs arrays of JAX that are on one device each, got {value!r:.60}; "
                "use a strategy with backend='jax'"
            )
    mesh = mesh_of([next(iter(value.devices())) for value in leaf.values], "to_global")
    if isinstance(leaf, Mirrored):
        return everywhere(leaf.values, mesh)
    check_alike(leaf.values, "to_global", "the replicas' values")
    shape = leaf.values[0].shape
    if not -len(shape) <= axis < len(shape):
        raise InvalidArgumentError(
            f"to_global: axis {axis} does not fit values of shape {shape}; give single numbers "
            "an axis first, with value[None]"
        )
    return along(leaf.values, axis % len(shape), mesh)


def mesh_of(devices: Sequence[Any], call: str) -> Any:
    """A mesh of devices; raises if two replicas share a device."""
    if len(set(devices)) < len(devices):
        raise InvalidArgumentError(
            f"{call}: several replicas share a device ({', '.join(map(str, devices))}), but a "
            "program of JAX runs once on each; name devices that exist (for more CPUs set "
            "XLA_FLAGS=--xla_force_host_platform_device_count=8 before jax is imported)"
        )
    return jax.sharding.Mesh(np.array(devices), (AXIS,))


def check_alike(values: Sequence[Any], call: str, what: str) -> None:
    """Raises if arrays differ in shape or dtype."""
    kinds = [(tuple(value.shape), str(value.dtype)) for value in values]
    if any(kind != kinds[0] for kind in kinds):
        shown = ", ".join(f"{dtype}{list(shape)}" for shape, dtype in kinds)
        raise InvalidArgumentError(
            f"{call}: {what} are of different shapes or dtypes, {shown}; for batches, "
            "InputOptions(last_batch='pad') gives all replicas the same number of rows"
        )


def along(values: Sequence[Any], axis: int, mesh: Any) -> Any:
    """Arrays of one shape, on this process's devices of the mesh, joined along an axis."""
    shape = list(values[0].shape)
    shape[axis] *= mesh.size
    sharding = _spread_over(mesh, *[None] * axis, AXIS)
    return jax.make_array_from_single_device_arrays(tuple(shape), sharding, list(values))


def everywhere(values: Sequence[Any], mesh: Any) -> Any:
    """A global array of which every device of the mesh has a copy."""
    sharding = _spread_over(mesh)
    return jax.make_array_from_single_device_arrays(values[0].shape, sharding, list(values))


def _spread_over(mesh: Any, *axes: str | None) -> Any:
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
