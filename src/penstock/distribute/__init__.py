"""Delivery to replicas: a global batch is cut, and every replica receives its portion."""

from typing import TYPE_CHECKING

from penstock.distribute import cluster_resolver, experimental
from penstock.distribute.extended import StrategyExtended
from penstock.distribute.input.distributed import DistributedDataset, DistributedIterator
from penstock.distribute.multiworker import MultiWorkerMirroredStrategy
from penstock.distribute.replica_context import (
    ReplicaContext,
    experimental_set_strategy,
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)
from penstock.distribute.strategy import (
    MirroredStrategy,
    OneDeviceStrategy,
    Strategy,
    TPUStrategy,
)
from penstock.distribute.strategy_options import (
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    InputContext,
    InputOptions,
    InputReplicationMode,
    NcclAllReduce,
    ReduceOp,
    ReductionToOneDevice,
    RunOptions,
)
from penstock.distribute.values.per_replica import (
    DistributedValues,
    Mirrored,
    PerReplica,
    PerReplicaSpec,
    SyncOnRead,
)
from penstock.missing_names import missing_from_distribute, refuse_names

__all__ = [
    "CrossDeviceOps",
    "DistributedDataset",
    "DistributedIterator",
    "DistributedValues",
    "HierarchicalCopyAllReduce",
    "InputContext",
    "InputOptions",
    "InputReplicationMode",
    "Mirrored",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "NcclAllReduce",
    "OneDeviceStrategy",
    "PerReplica",
    "PerReplicaSpec",
    "ReduceOp",
    "ReductionToOneDevice",
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

if not TYPE_CHECKING:  # A type checker would take any name.
    __getattr__ = refuse_names("distribute", __all__, missing_from_distribute)
