"""Collectives by torch.distributed: gloo for the host's memory, nccl for CUDA's.

The default process group is created here unless it exists, so that DDP works beside it. Penstock's
own messages use a gloo group of their own.
"""

from __future__ import annotations

import atexit
import os
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed

from penstock.delivery import Tensor
from penstock.distribute.workers.cluster import Membership
from penstock.distribute.workers.collectives import (
    ROOM,
    Peers,
    absence_error,
    check_number,
)
from penstock.element.columns import Array
from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
)

# Not all of its public names are exported for type checkers.
dist: Any = torch.distributed

# torch's client connects twice per attempt, with a pause between, so that an attempt gets only the
# share ONE_TRY of the time that is left. None starts within the last share NEARLY of the time-out.
ONE_TRY, NEARLY = 0.4, 0.1
# How long workers may take to notice that a worker is gone, and to answer the roll call.
ROLL_CALL_SECONDS = 5.0
# How long a process that exits waits for the other processes to exit.
LEAVING_SECONDS = 2.0
# PLAIN: dtypes that torch and NumPy share. SUMMED: dtypes that gloo can add.
PLAIN = {"float16", "float32", "float64", "int8", "uint8", "int32", "int64"}
SUMMED = PLAIN | {"bfloat16", "complex64", "complex128"}


class SharedStore:
    """The store of the default process group; None if penstock did not create that group.

    Only `connect` changes the fields; every process must call it equally often.
    """

    store: Any = None
    groups: int = 0


class TorchCollectives(Peers):
    """The collectives of a process group; also for NumPy's arrays, whose memory torch shares."""

    def __init__(
        self, membership: Membership, timeout: float, implementation: str, call: str
    ) -> None:
        super().__init__(membership, timeout, call)
        limit = timedelta(seconds=timeout)
        self._control = dist.new_group(backend="gloo", timeout=limit)
        nccl = implementation != "RING" and torch.cuda.is_available() and dist.is_nccl_available()
        self._data = dist.new_group(backend="nccl", timeout=limit) if nccl else self._control
        SharedStore.groups += 1
        self._store = (
            None
            if SharedStore.store is None
            else dist.PrefixStore(str(SharedStore.groups), SharedStore.store)
        )

    def _exchange(self, row: Array) -> list[Array]:
        mine = torch.from_numpy(row.copy())
        rows = [torch.empty_like(mine) for _ in self._members]
        dist.all_gather(rows, mine, group=self._control)
        return [one.numpy() for one in rows]

    def _broadcast_first(self, row: Array) -> Array:
        dist.broadcast(torch.from_numpy(row), src=0, group=self._control)
        return row

    def _sum(self, tensor: Tensor) -> Tensor:
        if not isinstance(tensor, torch.Tensor):
            return self._sum_of_arrays(tensor)
        if tensor.device.type == "cpu" and _name(tensor) not in SUMMED:
            return self._sum_of_others(tensor.detach())
        total = tensor.detach().clone()
        dist.all_reduce(total, group=self._data if total.is_cuda else self._control)
        return total

    def _sum_of_arrays(self, array: Array) -> Array:
        if array.dtype.name in PLAIN:
            total: Array = self._sum(torch.from_numpy(array)).numpy()
            return total
        row = np.frombuffer(array.tobytes(), np.uint8)
        rows = [one.view(array.dtype).reshape(array.shape) for one in self._exchange(row)]
        return np.asarray(np.add.reduce(rows, dtype=array.dtype))

    def _sum_of_others(self, tensor: Any) -> Any:
        """The sum for a dtype that gloo cannot add, such as int16; added in a wider dtype."""
        wide = torch.float32 if tensor.is_floating_point() else torch.int64
        rows = self._exchange(tensor.contiguous().flatten().view(torch.uint8).numpy())
        parts = [torch.from_numpy(row).view(tensor.dtype).to(wide) for row in rows]
        return torch.stack(parts).sum(0).to(tensor.dtype).reshape(tensor.shape)

    def _as_small_array(self, tensor: Tensor) -> Array | None:
        if not isinstance(tensor, torch.Tensor):
            return np.asarray(tensor)
        fits = tensor.numel() * tensor.element_size() <= ROOM and tensor.device.type == "cpu"
        plain = fits and _name(tensor) in PLAIN
        return tensor.detach().numpy() if plain else None

    def _convert_like(self, tensor: Tensor, array: Array) -> Tensor:
        return torch.from_numpy(array) if isinstance(tensor, torch.Tensor) else array[()]

    def _find_absent(self) -> list[int] | None:
        """A roll call: each worker leaves the failed group and sets its key in the store."""
        with suppress(Exception):
            dist.destroy_process_group(self._control)
        if self._store is None or len(self._members) == 2:
            return super()._find_absent()
        return _roll_call(self._store, self._worker, len(self._members), self._timeout)


def _roll_call(store: Any, worker: int, workers: int, timeout: float) -> list[int]:
    patience = timedelta(seconds=min(timeout, ROLL_CALL_SECONDS))
    try:
        store.set(f"alive/{worker}", "")
        with suppress(dist.DistStoreError):
            store.wait([f"alive/{index}" for index in range(workers)], patience)
        return [index for index in range(workers) if not store.check([f"alive/{index}"])]
    except RuntimeError:
        # The store is in the process of worker 0.
        return [0]


def connect(
    membership: Membership, timeout: float, implementation: str, call: str
) -> TorchCollectives:
    """Joins the process group, or creates it and blocks until all workers have joined."""
    if implementation == "NCCL" and not torch.cuda.is_available():
        raise InvalidArgumentError(
            f"{call}: NCCL is for CUDA devices, and torch sees none here; use AUTO or RING"
        )
    if dist.is_initialized():
        rank, size = dist.get_rank(), dist.get_world_size()
        known_as = f"rank {rank} of {size} in the torch.distributed process group that exists"
        check_number(membership, (rank, size), known_as, call)
    else:
        _join_process_group(membership, timeout, call)
    try:
        return TorchCollectives(membership, timeout, implementation, call)
    except RuntimeError as error:
        raise UnavailableError(
            f"{call}: the workers connected, but could not form a process group ({_line(error)})"
        ) from error


def _join_process_group(membership: Membership, timeout: float, call: str) -> None:
    store = _store(membership, timeout, call)
    limit = timedelta(seconds=timeout)
    store.set_timeout(limit)
    here = [f"here/{index}" for index in range(membership.workers)]
    store.set(here[membership.worker], "")
    try:
        store.wait(here, limit)
    except RuntimeError as error:
        raise absence_error(membership, _find_missing(store, here), timeout, call) from error
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(
        backend, store=store, rank=membership.worker, world_size=membership.workers, timeout=limit
    )
    SharedStore.store = store
    # gloo aborts a process that exits without leaving its group.
    atexit.register(_leave_process_group)


def _leave_process_group() -> None:
    if not dist.is_initialized():
        return
    # gloo may abort a process whose peer leaves at the same time, so all wait for each other.
    with suppress(Exception):
        SharedStore.store.set(f"left/{dist.get_rank()}", "")
        keys = [f"left/{index}" for index in range(dist.get_world_size())]
        SharedStore.store.wait(keys, timedelta(seconds=LEAVING_SECONDS))
    dist.destroy_process_group()


def _find_missing(store: Any, here: list[str]) -> list[int]:
    try:
        return [index for index, key in enumerate(here) if not store.check([key])]
    except RuntimeError:
        return [0]


def _store(membership: Membership, timeout: float, call: str) -> Any:
    # torchrun has started a store there already; each restart uses a prefix of its own.
    started = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    hosts = membership.worker == 0 and not started
    store = (_open_store if hosts else _find_store)(membership, timeout, call)
    return dist.PrefixStore(f"penstock/{attempt}", store)


def _open_store(membership: Membership, timeout: float, call: str) -> Any:
    host, port = membership.meeting_point
    try:
        limit = timedelta(seconds=timeout)
        return dist.TCPStore(host, port, membership.workers, True, limit, wait_for_workers=False)
    except RuntimeError as error:
        raise FailedPreconditionError(
            f"{call}: {membership.members[0]} cannot listen on port {port} ({_line(error)}); "
            "is another program there? choose another port"
        ) from error


def _find_store(membership: Membership, timeout: float, call: str) -> Any:
    deadline = time.monotonic() + timeout
    while True:
        limit = timedelta(seconds=(deadline - time.monotonic()) * ONE_TRY)
        try:
            return dist.TCPStore(*membership.meeting_point, membership.workers, False, limit)
        except RuntimeError as error:
            if time.monotonic() > deadline - timeout * NEARLY:
                raise absence_error(membership, [0], timeout, call) from error


def _name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0]
