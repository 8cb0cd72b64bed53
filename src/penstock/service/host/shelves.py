"""Where a dispatcher has the bytes of plans: in a folder, or in a file that nobody else sees.

Plans are written in parts, in order. Errors of the disk come as they are (OSError).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import tempfile
from typing import Protocol


class Shelves(Protocol):
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


class FolderShelves:
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


class NamelessShelves:
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
