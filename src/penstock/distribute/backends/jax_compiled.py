"""`Strategy.run(..., jit=True)`: one program for all replicas, compiled once.

The function is traced once for all replicas. While it is traced, the number of the replica is a
placeholder (`replica_id_in_sync_group`), and everything else that belongs to one replica raises an
error. Arrays go in and out without copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, NoReturn

import jax
import numpy as np

from penstock.distribute import reduce
from penstock.distribute.backends.jax_global import (
    AXIS,
    along,
    check_alike,
    everywhere,
    mesh_of,
    own_shards,
)
from penstock.distribute.replica_context import ReplicaContext, Standpoint, enter
from penstock.distribute.replicas import Replicas
from penstock.distribute.strategy_options import ReduceOp
from penstock.distribute.values.operators import current_value
from penstock.distribute.values.per_replica import regroup, spread
from penstock.distribute.values.storage import refuse_foreign
from penstock.distribute.values.trees import map_leaves, path_of
from penstock.errors import (
    DisagreementError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    UnimplementedError,
)

CALL = "Strategy.run(..., jit=True)"

_ARRAYS = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)


class CompiledReplicaContext(ReplicaContext):
    """The `ReplicaContext` inside a compiled function, whose results are known when it runs."""

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
            f"{CALL}: variables, devices and input belong to one replica, but this function "
            "is compiled for all of them at once; pass arrays in args and return the new ones"
        )

    def merge_call(self, merge_fn: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise UnimplementedError(
            "ReplicaContext.merge_call: not possible inside Strategy.run(..., jit=True), where all "
            "replicas are one program; use all_reduce or all_gather, or leave out jit"
        )

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        call = "ReplicaContext.all_reduce"
        op = reduce.reduce_op(reduce_op, call)
        return map_leaves(lambda leaf: self._reduce_leaf(op, _array(leaf, value, call)), value)

    def _reduce_leaf(self, op: ReduceOp, leaf: Any) -> Any:
        if leaf.dtype == bool:
            raise InvalidArgumentError(
                "ReplicaContext.all_reduce: needs numbers, got truth values (bool); convert them "
                "first, with value.astype(int)"
            )
        total = jax.lax.psum(leaf, AXIS)
        backend = self._strategy._replicas.backend
        return total if op is ReduceOp.SUM else backend.divide(total, self.num_replicas_in_sync)

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        call = "ReplicaContext.all_gather"
        reduce.check_axis(axis, call)
        return map_leaves(lambda leaf: _gather_leaf(_array(leaf, value, call), axis, call), value)


def _array(leaf: Any, tree: Any, call: str) -> Any:
    """A leaf of the argument of `all_reduce` or `all_gather`, as an array."""
    if leaf is None:
        raise reduce.missing_error(path_of(leaf, tree), "", call)
    value = current_value(leaf)
    if not is_array(value):
        raise InvalidArgumentError(
            f"{call}: {path_of(leaf, tree)} must be an array or a number, got {leaf!r:.60} "
            f"({type(leaf).__name__})"
        )
    return jax.numpy.asarray(value)


def is_array(leaf: Any) -> bool:
    """Whether JAX can represent a value as an array; it has no strings."""
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype.kind not in "OSU"
    return isinstance(leaf, _ARRAYS)


def _gather_leaf(leaf: Any, axis: int, call: str) -> Any:
    if not leaf.ndim:
        raise reduce.single_number_error(axis, call)
    if not -leaf.ndim <= axis < leaf.ndim:
        raise InvalidArgumentError(
            f"{call}: axis {axis} does not fit values of shape {leaf.shape}; "
            f"their axes are 0 to {leaf.ndim - 1}"
        )
    return jax.lax.all_gather(leaf, AXIS, axis=int(axis) % leaf.ndim, tiled=True)


def run_compiled(
    strategy: Any, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Runs `fn` for all replicas as one program; returns its results as `PerReplica`."""
    replicas: Replicas = strategy._replicas
    mesh = mesh_of(_devices_of_all_workers(replicas), CALL)
    given = spread((args, kwargs), replicas.here, "Strategy.run")
    flat = [jax.tree.flatten(one) for one in given]
    if any(tree != flat[0][1] for _, tree in flat):
        raise DisagreementError(f"{CALL}: the replicas' arguments have different structures")
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    inputs = [
        _make_input(column, replicas, mesh, partial(_path_of_argument, given[0], index))
        for index, column in enumerate(columns)
    ]
    _check_function(fn)
    program = _compile_program(strategy, fn, mesh, flat[0][1], tuple(key for key, _ in inputs))
    results = program([array for _, array in inputs if array is not None], replicas.here)
    return results[0] if replicas.here == 1 else regroup(results, always=False)


def _path_of_argument(given: Any, index: int) -> str:
    """The path of a leaf of the arguments, as Python code."""
    first, *rest = jax.tree_util.tree_flatten_with_path(given)[0][index][0]
    return ("args", "kwargs")[first.idx] + str(jax.tree_util.keystr(tuple(rest)))


def _check_function(fn: Any) -> None:
    if not _has_hash(fn):
        raise InvalidTypeError(
            f"{CALL}: programs are kept by their function, but {fn!r:.60} has no hash; pass a "
            "function, or give its class a __hash__"
        )


def _devices_of_all_workers(replicas: Replicas) -> list[Any]:
    """The devices of all processes, in the order of the replicas."""
    own = [device.handle for device in replicas.devices]
    if replicas.workers == 1:
        return own
    platform = own[0].platform
    indices = [jax.local_devices(backend=platform).index(device) for device in own]
    return [
        jax.local_devices(process, platform)[index]
        for process in range(replicas.workers)
        for index in indices
    ]


def _make_input(
    column: Sequence[Any], replicas: Replicas, mesh: Any, path: Callable[[], str]
) -> tuple[Any, Any]:
    """The key and the global array of a leaf; None for a leaf that is a constant of the program."""
    first = column[0]
    if not all(map(is_array, column)):
        for leaf in column:
            refuse_foreign(replicas, leaf, CALL)
        return ("constant", _constant(column, path)), None
    put, devices = replicas.backend.put, replicas.devices
    values = [put(leaf, devices[i].handle) for i, leaf in enumerate(column)]
    kind = (values[0].shape, values[0].dtype)
    if all(leaf is first for leaf in column):
        return ("common", kind), everywhere(values, mesh)
    check_alike(values, CALL, "the replicas' values of an argument")
    if not values[0].ndim:
        return ("number", kind), along([value[None] for value in values], 0, mesh)
    return ("rows", kind), along(values, 0, mesh)


def _constant(column: Sequence[Any], path: Callable[[], str]) -> Any:
    first = column[0]
    if _has_hash(first) and all(leaf is first or leaf == first for leaf in column):
        return first
    if isinstance(first, np.ndarray | np.generic | bytes):
        raise InvalidArgumentError(
            f"{CALL}: {path()} holds strings, which JAX does not have; leave it out, with "
            "Dataset.map before the dataset is distributed, say"
        )
    raise InvalidArgumentError(
        f"{CALL}: {path()} ({first!r:.60}) is neither an array nor a constant that all replicas "
        "share; pass arrays, numbers, or hashable values"
    )


def _has_hash(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


@dataclass
class _Program:
    """A compiled function, and the structure of its result, which is known once it was traced."""

    run: Callable[..., list[Any]] = field(init=False)
    tree: Any = None
    leaves: list[tuple[int | None, Any]] = field(default_factory=list)
    """The rank of each result that is an array, or None and the result, which is a constant."""

    def __call__(self, arrays: list[Any], here: int) -> list[Any]:
        outputs = iter([own_shards(array) for array in self.run(*arrays)])
        columns = [
            [leaf] * here if rank is None else _reshape_outputs(next(outputs), rank)
            for rank, leaf in self.leaves
        ]
        rows = list(zip(*columns, strict=True)) if columns else [()] * here
        return [jax.tree.unflatten(self.tree, row) for row in rows]


def _reshape_outputs(shards: list[Any], rank: int) -> list[Any]:
    return [shard.reshape(()) for shard in shards] if rank == 0 else shards


@lru_cache(maxsize=256)
def _compile_program(
    strategy: Any, fn: Callable[..., Any], mesh: Any, tree: Any, keys: tuple[Any, ...]
) -> _Program:
    """The program of a function for arguments of one structure; compiled on its first run."""
    program = _Program()

    def body(*arrays: Any) -> list[Any]:
        given = iter(arrays)
        leaves = [_argument_of_replica(kind, detail, given) for kind, detail in keys]
        args, kwargs = jax.tree.unflatten(tree, leaves)
        returned, program.tree = jax.tree.flatten(_call_traced(strategy, fn, args, kwargs))
        program.leaves = [
            (np.ndim(leaf), None) if is_array(leaf) else (None, leaf) for leaf in returned
        ]
        results = [jax.numpy.asarray(leaf) for leaf in returned if is_array(leaf)]
        return [result if result.ndim else result[None] for result in results]

    parts, whole = jax.sharding.PartitionSpec(AXIS), jax.sharding.PartitionSpec()
    taken = [whole if kind == "common" else parts for kind, _ in keys if kind != "constant"]
    # check_vma is off: results of users' functions may differ between the devices.
    mapped = jax.shard_map(body, mesh=mesh, in_specs=tuple(taken), out_specs=parts, check_vma=False)
    program.run = jax.jit(mapped)
    return program


def _call_traced(strategy: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    with enter(Standpoint(strategy, CompiledReplicaContext(strategy))):
        try:
            return fn(*args, **kwargs)
        except Exception as error:
            error.add_note(f"while tracing for all {strategy.num_replicas_in_sync} replicas")
            raise


def _argument_of_replica(kind: str, detail: Any, given: Any) -> Any:
    if kind == "constant":
        return detail
    value = next(given)
    return value[0] if kind == "number" else value
