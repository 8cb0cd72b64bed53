"""Options for the calls of a strategy, and the contexts that it passes to users' functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from penstock.errors import InvalidArgumentError, InvalidTypeError

LAST_BATCH = ("short", "drop", "pad", "repeat")


class ReduceOp(Enum):
    """How the values of replicas are combined.

    >>> import penstock as tf
    >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> import numpy as np
    >>> count = strategy.run(lambda: np.float32(1))
    >>> strategy.reduce(ReduceOp.SUM, count, axis=None)
    np.float32(2.0)
    """

    SUM = "SUM"
    MEAN = "MEAN"


class InputReplicationMode(Enum):
    """Whether the replicas of a worker share one dataset or each has its own.

    >>> InputOptions(experimental_replication_mode=InputReplicationMode.PER_REPLICA)[1]
    <InputReplicationMode.PER_REPLICA: 'PER_REPLICA'>
    """

    PER_WORKER = "PER_WORKER"
    PER_REPLICA = "PER_REPLICA"


class _InputFields(NamedTuple):
    experimental_fetch_to_device: bool
    experimental_replication_mode: InputReplicationMode
    experimental_place_dataset_on_device: bool
    experimental_per_replica_buffer_size: int | None
    last_batch: str
    balance: Callable[..., Any] | None


class InputOptions(_InputFields):
    """How a dataset is delivered.

    Args:
        experimental_fetch_to_device: whether values are put on the replicas' devices (the default)
            or stay in the host's memory.
        experimental_replication_mode: one dataset per worker, or (from a function) per replica.
        experimental_place_dataset_on_device: accepted as in TensorFlow; datasets run on the host.
        experimental_per_replica_buffer_size: how many steps are prefetched; 0 for none.
        last_batch: what to do with a batch that is too short for all replicas. "short" gives some
            replicas fewer rows, or none; "drop" leaves it out; "pad" fills it with zeros and makes
            every element a pair of itself and a mask; "repeat" fills it with its own rows. All but
            "short" guarantee the same shape on every replica in every step.
        balance: a function that gets a global batch and returns the cost of each of its rows (the
            squares of their lengths, say). The rows of every batch are then dealt out such that
            all replicas have about the same cost; `DistributedDataset.explain()` says what that
            gains. The function must return the same costs in every process.

    >>> InputOptions().last_batch
    'short'
    >>> InputOptions(experimental_per_replica_buffer_size=4).ahead
    4
    """

    __slots__ = ()

    @property
    def ahead(self) -> int:
        """How many steps are prefetched: the buffer size, 1 by default."""
        size = self.experimental_per_replica_buffer_size
        return 1 if size is None else size

    def __new__(
        cls,
        experimental_fetch_to_device: bool | None = None,
        experimental_replication_mode: InputReplicationMode = InputReplicationMode.PER_WORKER,
        experimental_place_dataset_on_device: bool = False,
        experimental_per_replica_buffer_size: int | None = 1,
        last_batch: str = "short",
        balance: Callable[..., Any] | None = None,
    ) -> InputOptions:
        options = super().__new__(
            cls,
            experimental_fetch_to_device=(
                True if experimental_fetch_to_device is None else experimental_fetch_to_device
            ),
            experimental_replication_mode=experimental_replication_mode,
            experimental_place_dataset_on_device=experimental_place_dataset_on_device,
            experimental_per_replica_buffer_size=experimental_per_replica_buffer_size,
            last_batch=last_batch,
            balance=balance,
        )
        options._check()
        return options

    def _check(self) -> None:
        if self.last_batch not in LAST_BATCH:
            raise InvalidArgumentError(
                f"InputOptions: last_batch must be one of {', '.join(map(repr, LAST_BATCH))}, "
                f"got {self.last_batch!r}"
            )
        if self.balance is not None and not callable(self.balance):
            raise InvalidTypeError(
                "InputOptions: balance must be a function that returns the cost of each row of a "
                f"batch, got {self.balance!r:.60}"
            )
        mode: Any = self.experimental_replication_mode
        if not isinstance(mode, InputReplicationMode):
            raise InvalidTypeError(
                "InputOptions: experimental_replication_mode must be an InputReplicationMode, "
                f"got {mode!r}"
            )
        size: Any = self.experimental_per_replica_buffer_size
        if size is not None and (type(size) is not int or size < 0):
            raise InvalidArgumentError(
                "InputOptions: experimental_per_replica_buffer_size must be an int from 0 on, "
                f"got {size!r}"
            )
        fetch: Any = self.experimental_fetch_to_device
        if not isinstance(fetch, bool):
            raise InvalidTypeError(
                f"InputOptions: experimental_fetch_to_device must be a bool or None, got {fetch!r}"
            )


class RunOptions(NamedTuple):
    """Accepted by `Strategy.run` as in TensorFlow, and ignored: shapes are always dynamic here.

    >>> import penstock as tf
    >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> strategy.run(lambda x: x + 1, args=(1,), options=RunOptions())
    2
    """

    experimental_enable_dynamic_batch_size: bool = True
    experimental_bucketizing_dynamic_shape: bool = False
    experimental_xla_options: Any = None


@dataclass(frozen=True, eq=False, repr=False)
class InputContext:
    """The argument of a dataset function: which of how many input pipelines it builds.

    >>> context = InputContext(num_input_pipelines=2, input_pipeline_id=1, num_replicas_in_sync=4)
    >>> context.get_per_replica_batch_size(32)
    8
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """The batch size of one replica; raises unless the global batch divides evenly."""
        replicas = self.num_replicas_in_sync
        if global_batch_size % replicas:
            raise InvalidArgumentError(
                f"InputContext.get_per_replica_batch_size: {global_batch_size} does not divide "
                f"evenly among {replicas} replicas; use a multiple of {replicas}"
            )
        return global_batch_size // replicas

    def __str__(self) -> str:
        return (
            f"tf.distribute.InputContext(input pipeline id {self.input_pipeline_id}, "
            f"total: {self.num_input_pipelines})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class ValueContext:
    """The argument of functions given to `experimental_distribute_values_from_function`.

    >>> import penstock as tf
    >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> make = lambda context: context.replica_id_in_sync_group * 10
    >>> strategy.experimental_distribute_values_from_function(make).values
    (0, 10)
    """

    replica_id_in_sync_group: int = 0
    num_replicas_in_sync: int = 1

    def __str__(self) -> str:
        return (
            f"tf.distribute.ValueContext(replica id {self.replica_id_in_sync_group},  "
            f"total replicas in sync: {self.num_replicas_in_sync})"
        )


# How a strategy reduces between devices. The backend reduces by its own means: each of TensorFlow's
# classes is accepted, and changes nothing.


class CrossDeviceOps:
    """How values of several devices are reduced: the base of the classes here.

    >>> isinstance(NcclAllReduce(), CrossDeviceOps)
    True
    """


class _AllReduce(CrossDeviceOps):
    def __init__(self, num_packs: int = 1) -> None:
        if num_packs < 0:
            raise InvalidArgumentError(
                f"{type(self).__name__}: num_packs must be at least 0, got {num_packs}"
            )
        self.num_packs = num_packs


class HierarchicalCopyAllReduce(_AllReduce):
    """`tf.distribute.HierarchicalCopyAllReduce`: accepted, the backend reduces.

    Args:
        num_packs: Into how many packs TensorFlow divides gradients.

    >>> HierarchicalCopyAllReduce(num_packs=2).num_packs
    2
    """


class NcclAllReduce(_AllReduce):
    """`tf.distribute.NcclAllReduce`: accepted; the torch and JAX backends use NCCL on GPUs.

    Args:
        num_packs: Into how many packs TensorFlow divides gradients.

    >>> NcclAllReduce().num_packs
    1
    """


class ReductionToOneDevice(CrossDeviceOps):
    """`tf.distribute.ReductionToOneDevice`: accepted, the backend reduces.

    Args:
        reduce_to_device: The device on which TensorFlow reduces.
        accumulation_fn: The function that adds values there.

    >>> ReductionToOneDevice("CPU:0").reduce_to_device
    'CPU:0'
    """

    def __init__(
        self, reduce_to_device: Any = None, accumulation_fn: Callable[..., Any] | None = None
    ) -> None:
        self.reduce_to_device = reduce_to_device
        self.accumulation_fn = accumulation_fn


def check_cross_device_ops(where: str, given: Any) -> None:
    """Raises unless `given` is None or one of the classes here."""
    if given is not None and not isinstance(given, CrossDeviceOps):
        raise InvalidTypeError(
            f"{where}: cross_device_ops must be a distribute.CrossDeviceOps, got {given!r:.60}; "
            "leave it out: the backend reduces"
        )
