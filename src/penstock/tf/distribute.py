"""`tf.distribute` for ported code: the names of `penstock.distribute`, on tensors."""

from typing import Any

import numpy as np

from penstock import distribute as plain
from penstock.distribute.replica_context import ReplicaContext
from penstock.tf.values import as_tensor

__all__ = list(plain.__all__)


class PortedReplicaContext(ReplicaContext):
    """The replica that the caller runs as; its number is a tensor."""

    __slots__ = ("_plain",)

    def __init__(self, context: ReplicaContext) -> None:
        super().__init__(context._strategy, context._id, context._meeting)
        self._plain = context

    @property
    def replica_id_in_sync_group(self) -> Any:
        """The number of this replica among the replicas of all processes."""
        return as_tensor(np.int32(self._id))

    def _merge(self, *args: Any) -> Any:
        # Replicas meet in the context that `Strategy.run` made.
        return self._plain._merge(*args)


def get_replica_context() -> ReplicaContext | None:
    """The replica that the caller runs as; None outside of `run`, under a scope."""
    context = plain.get_replica_context()
    if context is None or not plain.has_strategy():
        return context
    return PortedReplicaContext(context)


_OWN = {"get_replica_context": get_replica_context}

globals().update({name: _OWN.get(name, getattr(plain, name)) for name in __all__})


def __getattr__(name: str) -> Any:
    return getattr(plain, name)
