"""Collectives between the processes of a strategy, on top of a framework's own.

Every process must make the same calls in the same order. Each call first exchanges a *parcel*: a
label (operation, dtype, shape) and, if it is small, the array itself. Processes compare the labels
before they exchange more, so that a strategy worker that calls something else, or nothing, is
reported by an error that names it; it never causes a hang.
"""

from __future__ import annotations

import importlib
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from penstock.delivery import Tensor
from penstock.distribute.workers.cluster import Member, Membership
from penstock.element.columns import Array
from penstock.element.dtypes import as_dtype, to_native
from penstock.errors import (
    DeadlineExceededError,
    DisagreementError,
    OpError,
    UnavailableError,
    UnimplementedError,
)

LABEL = struct.Struct("<16s16s?q8q")
DIMENSIONS = 8
LENGTH = 512
ROOM = LENGTH - LABEL.size


@dataclass(frozen=True)
class Parcel:
    """What a process sends first; `contents` are the array's bytes, None if they do not fit."""

    action: str
    dtype: str
    shape: tuple[int, ...]
    contents: bytes | None = None

    def row(self) -> Array:
        """The parcel as `LENGTH` bytes."""
        sizes = self.shape + (0,) * (DIMENSIONS - len(self.shape))
        texts = self.action.encode(), self.dtype.encode()
        label = LABEL.pack(*texts, self.contents is not None, len(self.shape), *sizes)
        return np.frombuffer((label + (self.contents or b"")).ljust(LENGTH, b"\0"), np.uint8)

    @classmethod
    def of_row(cls, row: Array) -> Parcel:
        action, dtype, full, rank, *sizes = LABEL.unpack(row[: LABEL.size].tobytes())
        parcel = cls(_text(action), _text(dtype), tuple(sizes[:rank]))
        contents = row[LABEL.size :][: parcel.nbytes].tobytes()
        return replace(parcel, contents=contents) if full else parcel

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * _numpy_dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.action} of {self.dtype}{list(self.shape)}"

    def array(self, contents: bytes) -> Array:
        """The array with this label and these bytes, in memory of its own."""
        return np.frombuffer(contents, _numpy_dtype(self.dtype)).reshape(self.shape).copy()


def pack(action: str, array: Array, call: str) -> Parcel:
    """A parcel for an array, with its bytes if they fit."""
    check(array.dtype.name, array.shape, call)
    fits = array.nbytes <= ROOM
    return Parcel(action, array.dtype.name, array.shape, array.tobytes() if fits else None)


def check(dtype: str, shape: Sequence[int], call: str) -> None:
    """Raises unless arrays of this dtype and shape can be sent to other processes."""
    if dtype == "object" or dtype[:3] in ("str", "byt"):
        raise UnimplementedError(
            f"{call}: strings cannot be sent to other workers; send numbers, such as their indices"
        )
    if len(shape) > DIMENSIONS:
        raise UnimplementedError(
            f"{call}: an array of {len(shape)} dimensions cannot be sent to other workers; "
            f"reshape it to at most {DIMENSIONS}"
        )


def _text(padded: bytes) -> str:
    return padded.rstrip(b"\0").decode()


def _numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(as_dtype(name).as_numpy_dtype)


Result = TypeVar("Result")

# The framework whose collectives a backend uses; NumPy has none of its own.
FRAMEWORKS = {"numpy": "torch", "torch": "torch", "jax": "jax"}


class Peers(ABC):
    """The collectives of one process with all processes of its cluster.

    `_lock` lets one collective run at a time, and guards `_broken`.
    """

    def __init__(self, membership: Membership, timeout: float, call: str) -> None:
        self._members = membership.members
        self._worker = membership.worker
        self._timeout = timeout
        self._call = call
        self._broken = False
        """Whether a collective has failed, after which the processes are out of step."""
        self._lock = threading.Lock()

    def gather(self, array: Array) -> list[Array]:
        """Every process's array (shapes may differ, dtypes not), in the order of the workers."""
        array = to_native(np.asarray(array))
        mine = pack("gather", array, self._call)
        with self._lock:
            parcels = self._compare_labels(mine)
            if (found := _arrays_inside(parcels)) is not None:
                return found
            longest = max(parcel.nbytes for parcel in parcels)
            row = np.frombuffer(array.tobytes().ljust(longest, b"\0"), np.uint8)
            rows = self._run_step(lambda: self._exchange(row))
        return [p.array(r[: p.nbytes].tobytes()) for p, r in zip(parcels, rows, strict=True)]

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum of every process's tensor (one shape, one dtype), on this tensor's device."""
        if isinstance(tensor, np.ndarray):
            tensor = to_native(tensor)
        array = self._as_small_array(tensor)
        if array is not None:
            mine = pack("all_reduce", array, self._call)
        else:
            dtype = str(tensor.dtype).removeprefix("torch.")
            mine = Parcel("all_reduce", dtype, tuple(tensor.shape))
            check(mine.dtype, mine.shape, self._call)
        with self._lock:
            parcels = self._compare_labels(mine)
            self._check_shapes(parcels)
            if array is not None and (found := _arrays_inside(parcels)) is not None:
                total = np.add.reduce(found, dtype=array.dtype)
                return self._convert_like(tensor, np.asarray(total))
            return self._run_step(lambda: self._sum(tensor))

    def broadcast(self, array: Array) -> Array:
        """The array of worker 0; every worker passes an array of the same shape and dtype."""
        array = to_native(np.asarray(array))
        mine = pack("broadcast", array, self._call)
        with self._lock:
            parcels = self._compare_labels(mine)
            self._check_shapes(parcels)
            if (contents := parcels[0].contents) is not None:
                return parcels[0].array(contents)
            row = np.frombuffer(array.tobytes(), np.uint8).copy()
            row = self._run_step(lambda: self._broadcast_first(row))
        return parcels[0].array(row.tobytes())

    def barrier(self) -> None:
        """Returns when every process has called it."""
        with self._lock:
            self._compare_labels(Parcel("barrier", "bool", (0,), b""))

    @abstractmethod
    def _exchange(self, row: Array) -> Sequence[Array]:
        """The bytes of every process, equally many from each, in the order of the workers."""

    @abstractmethod
    def _broadcast_first(self, row: Array) -> Array:
        """The bytes of worker 0; every worker passes equally many."""

    @abstractmethod
    def _sum(self, tensor: Tensor) -> Tensor:
        """The sum of tensors that are known to have one shape and dtype."""

    @abstractmethod
    def _as_small_array(self, tensor: Tensor) -> Array | None:
        """A small tensor in the host's memory as an array; None for any other tensor."""

    @abstractmethod
    def _convert_like(self, tensor: Tensor, array: Array) -> Tensor:
        """An array converted to the type and device of a tensor."""

    def _find_absent(self) -> list[int] | None:
        """The workers that do not answer after a failure; None if that is not known."""
        peers = [index for index in range(len(self._members)) if index != self._worker]
        return peers if len(peers) == 1 else None

    def _compare_labels(self, mine: Parcel) -> list[Parcel]:
        rows = self._run_step(lambda: self._exchange(mine.row()))
        parcels = [Parcel.of_row(row) for row in rows]
        for index, parcel in enumerate(parcels):
            if (parcel.action, parcel.dtype) != (mine.action, mine.dtype):
                raise DisagreementError(
                    f"{self._call}: {self._members[self._worker]} calls {mine}, but "
                    f"{self._members[index]} calls {parcel}; all workers must run the same program"
                )
        return parcels

    def _check_shapes(self, parcels: Sequence[Parcel]) -> None:
        for index, parcel in enumerate(parcels):
            if parcel.shape != parcels[0].shape:
                raise DisagreementError(
                    f"{self._call}: {self._members[0]} has a value of shape {parcels[0].shape} but "
                    f"{self._members[index]} of shape {parcel.shape}; give the same shape on all "
                    "workers, or reduce over axis=0"
                )

    def _run_step(self, step: Callable[[], Result]) -> Result:
        if self._broken:
            raise UnavailableError(
                f"{self._call}: the connection between the workers was lost before; "
                "start all of them again"
            )
        start = time.monotonic()
        try:
            return step()
        except Exception as error:
            self._broken = True
            raise self._failure(time.monotonic() - start) from error

    def _failure(self, waited: float) -> OpError:
        absent = self._find_absent()
        who = _join_names(self._members, absent) if absent else "another worker"
        if waited >= self._timeout:
            return DeadlineExceededError(
                f"{self._call}: {who} has not taken part for {waited:.0f} s; is it still running? "
                "all workers must make the same calls (timeout= says how long to wait)"
            )
        reason = "has given up before" if absent == [] else "is gone"
        return UnavailableError(
            f"{self._call}: {who} {reason}, see its own output; start all workers again"
        )


def connect(
    backend: str, membership: Membership, timeout: float, implementation: str, call: str
) -> Peers:
    """Connects to the other processes; blocks until all of them have connected."""
    framework = FRAMEWORKS[backend]
    try:
        module = importlib.import_module(f"penstock.distribute.workers.{framework}_collectives")
    except ModuleNotFoundError as error:
        raise UnavailableError(
            f"{call}: {membership.workers} processes with backend {backend!r} communicate by "
            f"{framework}.distributed, but {error.name} is not installed; install it with: "
            f"pip install 'penstock[{framework}]'"
        ) from error
    peers: Peers = module.connect(membership, timeout, implementation, call)
    return peers


def check_number(membership: Membership, found: tuple[int, int], known_as: str, call: str) -> None:
    """Raises if this process has another number, or count, in what the framework has started."""
    if (membership.worker, membership.workers) != found:
        raise DisagreementError(
            f"{call}: this is worker {membership.worker} of {membership.workers}, but {known_as}; "
            "make the strategy first, or give both the same numbers"
        )


def absence_error(
    membership: Membership, absent: Sequence[int], timeout: float, call: str
) -> OpError:
    """The error for workers that did not connect in time."""
    names = _join_names(membership.members, absent)
    host, port = membership.meeting_point
    return DeadlineExceededError(
        f"{call}: waited {timeout:g} s for {names}, in vain; start all {membership.workers} "
        f"workers, with the same cluster, so that they reach {host}:{port} (timeout= says how "
        "long to wait)"
    )


def _join_names(members: Sequence[Member], workers: Sequence[int]) -> str:
    return ", ".join(str(members[worker]) for worker in workers)


def _arrays_inside(parcels: Sequence[Parcel]) -> list[Array] | None:
    """The arrays inside parcels; None unless all parcels have contents."""
    found = [p.array(p.contents) for p in parcels if p.contents is not None]
    return found if len(found) == len(parcels) else None
