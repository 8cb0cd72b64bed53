"""A folder that caches ranges of remote files, for many processes of one machine.

An entry is a file of its own, with a checksum. It is written under another name and renamed, so a
process that is killed leaves no half entry under the name of a whole one. Its name depends on the
version of the file that it comes from, so an outdated entry is never read.

The lock file holds how many bytes the entries have. A process adds the bytes of an entry to it and
writes the entry, under the lock, so all processes together stay below the bound. The system
releases the lock of a process that dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import time
from collections.abc import Iterator
from functools import lru_cache

from penstock.engine.formats.extras import crc32c
from penstock.errors import InvalidArgumentError

DEFAULT_BYTES = 64 << 30

_MAGIC = b"penstock piece 1"
_HEAD = len(_MAGIC) + 4
_LOCK = "penstock-cache.lock"
_ENTRY, _PARTIAL = ".piece", ".partial"

_ROOM = 8
"""When the folder is full, this fraction of it is freed: one eighth."""

_ABANDONED = 3600.0
"""An entry that was not renamed for so many seconds was left by a process that died."""

log = logging.getLogger("penstock")


@lru_cache(maxsize=64)
def open_cache(folder: str, most: int | None) -> FileCache:
    """The cache in a folder. Equal arguments give the same object."""
    if "://" in folder:
        raise InvalidArgumentError(
            f"Options.cache_dir: must be a folder of this machine, got {folder!r}"
        )
    if most is not None and most < 1:
        raise InvalidArgumentError(f"Options.cache_bytes: must be at least 1, got {most}")
    return FileCache(os.path.abspath(os.path.expanduser(folder)), most or DEFAULT_BYTES)


class FileCache:
    """Entries by key. Any thread may use it."""

    def __init__(self, folder: str, most: int) -> None:
        self._folder, self._most = folder, most
        self._has_warned = False

    def _path(self, key: str) -> str:
        name = hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()[:40]
        return os.path.join(self._folder, name + _ENTRY)

    def find(self, key: str) -> bytes | None:
        """The bytes that were kept; None if there are none, or if they are damaged."""
        path = self._path(key)
        try:
            with open(path, "rb") as file:
                content = file.read()
            data = content[_HEAD:]
            if content[:_HEAD] != _head(data):
                os.unlink(path)
                return None
            os.utime(path)  # The entries that were used last stay.
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(error)
            return None
        return data

    def keep(self, key: str, data: bytes) -> None:
        """Keeps bytes, unless they are larger than the bound."""
        path, size = self._path(key), len(data) + _HEAD
        if size > self._most:
            return
        try:
            os.makedirs(self._folder, exist_ok=True)
            with self._hold_lock() as lock:
                self._reserve(lock, size)
                self._write(path, data)
        except OSError as error:
            self._warn(error)

    def _write(self, path: str, data: bytes) -> None:
        partial = f"{path}.{secrets.token_hex(8)}{_PARTIAL}"
        try:
            with open(partial, "wb") as file:
                os.fchmod(file.fileno(), self._mode())
                file.write(_head(data))
                file.write(data)
            os.replace(partial, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial)
            raise

    def _mode(self) -> int:
        """The permissions of new files: those of the folder, so that its users share them."""
        return os.stat(self._folder).st_mode & 0o666

    def _reserve(self, lock: int, size: int) -> None:
        """Counts `size` bytes; removes the entries that were used least recently if it is full."""
        total = _read_total(lock)
        if total is None or total + size > self._most:
            total = self._make_room(size)
        os.pwrite(lock, b"%020d\n" % (total + size), 0)

    @contextlib.contextmanager
    def _hold_lock(self) -> Iterator[int]:
        """The open lock file. Other threads and processes wait until it is closed."""
        path = os.path.join(self._folder, _LOCK)
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.fstat(lock).st_size:
                os.fchmod(lock, self._mode())
            yield lock
        finally:
            os.close(lock)

    def _make_room(self, size: int) -> int:
        """Removes entries if `size` bytes have no room; returns how many bytes are left."""
        found = sorted(self._scan())
        total = sum(length for _, length, _ in found)
        if total + size <= self._most:
            return total
        for _, length, path in found:
            if total + size <= self._most - self._most // _ROOM or not total:
                break
            with contextlib.suppress(FileNotFoundError, PermissionError):
                os.unlink(path)
                total -= length
        return total

    def _scan(self) -> Iterator[tuple[float, int, str]]:
        """When each entry was used last, its bytes and its path. Removes abandoned ones."""
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    state = entry.stat()
                    age = time.time() - state.st_mtime
                    if entry.name.endswith(_PARTIAL) and age > _ABANDONED:
                        os.unlink(entry.path)
                    elif entry.name.endswith((_ENTRY, _PARTIAL)):
                        yield state.st_mtime, state.st_size, entry.path

    def _warn(self, error: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "Options.cache_dir: %r cannot be used (%s), so remote files are read without it",
                self._folder,
                error,
            )


def _head(data: bytes) -> bytes:
    return _MAGIC + crc32c(data).to_bytes(4, "little")


def _read_total(lock: int) -> int | None:
    """The bytes that the entries have; None if that is not known."""
    text = os.pread(lock, 21, 0)
    return int(text) if len(text) == 21 and text.strip().isdigit() else None
