"""A record of users' calls that outlives its process, to find the call that crashes processes.

A process whose predecessors crashed writes each call into shared memory before it begins. If this
process crashes, too, its parent reads which calls were running. A call is known by a digest of its
function and arguments, so it is recognised in the next process, where it may run alone, to be sure,
or is not made at all, and fails as if the function had raised.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Any, NamedTuple

from penstock.element.strict import plain
from penstock.errors import AbortedError

SLOTS, _SLOT, _KEY = 64, 256, 16

RECORD_SIZE = SLOTS * _SLOT
"""Bytes of shared memory that a record needs."""

_TURN = 30.0
"""The most seconds that a call waits for other calls, in case they wait for it."""


class RecordedCall(NamedTuple):
    """A call that was running: its digest, empty if it has none, and its function in words."""

    key: bytes
    function: str


def read_record(memory: Any) -> list[RecordedCall]:
    """The calls that were running when the process of a record ended."""
    found = []
    for start in range(0, RECORD_SIZE, _SLOT):
        used, has_key, size = memory[start : start + 3]
        key, text = start + 3, start + 3 + _KEY
        if used:
            name = bytes(memory[text : text + size]).decode(errors="replace")
            found.append(RecordedCall(bytes(memory[key:text]) if has_key else b"", name))
    return found


class CallWatch:
    """Records the calls of this process in `memory`, for some `seconds`.

    `suspects` run alone, each while no other call does. `refused` calls fail with the text that
    they are mapped to.
    """

    def __init__(
        self,
        memory: Any,
        seconds: float,
        suspects: Collection[bytes] = (),
        refused: Mapping[bytes, str] | None = None,
    ) -> None:
        self._memory = memory
        self._until = time.monotonic() + seconds
        self._suspects, self._refused = frozenset(suspects), dict(refused or {})
        self._changed = threading.Condition()
        """Guards the fields below."""
        self._free = list(range(SLOTS))
        self._running = 0
        self._alone = 0
        """Suspects that run or wait for their turn."""

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self._until

    def run(
        self, function: str, call: Callable[..., Any], arguments: tuple[Any, ...], has_key: bool
    ) -> Any:
        """Calls a user's function, unless it is one of the `refused` calls."""
        key = _digest(function, call, arguments) if has_key else b""
        if (reason := self._refused.get(key)) is not None:
            raise AbortedError(reason)
        is_suspect = key in self._suspects
        slot = self._enter(is_suspect)
        _INSIDE.value = True
        try:
            self._write(slot, key, function)
            return call(*arguments)
        finally:
            _INSIDE.value = False
            self._leave(slot, is_suspect)

    def _enter(self, is_suspect: bool) -> int | None:
        with self._changed:
            if is_suspect:
                self._alone += 1
                self._changed.wait_for(lambda: not self._running, _TURN)
            else:
                self._changed.wait_for(lambda: not self._alone, _TURN)
            self._running += 1
            return self._free.pop() if self._free else None

    def _leave(self, slot: int | None, is_suspect: bool) -> None:
        if slot is not None:
            self._memory[slot * _SLOT] = 0
        with self._changed:
            self._running -= 1
            self._alone -= is_suspect
            if slot is not None:
                self._free.append(slot)
            self._changed.notify_all()

    def _write(self, slot: int | None, key: bytes, function: str) -> None:
        if slot is None:
            return
        start, text = slot * _SLOT, function.encode()[: _SLOT - _KEY - 3]
        body = bytes([bool(key), len(text)]) + key.ljust(_KEY, b"\0") + text
        self._memory[start + 1 : start + 1 + len(body)] = body
        self._memory[start] = 1  # Last: a record that is not complete does not count.


class _Inside(threading.local):
    value = False
    """Whether this thread is in a watched call."""


_INSIDE = _Inside()

#: Set once, before the process runs its first plan.
_watch: CallWatch | None = None


def start_watch(watch: CallWatch | None) -> None:
    """Watches the calls of all streams that are opened in this process from now on."""
    global _watch
    _watch = watch


def watch_calls(
    function: str, call: Callable[..., Any], has_key: bool = True
) -> Callable[..., Any]:
    """Returns `call`, or in a watched process a function that records and makes the call.

    Calls within calls are not watched: the outer one would wait for the inner one. Without
    `has_key` a call has no digest, and is never refused: the step of an iterator, which depends on
    the steps before it.
    """
    watch = _watch
    if watch is None or watch.is_over or _INSIDE.value:
        return call

    def run(*arguments: Any) -> Any:
        if watch.is_over:
            return call(*arguments)
        return watch.run(function, call, arguments, has_key)

    return run


def refuse_many(rows: int) -> None:
    """Raises where a function would get several rows at once, if calls are watched.

    The engine then calls it with fewer rows, so that only the row is lost that crashes.
    """
    if rows > 1 and _watch is not None and not _watch.is_over:
        raise AbortedError("a process that looks for a crash calls functions row by row")


def _digest(function: str, call: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    """What identifies a call in every process; empty if its arguments cannot be pickled."""
    with suppress(Exception):
        said = (function, getattr(call, "key", None), plain(arguments))
        return blake2b(pickle.dumps(said, protocol=5), digest_size=_KEY).digest()
    return b""
