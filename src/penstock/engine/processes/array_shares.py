"""Array shares: the arrays of this process that other processes of the machine read.

This process is the holder of these arrays (`array_holder`): it copies a block into shared memory
when a process needs it. A dataset holds the caller's arrays, which the caller may change, so an
array is compared with what was copied before its share is used for another iteration.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.element.columns import Array
from penstock.engine.gather import Team
from penstock.engine.mapped_files import refer_to_file
from penstock.engine.processes.array_holder import ArrayHolder
from penstock.engine.processes.array_memory import BLOCK, ArrayMemory, runs_of
from penstock.engine.processes.chunk_memory import can_share
from penstock.engine.processes.shared_arrays import refer_to_shared
from penstock.engine.tuning import cores
from penstock.plan.array_references import ArrayReference, SharedArray

_PIECE = (4 << 20) // BLOCK
"""Blocks that are compared at once."""


class ArrayShare:
    """One array, its reference, and its memory, which is filled as processes need it."""

    def __init__(self, array: Array) -> None:
        self.reference = SharedArray(secrets.token_hex(16), array.dtype, array.shape)
        self._bytes: Array = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._is_copy = not array.flags.c_contiguous
        memory = ArrayMemory(self.reference.nbytes)
        self._holder = ArrayHolder(self.reference.name, memory, self._read)
        self.users = 0
        """Streams that use it; guarded by the lock of `ArrayShares`."""

    def _read(self, start: int, stop: int) -> Any:
        return self._bytes[start:stop].data

    def is_current(self) -> bool:
        """Whether the array is known not to have changed since parts of it were copied."""
        if self._is_copy:
            return False
        memory, same = self._holder.memory, threading.Event()
        same.set()
        pieces = [
            (begin * BLOCK, min((begin + _PIECE) * BLOCK, memory.size, stop * BLOCK))
            for first, stop in runs_of(np.flatnonzero(memory.flags))
            for begin in range(first, stop, _PIECE)
        ]

        def compare(some: slice) -> None:
            for start, end in pieces[some]:
                if not np.array_equal(self._bytes[start:end], memory.bytes[start:end]):
                    same.clear()

        if pieces:
            team = Team(cores(), "penstock-compare")
            team.share(compare, len(pieces))
            team.stop()
        return same.is_set()

    def close(self) -> None:
        self._holder.close()


class ArrayShares:
    """The shares of one dataset, which its iterations use one after the other or together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: dict[Any, ArrayShare] = {}  #: guarded by _lock
        """The latest share of each array, by where the array is."""

    def lease(self) -> ShareLease:
        """For one stream."""
        return ShareLease(self._borrow, self._give_back)

    def _borrow(self, array: Array) -> ArrayShare:
        place = (array.ctypes.data, array.shape, array.strides, array.dtype)
        with self._lock:
            share = self._current.get(place)
            if share is None or not share.is_current():
                if share is not None and not share.users:
                    share.close()
                share = self._current[place] = ArrayShare(array)
            share.users += 1
            return share

    def _give_back(self, shares: list[ArrayShare]) -> None:
        with self._lock:
            for share in shares:
                share.users -= 1
                if not share.users and share not in self._current.values():
                    share.close()

    def close(self) -> None:
        """Frees the memory; to be called when no stream has a lease."""
        with self._lock:
            for share in self._current.values():
                share.close()
            self._current.clear()


class ShareLease:
    """The shares that one stream uses, until it is closed."""

    def __init__(
        self,
        borrow: Callable[[Array], ArrayShare],
        give_back: Callable[[list[ArrayShare]], None],
    ) -> None:
        self._borrow, self._give_back = borrow, give_back
        self._shares: list[ArrayShare] = []

    def refer(self, array: Array) -> ArrayReference | None:
        """The reference to an array; None where memory cannot be shared."""
        found = refer_to_file(array) or refer_to_shared(array)
        if found is not None or not can_share():
            return found
        share = self._borrow(array)
        self._shares.append(share)
        return share.reference

    def close(self) -> None:
        """May be repeated."""
        shares, self._shares = self._shares, []
        self._give_back(shares)
