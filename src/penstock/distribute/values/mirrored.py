"""Variables with a copy on every replica: synchronized when written, or when read."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from penstock.distribute import replica_context
from penstock.distribute.reduce import local_values, reduce_leaf
from penstock.distribute.replicas import Replicas
from penstock.distribute.strategy_options import ReduceOp
from penstock.distribute.values.indexed_slices import gather_slices
from penstock.distribute.values.operators import current_value
from penstock.distribute.values.per_replica import DistributedValues, PerReplica, values_of
from penstock.distribute.values.trees import container_of
from penstock.distribute.values.variables import (
    NONE,
    Variable,
    VariableAggregation,
    VariableCopy,
    VariableSynchronization,
)
from penstock.errors import FailedPreconditionError, InvalidArgumentError

SUM, MEAN = VariableAggregation.SUM, VariableAggregation.MEAN
ONLY_FIRST = VariableAggregation.ONLY_FIRST_REPLICA


class DistributedVariable(DistributedValues, Variable):
    """A variable with a copy on every replica of a strategy: `.values`."""

    __hash__ = object.__hash__
    __init__ = Variable.__init__

    def _store_value(self, value: Any) -> None:
        self._replicas: Replicas = self._strategy._replicas
        value = _broadcast_from_first_worker(self._replicas, value)
        kind: Any = self._form_of(VariableCopy)
        copies = [kind(self, index, value) for index in range(self._replicas.here)]
        DistributedValues.__init__(self, copies)
        self._check_aggregation()

    def _check_aggregation(self) -> None:
        """Raises if the aggregation does not fit the dtype, before the first assignment."""
        dtype = str(self.dtype)
        if self._aggregation is MEAN and "float" not in dtype:
            remedy = "pass dtype=, or use SUM" if "int" in dtype else "use ONLY_FIRST_REPLICA"
            raise InvalidArgumentError(
                f"Variable: the aggregation MEAN needs a float variable, but {self.name!r} has the "
                f"dtype {self.dtype}; {remedy}"
            )

    def _replica_here(self) -> int | None:
        """The number of the current replica in this process; None outside of `run`."""
        index = replica_context.local_index()
        if index is not None and replica_context.get_strategy() is not self._strategy:
            raise FailedPreconditionError(
                f"{type(self).__name__}: {self.name!r} is used inside the run of another strategy, "
                "and mixing strategies is impossible; make it under that strategy's scope, or pass "
                "its value to run in args"
            )
        return index

    def _copy_here(self) -> Any:
        return self._values[self._replica_here() or 0]

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self._copy_here().shape
        return shape

    @property
    def dtype(self) -> Any:
        return self._copy_here().dtype

    @property
    def device(self) -> str:
        """The name of the device of the current replica's copy."""
        device: str = self._copy_here().device
        return device

    def _change_each(self, how: str, value: Any) -> None:
        """Changes every copy, each by its own value if `value` is distributed."""
        call, here = f"{type(self).__name__}.{how}", self._replicas.here
        replica_context.require_own_scope(self._strategy, call)
        is_distributed = isinstance(value, DistributedValues)
        given = values_of(value, here, call) if is_distributed else [value] * here
        for one, each in zip(self._values, given, strict=True):
            one._change(how, each)

    def __copy__(self) -> DistributedVariable:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._values = tuple(map(copy.copy, self._values))
        for one in twin._values:
            one._container = twin
        return twin

    __str__ = DistributedValues.__str__
    __repr__ = DistributedValues.__repr__


class MirroredVariable(DistributedVariable):
    """Copies that stay equal if what replicas assign is aggregated."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._synchronization = VariableSynchronization.ON_WRITE

    def _current_value(self) -> Any:
        return self._copy_here()._current_value()

    def _change(self, how: str, value: Any) -> Any:
        index = self._replica_here()
        if index is None:
            return self._change_all(how, value)[0]
        if self._aggregation is NONE:
            return self._values[index]._change(how, value)
        replica, own = replica_context.get_replica_context(), current_value(value)
        assert replica is not None
        if not isinstance(value, Variable) or isinstance(value, SyncOnReadVariable):
            value = own  # Other variables are equal on all replicas, and are not summed.
        if container_of(type(value)) is not None:
            # A list is one array here; a merge would treat it as a tree.
            value = self._values[index]._fit(value, f"{type(self).__name__}.{how}")
        return replica.merge_call(
            lambda _, value: PerReplica(self._change_all(how, self._aggregate(how, value))),
            (value,),
        )

    def _change_all(self, how: str, value: Any) -> list[Any]:
        self._change_each(how, value)
        return [one._current_value() for one in self._values]

    def _aggregate(self, how: str, value: Any) -> Any:
        """The aggregate of the values that the replicas assign."""
        call = f"{type(self).__name__}.{how}"
        given = local_values(self._replicas, value, call)
        if self._aggregation is ONLY_FIRST:
            return _broadcast_from_first_worker(
                self._replicas, current_value(value if given is None else given[0])
            )
        if given is None or (isinstance(value, MirroredVariable) and self._replicas.here > 1):
            return self._aggregate_common(value, call)
        pairs = zip(self._values, given, strict=True)
        fitting = [one._fit(current_value(each), call) for one, each in pairs]
        op = _REDUCTIONS[self._aggregation]
        return reduce_leaf(self._replicas, op, PerReplica(fitting), None, call)

    def _aggregate_slices(self, value: Any, call: str) -> Any:
        """The aggregate of the `IndexedSlices` that the replicas give."""
        given = local_values(self._replicas, value, call)
        if self._aggregation is ONLY_FIRST:
            rows, collectives = value if given is None else given[0], self._replicas.collectives
            return rows if collectives is None else gather_slices(rows, collectives.gather)[0]
        return reduce_leaf(self._replicas, _REDUCTIONS[self._aggregation], value, None, call)

    def _aggregate_common(self, value: Any, call: str) -> Any:
        """The value that all replicas assign as one object; it cannot be summed."""
        if self._aggregation is SUM:
            raise InvalidArgumentError(
                f"{call}: SUM needs a value of each replica's own, but all {self._replicas.here} "
                f"gave the same object, {value!r:.60}; pass a value that each makes inside run, "
                "such as np.float32(1)"
            )
        return value


class SyncOnReadVariable(DistributedVariable):
    """Copies that each replica changes for itself; reading outside of `run` aggregates them."""

    def _check_aggregation(self) -> None:
        super()._check_aggregation()
        numbers = any(kind in str(self.dtype) for kind in ("int", "float", "complex"))
        if self._aggregation is SUM and not numbers:
            raise InvalidArgumentError(
                f"Variable: the aggregation SUM needs numbers, but {self.name!r} has the dtype "
                f"{self.dtype}; use ONLY_FIRST_REPLICA"
            )

    def _current_value(self) -> Any:
        index = self._replica_here()
        if index is not None:
            return self._values[index]._current_value()
        if self._aggregation is NONE:
            raise InvalidArgumentError(
                f"SyncOnReadVariable.read_value: {self.name!r} has the aggregation NONE, so its "
                "copies are not one value; use strategy.experimental_local_results, or another "
                "aggregation"
            )
        if self._aggregation is ONLY_FIRST:
            return _broadcast_from_first_worker(self._replicas, self._values[0]._current_value())
        op = _REDUCTIONS[self._aggregation]
        return reduce_leaf(self._replicas, op, self, None, "SyncOnReadVariable.read_value")

    def _change(self, how: str, value: Any) -> Any:
        index = self._replica_here()
        if index is not None:
            return self._values[index]._change(how, value)
        if self._aggregation is SUM:
            value = self._divide_among_copies(how, value)
        self._change_each(
            how, current_value(value) if isinstance(value, SyncOnReadVariable) else value
        )
        if self._aggregation is NONE:
            return PerReplica([one._current_value() for one in self._values])
        return self._current_value()

    def _divide_among_copies(self, how: str, value: Any) -> PerReplica:
        """What to assign to each copy so that their sum over all workers is the value."""
        call = f"SyncOnReadVariable.{how}"
        if how != "assign":
            raise InvalidArgumentError(
                f"{call}: {self.name!r} is the sum of its copies, which only replicas may change; "
                "call it inside strategy.run, or use assign"
            )
        whole, total = self._values[0]._fit(current_value(value), call), self._replicas.total
        if "int" not in str(self.dtype):
            return PerReplica([self._replicas.backend.divide(whole, total)] * self._replicas.here)
        share = whole // total
        rest = whole - share * total if self._replicas.worker == 0 else 0
        return PerReplica([share + rest, *[share] * (self._replicas.here - 1)])


_REDUCTIONS = {SUM: ReduceOp.SUM, MEAN: ReduceOp.MEAN}


def _broadcast_from_first_worker(replicas: Replicas, value: Any) -> Any:
    """The value of worker 0, in every worker."""
    if replicas.collectives is None:
        return value
    return replicas.collectives.broadcast(np.asarray(replicas.backend.numpy(value)))
