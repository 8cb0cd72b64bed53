"""Holds: which dispatcher may use a `work_dir`, and how another dispatcher takes it over.

The dispatcher that holds the folder has a file `hold-N` there. It keeps the file locked (`flock`)
and touches it regularly. Another dispatcher takes the folder over once the lock is free, because
the holder has ended, or once the file was not touched for `timing.HOLD_SILENCE`: the holder is
stopped, or its machine is gone. To take over, it creates `hold-N+1`, which only one dispatcher can,
and deletes all lower ones. Only then does it read the journal.

So a holder must `check` its hold after it has written and before it answers or deletes: all that
was answered is in the journal that the next holder reads. A holder that was silent itself cannot
know whether another one is taking over; it continues only if it can create the next file itself.
Nothing waits for the disk here: a power failure that loses these files has ended all holders.

A holder that only seems to be gone has the files of the journal open. The next holder must never
write to those: `find_journal` copies them to new files.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import AlreadyExistsError, UnavailableError
from penstock.service.host.plan_store import sync_folder
from penstock.service.protocol import timing

_LOG = logging.getLogger("penstock.service")

_HOLD = re.compile(r"hold-([0-9]+)")
_JOURNAL = re.compile(r"journal(?:-([0-9]+))?\.sqlite")
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _now() -> float:
    """A clock that also counts while the machine is suspended, if the system has one."""
    return time.clock_gettime(_CLOCK)


class Hold:
    """The right of this process to use a folder; `acquire` makes it. Thread-safe.

    A thread of its own renews it until `release`, or until another dispatcher has the folder. It
    then calls `on_loss`.
    """

    def __init__(self, folder: str, claim: _Claim) -> None:
        self._folder, self.claim = folder, claim  #: claim is guarded by _lock
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._renewed = _now()  #: guarded by _lock
        self._released = threading.Event()
        self.loss = ""
        """Why this process may no longer use the folder; empty if it may. Set once, under `_lock`,
        and read without it."""
        self.on_loss: Callable[[], None] = lambda: None
        self._renewing = threading.Thread(target=self._renew, name="penstock-hold", daemon=True)
        self._renewing.start()

    def check(self) -> None:
        """Raises UnavailableError if another dispatcher may have the folder."""
        if self.loss:
            raise UnavailableError(self.loss)
        if self._is_late():
            self.renew()
            if self._is_late():
                raise UnavailableError(
                    f"dispatcher: the disk of {self._folder!r} took longer than "
                    f"{timing.HOLD_TRUST:g} s to touch a file, so a standby may take over"
                )
        elif not os.path.exists(self.claim.path):
            with self._lock:  # Another thread may have replaced the file by the next one.
                if not os.path.exists(self.claim.path):
                    raise self._lose()

    def renew(self) -> None:
        """Touches the file; raises UnavailableError if another dispatcher has the folder."""
        with self._lock:
            start = _now()
            try:
                if self._is_late():
                    self._claim_again()
                else:
                    os.utime(self.claim.path)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ESTALE, errno.EEXIST):
                    raise self._lose() from None
                raise UnavailableError(
                    f"dispatcher: {self.claim.path} cannot be touched ({error}), so a standby may "
                    "take over; look at that disk"
                ) from None
            self._renewed = start

    def _is_late(self) -> bool:
        return _now() - self._renewed > timing.HOLD_TRUST

    def _claim_again(self) -> None:
        """Creates the next file: after so long a silence, another dispatcher may be doing so."""
        if not os.path.exists(self.claim.path):
            raise FileNotFoundError(errno.ENOENT, "deleted", self.claim.path)
        former, self.claim = self.claim, _create(self._folder, self.claim.number + 1)
        _remove_lower(self._folder, self.claim.number)
        os.close(former.descriptor)

    def _lose(self) -> UnavailableError:
        if not self.loss:
            holder = _describe_holder(self._folder)
            self.loss = (
                f"dispatcher: lost work_dir {self._folder!r} to another dispatcher ({holder}), "
                "because this one was silent for too long; it answers no more requests and ends"
            )
        return UnavailableError(self.loss)

    def _renew(self) -> None:
        while not self._released.wait(timing.HOLD_RENEWAL):
            try:
                self.renew()
            except UnavailableError as error:
                if self.loss:
                    _LOG.error("%s", error.message)
                    self.on_loss()
                    return
                _LOG.warning("%s", error.message)

    def release(self) -> None:
        """Lets another dispatcher have the folder at once; may be called again."""
        if self._released.is_set():
            return
        self._released.set()
        with self._lock:
            if os.getpid() == self._process:  # A forked child shares the lock with its parent.
                fcntl.flock(self.claim.descriptor, fcntl.LOCK_UN)
            os.close(self.claim.descriptor)


class _Claim(NamedTuple):
    """A file `hold-N` that this process has created and locked."""

    number: int
    """Counts the holders of the folder."""
    path: str
    descriptor: int
    is_takeover: bool = False
    """Whether the former holder may still run."""


def acquire(folder: str, wait: bool = False) -> Hold:
    """Holds a folder; raises AlreadyExistsError if another dispatcher does.

    With `wait` it waits until the other dispatcher has ended or is silent.
    """
    watch = _Watch()
    while (claim := _try_to_claim(folder, watch)) is None:
        if watch.is_alive and not wait:
            raise AlreadyExistsError(
                f"work_dir {folder!r} is in use by another dispatcher ({watch.holder}); stop that "
                "one, choose another work_dir, or take over when it ends: penstock dispatcher "
                "--standby"
            )
        threading.Event().wait(timing.HOLD_LOOK)
    _remove_lower(folder, claim.number)
    if claim.is_takeover:
        _LOG.warning(
            "dispatcher: took work_dir %r over from another dispatcher (%s), which was silent for "
            "%.0f s",
            folder,
            watch.holder,
            watch.silence,
        )
    return Hold(folder, claim)


def _try_to_claim(folder: str, watch: _Watch) -> _Claim | None:
    """Creates the next file if the folder is free or its holder is silent; else returns None."""
    number = max(_numbers(folder), default=0)
    with contextlib.suppress(FileExistsError, FileNotFoundError):  # Another dispatcher did.
        if not number:
            return _create(folder, 1)
        with open(_path(folder, number), "r+b") as file:
            if _lock_file(file.fileno()):
                return _create(folder, number + 1)
            watch.look(number, file.fileno())
        if watch.silence > timing.HOLD_SILENCE:
            return _create(folder, number + 1)._replace(is_takeover=True)
    return None


class _Watch:
    """What a dispatcher sees of the holder of a folder."""

    def __init__(self) -> None:
        self._seen: tuple[int, int] | None = None
        self._looked = _now()
        self.is_alive = False
        """Whether the holder touched its file since the first look."""
        self.silence = 0.0
        """Seconds since the last sign of the holder, without those when this process slept."""
        self.holder = ""

    def look(self, number: int, descriptor: int) -> None:
        """Compares the file of the holder, which was just opened, with the last look."""
        # Just opened, so that a network file system asks its server.
        sign = (number, os.fstat(descriptor).st_mtime_ns)
        gap, self._looked = _now() - self._looked, _now()
        self.silence += min(gap, 2 * timing.HOLD_LOOK)
        if sign != self._seen:
            self.is_alive = self._seen is not None
            self._seen, self.silence = sign, 0.0
            self.holder = os.pread(descriptor, 200, 0).decode(errors="replace")


def _create(folder: str, number: int) -> _Claim:
    """Creates `hold-<number>`, locked from its first moment; raises FileExistsError."""
    path = _path(folder, number)
    draft = os.path.join(folder, f".{uuid.uuid4().hex}.hold")
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _lock_file(descriptor)
        os.pwrite(descriptor, f"{socket.gethostname()}, process {os.getpid()}".encode(), 0)
        _link(draft, path, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    finally:
        os.unlink(draft)
    return _Claim(number, path, descriptor)


def _link(draft: str, path: str, descriptor: int) -> None:
    """Gives a file its name; raises FileExistsError if another file has it."""
    try:
        os.link(draft, path)
    except FileExistsError:
        # A network file system may have repeated a request whose reply was lost.
        if os.fstat(descriptor).st_nlink < 2:
            raise


def _lock_file(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_lower(folder: str, number: int) -> None:
    for lower in _numbers(folder):
        if lower < number:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(_path(folder, lower))


def _numbers(folder: str) -> list[int]:
    return [int(found[1]) for name in os.listdir(folder) if (found := _HOLD.fullmatch(name))]


def _path(folder: str, number: int) -> str:
    return os.path.join(folder, f"hold-{number}")


def _describe_holder(folder: str) -> str:
    with contextlib.suppress(OSError, ValueError):
        path = _path(folder, max(_numbers(folder)))
        with open(path, encoding="utf-8") as file:
            return file.read(200)
    return "its file was deleted"


# The files of the journal


def find_journal(folder: str, hold: Hold) -> str:
    """The path of the journal, for the holder of `folder`: a copy, if another one may write it."""
    found = [match for name in os.listdir(folder) if (match := _JOURNAL.fullmatch(name))]
    newest = max(found, key=lambda match: int(match[1] or 0))[0] if found else "journal.sqlite"
    path = os.path.join(folder, newest)
    if not hold.claim.is_takeover or not os.path.exists(path):
        return path
    copy = os.path.join(folder, f"journal-{hold.claim.number}.sqlite")
    _copy_journal(path, copy)
    return copy


def remove_other_journals(path: str) -> None:
    """Removes what former holders have left, once the journal at `path` is open."""
    folder, own = os.path.split(path)
    for name in os.listdir(folder):
        if name.startswith("journal") and not name.startswith(own):
            os.unlink(os.path.join(folder, name))


def _copy_journal(path: str, copy: str) -> None:
    """Copies file and log as they were at one moment, although their writer may wake up.

    SQLite changes the file only when it moves the log into it, and only then is the log shortened.
    So the file may be torn, and the log repairs it, if the log was the same before and afterwards.
    """
    draft = f"{copy}.draft"
    while True:
        log = _read_log(path)
        shutil.copyfile(path, draft)
        if _read_log(path) == log:
            break
    with open(f"{copy}-wal", "wb") as file:
        file.write(log)
        file.flush()
        os.fsync(file.fileno())
    with open(draft, "rb") as file:
        os.fsync(file.fileno())
    os.replace(draft, copy)
    sync_folder(os.path.dirname(copy))


def _read_log(path: str) -> bytes:
    try:
        with open(f"{path}-wal", "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""
