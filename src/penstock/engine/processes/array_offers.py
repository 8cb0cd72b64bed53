"""Array offers: the arrays of this process that other processes of the machine read.

This process is the holder of these arrays (`array_holder`): it copies a block into shared memory
when a process needs it. A dataset holds the caller's arrays, which the caller may change, so an
array is compared with what was copied before its offer is used for another iteration.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
from collections.abc import Callable
from dataclasses import replace
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

_SPAN_BLOCKS = (4 << 20) // BLOCK
"""Blocks that are compared at once."""


class ArrayOffer:
    """One array, its reference, and its memory, which is filled as processes need it."""

    def __init__(self, array: Array, name: str = "") -> None:
        name = name or secrets.token_hex(16)
        self.reference = SharedArray(name, array.dtype, array.shape)
        self._bytes = _bytes_of(array)
        self._is_copy = not array.flags.c_contiguous
        self._holder: ArrayHolder | None = None
        # An array that is named by its content may have a holder: a process with an equal one.
        with contextlib.suppress(OSError):
            self._holder = ArrayHolder(name, ArrayMemory(self.reference.nbytes), self.read)
        self.users = 0
        """Streams that use it; guarded by the lock of `ArrayOffers`."""

    def read(self, start: int, stop: int) -> Any:
        return self._bytes[start:stop].data

    def is_current(self) -> bool:
        """Whether the array is known not to have changed since parts of it were copied."""
        if self._is_copy or self._holder is None:
            return False
        memory, same = self._holder.memory, threading.Event()
        same.set()
        spans = [
            (begin * BLOCK, min((begin + _SPAN_BLOCKS) * BLOCK, memory.size, stop * BLOCK))
            for first, stop in runs_of(np.flatnonzero(memory.flags))
            for begin in range(first, stop, _SPAN_BLOCKS)
        ]

        def compare(some: slice) -> None:
            for start, end in spans[some]:
                if not np.array_equal(self._bytes[start:end], memory.bytes[start:end]):
                    same.clear()

        _share_work(compare, len(spans))
        return same.is_set()

    def close(self) -> None:
        if self._holder is not None:
            self._holder.close()


def _bytes_of(array: Array) -> Array:
    flat: Array = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return flat


def _share_work(work: Callable[[slice], None], length: int) -> None:
    """Calls `work` with slices of `range(length)`, on all cores."""
    if length:
        team = Team(cores(), "penstock-arrays")
        team.share(work, length)
        team.stop()


def name_by_content(array: Array) -> str:
    """A name that is equal for arrays of equal bytes, in every process."""
    data = _bytes_of(array)
    size = _SPAN_BLOCKS * BLOCK
    digests = [b""] * -(-len(data) // size)

    def digest(some: slice) -> None:
        for number in range(some.start, some.stop):
            span = data[number * size : (number + 1) * size]
            digests[number] = hashlib.sha256(span.data).digest()

    _share_work(digest, len(digests))
    return hashlib.sha256(b"".join(digests)).hexdigest()


class ArrayOffers:
    """The offers of one dataset, which its iterations use one after the other or together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: dict[Any, ArrayOffer] = {}  #: guarded by _lock
        """The latest offer of each array, by where the array is."""

    def __bool__(self) -> bool:
        return bool(self._current)

    def add_user(self, by_content: bool = False) -> OfferUser:
        """Returns the user for one stream.

        `by_content`: equal arrays of other processes must have the same name.
        """
        return OfferUser(self, by_content)

    def borrow(self, array: Array, by_content: bool) -> ArrayOffer:
        place = (array.ctypes.data, array.shape, array.strides, array.dtype)
        name = name_by_content(array) if by_content else ""
        with self._lock:
            offer = self._current.get(place)
            if offer is not None:
                same = offer.reference.name == name if by_content else offer.is_current()
                if not same and not offer.users:
                    offer.close()
                offer = offer if same else None
            if offer is None:
                offer = self._current[place] = ArrayOffer(array, name)
            offer.users += 1
            return offer

    def give_back(self, offers: list[ArrayOffer]) -> None:
        with self._lock:
            for offer in offers:
                offer.users -= 1
                if not offer.users and offer not in self._current.values():
                    offer.close()

    def close(self) -> None:
        """Frees the memory; to be called when no stream uses an offer."""
        with self._lock:
            for offer in self._current.values():
                offer.close()
            self._current.clear()


class OfferUser:
    """The offers that one stream uses, until it is closed."""

    def __init__(self, all_offers: ArrayOffers, by_content: bool) -> None:
        self._all_offers, self._by_content = all_offers, by_content
        self.offers: list[ArrayOffer] = []

    def refer(self, array: Array) -> ArrayReference | None:
        """The reference to an array; None where memory cannot be shared."""
        found = refer_to_file(array) or refer_to_shared(array)
        if found is not None or not can_share():
            return found
        offer = self._all_offers.borrow(array, self._by_content)
        self.offers.append(offer)
        return replace(offer.reference, writeable=array.flags.writeable)

    def close(self) -> None:
        """May be repeated."""
        offers, self.offers = self.offers, []
        self._all_offers.give_back(offers)
