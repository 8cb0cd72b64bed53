"""`StrategyExtended`: the rarely used calls of a strategy, mostly for optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from penstock.distribute import reduce
from penstock.distribute.replica_context import check_arguments, require_own_scope
from penstock.distribute.values.operators import current_value
from penstock.distribute.values.per_replica import (
    DistributedValues,
    Mirrored,
    PerReplica,
    regroup,
    spread,
    values_of,
)
from penstock.distribute.values.trees import map_leaves, path_of


class StrategyExtended:
    """The type of `strategy.extended`.

    >>> import penstock as tf
    >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     weights = tf.Variable(1.0, aggregation=tf.VariableAggregation.SUM)
    >>> extended = strategy.extended
    >>> extended.worker_devices == extended.parameter_devices, len(extended.worker_devices)
    (True, 2)
    >>> gradients = PerReplica((2.0, 3.0))
    >>> extended.reduce_to("SUM", gradients, weights).values
    (np.float64(5.0), np.float64(5.0))
    >>> [mirrored.values for mirrored in extended.batch_reduce_to("MEAN", [(gradients, weights)])]
    [(np.float64(2.5), np.float64(2.5))]
    >>> _ = extended.update(weights, lambda copy, rate: copy.assign_sub(rate), args=(0.5,))
    >>> weights.numpy()
    np.float32(0.5)
    >>> extended.variable_created_in_scope(weights), extended.value_container(weights) is weights
    (True, True)
    """

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self._replicas = strategy._replicas

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The names of the devices that this process's replicas compute on."""
        return tuple(map(str, self._replicas.devices))

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The names of the devices that hold the copies of variables: `worker_devices`."""
        return self.worker_devices

    def reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any = None) -> Any:
        """The sum or mean of a value, `Mirrored` where the destinations are several copies."""
        call = "StrategyExtended.reduce_to"
        require_own_scope(self._strategy, call)
        op = reduce.reduce_op(reduce_op, call)
        total = reduce.reduce_leaf(self._replicas, op, value, None, call)
        if isinstance(destinations, DistributedValues):
            return Mirrored(reduce.copy_to_replicas(self._replicas, total)._values)
        return total

    def batch_reduce_to(
        self,
        reduce_op: Any,
        value_destination_pairs: Iterable[tuple[Any, Any]],
        options: Any = None,
    ) -> list[Any]:
        """`reduce_to` of each pair of a value and its destinations."""
        return [self.reduce_to(reduce_op, *pair) for pair in value_destination_pairs]

    def update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        group: bool = True,
    ) -> Any:
        """`fn(copy, *args, **kwargs)` for each copy of a variable, with that replica's arguments.

        Returns the results as `Strategy.run` does, but `Mirrored`; with `group=False`, every leaf
        is a tuple of the results for each copy.
        """
        call = "StrategyExtended.update"
        require_own_scope(self._strategy, call)
        given, by_name = check_arguments(call, fn, args, kwargs)
        copies = var.values if isinstance(var, DistributedValues) else (var,)
        count = len(copies)
        positional, named = spread(given, count, call), spread(by_name, count, call)
        results = [fn(copies[i], *positional[i], **named[i]) for i in range(count)]
        regrouped = regroup(results, False, f"{call}: fn returned") if count > 1 else results[0]
        return map_leaves(_as_mirrored if group else _as_tuple, regrouped)

    def variable_created_in_scope(self, v: Any) -> bool:
        """Whether a variable was created under this strategy's scope."""
        return getattr(v, "_strategy", None) is self._strategy

    def value_container(self, value: Any) -> Any:
        """The variable that a copy belongs to; anything else is its own container."""
        return getattr(value, "_container", value)

    def _all_reduce(self, reduce_op: Any, tree: Any) -> Any:
        call = "ReplicaContext.all_reduce"
        op = reduce.reduce_op(reduce_op, call)
        return self._combine_leaves(
            lambda values: reduce.reduce_leaf(self._replicas, op, values, None, call), tree, call
        )

    def _all_gather(self, tree: Any, axis: Any) -> Any:
        call = "ReplicaContext.all_gather"
        return self._combine_leaves(
            lambda values: reduce.gather_leaf(self._replicas, values, axis, call), tree, call
        )

    def _combine_leaves(self, combine: Callable[[PerReplica], Any], tree: Any, call: str) -> Any:
        """Combines the values of each leaf, and copies the result to all replicas."""

        def copies(leaf: Any) -> PerReplica:
            combined = combine(self._collect_values(leaf, tree, call))
            return reduce.copy_to_replicas(self._replicas, combined)

        return map_leaves(copies, tree)

    def _collect_values(self, leaf: Any, tree: Any, call: str) -> PerReplica:
        """A `PerReplica` of a leaf, also if all replicas passed the same object."""
        if leaf is None:
            raise reduce.missing_error(path_of(leaf, tree), "", call)
        if isinstance(leaf, DistributedValues) and not isinstance(leaf, PerReplica):
            # A variable: each replica gives its copy.
            copies = values_of(leaf, self._replicas.here, call)
            return PerReplica([current_value(copy) for copy in copies])
        if not isinstance(leaf, PerReplica):
            return PerReplica([current_value(leaf)] * self._replicas.here)
        for index, value in enumerate(leaf._values, self._replicas.first):
            if value is None:
                raise reduce.missing_error(path_of(leaf, tree), f" in replica {index}", call)
        return leaf


def _as_mirrored(leaf: Any) -> Any:
    return Mirrored(leaf._values) if isinstance(leaf, PerReplica) else leaf


def _as_tuple(leaf: Any) -> tuple[Any, ...]:
    return leaf._values if isinstance(leaf, PerReplica) else (leaf,)
