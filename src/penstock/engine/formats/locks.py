"""Lock files: one writer at a time, and no lock outlives the process that holds it.

A lock saves work, but the data must stay whole without it, because another process may remove a
stale lock too early. So its holder writes to a file of its own (named by `token`) and calls
`is_held()` before it renames that file.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import platform
import re
import secrets
import threading
from collections.abc import Callable
from typing import Any

from penstock.engine.formats.files import translate_write_errors
from penstock.errors import AlreadyExistsError

_TRIES = 8
_WAIT = 0.2

_released = threading.Condition()
"""Notified when this process releases any lock; it guards no field, the locks are files."""


class LockFile:
    """A file `path` that exists while a process writes `what`, and names that process.

    `clean` is called with the token of a writer that died, to remove the files that it left.
    """

    def __init__(self, path: str, what: str, call: str, clean: Callable[[str], None]) -> None:
        self.path = path
        self.token = f"{secrets.randbelow(10**19):019}"
        self._what, self._call, self._clean = what, call, clean
        self._content = {
            "pid": os.getpid(),
            "started": _start_of(os.getpid()),
            "host": platform.node(),
            "token": self.token,
        }

    def acquire(self) -> None:
        """Creates the file; raises AlreadyExistsError while another live writer holds the lock."""
        for _ in range(_TRIES):
            if self._create():
                return
            holder = self._read()
            if holder is not None and not self._may_be_free(holder):
                break
        raise AlreadyExistsError(
            f"{self._call}: {self._what!r} is being written by {self._holder_and_remedy()}"
        )

    def _create(self) -> bool:
        with translate_write_errors(self.path, self._call):
            try:
                file = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            except FileExistsError:
                return False
            try:
                os.write(file, json.dumps(self._content).encode())
            except OSError:
                os.unlink(self.path)
                raise
            finally:
                os.close(file)
        return True

    def _read(self) -> Any:
        """The content of the lock; None if there is no file, {} if it cannot be read."""
        try:
            with open(self.path, encoding="utf-8") as file:
                found = json.load(file)
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _may_be_free(self, holder: dict[str, Any]) -> bool:
        """Whether to try again: the holder is dead, or is in this process and released it."""
        if not _is_alive(holder):
            self._remove_stale(str(holder.get("token")))
            return True
        return _is_mine(holder) and self._wait_for_release(holder)

    def _remove_stale(self, token: str) -> None:
        if re.fullmatch(r"\d{19}", token):
            self._clean(token)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    def _wait_for_release(self, holder: dict[str, Any]) -> bool:
        """Collects garbage and waits shortly: an iterator without references may hold the lock."""
        gc.collect()
        with _released:
            return bool(_released.wait_for(lambda: self._read() != holder, _WAIT))

    def _holder_and_remedy(self) -> str:
        holder = self._read() or {}
        if _is_mine(holder):
            return "another iterator, which has not reached its end; finish, close or drop it first"
        return (
            f"process {holder.get('pid')} on {holder.get('host')}; wait for it, use another name, "
            f"or delete {self.path!r} if that process is gone"
        )

    def is_held(self) -> bool:
        """Whether this object still holds the lock; in a forked child it does not."""
        return os.getpid() == self._content["pid"] and self._read() == self._content

    def release(self) -> None:
        """Removes the file, unless another process has taken the lock over."""
        if self.is_held():
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        with _released:
            _released.notify_all()


def _is_mine(holder: dict[str, Any]) -> bool:
    return holder.get("host") == platform.node() and holder.get("pid") == os.getpid()


def _is_alive(holder: dict[str, Any]) -> bool:
    if holder.get("host") != platform.node():
        return "host" in holder  # This machine cannot look at processes of another one.
    started = holder.get("started")
    return started is not None and _start_of(holder.get("pid")) == started


def _start_of(pid: Any) -> str | None:
    """When a process started, as /proc writes it; None if it does not run."""
    if not os.path.exists("/proc/self/stat"):
        return _probe(pid)
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _probe(pid: Any) -> str | None:
    """On systems without /proc: "running", or None if there is no such process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "running"
