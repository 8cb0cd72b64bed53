"""Plans as bytes, by their digest: what clients send in parts and workers ask for.

A plan is known only when all of it is there and its digest is right. Names come from the network:
nothing but a digest ever becomes part of a path.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from penstock.engine.formats.files import reported
from penstock.errors import (
    DataLossError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    ResourceExhaustedError,
    UnavailableError,
)
from penstock.service.host.shelves import FolderShelves, NamelessShelves, Shelves

LARGEST_PLAN = 4 << 30
"""Bytes of the largest plan."""

PART = 4 << 20
"""Bytes of a plan in one answer."""

_BEGUN = 64
"""Plans that are on their way at the same time; the one that waited longest gives way."""


@dataclass
class _Arriving:
    """A plan of which the first `size` bytes are there."""

    total: int
    size: int
    hash: Any


class Plans:
    """The plans in `folder`, which is made if it does not exist; for any number of threads.

    Without a folder, plans live as long as this object.
    """

    def __init__(self, folder: str | None = None, largest: int = LARGEST_PLAN) -> None:
        self._largest = largest
        self._lock = threading.Lock()
        self._arriving: dict[str, _Arriving] = {}
        self._whole: dict[str, int] = {}
        """The size of plans whose bytes were seen to be right."""
        with reported(folder or tempfile.gettempdir(), "dispatcher"):
            self._shelves: Shelves = FolderShelves(folder) if folder else NamelessShelves()

    def put(self, digest: str, offset: int, total: int, data: bytes) -> int:
        """Adds the bytes that begin at `offset`; gives how many are there.

        Bytes that are there already, or come too early, are left out: the answer says where to
        go on. So parts may be repeated, and several clients may send one plan.
        """
        self._check(digest, offset, total, data)
        with self._lock:
            if (size := self._size(digest)) is not None:
                return size
            plan = self._begun(digest, total)
            if data and offset == plan.size:
                self._append(digest, plan, data)
            return plan.size

    def get(self, digest: str, offset: int = 0) -> tuple[bytes, int]:
        """Some bytes from `offset` on, and how many there are in all."""
        with self._lock:
            size = self._size(digest) if _is_digest(digest) else None
        if size is None:
            raise NotFoundError(
                f"plan {digest[:12]!r} is not known to this dispatcher; it may have been started "
                "anew without its work_dir; register the dataset again"
            )
        with self._disk():
            return self._shelves.read(digest, max(offset, 0), PART), size

    def __contains__(self, digest: str) -> bool:
        with self._lock:
            return _is_digest(digest) and self._size(digest) is not None

    def forget(self, digest: str) -> None:
        """No dataset has this plan any more."""
        with self._lock, self._disk():
            self._whole.pop(digest, None)
            if digest not in self._arriving:
                self._shelves.remove(digest)

    def strays(self, known: Callable[[str], bool]) -> list[str]:
        """The plans that are not known."""
        with self._lock, self._disk():
            return [digest for digest in self._shelves.digests() if not known(digest)]

    def _check(self, digest: str, offset: int, total: int, data: bytes) -> None:
        if not _is_digest(digest):
            raise InvalidArgumentError(f"PutPlan: {digest[:80]!r} is not a SHA-256 digest")
        if total > self._largest:
            raise ResourceExhaustedError(
                f"a plan of {total} bytes is larger than this dispatcher takes ({self._largest}); "
                "keep large arrays in files (from_tensor_slices of numpy.memmap, TFRecord, Parquet)"
            )
        if not 0 <= offset <= offset + len(data) <= total or total < 1:
            raise InvalidArgumentError(
                f"PutPlan: bytes {offset} to {offset + len(data)} are not part of {total}"
            )

    def _size(self, digest: str) -> int | None:
        """Of a plan that is there as a whole."""
        if digest not in self._whole:
            with self._disk():
                size = self._shelves.size(digest)
            if size is None:
                return None
            self._whole[digest] = size
        return self._whole[digest]

    def _begun(self, digest: str, total: int) -> _Arriving:
        plan = self._arriving.pop(digest, None) or _Arriving(total, 0, hashlib.sha256())
        if plan.total != total:
            self._arriving[digest] = plan
            raise InvalidArgumentError(
                f"PutPlan: plan {digest[:12]!r} has {plan.total} bytes, not {total}"
            )
        while len(self._arriving) >= _BEGUN:
            self._drop(next(iter(self._arriving)))
        self._arriving[digest] = plan  # At the end: the last one to give way.
        return plan

    def _append(self, digest: str, plan: _Arriving, data: bytes) -> None:
        try:
            with self._disk():
                self._shelves.write(digest, plan.size, plan.total, data)
        except OpError:
            self._drop(digest)
            raise
        plan.size += len(data)
        plan.hash.update(data)
        if plan.size == plan.total:
            self._complete(digest, plan)

    def _complete(self, digest: str, plan: _Arriving) -> None:
        if plan.hash.hexdigest() != digest:
            self._drop(digest)
            raise DataLossError(
                f"plan {digest[:12]!r} arrived with other bytes than its digest says; send it again"
            )
        with self._disk():
            self._shelves.keep(digest)
        del self._arriving[digest]
        self._whole[digest] = plan.total

    def _drop(self, digest: str) -> None:
        self._arriving.pop(digest, None)
        self._shelves.drop(digest)

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Errors of the disk as ours; a full one is waited for, like a dispatcher that is away."""
        try:
            with reported(self._shelves.folder, "dispatcher"):
                yield
        except ResourceExhaustedError as error:
            raise UnavailableError(f"{error.message}; free some space on that disk") from error

    def close(self) -> None:
        """Nothing is put or got any more."""
        with self._lock:
            self._shelves.close()


def _is_digest(digest: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{64}", digest) is not None
