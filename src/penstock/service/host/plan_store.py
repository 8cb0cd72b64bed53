"""The plan store: encoded plans by digest, which clients send in parts and workers fetch.

A plan is known only once all of its bytes have arrived and its digest is right. Digests come from
the network: nothing but a valid digest becomes part of a path.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.engine.formats.files import translate_errors
from penstock.errors import (
    DataLossError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    ResourceExhaustedError,
    UnavailableError,
)

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


class PlanStore:
    """The plans in `folder`, which is made if it does not exist; for any number of threads.

    Without a folder, plans live as long as this object.
    """

    def __init__(self, folder: str | None = None, largest: int = LARGEST_PLAN) -> None:
        self._largest = largest
        self._lock = threading.Lock()
        self._arriving: dict[str, _Arriving] = {}
        self._whole: dict[str, int] = {}
        """The size of plans whose bytes were seen to be right."""
        with translate_errors(folder or tempfile.gettempdir(), "dispatcher"):
            self._shelves: PlanStorage = FolderStorage(folder) if folder else TemporaryStorage()

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

    def find_unknown(self, known: Callable[[str], bool]) -> list[str]:
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
            with translate_errors(self._shelves.folder, "dispatcher"):
                yield
        except ResourceExhaustedError as error:
            raise UnavailableError(f"{error.message}; free some space on that disk") from error

    def close(self) -> None:
        """Nothing is put or got any more."""
        with self._lock:
            self._shelves.close()


def _is_digest(digest: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{64}", digest) is not None


class PlanStorage(Protocol):
    """Plans by their digest."""

    folder: str
    """Where the bytes are, for whoever is told that they cannot be there."""

    def size(self, digest: str) -> int | None:
        """Of a plan that is there from before, as a whole; its bytes are checked."""

    def write(self, digest: str, offset: int, total: int, data: bytes) -> None:
        """The bytes from `offset` on of a plan that has `total`."""

    def keep(self, digest: str) -> None:
        """A plan is there as a whole."""

    def drop(self, digest: str) -> None:
        """The parts of a plan are not needed."""

    def remove(self, digest: str) -> None:
        """A plan that was kept is not needed any more, if it is there."""

    def digests(self) -> list[str]:
        """The plans that are kept."""

    def read(self, digest: str, offset: int, count: int) -> bytes:
        """Up to `count` bytes of a plan that was kept."""

    def close(self) -> None:
        """Nothing is read or written any more."""


class FolderStorage:
    """Files that outlive the dispatcher. A plan has its name only once it is kept."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        os.makedirs(folder, mode=0o700, exist_ok=True)
        for name in os.listdir(folder):
            if name.endswith(".part"):
                os.unlink(os.path.join(folder, name))

    def size(self, digest: str) -> int | None:
        path = self._path(digest)
        if not os.path.exists(path):
            return None
        with open(path, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == digest:
                return file.tell()
        os.unlink(path)  # Its client sends it again.
        return None

    def write(self, digest: str, offset: int, total: int, data: bytes) -> None:
        with open(f"{self._path(digest)}.part", "ab" if offset else "wb") as file:
            file.write(data)
            file.flush()
            if offset + len(data) == total:
                os.fsync(file.fileno())

    def keep(self, digest: str) -> None:
        os.replace(f"{self._path(digest)}.part", self._path(digest))
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)  # Else a power loss may take the name away, and with it the plan.
        finally:
            os.close(folder)

    def drop(self, digest: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(f"{self._path(digest)}.part")

    def remove(self, digest: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(digest))

    def digests(self) -> list[str]:
        return [name for name in os.listdir(self.folder) if not name.endswith(".part")]

    def read(self, digest: str, offset: int, count: int) -> bytes:
        with open(self._path(digest), "rb") as file:
            file.seek(offset)
            return file.read(count)

    def close(self) -> None:
        pass

    def _path(self, digest: str) -> str:
        return os.path.join(self.folder, digest)


class TemporaryStorage:
    """One file without a name, which is gone with the process, whatever ends that."""

    def __init__(self) -> None:
        self.folder = tempfile.gettempdir()
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (until `close`)
        self._plans: dict[str, tuple[int, int]] = {}
        """Where each begins, and its size."""

    def size(self, digest: str) -> int | None:
        return None

    def write(self, digest: str, offset: int, total: int, data: bytes) -> None:
        if digest not in self._plans:
            self._plans[digest] = self._gap(total), total
        place, rest = self._plans[digest][0] + offset, memoryview(data)
        while rest:
            written = os.pwrite(self._descriptor(), rest, place)
            place, rest = place + written, rest[written:]

    def keep(self, digest: str) -> None:
        pass

    def _gap(self, size: int) -> int:
        """Where so many bytes fit: between plans that are there, or behind them."""
        end = 0
        for start, length in sorted(self._plans.values()):
            if start - end >= size:
                break
            end = start + length
        return end

    def drop(self, digest: str) -> None:
        self._plans.pop(digest, None)
        end = max((start + length for start, length in self._plans.values()), default=0)
        if os.fstat(self._descriptor()).st_size > end:
            os.truncate(self._descriptor(), end)

    def remove(self, digest: str) -> None:
        self.drop(digest)

    def digests(self) -> list[str]:
        return list(self._plans)

    def read(self, digest: str, offset: int, count: int) -> bytes:
        place, size = self._plans[digest]
        return os.pread(self._descriptor(), max(0, min(count, size - offset)), place + offset)

    def _descriptor(self) -> int:
        if self._file.closed:
            raise OSError(errno.EBADF, "the dispatcher was stopped")
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()
