"""The context of the calling code: the current strategy, and the current replica, if any.

`Strategy.scope` and each replica of `Strategy.run` enter a standpoint. It is a context variable, so
every thread and every task has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar, Token
from typing import Any, NamedTuple

from penstock.distribute.values.trees import leaves
from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    UnfitTypeError,
)

Meeting = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Implements `merge_call` for one replica: waits for all replicas, returns the merged result."""


class ReplicaContext:
    """The replica as which a function given to `Strategy.run` is running.

    `get_replica_context()` returns the current one.

    >>> import numpy as np
    >>> import penstock as tf
    >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> def step(x):
    ...     replica = tf.distribute.get_replica_context()
    ...     total = replica.all_reduce("SUM", x)
    ...     parts = replica.all_gather(np.array([x]), axis=0)
    ...     most = replica.merge_call(lambda strategy, x: max(x.values), args=(x,))
    ...     number, device = replica.replica_id_in_sync_group, replica.devices[0][-5:]
    ...     return number, device, total, parts.sum(), most
    >>> values = tf.distribute.PerReplica((np.int64(3), np.int64(4)))
    >>> for result in strategy.run(step, args=(values,)):
    ...     print(*strategy.experimental_local_results(result))
    0 1
    CPU:0 CPU:1
    7 7
    7 7
    4
    """

    __slots__ = ("_id", "_index", "_meeting", "_strategy")

    def __init__(
        self,
        strategy: Any,
        replica_id_in_sync_group: int,
        _meeting: Meeting | None = None,
    ) -> None:
        self._strategy = strategy
        self._id = replica_id_in_sync_group
        self._index = replica_id_in_sync_group - strategy._replicas.first
        self._meeting = _meeting

    @property
    def strategy(self) -> Any:
        return self._strategy

    @property
    def replica_id_in_sync_group(self) -> int:
        """The number of this replica among the replicas of all processes."""
        return self._id

    @property
    def num_replicas_in_sync(self) -> int:
        total: int = self._strategy.num_replicas_in_sync
        return total

    @property
    def devices(self) -> tuple[str, ...]:
        """The name of the device that this replica computes on."""
        return (str(self._strategy._replicas.devices[self._index]),)

    def merge_call(
        self,
        merge_fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Waits for all replicas, then calls `merge_fn(strategy, *args, **kwargs)` once.

        Arguments that differ between the replicas arrive as `PerReplica`; a `PerReplica` in the
        result is handed back to each replica as its own value.
        """
        call = "ReplicaContext.merge_call"
        return self._merge(call, merge_fn, *check_arguments(call, merge_fn, args, kwargs))

    def _merge(
        self, call: str, merge_fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self._meeting is None or get_replica_context() is not self:
            raise FailedPreconditionError(
                f"{call}: this is not the context of a replica that runs here; "
                "call get_replica_context() inside the function given to Strategy.run"
            )
        replicas = self._strategy._replicas
        if replicas.total > 1 and any(map(replicas.backend.is_traced, leaves((args, kwargs)))):
            raise FailedPreconditionError(
                f"{call}: called inside jax.grad, jax.jit or another transformation of JAX, which "
                "replicas can only do together; use Strategy.run(..., jit=True), or call it outside"
            )
        return self._meeting(merge_fn, args, kwargs)

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """The sum or mean of all replicas' values, for each replica; `value` may be a tree.

        Gradients end here: the result of torch's tensors is detached.
        """
        return self._merge(
            "ReplicaContext.all_reduce",
            lambda strategy, value: strategy.extended._all_reduce(reduce_op, value),
            (value,),
            {},
        )

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        """The values of all replicas, concatenated along `axis`, for each replica; detached."""
        return self._merge(
            "ReplicaContext.all_gather",
            lambda strategy, value: strategy.extended._all_gather(value, axis),
            (value,),
            {},
        )

    def __repr__(self) -> str:
        return f"<ReplicaContext replica {self._id} of {self.num_replicas_in_sync}>"


def check_arguments(
    call: str, fn: Any, args: Any, kwargs: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The checked `args` and `kwargs` of a call that calls a function."""
    if not callable(fn):
        raise InvalidTypeError(f"{call}: needs a function to call, got {fn!r}")
    if not isinstance(args, tuple | list):
        raise UnfitTypeError(
            f"{call}: args must be a tuple or list, got {type(args).__name__}; "
            "for one argument write args=(value,)"
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise InvalidTypeError(
            f"{call}: kwargs must be a dict or None, got {type(kwargs).__name__}"
        )
    return tuple(args), dict(kwargs or {})


class Standpoint(NamedTuple):
    """The current strategy and replica; the replica is None where code addresses all of them."""

    strategy: Any
    replica: ReplicaContext | None


_standpoint: ContextVar[Standpoint | None] = ContextVar("penstock_standpoint", default=None)
_everywhere: ContextVar[Any] = ContextVar("penstock_strategy", default=None)
"""The strategy set by `experimental_set_strategy`, for code outside of every scope."""


class DefaultStandpoint:
    """The standpoint of code outside of every scope; `strategy.py` sets it."""

    standpoint: Standpoint


class enter:  # noqa: N801 (used as a function; a class, because it is entered in every step)
    """A context manager that makes a standpoint the current one."""

    __slots__ = ("_standpoint", "_token")

    def __init__(self, standpoint: Standpoint) -> None:
        self._standpoint = standpoint

    def __enter__(self) -> None:
        self._token = _standpoint.set(self._standpoint)

    def __exit__(self, *_: object) -> None:
        _standpoint.reset(self._token)


class StrategyScope:
    """What `Strategy.scope` returns; it may be entered again, also while it is entered."""

    __slots__ = ("_strategy", "_tokens")

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self._tokens: list[Token[Standpoint | None]] = []

    def __enter__(self) -> Any:
        require_own_scope(self._strategy, "Strategy.scope")
        self._tokens.append(_standpoint.set(Standpoint(self._strategy, None)))
        return self._strategy

    def __exit__(self, *_: object) -> None:
        _standpoint.reset(self._tokens.pop())


_default_scopes: ContextVar[int] = ContextVar("penstock_default_scopes", default=0)
"""How many scopes of the default strategy the calling code has entered."""


class DefaultScope:
    """The scope of the default strategy: the caller stays the only replica.

    It only forbids to create variables of another strategy inside.
    """

    __slots__ = ("_strategy",)

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy

    def __enter__(self) -> Any:
        require_own_scope(self._strategy, "Strategy.scope")
        _default_scopes.set(_default_scopes.get() + 1)
        return self._strategy

    def __exit__(self, *_: object) -> None:
        _default_scopes.set(_default_scopes.get() - 1)


def require_unmixed_scopes(strategy: Any, call: str) -> None:
    """Raises if the scope of another strategy is inside a scope of the default strategy."""
    if _default_scopes.get() and strategy is not DefaultStandpoint.standpoint.strategy:
        raise FailedPreconditionError(
            f"{call}: called under a scope inside the scope of the default strategy, and mixing "
            "strategies is impossible; leave the scope of the default strategy out"
        )


def current_standpoint() -> Standpoint:
    """The standpoint of the calling code."""
    standpoint = _standpoint.get()
    if standpoint is not None:
        return standpoint
    strategy = _everywhere.get()
    return DefaultStandpoint.standpoint if strategy is None else Standpoint(strategy, None)


def get_strategy() -> Any:
    """The strategy of the current scope or run; outside of every scope, the default strategy.

    >>> get_strategy().num_replicas_in_sync
    1
    """
    return current_standpoint().strategy


def has_strategy() -> bool:
    """Whether the caller is inside the scope or run of a strategy other than the default.

    >>> import penstock as tf
    >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     inside = has_strategy()
    >>> inside, has_strategy()
    (True, False)
    """
    return current_standpoint().strategy is not DefaultStandpoint.standpoint.strategy


def in_cross_replica_context() -> bool:
    """Whether the caller addresses all replicas at once: under a scope, but not inside `run`.

    >>> import penstock as tf
    >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     print(in_cross_replica_context(), strategy.run(in_cross_replica_context))
    True False
    """
    return current_standpoint().replica is None


def get_replica_context() -> ReplicaContext | None:
    """The replica that the caller runs as; None outside of `run`, under a scope.

    >>> get_replica_context().replica_id_in_sync_group
    0
    """
    return current_standpoint().replica


def local_index() -> int | None:
    """The number, in this process, of the current replica; None outside of `run`."""
    standpoint = _standpoint.get()
    return None if standpoint is None or standpoint.replica is None else standpoint.replica._index


def experimental_set_strategy(strategy: Any) -> None:
    """Sets the strategy for code outside of every scope; None restores the default.

    >>> import penstock as tf
    >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> experimental_set_strategy(strategy)
    >>> get_strategy().num_replicas_in_sync
    2
    >>> experimental_set_strategy(None)
    """
    require_outside_run("experimental_set_strategy")
    if _standpoint.get() is not None and _everywhere.get() is None:
        raise FailedPreconditionError(
            "experimental_set_strategy: called under the scope of a strategy; call it outside of "
            "every scope"
        )
    if strategy is not None and not hasattr(strategy, "_replicas"):
        raise InvalidTypeError(
            f"experimental_set_strategy: needs a strategy or None, got {strategy!r}"
        )
    _everywhere.set(None if strategy is DefaultStandpoint.standpoint.strategy else strategy)


def require_outside_run(call: str) -> None:
    """Raises if the caller runs inside a replica; the call addresses all replicas."""
    standpoint = _standpoint.get()
    if standpoint is not None and standpoint.replica is not None:
        raise FailedPreconditionError(
            f"{call}: called inside Strategy.run, as replica {standpoint.replica._id}; "
            "call it outside, or inside a function given to get_replica_context().merge_call"
        )


def require_own_scope(strategy: Any, call: str) -> None:
    """Raises if the caller is inside a run, or under the scope of another strategy."""
    require_outside_run(call)
    standpoint = current_standpoint()
    if standpoint.strategy is not strategy and standpoint is not DefaultStandpoint.standpoint:
        raise FailedPreconditionError(
            f"{call}: called under the scope of another strategy, and mixing strategies is "
            "impossible; call it outside of that scope, or on that strategy"
        )


def require_cross_replica(strategy: Any, call: str) -> None:
    """Raises if an input call is made inside a run (ValueError) or under a foreign scope."""
    index = local_index()
    if index is not None:
        raise InvalidArgumentError(
            f"{call}: called inside Strategy.run, as replica {index} of this process; take the "
            "element outside and pass it to Strategy.run in args"
        )
    require_own_scope(strategy, call)
