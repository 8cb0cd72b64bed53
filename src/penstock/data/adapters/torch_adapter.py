"""Datasets for torch: an `IterableDataset` of tensors that share no memory.

A worker process of a `DataLoader` reads its shard: of n workers, number i reads every n-th element
from i on. So all workers must see one order, and draw the same random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from penstock.data import element_specs
from penstock.data.adapters.adapted import AdaptedIterator
from penstock.data.adapters.leaves import Array, convert, own_array
from penstock.data.arguments import describe, flag
from penstock.data.dataset import Dataset
from penstock.data.iterator import Iterator
from penstock.element import nest
from penstock.engine.specs import known_spec
from penstock.errors import FailedPreconditionError, InvalidArgumentError
from penstock.plan.nodes import Node
from penstock.plan.options import AutoShardPolicy, Options
from penstock.plan.shard import shard_plan

WHERE = "Dataset.as_torch"


def adapt(dataset: Dataset, device: Any, pin_memory: bool | None) -> TorchDataset:
    """Implements `Dataset.as_torch`."""
    element_specs.check_numpy(WHERE, known_spec(dataset.__plan__))
    target = None if device is None else _find_device(device)
    on_gpu = target is not None and target.type == "cuda"
    pinned = on_gpu if pin_memory is None else flag(WHERE, "pin_memory", pin_memory)
    if pinned and not torch.cuda.is_available():
        raise InvalidArgumentError(
            f"{WHERE}: pin_memory=True needs a GPU that torch can use; leave it out"
        )
    return TorchDataset(
        dataset, target or torch.device("cpu"), _make_pinned if pinned else _make_tensor
    )


def _find_device(device: Any) -> torch.device:
    try:
        target = torch.device(device)
    except (RuntimeError, TypeError):
        raise InvalidArgumentError(
            f"{WHERE}: device must be one of torch's, such as 'cuda:0', got {describe(device)}"
        ) from None
    there = torch.cuda.device_count()
    if target.type == "cuda" and (target.index or 0) >= there:
        raise InvalidArgumentError(
            f"{WHERE}: {str(target)!r} is not there; torch finds {there} GPUs on this machine"
        )
    return target


Make = Callable[[Array, bool], torch.Tensor]


class TorchDataset(IterableDataset[Any]):
    """A dataset for torch: iterate over it, or hand it to `DataLoader(..., batch_size=None)`."""

    def __init__(self, dataset: Dataset, device: torch.device, make: Make) -> None:
        super().__init__()
        self._dataset = dataset
        self._device = device
        self._make = make
        self._begun = 0

    def __iter__(self) -> AdaptedIterator:
        transfer = StreamTransfer if self._device.type == "cuda" else PlainTransfer
        return AdaptedIterator(self._iterator(), transfer(self._device, self._make))

    def _iterator(self) -> Iterator:
        worker = get_worker_info()
        if worker is None:
            return iter(self._dataset)
        if self._device.type != "cpu" or self._make is _make_pinned:
            raise FailedPreconditionError(
                f"{WHERE}: a worker process of a DataLoader must leave devices alone, but the "
                f"tensors are for {str(self._device)!r}; leave out device and pin_memory, or use "
                "num_workers=0"
            )
        shard = iter(Dataset(_plan_shard(self._dataset, worker.num_workers, worker.id)))
        # The only number that is the same for all workers and new in every epoch.
        key = worker.seed - worker.id
        shard.load_state_dict(shard.state_dict() | {"key": key, "iteration": key + self._begun})
        self._begun += 1
        return shard

    def __len__(self) -> int:
        return len(self._dataset)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<TorchDataset of {self._dataset!r}>"


def _plan_shard(dataset: Dataset, workers: int, worker: int) -> Node:
    """The plan of one worker; the auto-shard policy is ignored, so that no element is lost."""
    options = Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.DATA
    return shard_plan(dataset.with_options(options).__plan__, workers, worker).plan


class PlainTransfer:
    """Tensors in main memory, or copied from there while the caller blocks."""

    ahead = 0

    def __init__(self, device: torch.device, make: Make) -> None:
        self.device = device
        self._make = make

    def send(self, element: Any) -> Any:
        return convert(WHERE, element, self._move_array)

    def _move_array(self, array: Array, alone: bool) -> torch.Tensor:
        return self._make(array, alone).to(self.device, non_blocking=self._make is _make_pinned)

    def receive(self, sent: Any) -> Any:
        return sent


class StreamTransfer(PlainTransfer):
    """Tensors copied to a GPU on a CUDA stream of their own, ahead of their use."""

    ahead = 2

    def __init__(self, device: torch.device, make: Make) -> None:
        super().__init__(device, make)
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def send(self, element: Any) -> Any:
        with torch.cuda.stream(self._stream):
            return super().send(element), self._stream.record_event()

    def receive(self, sent: Any) -> Any:
        """The caller's stream waits for the copies; the host does not."""
        element, copied = sent
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(copied)
        for leaf in nest.flatten(element)[0]:
            if isinstance(leaf, torch.Tensor):
                leaf.record_stream(stream)
        return element


def _make_tensor(array: Array, alone: bool) -> torch.Tensor:
    array = own_array(array, alone)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _make_pinned(array: Array, alone: bool) -> torch.Tensor:
    """A copy in pinned memory, which the GPU reads directly; torch reuses it after the copy."""
    kind = _make_tensor(np.empty(0, array.dtype), True).dtype
    tensor = torch.empty(array.shape, dtype=kind, pin_memory=True)
    memory = tensor.view(torch.int16) if kind == torch.bfloat16 else tensor
    np.copyto(memory.numpy().view(array.dtype.newbyteorder("=")), array)
    return tensor
