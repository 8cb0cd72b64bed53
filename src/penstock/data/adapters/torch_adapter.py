"""Datasets for torch: an `IterableDataset` of tensors that share no memory.

A worker process of a `DataLoader` reads its shard: of n workers, number i reads every n-th element
from i on. So all workers must see one order, and draw the same random numbers.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from penstock.data import element_specs
from penstock.data.arguments import describe, flag, integer
from penstock.data.dataset import Dataset
from penstock.data.delivered import Check, DeliveredIterator, refuse_datasets
from penstock.delivery import Delivery
from penstock.delivery.moving import ColumnDelivery
from penstock.delivery.torch_delivery import lock_rows, move_rows, open_delivery
from penstock.engine.contract import copy_state
from penstock.errors import FailedPreconditionError, InvalidArgumentError
from penstock.plan.nodes import Map, Node, known_spec, rewrite
from penstock.plan.options import AutoShardPolicy, Options
from penstock.plan.resume import shards_epochs
from penstock.plan.shard import shard_plan

_LOG = logging.getLogger("penstock")

WHERE = "Dataset.as_torch"
_AHEAD = 2
_CHECK = partial(refuse_datasets, WHERE)


def adapt(
    dataset: Dataset, device: Any, pin_memory: bool | None, num_workers: int | None
) -> TorchDataset:
    """Implements `Dataset.as_torch`."""
    if num_workers is not None:
        count = integer(WHERE, "num_workers", num_workers, at_least=0)
        dataset = _call_in_processes(dataset, count)
    element_specs.check_numpy(WHERE, known_spec(dataset.__plan__))
    target = torch.device("cpu") if device is None else _find_device(device)
    pinned = target.type == "cuda" if pin_memory is None else flag(WHERE, "pin_memory", pin_memory)
    if pinned and not torch.cuda.is_available():
        raise InvalidArgumentError(
            f"{WHERE}: pin_memory=True needs a GPU that torch can use; leave it out"
        )
    return TorchDataset(dataset, Target(target, pinned))


def _call_in_processes(dataset: Dataset, count: int) -> Dataset:
    """The same dataset, whose maps call their functions in `count` processes; 0: in this one.

    A vectorized function is not called in parallel.
    """
    options = Options()
    options.executor = "processes" if count else "threads"

    def set_calls(node: Node) -> Node:
        if isinstance(node, Map) and not node.vectorized:
            return replace(node, parallel=count)
        return node

    plan = rewrite(dataset.__plan__, set_calls) if count else dataset.__plan__
    made = Dataset(plan).with_options(options)
    made._iterations = dataset._iterations  # A program may call `as_torch` in each epoch.
    return made


def _find_device(device: Any) -> torch.device:
    try:
        target = torch.device(device)
    except (RuntimeError, TypeError):
        raise InvalidArgumentError(
            f"{WHERE}: device must be one of torch's, such as 'cuda:0', got {describe(device)}"
        ) from None
    if target.type != "cuda":
        return target
    there = torch.cuda.device_count()
    if (target.index or 0) >= there:
        raise InvalidArgumentError(
            f"{WHERE}: {str(target)!r} is not there; torch finds {there} GPUs on this machine"
        )
    return torch.empty(0, device=target).device  # With the number of the GPU.


@dataclass(frozen=True)
class Target:
    """Where tensors go, and whether they go through (or stay in) pinned memory."""

    device: torch.device
    is_pinned: bool = False

    @property
    def ahead(self) -> int:
        """How many elements are in transit while the caller works on another."""
        return _AHEAD if self.device.type == "cuda" and self.is_pinned else 0

    def deliver(self, dataset: Dataset, check: Check) -> DeliveredIterator:
        """Iterates over a dataset as tensors that arrive here."""
        return dataset._deliver(self.open_delivery, self.ahead, check)

    def open_delivery(self) -> Delivery:
        if not self.is_pinned:
            return ColumnDelivery([self.device], None, move_rows)
        if self.device.type != "cuda":
            return ColumnDelivery([self.device], None, lock_rows)
        return open_delivery([self.device], None, self.ahead)


class TorchDataset(IterableDataset[Any]):
    """A dataset for torch: iterate over it, or hand it to `DataLoader(..., batch_size=None)`.

    `state_dict` is the position of the latest iterator, and `load_state_dict` the beginning of the
    next one: for trainers that iterate by themselves. At the end of an epoch the position is the
    beginning of the next one. `epoch` and `position` say the same in numbers.

    >>> import penstock
    >>> batches = penstock.data.Dataset.range(4).as_torch()
    >>> for epoch in range(batches.epoch, 2):
    ...     print(epoch, [int(batch) for batch in batches])
    0 [0, 1, 2, 3]
    1 [0, 1, 2, 3]
    >>> batches.epoch, batches.position
    (2, 0)
    """

    def __init__(self, dataset: Dataset, target: Target) -> None:
        super().__init__()
        self._dataset = dataset
        self._target = target
        self._begun = 0
        self._epochs = Epochs()
        self._has_warned = torch.zeros(1, dtype=torch.bool)
        if shards_epochs(dataset.__plan__):  # The workers of all epochs share it.
            self._has_warned.share_memory_()  # type: ignore[no-untyped-call]

    def __iter__(self) -> DeliveredIterator:
        return self._epochs.begin(self._open_epoch)

    def state_dict(self) -> dict[str, Any]:
        return self._epochs.state_dict(self._open_epoch)

    def load_state_dict(self, state: Any) -> None:
        self._epochs.load_state_dict(state, self._open_epoch)

    @property
    def epoch(self) -> int:
        """Which epoch `state_dict` is in, from 0; see `Iterator.epoch`."""
        return self._epochs.find_place(self._open_epoch)[0]

    @property
    def position(self) -> int | None:
        """How many elements of that epoch came before; see `Iterator.position`."""
        return self._epochs.find_place(self._open_epoch)[1]

    def _open_epoch(self) -> DeliveredIterator:
        worker = get_worker_info()
        if worker is None:
            return self._target.deliver(self._dataset, _CHECK)
        if self._target != Target(torch.device("cpu")):
            raise FailedPreconditionError(
                f"{WHERE}: a worker process of a DataLoader must leave devices alone, but the "
                f"tensors are for {str(self._target.device)!r}; leave out device and pin_memory, "
                "or use num_workers=0"
            )
        plan = _plan_shard(self._dataset, worker.num_workers, worker.id)
        shard = self._target.deliver(Dataset(plan), _CHECK)
        # The only number that is the same for all workers and new in every epoch.
        key = worker.seed - worker.id
        if worker.id == 0:
            self._warn_of_ranks(worker.num_workers)
        shard.load_state_dict(shard.state_dict() | {"key": key, "iteration": key + self._begun})
        self._begun += 1
        return shard

    def _warn_of_ranks(self, workers: int) -> None:
        """Logs a warning, once, if several processes read shards of a shuffled order."""
        if self._has_warned or not shards_epochs(self._dataset.__plan__):
            return
        self._has_warned.fill_(True)
        _LOG.warning(
            "%s: the elements are shuffled before shard, and workers of a DataLoader derive the "
            "epoch from torch's random numbers, so the shards that other processes read overlap "
            "with this one; use as_torch(num_workers=%d) without a DataLoader, or call "
            "torch.manual_seed with one number in all processes before each epoch",
            WHERE,
            workers,
        )

    def __len__(self) -> int:
        return len(self._dataset)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<TorchDataset of {self._dataset!r}>"


def deliver_to_device(dataset: Dataset, device: torch.device, check: Check) -> DeliveredIterator:
    """Iterates over a dataset on a device, through pinned memory if that is a GPU."""
    return Target(device, device.type == "cuda").deliver(dataset, check)


def _plan_shard(dataset: Dataset, workers: int, worker: int) -> Node:
    """The plan of one worker; the auto-shard policy is ignored, so that no element is lost."""
    options = Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.DATA
    return shard_plan(dataset.with_options(options).__plan__, workers, worker).plan


OpenEpoch = Callable[[], DeliveredIterator]
"""Makes an iterator at the beginning of a new epoch."""


class Epochs:
    """The latest epoch that began, and the epoch that begins next, if it is prepared already.

    The loop of a program, or a framework, keeps the iterators to itself. So the position is saved
    and loaded where the program can reach it: on the dataset that it passed on.

    The latest iterator is not kept alive: an iterator that its loop drops ends its threads, and
    leaves its elements to other readers of a shared job. Only its state is kept.
    """

    def __init__(self) -> None:
        self._latest: Callable[[], DeliveredIterator | None] = lambda: None
        self._next: DeliveredIterator | None = None
        self._left: dict[str, Any] | None = None
        """The state of the latest epoch, if its loop ended early and dropped the iterator."""
        self._begun = 0

    def begin(self, open_epoch: OpenEpoch) -> DeliveredIterator:
        """Begins an epoch: the rest of the one whose state was loaded, or a new one."""
        iterator, self._next = self._next or open_epoch(), None
        self._begun += 1
        self._latest, self._left = weakref.ref(iterator), None
        iterator.keep_state = partial(self._keep_state, self._begun)
        return iterator

    def _keep_state(self, number: int, state: dict[str, Any]) -> None:
        if number == self._begun and self._next is None:
            self._left = state

    def state_dict(self, open_epoch: OpenEpoch) -> dict[str, Any]:
        """Where the program continues: in the latest epoch, or in a new one if that is over."""
        if (current := self._find_current(open_epoch)) is not None:
            return current.state_dict()
        return copy_state(self._left)  # type: ignore[no-any-return]

    def find_place(self, open_epoch: OpenEpoch) -> tuple[int, int | None]:
        """The epoch that `state_dict` is in, and how many of its elements came before."""
        if (current := self._find_current(open_epoch)) is not None:
            return current.epoch, current.position
        assert self._left is not None
        return self._left["iteration"], self._left["count"]

    def _find_current(self, open_epoch: OpenEpoch) -> DeliveredIterator | None:
        """The iterator of the latest epoch, or a new one if that is over; None if `_left` is it."""
        latest = self._latest()
        if self._left is None and self._next is None and (latest is None or latest._is_at_end):
            self._next = open_epoch()
        return self._next or latest

    def load_state_dict(self, state: Any, open_epoch: OpenEpoch) -> None:
        """Makes the next epoch the rest of the epoch that `state` was saved in."""
        iterator = open_epoch()
        iterator.load_state_dict(state)
        self._next, self._left = iterator, None

    def __reduce__(self) -> tuple[Any, ...]:
        return Epochs, ()  # Positions stay in this process.
