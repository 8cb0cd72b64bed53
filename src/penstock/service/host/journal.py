"""The journal: facts on disk, in the order in which they happened.

What `append` has taken survives the death of the process; what it refused has not happened. One
process at a time has a journal open.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NoReturn, TypeVar

from penstock.errors import (
    AlreadyExistsError,
    DataLossError,
    FailedPreconditionError,
    ResourceExhaustedError,
)

_APPLICATION = 0x50454E53  # "PENS"
_VERSION = 1
_BUSY_SECONDS = 2.0
_UNUSABLE = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_CANTOPEN,
)

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
        self._file = self._opened()
        try:
            self._prepare()
        except sqlite3.Error as error:
            self._file.close()
            self._refuse(error)
        except BaseException:
            self._file.close()
            raise

    def __len__(self) -> int:
        """How many facts are in the file."""
        return self._count

    def append(self, facts: Iterable[SomeFact]) -> None:
        """Writes facts, all or none: ResourceExhaustedError if the disk is full."""
        rows = list(self._rows(facts, self._count, self._sum))
        if rows:
            self._write(rows, replace=False)

    def compact(self, facts: Iterable[SomeFact]) -> None:
        """Replaces all facts by these, which must mean the same."""
        self._write(list(self._rows(facts, 0, 0)), replace=True)
        with contextlib.suppress(sqlite3.Error):
            self._file.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def replay(self) -> Iterator[SomeFact]:
        """All facts, in order; DataLossError where one is damaged or missing."""
        try:
            yield from self._replayed()
        except sqlite3.Error as error:
            self._refuse(error)

    def close(self) -> None:
        """Twice is fine."""
        self._file.close()

    def _opened(self) -> sqlite3.Connection:
        try:
            # Whoever uses the journal takes turns; the thread need not be the same.
            return sqlite3.connect(
                self._path,
                timeout=_BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
        except sqlite3.Error as error:
            raise FailedPreconditionError(
                f"the journal {self._path!r} cannot be opened ({error}); look at the rights of "
                "work_dir, or choose another"
            ) from None

    def _prepare(self) -> None:
        run = self._file.execute
        run("PRAGMA locking_mode = EXCLUSIVE")
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = NORMAL")
        run("BEGIN EXCLUSIVE")
        (application,) = run("PRAGMA application_id").fetchone()
        (version,) = run("PRAGMA user_version").fetchone()
        (tables,) = run("SELECT count(*) FROM sqlite_master").fetchone()
        if tables:
            self._check(application, version)
        else:
            run(f"PRAGMA application_id = {_APPLICATION}")
            run(f"PRAGMA user_version = {_VERSION}")
            run("CREATE TABLE facts (number INTEGER PRIMARY KEY, fact BLOB, sum INTEGER)")
        run("COMMIT")
        found = run("SELECT number, sum FROM facts ORDER BY number DESC LIMIT 1").fetchone()
        self._count, self._sum = found or (0, 0)

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
            raise ResourceExhaustedError(
                f"the dispatcher cannot write its journal {self._path!r} ({error}); free some "
                "space on that disk, and the same request will do"
            ) from None
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

    def _refuse(self, error: sqlite3.Error) -> NoReturn:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
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
            "move it away to start with nothing registered"
        )
