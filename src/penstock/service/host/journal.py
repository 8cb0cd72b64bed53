"""The journal of a dispatcher: facts on disk, in order, and the ledger of the state they make.

Facts that `Journal.append` has written survive the end of the process, and after `sync` also a
power loss. If `append` raises, none of them was written. One process at a time has a journal open.

In the `Ledger` every request is decided, journalled and applied under one lock; nothing else may
change the state. Before a reply is sent, its facts are on disk. `sync` waits for the disk without
the lock, once for all requests that were decided meanwhile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import os
import sqlite3
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, NoReturn, TypeVar

import msgspec

from penstock.errors import (
    AlreadyExistsError,
    DataLossError,
    FailedPreconditionError,
    OpError,
    ResourceExhaustedError,
    UnavailableError,
)
from penstock.service.logic.dispatcher import (
    decide,
    describe_unrecorded,
    lost_facts,
    snapshot,
    stamp_reply,
    tick,
)
from penstock.service.logic.facts import ClientHeard, DispatcherStarted, Fact, WorkerHeard
from penstock.service.logic.state import Settings, State
from penstock.service.logic.status import Incident, Tally, Timeline, status
from penstock.service.protocol import timing
from penstock.service.protocol.messages import GetStatus, GetStatusReply, Reply, Request

_APPLICATION = 0x50454E53  # "PENS"
FORMAT = 1
"""Of the file and of the facts in it; all formats from 1 on are read."""
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
        encode: Turns a fact into bytes.
        decode: Turns the bytes into a fact.
    """

    def __init__(
        self, path: str, encode: Callable[[SomeFact], bytes], decode: Callable[[bytes], SomeFact]
    ) -> None:
        self._path, self._encode, self._decode = path, encode, decode
        # `_count`, `_sum` and `_appended` change in `append` and `compact`, which the ledger calls
        # under its lock; `sync` reads `_appended` without it.
        self._count, self._sum = 0, 0
        self._appended = self._synced = 0
        """The number of appends, and of the last append that is known to be on disk."""
        self._distrusted = False
        """Whether the disk failed to store appended facts; only `compact` resets it."""
        self._syncing = threading.Lock()
        """Held by the thread that waits for the disk; guards `_synced`, `_distrusted`, `_log`."""
        self._log = -1
        """A descriptor of the file to which SQLite appends; -1 if it is closed."""
        is_new = self._is_new()
        self._file = self._connect()
        try:
            self._prepare(is_new)
        except BaseException as error:
            self.close()
            if is_new:
                # Else the next start would report an empty file as damaged.
                with contextlib.suppress(OSError):
                    os.unlink(path)
            if isinstance(error, sqlite3.Error):
                self._raise_unusable(error)
            raise

    def __len__(self) -> int:
        """How many facts are in the file."""
        return self._count

    def append(self, facts: Iterable[SomeFact]) -> None:
        """Writes all facts or none; raises ResourceExhaustedError if the disk is full."""
        rows = list(self._encode_rows(facts, self._count, self._sum))
        if rows:
            self._write(rows, replace=False)

    def sync(self) -> None:
        """Blocks until all facts that were appended before this call are on disk.

        Callers in several threads share the wait: while one of them waits for the disk, the other
        callers queue, and the next one syncs for all of them. After UnavailableError the facts may
        or may not be on disk, until `compact` has written all of them again.
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
        """Whether the disk has stored all facts; else `compact` must be called."""
        return not self._distrusted

    def compact(self, facts: Iterable[SomeFact]) -> None:
        """Replaces all facts by equivalent ones; when it returns, they are on disk."""
        self._write(list(self._encode_rows(facts, 0, 0)), replace=True)
        try:
            # SQLite syncs the log before it copies it into the file, and then the file.
            self._file.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error as error:
            raise self._write_error(error) from None
        with self._syncing:
            self._synced, self._distrusted = self._appended, False

    def replay(self) -> Iterator[SomeFact]:
        """All facts, in order; raises DataLossError if one is damaged or missing."""
        try:
            yield from self._read_facts()
        except sqlite3.Error as error:
            self._raise_unusable(error)

    def close(self) -> None:
        """Closes the files; may be called again."""
        with self._syncing:
            if self._log >= 0:
                os.close(self._log)
                self._log = -1
        self._file.close()

    def _is_new(self) -> bool:
        """Whether there is no journal yet; raises DataLossError if only a part of one is left.

        SQLite would treat an empty file as a new database, and delete the log beside it.
        """
        if not os.path.exists(self._path):
            if os.path.exists(self._log_path):
                self._raise_damaged("the file is gone, and its log is still there")
            return True
        if not os.path.getsize(self._path):
            self._raise_damaged("the file is empty")
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
            # The kernel drops pages that it could not write: another sync would report success.
            self._distrusted = True
            raise UnavailableError(
                f"the disk does not store the journal {self._path!r} ({error}); free some space on "
                "it, or replace it"
            ) from None

    def _connect(self) -> sqlite3.Connection:
        try:
            # Several threads use the journal, one at a time: the ledger holds its lock.
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
        # Most commits append one small fact, and write all pages that they change.
        run("PRAGMA page_size = 1024")
        run("PRAGMA locking_mode = EXCLUSIVE")
        run("PRAGMA journal_mode = WAL")
        # FULL would sync at every commit; `sync` does it once for many commits.
        run("PRAGMA synchronous = NORMAL")
        # A commit that copies the log into the file waits for the disk, and all requests wait for
        # it. `compact` empties the log as well, mostly before it has so many pages.
        run("PRAGMA wal_autocheckpoint = 65536")
        run("BEGIN EXCLUSIVE")
        (application,) = run("PRAGMA application_id").fetchone()
        (version,) = run("PRAGMA user_version").fetchone()
        (tables,) = run("SELECT count(*) FROM sqlite_master").fetchone()
        if tables or not is_new:
            self._check_format(application, version)
        else:
            run(f"PRAGMA application_id = {_APPLICATION}")
            run(f"PRAGMA user_version = {FORMAT}")
            run("CREATE TABLE facts (number INTEGER PRIMARY KEY, fact BLOB, sum INTEGER)")
        run("COMMIT")
        # Written in any case: this makes the log exist, and shows whether the disk is writable.
        run(f"PRAGMA user_version = {FORMAT}")
        self._log = os.open(self._log_path, os.O_RDONLY | os.O_CLOEXEC)
        last = run("SELECT number, sum FROM facts ORDER BY number DESC LIMIT 1").fetchone()
        found = last or (0, 0)
        if not all(isinstance(value, int) for value in found):
            self._raise_damaged(f"the last fact has the checksum {found[1]!r}")
        self._count, self._sum = found

    def _check_format(self, application: int, version: int) -> None:
        if application != _APPLICATION:
            raise FailedPreconditionError(
                f"{self._path!r} is not the journal of a dispatcher; choose another work_dir"
            )
        if version > FORMAT:
            raise FailedPreconditionError(
                f"the journal {self._path!r} has format {version}, of a newer penstock, and this "
                f"one reads formats up to {FORMAT}; upgrade penstock, or choose another work_dir"
            )

    def _encode_rows(
        self, facts: Iterable[SomeFact], count: int, total: int
    ) -> Iterator[tuple[int, bytes, int]]:
        """Each row has the checksum of all rows up to it, so that no loss goes unnoticed."""
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
            raise self._write_error(error) from None
        self._appended += 1
        self._count, _, self._sum = rows[-1] if rows else (0, b"", 0)

    def _read_facts(self) -> Iterator[SomeFact]:
        total = 0
        rows = self._file.execute("SELECT number, fact, sum FROM facts ORDER BY number")
        for expected, (number, encoded, claimed) in zip(itertools.count(1), rows, strict=False):
            if not isinstance(encoded, bytes) or number != expected:
                self._raise_damaged(f"fact {expected} is missing")
            total = zlib.crc32(encoded, total)
            if total != claimed:
                self._raise_damaged(f"fact {number} has a wrong checksum")
            try:
                fact = self._decode(encoded)
            except Exception as error:
                self._raise_damaged(f"fact {number} cannot be read: {error}")
            yield fact

    def _write_error(self, error: sqlite3.Error) -> OpError:
        if _code(error) in _DAMAGED:
            self._raise_damaged(str(error))
        return ResourceExhaustedError(
            f"the dispatcher cannot write its journal {self._path!r} ({error}); free some space on "
            "that disk, and clients repeat their requests"
        )

    def _raise_unusable(self, error: sqlite3.Error) -> NoReturn:
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
        self._raise_damaged(str(error))

    def _raise_damaged(self, what: str) -> NoReturn:
        raise DataLossError(
            f"the journal {self._path!r} is damaged ({what}); put a copy of it in its place, or "
            "move it away (with its log, the file ending in -wal) to start with nothing registered"
        )


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


_MOST_UNLOGGED = 10_000
"""Incidents that wait to be logged; of more, the earliest are left out."""

_SLACK = 2000
_GROWTH = 4
"""A journal is compacted when it has more than `_SLACK + _GROWTH * n` facts, if n facts suffice."""


_LOG = logging.getLogger("penstock.service")

_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Fact] = msgspec.msgpack.Decoder(Fact)


class Ledger:
    """The state of a dispatcher. Thread-safe.

    Args:
        settings: The settings of the logic.
        path: The file of the journal; None to keep the state in memory only.
    """

    def __init__(self, settings: Settings, path: str | None) -> None:
        self._lock = threading.Lock()
        self._clock = AwakeClock()
        #: guarded by _lock
        self._state = State(dataclasses.replace(settings, started=self._clock.now()))
        self._tally = Tally()  #: guarded by _lock
        self._timeline = Timeline()  #: guarded by _lock
        self._unlogged: deque[Incident] = deque(maxlen=_MOST_UNLOGGED)
        """Incidents that were not logged yet: logging may block, and must not hold the lock."""
        self._compact_above = 0  #: guarded by _lock; the most facts before the journal is compacted
        self._closed = False  #: guarded by _lock
        self._reported: set[str] = set()
        """The log lines about lost facts so far; guarded by _lock."""
        self._journal: Journal[Fact] | None = None
        if path is not None:
            self._journal = Journal(path, _encode, _decoder.decode)
        try:
            self._recover(settings)
        except BaseException:
            self.close()
            raise

    def _recover(self, settings: Settings) -> None:
        if self._journal is not None:
            for fact in self._journal.replay():
                self._state.apply(fact, self._clock.now())
            if len(self._journal):
                _LOG.info(
                    "dispatcher: restored %d iterations, %d datasets and %d workers from %d facts",
                    len(self._state.iterations),
                    len(self._state.datasets),
                    len(self._state.roster.workers),
                    len(self._journal),
                    extra={"event": "restored"},
                )
        self._commit((DispatcherStarted(settings.dispatcher),))
        self._compact()

    def log_incidents(self) -> None:
        """Logs what has happened since the last call."""
        while self._unlogged:
            log_incident(self._unlogged.popleft())

    @property
    def name(self) -> str:
        """The id of the dispatcher, which stays the same through restarts."""
        return self._state.dispatcher

    def decide(self, request: Request) -> Reply:
        """Decides about a request; the reply must not be sent before `sync` has returned.

        Raises UnavailableError while the disk is full: the state is unchanged, and the client
        repeats the request.
        """
        with self._lock:
            self._check_open()
            if isinstance(request, GetStatus):
                return GetStatusReply(self._make_status())
            self._report_loss(request)
            decision = decide(self._state, request, self._clock.now())
            try:
                self._commit(decision.facts)
            except ResourceExhaustedError as error:
                self._apply_heard(decision.facts)
                raise UnavailableError(error.message) from None
            return stamp_reply(self._state, request, decision.reply)

    def sync(self) -> None:
        """Blocks until the facts that were decided before this call are on disk.

        Raises UnavailableError if the disk does not store them: their replies must not be sent.
        """
        if self._journal is not None:
            self._journal.sync()

    def _report_loss(self, request: Request) -> None:
        """Logs that the journal lost facts that a client knows, once for each reader."""
        lost = lost_facts(self._state, request)
        if lost is not None and lost not in self._reported:
            self._reported.add(lost)
            _LOG.error("%s", lost)
            for doubt in describe_unrecorded(self._state):
                _LOG.error("elements that readers may get twice: %s", doubt)

    def tick(self) -> None:
        """Applies what the time alone causes, such as expired leases, unless the disk is full."""
        with self._lock, contextlib.suppress(ResourceExhaustedError, UnavailableError):
            self._check_open()
            if self._journal is not None and not self._journal.is_trusted:
                self._journal.compact(snapshot(self._state))
            expired = tick(self._state, self._clock.now())
            self._commit(expired, is_expired=True)
            self._tally.count_expired(expired)

    def has_plan(self, digest: str) -> bool:
        """Whether a dataset has the plan with this digest."""
        with self._lock:
            return self._state.has_plan(digest)

    def take_orphans(self) -> list[str]:
        """Returns the plans that have lost their last dataset since the last call.

        The facts are on disk before it returns: else a restarted dispatcher could miss a plan.
        """
        with self._lock:
            found, self._state.orphans = list(self._state.orphans), {}
        if found and self._journal is not None:
            self._journal.sync()
        return found

    def status(self) -> dict[str, Any]:
        """Datasets, jobs, workers and clients, as plain data."""
        with self._lock:
            return self._make_status()

    def measure(self) -> tuple[dict[str, Any], Tally]:
        """The status, and what has happened since the dispatcher started."""
        with self._lock:
            return self._make_status(), dataclasses.replace(self._tally)

    def _make_status(self) -> dict[str, Any]:
        return status(self._state, self._clock.now()) | {"events": self._timeline.as_rows()}

    def find_problem(self) -> str | None:
        """Why no request can be answered now; None if requests are answered."""
        if self._closed:
            return "the dispatcher was stopped"
        if self._journal is not None and not self._journal.is_trusted:
            return "the disk does not store the journal"
        return None

    def close(self) -> None:
        """Closes the journal; may be called again."""
        with self._lock:
            self._closed = True
            if self._journal is not None:
                self._journal.close()

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the dispatcher was stopped; make a new one")

    def _commit(self, facts: tuple[Fact, ...], is_expired: bool = False) -> None:
        """Journals facts, then applies them: durable first, visible second. Needs `_lock`.

        `is_expired`: only the time has caused them.
        """
        if self._journal is not None:
            self._journal.append(fact for fact in facts if fact.durable)
        for fact in facts:
            self._apply(fact, is_expired)
        if self._journal is not None and len(self._journal) > self._compact_above > 0:
            self._compact()

    def _apply_heard(self, facts: tuple[Fact, ...]) -> None:
        """Renews the leases of a client, and a worker's registration, while the disk is full."""
        for fact in facts:
            if isinstance(fact, ClientHeard | WorkerHeard):
                self._apply(fact)

    def _apply(self, fact: Fact, is_expired: bool = False) -> None:
        incident = self._timeline.record(self._state, fact, time.time(), is_expired)
        if incident is not None:
            self._unlogged.append(incident)
        self._state.apply(fact, self._clock.now())
        self._tally.count(fact)

    def _compact(self) -> None:
        if self._journal is None:
            return
        facts = snapshot(self._state)
        # On a full disk the long journal is kept, and compacted later.
        with contextlib.suppress(ResourceExhaustedError):
            self._journal.compact(facts)
        self._compact_above = max(_SLACK + _GROWTH * len(facts), _SLACK + len(self._journal))


class AwakeClock:
    """A monotonic clock that stops while this process is suspended.

    After a suspension, the heartbeats of clients and workers wait in the sockets. If the clock had
    advanced, their leases would expire before these are read. Not thread-safe: the ledger reads
    it under its lock.
    """

    def __init__(self) -> None:
        self._last, self._slept = time.monotonic(), 0.0

    def now(self) -> float:
        """The time, without gaps of more than `timing.SUSPENSION` between two calls."""
        time_now = time.monotonic()
        if time_now - self._last > timing.SUSPENSION:
            self._slept += time_now - self._last - timing.SUSPENSION
        self._last = time_now
        return time_now - self._slept


def log_incident(incident: Incident) -> None:
    """Logs an entry of the time line of a dispatcher; an ordinary one at the level DEBUG.

    Warnings are for what needs attention, and docs/operations.md explains each of them. Nothing
    that is logged may have elements, messages of users' exceptions, or secrets.
    """
    event = {"event": incident.kind, **incident.about}
    if incident.kind == "lost":
        _LOG.warning("dispatcher: counts as lost: %s", incident.text, extra=event)
    elif incident.kind == "unreachable":
        _LOG.warning("dispatcher: cannot be reached: %s", incident.text, extra=event)
    else:
        level = logging.DEBUG if _is_ordinary(incident) else logging.INFO
        _LOG.log(level, "dispatcher: %s: %s", incident.kind, incident.text, extra=event)


def _is_ordinary(incident: Incident) -> bool:
    """Whether an incident is part of every reading or every start, which is logged elsewhere."""
    return incident.text.startswith(("reader of ", "anonymous job ", "dispatcher started"))
