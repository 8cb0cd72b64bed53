"""What a function may ask inside `Strategy.run(..., jit=True)`, where all replicas are one program.

It is asked once, while the function is traced: no answer may be a number of one replica.
"""

from __future__ import annotations

from typing import Any, NoReturn

import jax as jax_module
import numpy as np

from penstock.distribute import reduce
from penstock.distribute.backends.jax_global import AXIS
from penstock.distribute.context import ReplicaContext
from penstock.distribute.options import ReduceOp
from penstock.distribute.values.operators import acting
from penstock.distribute.values.trees import map_leaves, place_of
from penstock.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError

# Its own annotations are incomplete.
jax: Any = jax_module

CALL = "Strategy.run(..., jit=True)"

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
            f"{CALL}: variables, devices and input know one replica at a time, but this function "
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
        return map_leaves(lambda leaf: self._reduced(op, _array(leaf, value, call)), value)

    def _reduced(self, op: ReduceOp, leaf: Any) -> Any:
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
        return map_leaves(lambda leaf: _gathered(_array(leaf, value, call), axis, call), value)


def _array(leaf: Any, tree: Any, call: str) -> Any:
    """A leaf of what the replicas do something with together, as an array."""
    if leaf is None:
        raise reduce.missing(place_of(leaf, tree), "", call)
    value = acting(leaf)
    if not is_array(value):
        raise InvalidArgumentError(
            f"{call}: {place_of(leaf, tree)} must be an array or a number, got {leaf!r:.60} "
            f"({type(leaf).__name__})"
        )
    return jax.numpy.asarray(value)


def is_array(leaf: Any) -> bool:
    """Whether JAX has such arrays; NumPy's may hold strings."""
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype.kind not in "OSU"
    return isinstance(leaf, _ARRAYS)


def _gathered(leaf: Any, axis: int, call: str) -> Any:
    if not leaf.ndim:
        raise reduce.single_number(axis, call)
    if not -leaf.ndim <= axis < leaf.ndim:
        raise InvalidArgumentError(
            f"{call}: axis {axis} does not fit values of shape {leaf.shape}; "
            f"their axes are 0 to {leaf.ndim - 1}"
        )
    return jax.lax.all_gather(leaf, AXIS, axis=int(axis) % leaf.ndim, tiled=True)
