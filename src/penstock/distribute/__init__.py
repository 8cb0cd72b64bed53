"""Delivery to replicas: a global batch goes in, the right piece stands on every device."""

from penstock.distribute import cluster_resolver, experimental
from penstock.distribute.context import (
    ReplicaContext,
    experimental_set_strategy,
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)
from penstock.distribute.extended import StrategyExtended
from penstock.distribute.input.dataset import DistributedDataset
from penstock.distribute.input.iterator import DistributedIterator
from penstock.distribute.multiworker import MultiWorkerMirroredStrategy
from penstock.distribute.options import (
    InputContext,
    InputOptions,
    InputReplicationMode,
    ReduceOp,
    RunOptions,
)
from penstock.distribute.single import OneDeviceStrategy
from penstock.distribute.strategy import (
    MirroredStrategy,
    Strategy,
    TPUStrategy,
)
from penstock.distribute.values.per_replica import (
    DistributedValues,
    Mirrored,
    PerReplica,
    SyncOnRead,
)
from penstock.distribute.values.specs import PerReplicaSpec

__all__ = [
    "DistributedDataset",
    "DistributedIterator",
    "DistributedValues",
    "InputContext",
    "InputOptions",
    "InputReplicationMode",
    "Mirrored",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "PerReplica",
    "PerReplicaSpec",
    "ReduceOp",
    "ReplicaContext",
    "RunOptions",
    "Strategy",
    "StrategyExtended",
    "SyncOnRead",
    "TPUStrategy",
    "cluster_resolver",
    "experimental",
    "experimental_set_strategy",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
]
