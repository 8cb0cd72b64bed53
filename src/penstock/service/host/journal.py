"""The journal: facts on disk, in the order in which they happened.

What `append` has taken survives the death of the process, and after `sync` also a power loss; what
it refused has not happened. One process at a time has a journal open.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NoReturn, TypeVar

from penstock.errors import (
    AlreadyExistsError,
    DataLossError,
    FailedPreconditionError,
    OpError,
    ResourceExhaustedError,
    UnavailableError,
)
from penstock.service.protocol import timing

_APPLICATION = 0x50454E53  # "PENS"
_VERSION = 1
_sync = getattr(os, "fdatasync", os.fsync)
_UNUSABLE = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_CANTOPEN,
)

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

SomeFact = TypeVar("SomeFact")


class Journal(Generic[SomeFact]):
    """The journal in the file `path`, which is made if it does not exist.

    Args:
        path: The file; its folder must exist.
        encode: A fact as bytes.
        decode: The bytes as a fact.
    """

    def __init__(
        self, path: str, encode: Callable[[SomeFact], bytes], decode: Callable[[bytes], SomeFact]
    ) -> None:
        self._path, self._encode, self._decode = path, encode, decode
        self._count, self._sum = 0, 0
        self._appended = self._synced = 0
        """How many times facts were appended, and how many of those are known to be on disk."""
        self._distrusted = False
        """Whether the disk failed to store appended facts; only `compact` makes up for that."""
        self._syncing = threading.Lock()
        """Held by the thread that waits for the disk; guards the two fields above and `_log`."""
        self._log = -1
        """A descriptor of the file to which SQLite appends; -1 if it is closed."""
        is_new = self._is_new()
        self._file = self._opened()
        try:
            self._prepare(is_new)
        except BaseException as error:
            self.close()
            if is_new:
                # Else the next start would take the empty file for one that was cut.
                with contextlib.suppress(OSError):
                    os.unlink(path)
            if isinstance(error, sqlite3.Error):
                self._refuse(error)
            raise

    def __len__(self) -> int:
        """How many facts are in the file."""
        return self._count

    def append(self, facts: Iterable[SomeFact]) -> None:
        """Writes facts, all or none: ResourceExhaustedError if the disk is full."""
        rows = list(self._rows(facts, self._count, self._sum))
        if rows:
            self._write(rows, replace=False)

    def sync(self) -> None:
        """Blocks until all that was appended before this call is on disk.

        Callers in several threads share the wait: while one of them waits for the disk, the others
        queue, and the next one syncs for all that have queued up. After UnavailableError the facts
        may or may not be on disk; nothing is until `compact` has written all of them again.
        """
        appended = self._appended
        with self._syncing:
            if self._synced >= appended and not self._distrusted:
                return
            appended = self._appended
            self._sync_log()
            self._synced = appended

    @property
    def is_trusted(self) -> bool:
        """Whether the disk has stored all that it was asked to; else `compact` is needed."""
        return not self._distrusted

    def compact(self, facts: Iterable[SomeFact]) -> None:
        """Replaces all facts by these, which must mean the same; afterwards they are on disk."""
        self._write(list(self._rows(facts, 0, 0)), replace=True)
        try:
            # SQLite syncs the log before it copies it into the file, and then the file.
            self._file.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error as error:
            raise self._unwritten(error) from None
        with self._syncing:
            self._synced, self._distrusted = self._appended, False

    def replay(self) -> Iterator[SomeFact]:
        """All facts, in order; DataLossError where one is damaged or missing."""
        try:
            yield from self._replayed()
        except sqlite3.Error as error:
            self._refuse(error)

    def close(self) -> None:
        """Twice is fine."""
        with self._syncing:
            if self._log >= 0:
                os.close(self._log)
                self._log = -1
        self._file.close()

    def _is_new(self) -> bool:
        """Whether there is no journal yet; raises DataLossError where only a part of one is left.

        SQLite itself would take an empty file for a new database, and delete the log beside it.
        """
        if not os.path.exists(self._path):
            if os.path.exists(self._log_path):
                self._damaged("the file is gone, and its log is still there")
            return True
        if not os.path.getsize(self._path):
            self._damaged("the file is empty")
        return False

    @property
    def _log_path(self) -> str:
        return f"{self._path}-wal"

    def _sync_log(self) -> None:
        if self._log < 0:
            raise UnavailableError("the dispatcher was stopped; make a new one")
        try:
            if self._distrusted:
                raise OSError("an earlier attempt failed")
            _sync(self._log)
        except OSError as error:
            # The kernel forgets what it could not write: to sync again would say that all is well.
            self._distrusted = True
            raise UnavailableError(
                f"the disk does not store the journal {self._path!r} ({error}); free some space on "
                "it, or replace it"
            ) from None

    def _opened(self) -> sqlite3.Connection:
        try:
            # Whoever uses the journal takes turns; the thread need not be the same.
            return sqlite3.connect(
                self._path,
                timeout=timing.JOURNAL_BUSY,
                isolation_level=None,
                check_same_thread=False,
            )
        except sqlite3.Error as error:
            raise FailedPreconditionError(
                f"the journal {self._path!r} cannot be opened ({error}); look at the rights of "
                "work_dir, or choose another"
            ) from None

    def _prepare(self, is_new: bool) -> None:
        run = self._file.execute
        run("PRAGMA locking_mode = EXCLUSIVE")
        run("PRAGMA journal_mode = WAL")
        # `sync` does at its time, and for many at once, what FULL would do at every commit.
        run("PRAGMA synchronous = NORMAL")
        run("BEGIN EXCLUSIVE")
        (application,) = run("PRAGMA application_id").fetchone()
        (version,) = run("PRAGMA user_version").fetchone()
        (tables,) = run("SELECT count(*) FROM sqlite_master").fetchone()
        if tables or not is_new:
            self._check(application, version)
        else:
            run(f"PRAGMA application_id = {_APPLICATION}")
            run(f"PRAGMA user_version = {_VERSION}")
            run("CREATE TABLE facts (number INTEGER PRIMARY KEY, fact BLOB, sum INTEGER)")
        run("COMMIT")
        # Written in any case: the log is there from now on, and a disk that takes nothing is seen.
        run(f"PRAGMA user_version = {_VERSION}")
        self._log = os.open(self._log_path, os.O_RDONLY | os.O_CLOEXEC)
        found = run("SELECT number, sum FROM facts ORDER BY number DESC LIMIT 1").fetchone() or (
            0,
            0,
        )
        if not all(isinstance(value, int) for value in found):
            self._damaged(f"the last fact has the checksum {found[1]!r}")
        self._count, self._sum = found

    def _check(self, application: int, version: int) -> None:
        if application != _APPLICATION:
            raise FailedPreconditionError(
                f"{self._path!r} is not the journal of a dispatcher; choose another work_dir"
            )
        if version != _VERSION:
            raise FailedPreconditionError(
                f"the journal {self._path!r} has format {version}, and this penstock knows format "
                f"{_VERSION}; use the penstock that wrote it, or choose another work_dir"
            )

    def _rows(
        self, facts: Iterable[SomeFact], count: int, total: int
    ) -> Iterator[tuple[int, bytes, int]]:
        """Each row has the sum of all bytes before its end, so that none can be lost unseen."""
        for number, fact in enumerate(facts, count + 1):
            encoded = self._encode(fact)
            total = zlib.crc32(encoded, total)
            yield number, encoded, total

    def _write(self, rows: list[tuple[int, bytes, int]], replace: bool) -> None:
        try:
            self._file.execute("BEGIN IMMEDIATE")
            if replace:
                self._file.execute("DELETE FROM facts")
            self._file.executemany("INSERT INTO facts VALUES (?, ?, ?)", rows)
            self._file.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                self._file.execute("ROLLBACK")
            raise self._unwritten(error) from None
        self._appended += 1
        self._count, _, self._sum = rows[-1] if rows else (0, b"", 0)

    def _replayed(self) -> Iterator[SomeFact]:
        total = 0
        rows = self._file.execute("SELECT number, fact, sum FROM facts ORDER BY number")
        for expected, (number, encoded, claimed) in zip(itertools.count(1), rows, strict=False):
            if not isinstance(encoded, bytes) or number != expected:
                self._damaged(f"fact {expected} is missing")
            total = zlib.crc32(encoded, total)
            if total != claimed:
                self._damaged(f"fact {number} has a wrong checksum")
            try:
                fact = self._decode(encoded)
            except Exception as error:
                self._damaged(f"fact {number} cannot be read: {error}")
            yield fact

    def _unwritten(self, error: sqlite3.Error) -> OpError:
        if _code(error) in _DAMAGED:
            self._damaged(str(error))
        return ResourceExhaustedError(
            f"the dispatcher cannot write its journal {self._path!r} ({error}); free some space on "
            "that disk, and the same request will do"
        )

    def _refuse(self, error: sqlite3.Error) -> NoReturn:
        code = _code(error)
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise AlreadyExistsError(
                f"work_dir {os.path.dirname(self._path)!r} is in use by another dispatcher; stop "
                "that one, or choose another work_dir"
            ) from None
        if code in _UNUSABLE:
            raise ResourceExhaustedError(
                f"the journal {self._path!r} cannot be used ({error}); free some space on that "
                "disk, look at the rights of work_dir, or choose another"
            ) from None
        self._damaged(str(error))

    def _damaged(self, what: str) -> NoReturn:
        raise DataLossError(
            f"the journal {self._path!r} is damaged ({what}); put a copy of it in its place, or "
            "move it away (with its log, the file ending in -wal) to start with nothing registered"
        )


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
