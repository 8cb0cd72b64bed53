"""Strategies: which replicas there are, and every call that addresses all of them.

Importing this module makes `DefaultStrategy` the strategy outside of every scope.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.distribute import reduce, replica_context
from penstock.distribute.backends import load
from penstock.distribute.devices import Device, LogicalCpus, load_backend, resolve
from penstock.distribute.extended import StrategyExtended
from penstock.distribute.input.delivery_plan import plan_dataset, plan_from_function
from penstock.distribute.input.distributed import (
    DistributedDataset,
    DistributedDatasetsFromFunction,
)
from penstock.distribute.replica_context import (
    DefaultScope,
    DefaultStandpoint,
    ReplicaContext,
    Standpoint,
    StrategyScope,
)
from penstock.distribute.replicas import Replicas
from penstock.distribute.run import each_replica
from penstock.distribute.strategy_options import (
    CrossDeviceOps,
    InputContext,
    InputOptions,
    RunOptions,
    ValueContext,
    check_cross_device_ops,
)
from penstock.distribute.values import per_replica
from penstock.distribute.values.mirrored import MirroredVariable, SyncOnReadVariable
from penstock.distribute.values.trees import map_leaves
from penstock.distribute.values.variables import ON_READ, Variable, VariableSynchronization
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.missing_names import missing_from_strategy


class Strategy:
    """The calls of every strategy. Create one of its subclasses, such as `MirroredStrategy`.

    >>> import numpy as np
    >>> import penstock as tf
    >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> strategy.num_replicas_in_sync, strategy.cluster_resolver
    (2, None)
    >>> with strategy.scope():
    ...     weights = tf.Variable([1.0, 2.0])
    >>> batches = strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(4))
    >>> for batch in batches:
    ...     doubled = strategy.run(lambda x: x * 2, args=(batch,))
    >>> strategy.experimental_local_results(doubled)
    (array([0, 2]), array([4, 6]))
    >>> strategy.gather(doubled, axis=0)
    array([0, 2, 4, 6])
    """

    def __init__(self, replicas: Replicas) -> None:
        per_replica.register_pytrees()
        self._replicas = replicas
        self._extended = StrategyExtended(self)

    if not TYPE_CHECKING:  # A type checker knows the names, and would take any other one, too.

        def __getattr__(self, name: str) -> NoReturn:
            raise missing_from_strategy(type(self).__name__, name, dir(type(self)))

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas in all processes."""
        return self._replicas.total

    @property
    def cluster_resolver(self) -> Any:
        """The resolver of the cluster; None for a strategy of one process."""
        return None

    @property
    def extended(self) -> StrategyExtended:
        return self._extended

    def scope(self) -> AbstractContextManager[Strategy]:
        """A context manager in which `get_strategy()` returns this strategy.

        Variables that are created in it have a copy on every replica. It may be entered again.
        """
        return StrategyScope(self)

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: RunOptions | None = None,
        *,
        jit: bool = False,
    ) -> Any:
        """Calls `fn` once per replica of this process, in order.

        Args:
            fn: Called with the replica's own value of every `PerReplica` in the arguments; anything
                else is passed unchanged. Inside it, `get_replica_context()` returns the replica.
            args: Positional arguments, a tuple or list.
            kwargs: Named arguments.
            options: Accepted and ignored.
            jit: With the backend "jax", compiles one program for all replicas.

        Returns:
            The results of `fn`, with a `PerReplica` at every leaf that is not the same object for
            all replicas; with one replica, the result itself.

        >>> import penstock as tf
        >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> context = tf.distribute.get_replica_context
        >>> strategy.run(lambda: context().replica_id_in_sync_group).values
        (0, 1)
        """
        positional, named = self._run_arguments(fn, args, kwargs, options)
        if jit:
            return self._run_compiled(fn, positional, named)
        return self._run_each(fn, positional, named)

    def _run_each(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return each_replica(self, fn, args, kwargs)

    def _run_arguments(
        self, fn: Any, args: Any, kwargs: Any, options: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        replica_context.require_own_scope(self, "Strategy.run")
        if not isinstance(options, RunOptions | None):
            raise InvalidTypeError(
                f"Strategy.run: options must be a RunOptions or None, got {options!r:.60}; "
                "arguments of the function go into args=(...) and kwargs={...}"
            )
        return replica_context.check_arguments("Strategy.run", fn, args, kwargs)

    def _run_compiled(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        compiled = getattr(self._replicas.backend, "run_compiled", None)
        if compiled is None:
            raise InvalidArgumentError(
                "Strategy.run: jit=True needs backend='jax', but this strategy has "
                f"{self._replicas.backend.name!r}; make the strategy with backend='jax'"
            )
        return compiled(self, fn, args, kwargs)

    def reduce(self, reduce_op: Any, value: Any, axis: int | tuple[int, ...] | None) -> Any:
        """The sum or mean over all replicas.

        Args:
            reduce_op: `ReduceOp.SUM`, `ReduceOp.MEAN`, or its name.
            value: What `run` returned; each leaf of a tree is reduced.
            axis: Also reduces each replica's value over this axis (0 is the batch); a mean then
                gives every entry the same weight. None reduces over the replicas only.

        >>> import numpy as np
        >>> strategy = MirroredStrategy(["CPU:0", "CPU:1"])
        >>> rows = per_replica.PerReplica((np.array([1.0, 2.0, 3.0]), np.array([10.0])))
        >>> strategy.reduce("MEAN", rows, axis=0)
        np.float64(4.0)
        """
        call = "Strategy.reduce"
        replica_context.require_own_scope(self, call)
        op = reduce.reduce_op(reduce_op, call)
        if isinstance(axis, list):
            raise InvalidTypeError(f"{call}: axis must be a tuple, got the list {axis}")
        return map_leaves(
            lambda leaf: reduce.reduce_leaf(self._replicas, op, leaf, axis, call), value
        )

    def gather(self, value: Any, axis: int) -> Any:
        """The values of all replicas, concatenated along `axis`; applied to each leaf of a tree."""
        call = "Strategy.gather"
        replica_context.require_own_scope(self, call)
        return map_leaves(lambda leaf: reduce.gather_leaf(self._replicas, leaf, axis, call), value)

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """The values of this process's replicas; a value that is not distributed comes once."""
        return per_replica.local_results(value, self._replicas.here)

    def experimental_distribute_values_from_function(
        self, value_fn: Callable[[ValueContext], Any]
    ) -> Any:
        """Calls `value_fn` for each replica; its results are put on that replica's device.

        >>> import penstock as tf
        >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> numbers = strategy.experimental_distribute_values_from_function(
        ...     lambda context: context.replica_id_in_sync_group + 1
        ... )
        >>> numbers.values
        (1, 2)
        """
        call = "Strategy.experimental_distribute_values_from_function"
        replica_context.require_own_scope(self, call)
        if not callable(value_fn):
            raise InvalidTypeError(f"{call}: needs a function to call, got {value_fn!r}")
        here = range(self._replicas.here)
        return per_replica.regroup(
            [self._make_value(value_fn, index) for index in here],
            True,
            f"{call}: value_fn returned",
        )

    def _make_value(self, value_fn: Callable[[ValueContext], Any], index: int) -> Any:
        value = value_fn(ValueContext(self._replicas.first + index, self._replicas.total))
        handle = self._replicas.devices[index].handle
        return map_leaves(lambda leaf: self._replicas.backend.put(leaf, handle), value)

    def experimental_distribute_dataset(
        self, dataset: Any, options: InputOptions | None = None
    ) -> Any:
        """Distributes a dataset of global batches; each replica receives a portion of each.

        What this returns counts its own epochs: call it once, before a loop over epochs.
        """
        return DistributedDataset(self, plan_dataset(self, dataset, options))

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None = None
    ) -> Any:
        """Distributes the dataset that `dataset_fn` returns; replicas take whole batches.

        >>> import penstock as tf
        >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> def make(context):
        ...     return tf.data.Dataset.range(8).batch(context.get_per_replica_batch_size(4))
        >>> for step in strategy.distribute_datasets_from_function(make):
        ...     print(*step.values)
        [0 1] [2 3]
        [4 5] [6 7]
        """
        plan = plan_from_function(self, dataset_fn, options)
        return DistributedDatasetsFromFunction(self, plan)

    experimental_distribute_datasets_from_function = distribute_datasets_from_function

    def _variable_kind(self, synchronization: VariableSynchronization) -> type[Variable] | None:
        """The class of variables created under the scope; None for plain variables."""
        if synchronization is VariableSynchronization.NONE:
            raise InvalidArgumentError(
                "Variable: synchronization NONE is not possible under a strategy's scope; "
                "use AUTO, ON_WRITE or ON_READ"
            )
        return SyncOnReadVariable if synchronization is ON_READ else MirroredVariable

    def __deepcopy__(self, memo: Any) -> Strategy:
        """A strategy is never copied, so that copies of its variables refer to the same one."""
        return self

    def __copy__(self) -> Strategy:
        return self

    def __reduce__(self) -> NoReturn:
        raise InvalidTypeError(
            f"pickle: a {type(self).__name__} belongs to its process and its devices; make one in "
            "each process"
        )

    def __repr__(self) -> str:
        devices = ", ".join(device.name for device in self._replicas.devices)
        return f"<{type(self).__name__} {self._replicas.backend.name} {devices}>"


class MirroredStrategy(Strategy):
    """Replicas on several devices of this machine, with the same variables.

    Args:
        devices: Names such as "GPU:0" or "CPU:1", or the framework's own devices. A device that
            this machine lacks is replaced by a logical one on the CPU, with a warning. None or []
            takes all devices.
        backend: "numpy", "torch" or "jax"; by default the framework that the devices belong to,
            else NumPy.
        cross_device_ops: Accepted and ignored: the backend reduces. It may be given in the place
            of `backend`, where TensorFlow has it.

    >>> MirroredStrategy(["CPU:0", "CPU:1"]).num_replicas_in_sync
    2
    """

    def __init__(
        self, devices: Any = None, backend: Any = None, cross_device_ops: Any = None
    ) -> None:
        if isinstance(backend, CrossDeviceOps):
            backend, cross_device_ops = None, backend
        check_cross_device_ops("MirroredStrategy", cross_device_ops)
        super().__init__(Replicas(*resolve(devices, backend, "MirroredStrategy")))


class TPUStrategy(Strategy):
    """Replicas on the TPU cores of this machine, by jax.

    Without TPUs they are logical devices on the CPU, as many as `MirroredStrategy` has by default,
    with a warning.

    Args:
        tpu_cluster_resolver: Accepted and ignored: jax finds the TPUs by itself.
        experimental_device_assignment: Accepted and ignored.
        backend: "jax" by default.

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")  # This machine may have no TPU.
    ...     strategy = TPUStrategy()
    >>> strategy.num_replicas_in_sync >= 1
    True
    """

    def __init__(
        self,
        tpu_cluster_resolver: Any = None,
        experimental_device_assignment: Any = None,
        backend: str | None = None,
    ) -> None:
        chosen = load_backend(backend or "jax", "TPUStrategy")
        count = len(chosen.handles("TPU")) or LogicalCpus.count or len(chosen.handles("CPU"))
        names = [f"TPU:{index}" for index in range(count)]
        super().__init__(Replicas(*resolve(names, chosen.name, "TPUStrategy")))


class SingleReplicaStrategy(Strategy):
    """One replica, whose values and variables are not wrapped."""

    def experimental_distribute_values_from_function(
        self, value_fn: Callable[[ValueContext], Any]
    ) -> Any:
        """Calls `value_fn`; its result is put on the device."""
        return per_replica.select(0, super().experimental_distribute_values_from_function(value_fn))

    def _variable_kind(self, synchronization: VariableSynchronization) -> type[Variable] | None:
        return None


class OneDeviceStrategy(SingleReplicaStrategy):
    """One replica on one device: runs code written for many replicas, without wrapping values.

    >>> OneDeviceStrategy("CPU:0").run(lambda x: x + 1, args=(1,))
    2
    """

    def __init__(self, device: Any, backend: str | None = None) -> None:
        super().__init__(Replicas(*resolve([device], backend, "OneDeviceStrategy")))


class DefaultStrategy(SingleReplicaStrategy):
    """The result of `get_strategy()` outside of every scope: one replica, no wrapping."""

    def __init__(self) -> None:
        super().__init__(Replicas(load("numpy"), (Device("CPU", 0),)))

    def scope(self) -> AbstractContextManager[Strategy]:
        """A context manager that changes nothing: the caller stays the only replica."""
        return DefaultScope(self)

    def _run_each(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return fn(*args, **kwargs)

    def experimental_distribute_dataset(
        self, dataset: Any, options: InputOptions | None = None
    ) -> Any:
        """The dataset itself."""
        return dataset

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None = None
    ) -> Any:
        """The dataset that the function returns."""
        return dataset_fn(InputContext())

    experimental_distribute_datasets_from_function = distribute_datasets_from_function


def _merge_alone(
    merge_fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """merge_call of the only replica, which has no other replica to wait for."""
    strategy = DefaultStandpoint.standpoint.strategy
    with replica_context.enter(Standpoint(strategy, None)):
        merged = merge_fn(strategy, *args, **kwargs)
    return per_replica.select(0, merged)


_default = DefaultStrategy()
DefaultStandpoint.standpoint = Standpoint(_default, ReplicaContext(_default, 0, _merge_alone))
