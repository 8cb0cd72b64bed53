"""`Strategy.run(..., jit=True)`: one program for all replicas, compiled once.

The function is traced once, in the place of every replica, so it must not ask which one it is
except by `replica_id_in_sync_group`, which is a number only when the program runs. Arrays go in and
out without copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NoReturn

import jax as jax_module
import numpy as np

from penstock.distribute import reduce
from penstock.distribute.backends.jax_global import (
    AXIS,
    along,
    check_alike,
    everywhere,
    mesh_of,
    pieces,
)
from penstock.distribute.context import ReplicaContext, Standpoint, entered
from penstock.distribute.options import ReduceOp
from penstock.distribute.replicas import Replicas
from penstock.distribute.values.per_replica import regroup, spread
from penstock.distribute.values.trees import map_leaves
from penstock.errors import (
    DisagreementError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnimplementedError,
)

# Its own annotations are incomplete.
jax: Any = jax_module

_CALL = "Strategy.run(..., jit=True)"
_ARRAYS = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)


class CompiledReplicaContext(ReplicaContext):
    """What a compiled function may ask: the same, but answered by the program when it runs."""

    __slots__ = ()

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self._meeting = None

    @property
    def replica_id_in_sync_group(self) -> Any:
        return jax.lax.axis_index(AXIS)

    @property
    def _id(self) -> Any:  # type: ignore[override]
        return "every"

    @property
    def _index(self) -> NoReturn:
        raise FailedPreconditionError(
            f"{_CALL}: variables, devices and input know one replica at a time, but this function "
            "is compiled for all of them at once; pass arrays in args and return the new ones"
        )

    def merge_call(self, merge_fn: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise UnimplementedError(
            "ReplicaContext.merge_call: not possible inside Strategy.run(..., jit=True), where all "
            "replicas are one program; use all_reduce or all_gather, or leave out jit"
        )

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        op = reduce.reduce_op(reduce_op, "ReplicaContext.all_reduce")
        return map_leaves(lambda leaf: self._reduced(op, jax.numpy.asarray(leaf)), value)

    def _reduced(self, op: ReduceOp, leaf: Any) -> Any:
        total = jax.lax.psum(leaf, AXIS)
        backend = self._strategy._replicas.backend
        return total if op is ReduceOp.SUM else backend.divide(total, self.num_replicas_in_sync)

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        return map_leaves(lambda leaf: _gathered(jax.numpy.asarray(leaf), axis), value)


def _gathered(leaf: Any, axis: int) -> Any:
    if not -leaf.ndim <= axis < leaf.ndim:
        raise InvalidArgumentError(
            f"ReplicaContext.all_gather: axis {axis} does not fit values of shape {leaf.shape}; "
            "give single numbers an axis first, with value[None]"
        )
    return jax.lax.all_gather(leaf, AXIS, axis=axis % leaf.ndim, tiled=True)


def run_compiled(
    strategy: Any, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What `fn` returned for each replica, regrouped, from one program for all of them."""
    replicas: Replicas = strategy._replicas
    mesh = mesh_of(_everyones(replicas), _CALL)
    given = spread((args, kwargs), replicas.here, "Strategy.run")
    flat = [jax.tree.flatten(one) for one in given]
    if any(tree != flat[0][1] for _, tree in flat):
        raise DisagreementError(f"{_CALL}: the replicas' arguments have different structures")
    columns = list(zip(*(leaves for leaves, _ in flat), strict=True))
    inputs = [_input(column, replicas, mesh) for column in columns]
    program = _program(strategy, fn, mesh, flat[0][1], tuple(one.key for one in inputs))
    results = program([one.array for one in inputs if one.array is not None], replicas.here)
    return results[0] if replicas.here == 1 else regroup(results, always=False)


def _everyones(replicas: Replicas) -> list[Any]:
    """The devices of all processes, in the order of the replicas."""
    own = [device.handle for device in replicas.devices]
    if replicas.workers == 1:
        return own
    platform = own[0].platform
    places = [jax.local_devices(backend=platform).index(device) for device in own]
    return [
        jax.local_devices(process, platform)[place]
        for process in range(replicas.workers)
        for place in places
    ]


@dataclass(frozen=True)
class _Input:
    """One leaf of the arguments: a global array, or (None) a constant of the program."""

    key: Any
    array: Any = None


def _input(column: Sequence[Any], replicas: Replicas, mesh: Any) -> _Input:
    first = column[0]
    if not all(isinstance(leaf, _ARRAYS) for leaf in column):
        return _Input(("constant", _constant(column)))
    put, devices = replicas.backend.put, replicas.devices
    values = [put(leaf, devices[i].handle) for i, leaf in enumerate(column)]
    kind = (values[0].shape, values[0].dtype)
    if all(leaf is first for leaf in column):
        return _Input(("common", kind), everywhere(values, mesh))
    check_alike(values, _CALL, "the replicas' values of an argument")
    if not values[0].ndim:
        return _Input(("number", kind), along([value[None] for value in values], 0, mesh))
    return _Input(("rows", kind), along(values, 0, mesh))


def _constant(column: Sequence[Any]) -> Any:
    first = column[0]
    try:
        hash(first)
    except TypeError:
        first = None
    if first is None or any(leaf is not first and leaf != first for leaf in column):
        raise InvalidArgumentError(
            f"{_CALL}: {column[0]!r:.60} is neither an array nor a constant that all replicas "
            "share; pass arrays, numbers, or hashable values"
        )
    return first


@dataclass
class _Program:
    """A compiled function, and what it returned when it was traced."""

    run: Callable[..., list[Any]]
    traced: _Traced

    def __call__(self, arrays: list[Any], here: int) -> list[Any]:
        outputs = iter([pieces(array) for array in self.run(*arrays)])
        columns = [
            [leaf] * here if kind is None else _outputs(next(outputs), kind)
            for kind, leaf in zip(self.traced.kinds, self.traced.leaves, strict=True)
        ]
        rows = list(zip(*columns, strict=True)) if columns else [()] * here
        return [jax.tree.unflatten(self.traced.tree, row) for row in rows]


@dataclass
class _Traced:
    tree: Any = None
    kinds: list[int | None] = field(default_factory=list)
    """The rank of each result; None for what is no array, and a constant of the program."""
    leaves: list[Any] = field(default_factory=list)


def _outputs(shards: list[Any], rank: int) -> list[Any]:
    return [shard.reshape(()) for shard in shards] if rank == 0 else shards


@lru_cache(maxsize=256)
def _program(
    strategy: Any, fn: Callable[..., Any], mesh: Any, tree: Any, keys: tuple[Any, ...]
) -> _Program:
    """The program of a function for arguments of one kind; compiled when it is first run."""
    traced = _Traced()

    def body(*arrays: Any) -> list[Any]:
        given = iter(arrays)
        leaves = [_local(kind, detail, given) for kind, detail in keys]
        args, kwargs = jax.tree.unflatten(tree, leaves)
        with entered(Standpoint(strategy, CompiledReplicaContext(strategy))):
            returned, traced.tree = jax.tree.flatten(fn(*args, **kwargs))
        traced.leaves = [None if isinstance(leaf, _ARRAYS) else leaf for leaf in returned]
        results = [jax.numpy.asarray(leaf) for leaf in returned if isinstance(leaf, _ARRAYS)]
        ranks = iter([result.ndim for result in results])
        traced.kinds = [next(ranks) if leaf is None else None for leaf in traced.leaves]
        return [result if result.ndim else result[None] for result in results]

    parts, whole = jax.sharding.PartitionSpec(AXIS), jax.sharding.PartitionSpec()
    taken = [whole if kind == "common" else parts for kind, _ in keys if kind != "constant"]
    # What is the same on all devices is not checked: users' functions may return anything.
    mapped = jax.shard_map(body, mesh=mesh, in_specs=tuple(taken), out_specs=parts, check_vma=False)
    return _Program(jax.jit(mapped), traced)


def _local(kind: str, detail: Any, given: Any) -> Any:
    """An argument as one replica sees it."""
    if kind == "constant":
        return detail
    value = next(given)
    return value[0] if kind == "number" else value
