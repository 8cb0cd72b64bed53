"""Strategies of one replica: nothing is wrapped, and code for many replicas runs as it is.

The default strategy, in force where no other is, puts itself into `context` when this is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.distribute import context
from penstock.distribute.backends import load
from penstock.distribute.context import DefaultStandpoint, ReplicaContext, Standpoint
from penstock.distribute.devices import Device, resolve
from penstock.distribute.options import InputContext, InputOptions, RunOptions, ValueContext
from penstock.distribute.replicas import Replicas
from penstock.distribute.strategy import Strategy
from penstock.distribute.values import per_replica
from penstock.distribute.values.variables import Variable, VariableSynchronization


class Alone(Strategy):
    """One replica, whose values and variables are not wrapped."""

    def experimental_distribute_values_from_function(
        self, value_fn: Callable[[ValueContext], Any]
    ) -> Any:
        """What `value_fn` gives, on the device."""
        return per_replica.select(0, super().experimental_distribute_values_from_function(value_fn))

    def _variable_kind(self, synchronization: VariableSynchronization) -> type[Variable] | None:
        return None


class OneDeviceStrategy(Alone):
    """One replica on one device: code for many replicas, without them.

    >>> OneDeviceStrategy("CPU:0").run(lambda x: x + 1, args=(1,))
    2
    """

    def __init__(self, device: Any, backend: str | None = None) -> None:
        super().__init__(Replicas(*resolve([device], backend, "OneDeviceStrategy")))


class DefaultStrategy(Alone):
    """What `get_strategy()` gives where no other strategy is in force: one replica, no wrapping."""

    def __init__(self) -> None:
        super().__init__(Replicas(load("numpy"), (Device("CPU", 0),)))

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: RunOptions | None = None,
        *,
        jit: bool = False,
    ) -> Any:
        """Calls the function, as it stands."""
        positional, named = self._run_arguments(fn, args, kwargs, options)
        if jit:
            return self._run_compiled(fn, positional, named)
        return fn(*positional, **named)

    def experimental_distribute_dataset(
        self, dataset: Any, options: InputOptions | None = None
    ) -> Any:
        """The dataset itself."""
        return dataset

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None = None
    ) -> Any:
        """The dataset that the function makes."""
        return dataset_fn(InputContext())

    experimental_distribute_datasets_from_function = distribute_datasets_from_function


def _merged_alone(
    merge_fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """merge_call where there is nobody to wait for."""
    strategy = DefaultStandpoint.standpoint.strategy
    with context.entered(Standpoint(strategy, None)):
        merged = merge_fn(strategy, *args, **kwargs)
    return per_replica.select(0, merged)


_default = DefaultStrategy()
DefaultStandpoint.standpoint = Standpoint(_default, ReplicaContext(_default, 0, _merged_alone))
