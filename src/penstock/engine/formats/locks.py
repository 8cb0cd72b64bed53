"""Lock files: one writer at a time, and no lock outlives the process that holds it.

A lock keeps polite writers apart; it must not be what keeps data whole. Whoever holds one writes
under a name of its own (made with `token`) and asks `held()` before that takes its final name.
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

from penstock.engine.formats.blocks import written
from penstock.errors import AlreadyExistsError

_TRIES = 8
_WAIT = 0.2

_released = threading.Condition()


class LockFile:
    """`path` exists while somebody writes `what`, and says who.

    `clean` gets the token of a writer that died, to remove what it left behind.
    """

    def __init__(self, path: str, what: str, call: str, clean: Callable[[str], None]) -> None:
        self.path = path
        self.token = f"{secrets.randbelow(10**19):019}"
        self._what, self._call, self._clean = what, call, clean
        self._content = {
            "pid": os.getpid(),
            "started": _started(os.getpid()),
            "host": platform.node(),
            "token": self.token,
        }

    def acquire(self) -> None:
        """AlreadyExistsError while another writer that lives (as far as can be known) has it."""
        for _ in range(_TRIES):
            if self._create():
                return
            holder = self._read()
            if holder is not None and not self._freed(holder):
                break
        raise AlreadyExistsError(
            f"{self._call}: {self._what!r} is being written by {self._holder_and_remedy()}"
        )

    def _create(self) -> bool:
        with written(self.path, self._call):
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
        """What the lock says; None if there is none, {} if it says nothing."""
        try:
            with open(self.path, encoding="utf-8") as file:
                found = json.load(file)
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _freed(self, holder: dict[str, Any]) -> bool:
        """Whether the lock may be free now: its holder is gone, or was about to let it go."""
        if not _alive(holder):
            self._remove_stale(str(holder.get("token")))
            return True
        return _is_mine(holder) and self._awaited(holder)

    def _remove_stale(self, token: str) -> None:
        if re.fullmatch(r"\d{19}", token):
            self._clean(token)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    def _awaited(self, holder: dict[str, Any]) -> bool:
        """An iterator that nobody holds any more may still be somewhere on its way out."""
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

    def held(self) -> bool:
        """Whether this is still the lock's holder (a child after a fork is not)."""
        return os.getpid() == self._content["pid"] and self._read() == self._content

    def release(self) -> None:
        """Twice is fine; a lock that somebody else took over is left alone."""
        if self.held():
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        with _released:
            _released.notify_all()


def _is_mine(holder: dict[str, Any]) -> bool:
    return holder.get("host") == platform.node() and holder.get("pid") == os.getpid()


def _alive(holder: dict[str, Any]) -> bool:
    if holder.get("host") != platform.node():
        return "host" in holder  # Nothing can be known about the processes of another machine.
    return holder.get("started") is not None and _started(holder.get("pid")) == holder["started"]


def _started(pid: Any) -> str | None:
    """When a process began, in its machine's words; None if it does not run."""
    if not os.path.exists("/proc/self/stat"):
        return _unknown(pid)
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _unknown(pid: Any) -> str | None:
    """For systems that do not tell: "running", or None."""
    if os.name == "nt":
        return "running"  # Signal 0 is not harmless there.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "running"
