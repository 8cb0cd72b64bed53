"""Variables: values that can be assigned; under a strategy's scope, with a copy per replica.

A variable is never changed in place and shares no writable memory: arrays that were assigned to it
or read from it keep their values. In arithmetic a variable acts as its current value: that of the
current replica, or outside of `run` that of all replicas.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, NoReturn

import numpy as np

from penstock.distribute import replica_context
from penstock.distribute.replicas import Replicas
from penstock.distribute.values import texts
from penstock.distribute.values.operators import ActsAsValue, current_value
from penstock.distribute.values.per_replica import DistributedValues
from penstock.distribute.values.storage import (
    array_like,
    check_shape,
    copy_apart,
    find_home,
    freeze,
    initial_value_of,
    refuse_foreign,
    refuse_traced,
)
from penstock.element.dtypes import as_dtype
from penstock.engine.trial_calls import note_assignment
from penstock.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError


class VariableSynchronization(Enum):
    """When the copies of a variable are synchronized.

    >>> import penstock as tf
    >>> tf.Variable(0.0).synchronization
    <VariableSynchronization.AUTO: 0>
    """

    AUTO = 0
    NONE = 1
    ON_WRITE = 2
    ON_READ = 3


class VariableAggregation(Enum):
    """How the values that replicas assign (with ON_READ: their copies) are aggregated.

    >>> import penstock as tf
    >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     count = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)
    >>> _ = strategy.run(lambda: count.assign_add(np.float32(1)))
    >>> count.numpy()
    np.float32(2.0)
    """

    NONE = 0
    SUM = 1
    MEAN = 2
    ONLY_FIRST_REPLICA = 3


AUTO, ON_READ = VariableSynchronization.AUTO, VariableSynchronization.ON_READ
NONE = VariableAggregation.NONE

Change = Callable[[Any, Any], Any]
_CHANGES: dict[str, Change] = {
    "assign": lambda old, new: copy_apart(new),
    "assign_add": operator.add,
    "assign_sub": operator.sub,
}


class Variable(ActsAsValue):
    """A value that can be assigned.

    Args:
        initial_value: An array, a number, a tensor of the strategy's framework, or a function that
            returns one of these.
        trainable: Kept for the code that trains; True, unless the variable is ON_READ.
        name: What it is called when printed.
        dtype: Converts the initial value.
        synchronization: Under a scope: AUTO or ON_WRITE keep the copies equal whenever they are
            assigned; ON_READ lets each replica change its own copy, and aggregates when read.
        aggregation: How assignments from replicas (ON_READ: the copies) are aggregated.
        shape: Checked: a variable keeps the shape of its initial value.
        constraint: Kept for the code that trains.
        validate_shape: Accepted and ignored.

    >>> v = Variable([1.0, 2.0], name="w")
    >>> v.assign_add([1.0, 1.0])
    array([2., 3.], dtype=float32)
    >>> v * 2
    array([4., 6.], dtype=float32)
    >>> v
    <tf.Variable 'w:0' shape=(2,) dtype=float32, numpy=array([2., 3.], dtype=float32)>
    >>> v.assign_sub([1.0, 1.0]).tolist(), v.assign([5.0, 6.0]).tolist()
    ([1.0, 2.0], [5.0, 6.0])
    >>> v.value(), v.read_value().tolist(), v.numpy().sum()
    (array([5., 6.], dtype=float32), [5.0, 6.0], np.float32(11.0))
    >>> v.get_shape(), v.dtype, v.device
    ((2,), dtype('float32'), '/job:localhost/replica:0/task:0/device:CPU:0')
    >>> v.distribute_strategy is replica_context.get_strategy()
    True
    """

    def __new__(
        cls, *given: Any, synchronization: VariableSynchronization = AUTO, **named: Any
    ) -> Variable:
        # Only `Variable(...)` with arguments chooses a class; subclasses and copies keep theirs.
        made = "_form_of" in vars(cls) and (given or named)
        if made and len(given) > 2:
            raise InvalidTypeError(
                f"Variable: takes initial_value and trainable by position, got {len(given)} "
                "arguments; pass the rest by name, such as name= and dtype="
            )
        if made and is_in_run():
            return _make_in_run(cls, given, named | {"synchronization": synchronization})
        return super().__new__(cls._form_of(_kind_here(synchronization)) if made else cls)

    @classmethod
    def _form_of(cls, kind: type[Variable]) -> type[Variable]:
        """The class to make for a kind of variable; a class that defines this chooses by itself."""
        return kind

    def __init__(
        self,
        initial_value: Any = None,
        trainable: bool | None = None,
        *,
        name: str | None = None,
        dtype: Any = None,
        synchronization: VariableSynchronization = AUTO,
        aggregation: VariableAggregation | None = NONE,
        shape: Any = None,
        constraint: Callable[[Any], Any] | None = None,
        validate_shape: bool = True,
    ) -> None:
        if "_strategy" in vars(self):
            return  # The replicas have made it together.
        self._describe(trainable, name, synchronization, aggregation or NONE)
        self._constraint = constraint
        value = initial_value_of(initial_value, dtype)
        check_shape(np.shape(value), shape)
        self._store_value(value)

    def _store_value(self, value: Any) -> None:
        self._put_value(find_home(value, self._strategy), 0, value)

    def _describe(
        self,
        trainable: bool | None,
        name: str | None,
        synchronization: VariableSynchronization,
        aggregation: VariableAggregation,
    ) -> None:
        self._strategy = replica_context.get_strategy()
        replica_context.require_unmixed_scopes(self._strategy, "Variable")
        self._trainable = synchronization is not ON_READ if trainable is None else trainable
        self._name = name or "Variable"
        self._synchronization = synchronization
        self._aggregation = aggregation
        for given, kind in (
            (synchronization, VariableSynchronization),
            (aggregation, VariableAggregation),
        ):
            if not isinstance(given, kind):
                raise InvalidArgumentError(
                    f"Variable: {kind.__name__.removeprefix('Variable').lower()} must be a "
                    f"penstock.{kind.__name__}, got {given!r}"
                )

    def _put_value(self, replicas: Replicas, index: int, value: Any) -> None:
        self._replicas, self._device = replicas, replicas.devices[index]
        refuse_foreign(replicas, value, "Variable")
        placed = replicas.backend.put(value, self._device.handle)
        refuse_traced(replicas, placed, "Variable")
        self._value = freeze(copy_apart(placed))

    @property
    def name(self) -> str:
        return f"{self._name}:0"

    @property
    def distribute_strategy(self) -> Any:
        """The strategy under whose scope the variable was created."""
        return self._strategy

    @property
    def trainable(self) -> bool:
        return self._trainable

    @property
    def synchronization(self) -> VariableSynchronization:
        return self._synchronization

    @property
    def aggregation(self) -> VariableAggregation:
        return self._aggregation

    @property
    def constraint(self) -> Callable[[Any], Any] | None:
        return self._constraint

    @property
    def device(self) -> str:
        """The name of the device of the value."""
        return str(self._device)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(np.shape(self._value) if isinstance(self._value, bytes) else self._value.shape)

    def get_shape(self) -> tuple[int, ...]:
        """The same as `shape`."""
        return self.shape

    @property
    def dtype(self) -> Any:
        """The dtype, in the framework of the value; `penstock.string` for strings."""
        is_text = isinstance(self._value, bytes) or self._value.dtype == np.dtype(object)
        return as_dtype("string") if is_text else self._value.dtype

    def _current_value(self) -> Any:
        return copy_apart(self._value)

    def value(self) -> Any:
        """The value: an array, or a tensor of the strategy's framework."""
        return self._current_value()

    def read_value(self) -> Any:
        """The same as `value()`."""
        return self._current_value()

    def numpy(self) -> Any:
        """The value as a NumPy array or scalar."""
        return self._replicas.backend.numpy(self._current_value())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.numpy(), dtype)

    def assign(
        self,
        value: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Assigns `value`; returns the new value, unless `read_value` is False."""
        return self._assign("assign", value, read_value)

    def assign_add(
        self,
        delta: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Adds `delta`; returns the new value, unless `read_value` is False."""
        return self._assign("assign_add", delta, read_value)

    def assign_sub(
        self,
        delta: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Subtracts `delta`; returns the new value, unless `read_value` is False."""
        return self._assign("assign_sub", delta, read_value)

    def _assign(self, how: str, value: Any, read_value: bool) -> Any:
        # Before the replicas meet: a placeholder of one replica has no value in another.
        refuse_traced(self._replicas, value, f"Variable.{how}")
        changed = self._change(how, value)
        return changed if read_value else None

    def _change(self, how: str, value: Any) -> Any:
        call = f"Variable.{how}"
        fitting = self._fit(current_value(value), call)
        refuse_traced(self._replicas, fitting, call)
        new = _CHANGES[how](self._value, fitting)
        refuse_traced(self._replicas, new, call)
        note_assignment(partial(setattr, self, "_value", self._value))
        self._value = freeze(new)
        return self._current_value()

    def _fit(self, value: Any, call: str) -> Any:
        """A value to assign, on this variable's device; raises unless dtype and shape fit."""
        backend = self._replicas.backend
        refuse_foreign(self._replicas, value, call)
        if backend.name == "numpy" or not backend.is_tensor(value):
            value = array_like(value, backend.numpy(self._value), call)
        tensor = backend.put(value, self._device.handle)
        if backend.is_tensor(tensor) and tensor.dtype != self.dtype:
            raise InvalidArgumentError(
                f"{call}: {self.name!r} has the dtype {self.dtype}, got a tensor of "
                f"{tensor.dtype}; convert it first: a variable keeps its dtype"
            )
        if tuple(np.shape(tensor)) != self.shape:
            raise InvalidArgumentError(
                f"{call}: {self.name!r} has the shape {self.shape}, got a value of shape "
                f"{tuple(np.shape(tensor))}; a variable keeps its shape"
            )
        return tensor

    def __copy__(self) -> Variable:
        # The value is never changed in place, so both may hold it; devices are not copied.
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __deepcopy__(self, memo: Any) -> Variable:
        return self.__copy__()

    def __reduce__(self) -> NoReturn:
        raise InvalidTypeError(
            f"pickle: the variable {self.name!r} belongs to its strategy and its process; save "
            "its numpy() and assign that to a variable made there"
        )

    def __repr__(self) -> str:
        array = self._replicas.backend.numpy(self._value)
        dtype, text = texts.dtype_name(array), texts.numpy_text(array)
        return f"<tf.Variable {self.name!r} shape={self.shape} dtype={dtype}, numpy={text}>"


class VariableCopy(Variable):
    """One replica's copy of a distributed variable; assigning to it changes only this copy."""

    def __init__(self, container: Variable, index: int, value: Any) -> None:
        replica = f"/replica_{index}" if index else ""
        self._container, self._strategy = container, container._strategy
        self._trainable, self._name = container.trainable, container._name + replica
        self._synchronization = container.synchronization
        self._aggregation, self._constraint = container.aggregation, container.constraint
        self._put_value(container._strategy._replicas, index, value)


def is_in_run() -> bool:
    return replica_context.current_standpoint()[1] is not None and replica_context.has_strategy()


def _make_in_run(cls: type[Variable], given: tuple[Any, ...], named: dict[str, Any]) -> Variable:
    """One variable for all replicas, which create it at the same time.

    Its initial value is that of the first replica, as in TensorFlow.
    """
    replica = replica_context.get_replica_context()
    assert replica is not None
    name = named.pop("name", None)

    def make(strategy: Any, name: Any) -> Variable:
        return cls(*given, **named, name=_common_name(name))

    made: Variable = replica.merge_call(make, (name,))
    return made


def _common_name(name: Any) -> Any:
    """The first replica's name of a variable; raises if the names differ in more than a number."""
    if not isinstance(name, DistributedValues):
        return name
    if len({re.sub(r"_\d+$", "", str(one)) for one in name.values}) > 1:
        raise FailedPreconditionError(
            f"Variable: the replicas create it by different names, {name.values!r:.80}; create "
            "the same variables in the same order in every replica"
        )
    return name.values[0]


def _kind_here(synchronization: VariableSynchronization) -> type[Variable]:
    """The class of a variable that is created under the current strategy."""
    strategy = replica_context.get_strategy()
    kind: type[Variable] | None = strategy._variable_kind(synchronization)
    return kind or Variable
