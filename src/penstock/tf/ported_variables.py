"""`tf.Variable` for ported code: what is read from it is a tensor.

A variable is stored as plain penstock stores it; only what its methods return is converted. Values
of torch and JAX are returned as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from penstock.distribute.replica_context import get_replica_context, require_own_scope
from penstock.distribute.values.mirrored import (
    ONLY_FIRST,
    DistributedVariable,
    MirroredVariable,
    SyncOnReadVariable,
)
from penstock.distribute.values.per_replica import PerReplica
from penstock.distribute.values.variables import NONE, Variable, VariableCopy, is_in_run
from penstock.element.dtypes import as_dtype
from penstock.element.spec import TensorShape
from penstock.errors import UnimplementedError
from penstock.shim.literals import is_literal
from penstock.tf.missing_operations import missing_from_tf
from penstock.tf.operations import name_call
from penstock.tf.ported_functions import wrap
from penstock.tf.selection import gather, gather_nd
from penstock.tf.values import Reference, Tensor, as_tensor, to_array
from penstock.tf.variable_updates import (
    Change,
    VariableSlice,
    change_entries,
    change_rows,
    check_slices,
    is_slice,
)

_WHOLE = ("update", "min", "max")
"""The changes of rows that cannot be summed over replicas."""


def _scatter_method(how: str, doc: str) -> Callable[..., Any]:
    def scatter(
        self: PortedVariable, sparse_delta: Any, use_locking: bool = False, name: str | None = None
    ) -> Any:
        return self._scatter(how, sparse_delta)

    return name_call(scatter, f"scatter_{how}", doc)


def _scatter_nd_method(how: str, doc: str) -> Callable[..., Any]:
    def scatter(self: PortedVariable, indices: Any, updates: Any, name: str | None = None) -> Any:
        call = f"Variable.scatter_nd_{how}"
        return self._update(lambda old: change_entries(how, old, indices, updates, call), call)

    doc = f"{doc}: each row of `indices` is the index of one update."
    return name_call(scatter, f"scatter_nd_{how}", doc)


class PortedVariable(Variable):
    """`tf.Variable`; see `penstock.Variable`. Its values answer `.numpy()`.

    >>> from penstock import tf
    >>> step = tf.Variable(1)
    >>> (step + 1).numpy(), step.assign_add(2).numpy(), step.read_value()
    (np.int32(2), np.int32(3), <tf.Tensor: shape=(), dtype=int32, numpy=3>)
    >>> step.shape, step.dtype
    (TensorShape([]), tf.int32)
    >>> rows = tf.Variable([1.0, 2.0, 3.0])
    >>> _ = rows[0].assign(9.0), rows.scatter_add(tf.IndexedSlices([10.0], [2]))
    >>> rows.scatter_nd_update([[1]], [5.0]).numpy()
    array([ 9.,  5., 13.], dtype=float32)
    """

    __hash__ = object.__hash__

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        dtype = kwargs.get("dtype")
        if args and is_literal(args[0]) and (dtype or isinstance(args[0], list | tuple)):
            args = (to_array(args[0], dtype, "Variable"), *args[1:])
        super().__init__(*args, **kwargs)

    if not TYPE_CHECKING:  # A type checker knows the names, and would take any other one, too.

        def __getattr__(self, name: str) -> NoReturn:
            raise missing_from_tf("Variable", name, ())

    @classmethod
    def _form_of(cls, kind: Any) -> type[Variable]:
        return _port_class(kind)

    def _current_value(self) -> Any:
        return wrap(super()._current_value())

    def numpy(self) -> Any:
        """A copy of the value as a NumPy array or scalar, or bytes."""
        value = super().numpy()
        return value.numpy() if isinstance(value, Tensor) else value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(super().numpy(), dtype)

    def _assign(self, how: str, value: Any, read_value: bool) -> Any:
        """Returns the variable, as TensorFlow does; for one replica, the value that it has now."""
        changed = super()._assign(how, value, read_value)
        if not read_value:
            return None
        return wrap(changed) if is_in_run() or isinstance(self, VariableCopy) else self

    @property
    def shape(self) -> Any:
        return TensorShape(super().shape) if self._is_numpy() else super().shape

    @property
    def dtype(self) -> Any:
        return as_dtype(super().dtype) if self._is_numpy() else super().dtype

    def _is_numpy(self) -> bool:
        return self._replicas.backend.name == "numpy"

    def __getitem__(self, key: Any) -> Any:
        """A part of the value; `v[0].assign(x)` and `v[1:3].assign(x)` change the variable."""
        part = super().__getitem__(key)
        shared = isinstance(self, SyncOnReadVariable) and not is_in_run()
        if type(part) is not Tensor or shared or not is_slice(key):
            return part
        return VariableSlice.of(part, self._update, key)

    def _update(self, change: Change, call: str) -> Any:
        """Changes the copy of the current replica; outside of `run`, every copy."""
        if not self._is_numpy():
            raise UnimplementedError(
                f"{call}: the variable holds tensors of {self._replicas.backend.name}; assign a "
                "whole tensor that you made with that framework"
            )
        if not isinstance(self, DistributedVariable):
            return self._assign("assign", change(np.asarray(super().numpy())), True)
        index = self._replica_here()
        if index is not None:
            return self._values[index]._update(change, call)
        require_own_scope(self._strategy, call)
        for copy in self._values:
            copy._update(change, call)
        return self

    def _scatter(self, how: str, delta: Any) -> Any:
        call = f"Variable.scatter_{how}"
        check_slices(delta, call)
        if isinstance(self, SyncOnReadVariable):
            raise UnimplementedError(
                f"{call}: {self.name!r} is ON_READ; use assign, or an ON_WRITE variable"
            )
        replica = get_replica_context() if isinstance(self, DistributedVariable) else None
        if replica is None or self._aggregation is NONE or not is_in_run():
            return self._update(lambda old: change_rows(how, old, delta, call), call)
        if how in _WHOLE and self._aggregation is not ONLY_FIRST:
            raise UnimplementedError(
                f"{call}: replicas cannot do it with the aggregation {self._aggregation.name}; use "
                "ONLY_FIRST_REPLICA, or call it outside of Strategy.run"
            )
        return replica.merge_call(lambda _, rows: self._scatter_together(how, rows), (delta,))

    def _scatter_together(self, how: str, rows: Any) -> PerReplica:
        """Changes all copies by the aggregate of the replicas' rows; returns their values."""
        call, mirrored = f"Variable.scatter_{how}", cast(MirroredVariable, self)
        rows = mirrored._aggregate_slices(rows, call)
        self._update(lambda old: change_rows(how, old, rows, call), call)
        return PerReplica([wrap(copy._current_value()) for copy in mirrored._values])

    scatter_update = _scatter_method("update", "Replaces rows: those of `IndexedSlices`.")
    scatter_add = _scatter_method("add", "Adds rows of `IndexedSlices`.")
    scatter_sub = _scatter_method("sub", "Subtracts rows of `IndexedSlices`.")
    scatter_mul = _scatter_method("mul", "Multiplies by rows of `IndexedSlices`.")
    scatter_div = _scatter_method("div", "Divides by rows of `IndexedSlices`.")
    scatter_min = _scatter_method("min", "The smaller of the old rows and of `IndexedSlices`.")
    scatter_max = _scatter_method("max", "The larger of the old rows and of `IndexedSlices`.")

    scatter_nd_update = _scatter_nd_method("update", "Replaces entries")
    scatter_nd_add = _scatter_nd_method("add", "Adds to entries")
    scatter_nd_sub = _scatter_nd_method("sub", "Subtracts from entries")

    def gather_nd(self, indices: Any, name: str | None = None) -> Any:
        """The entries at indices; see `tf.gather_nd`."""
        return gather_nd(self, indices)

    def sparse_read(self, indices: Any, name: str | None = None) -> Any:
        """The rows of some numbers; see `tf.gather`."""
        return gather(self, indices)

    def is_initialized(self, name: str | None = None) -> Tensor:
        """True: a variable has its initial value from the start."""
        return as_tensor(np.True_)

    def ref(self) -> Reference:
        """The variable as a key of a dict."""
        return Reference(self)


@functools.cache
def _port_class(kind: Any) -> type[Variable]:
    """The class of variables of a kind, such as `MirroredVariable`, that return tensors."""
    if kind is Variable:
        return PortedVariable
    return type(kind.__name__, (PortedVariable, kind), {"__doc__": kind.__doc__})
