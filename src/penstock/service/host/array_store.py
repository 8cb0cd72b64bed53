"""Shared arrays between machines: clients upload parts to the dispatcher, workers fetch them there.

A client keeps its arrays, and the workers of its machine share their memory. It uploads a part when
a worker of another machine wants it, and the dispatcher stores the part as long as a registered
plan has the array. Only a client that registers a dataset for other clients uploads everything.
Names come from the network: nothing but a valid name becomes a key.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO

import msgspec
import numpy as np

from penstock.engine.formats.files import translate_errors
from penstock.engine.processes.array_shares import ArrayShare
from penstock.errors import InvalidArgumentError, NotFoundError, OpError, UnavailableError
from penstock.service.host.runtime import MACHINE, Runtime
from penstock.service.protocol import timing
from penstock.service.protocol.messages import (
    GetArray,
    GetArrayReply,
    PutArray,
    PutArrayReply,
    Reply,
    Request,
)

Call = Callable[[Request], Reply]
"""Calls the dispatcher."""

PART = 4 << 20
"""Bytes of an array in one message."""

_AHEAD = 16
"""Parts behind the last part that a worker asked for, which clients send as well."""

_ARRAYS = b"penstock arrays "


def join_array_names(names: Iterable[str], plan: bytes) -> bytes:
    """The encoded plan behind a line with the names of its shared arrays, if it has any."""
    listed = ",".join(sorted(set(names))).encode()
    return _ARRAYS + listed + b"\n" + plan if listed else plan


def split_array_names(data: bytes) -> tuple[list[str], bytes]:
    """The names of the shared arrays of a plan, and the encoded plan."""
    if not data.startswith(_ARRAYS):
        return [], data
    line, _, plan = data.partition(b"\n")
    return line[len(_ARRAYS) :].decode().split(","), plan


def sync_folder(path: str) -> None:
    """Makes sure that renamed files keep their names after a power failure."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class _StoredArray:
    """The parts of one array that have arrived, in a file without a name, or one at `path`.

    The file at `path` is called `.part` until all parts have arrived. The lock of `ArrayStore`
    guards all fields.
    """

    def __init__(self, now: float, path: str | None) -> None:
        self.total = 0
        self.parts = np.zeros(0, np.bool_)
        self.wanted: dict[int, None] = {}
        """Parts that workers have asked for, the earliest first."""
        self.asked, self.last_asked = False, 0
        self.heard = now
        """When a client last said that it has the array."""
        self._path = path
        self.file = self._open_file(path)

    def _open_file(self, path: str | None) -> IO[bytes]:
        if path is None:
            return tempfile.TemporaryFile()
        if not os.path.exists(path):
            return open(f"{path}.part", "w+b")
        self.set_total(os.path.getsize(path))
        self.parts[:] = True
        return open(path, "r+b")

    def set_total(self, total: int) -> None:
        if not self.total:
            self.total, self.parts = total, np.zeros(-(-total // PART), np.bool_)
        if total != self.total or total < 1:
            raise InvalidArgumentError(f"PutArray: the array has {self.total} bytes, not {total}")

    def write(self, offset: int, data: bytes) -> None:
        part, size = offset // PART, min(PART, self.total - offset)
        if offset % PART or not 0 <= part < len(self.parts) or len(data) != size:
            raise InvalidArgumentError(f"PutArray: {len(data)} bytes at {offset} are not a part")
        if not self.parts[part]:
            with translate_errors(tempfile.gettempdir(), "dispatcher"):
                os.pwrite(self.file.fileno(), data, offset)
                self.parts[part] = True
                self._keep_if_complete()
        self.wanted.pop(part, None)

    def _keep_if_complete(self) -> None:
        if self._path is not None and self.parts.all():
            os.fsync(self.file.fileno())
            os.replace(f"{self._path}.part", self._path)
            sync_folder(os.path.dirname(self._path))

    def next_wanted(self, everything: bool = False) -> int:
        """The offset of the part to send next; -1 if there is none.

        Once workers have requested a part, the parts behind it follow without a request. Every call
        moves the part that it returns to the end of the queue, so that several clients send
        different parts.
        """
        part = next(iter(self.wanted), -1)
        if part >= 0:
            self.wanted[part] = self.wanted.pop(part)
        elif self.asked:
            behind = self.parts[self.last_asked : self.last_asked + _AHEAD]
            part = self.last_asked + int(behind.argmin()) if not behind.all() else -1
        if part < 0 and everything and not self.parts.all():
            part = int(self.parts.argmin())
        return part * PART if part >= 0 else -1

    def read(self, offset: int) -> bytes:
        """The part at an offset; empty if it has not arrived."""
        self.last_asked = part = offset // PART
        self.asked = True
        if part < len(self.parts) and self.parts[part]:
            return os.pread(self.file.fileno(), PART, part * PART)
        self.wanted[part] = None
        return b""


class ArrayStore:
    """The arrays for which `is_known` returns True. Thread-safe.

    In `folder`, which is made if it does not exist, complete arrays survive restarts.
    """

    def __init__(
        self,
        is_known: Callable[[str], bool],
        now: Callable[[], float] = time.monotonic,
        folder: str | None = None,
    ) -> None:
        self._is_known, self._now, self._folder = is_known, now, folder
        self._lock = threading.Lock()
        self._arrays: dict[str, _StoredArray] = {}  #: guarded by _lock
        if folder is not None:
            with translate_errors(folder, "dispatcher"):
                os.makedirs(folder, mode=0o700, exist_ok=True)

    def put(self, name: str, total: int, offset: int, data: bytes, everything: bool = False) -> int:
        """Adds a part, unless `data` is empty; returns the offset of the part to send next.

        With `everything`, parts are sent that no worker has asked for, until the array is complete.
        """
        with self._lock:
            array = self._find(name)
            array.set_total(total)
            array.heard = self._now()
            if data:
                array.write(offset, data)
            return array.next_wanted(everything)

    def get(self, name: str, offset: int) -> bytes:
        """The part at an offset; empty if no client has sent it yet."""
        with self._lock:
            array = self._find(name)
            data = array.read(max(offset, 0))
            silence = self._now() - array.heard
        if not data and silence > timing.ARRAY_SILENCE:
            raise UnavailableError(
                f"distribute: no client that has array {name[:12]} of this dataset has been heard "
                f"of for {silence:.0f} s"
            )
        return data

    def _find(self, name: str) -> _StoredArray:
        if name not in self._arrays:
            if not re.fullmatch(r"[0-9a-f]{32,64}", name) or not self._is_known(name):
                raise NotFoundError(f"array {name[:12]!r} is in no dataset of this dispatcher")
            with translate_errors(self._folder or tempfile.gettempdir(), "dispatcher"):
                path = None if self._folder is None else os.path.join(self._folder, name)
                self._arrays[name] = _StoredArray(self._now(), path)
        return self._arrays[name]

    def tidy(self) -> None:
        """Removes the arrays that no plan has any more."""
        with self._lock:
            for name in [name for name in self._arrays if not self._is_known(name)]:
                self._arrays.pop(name).file.close()
            for file in os.listdir(self._folder) if self._folder is not None else ():
                if not self._is_known(file.removesuffix(".part")):
                    os.unlink(os.path.join(self._folder or "", file))

    def close(self) -> None:
        """Closes the files; later calls fail."""
        with self._lock:
            for array in self._arrays.values():
                array.file.close()
            self._arrays.clear()
            self._is_known = lambda name: False


def fetch_array(call: Call, name: str, start: int, stop: int, runtime: Runtime = MACHINE) -> bytes:
    """The bytes of an array from the dispatcher; blocks until a client has sent them."""
    first = start - start % PART
    parts = [_fetch_part(call, name, offset, runtime) for offset in range(first, stop, PART)]
    return b"".join(parts)[start - first : stop - first]


def _fetch_part(call: Call, name: str, offset: int, runtime: Runtime) -> bytes:
    pause = runtime.event()
    while True:
        reply = call(GetArray(name, offset))
        assert isinstance(reply, GetArrayReply)
        if reply.data:
            return reply.data
        pause.wait(timing.ARRAY_PAUSE)


class ArrayUploads:
    """Sends parts of the arrays of one stream, in a thread, until it is closed.

    The dispatcher cannot call a client, so the client asks which parts workers want. While they
    want none, it asks at growing intervals.
    """

    def __init__(
        self, call: Call, shares: Sequence[ArrayShare], runtime: Runtime = MACHINE
    ) -> None:
        self._call, self._shares = call, shares
        self._closed = False  # Set by `close` in any thread; a stale value costs one more round.
        self._woken = runtime.event()
        if shares:
            runtime.start(self._run, "penstock-uploads")

    def hurry(self) -> None:
        """Asks at once: a worker of another machine is about to need an array."""
        self._woken.set()

    def close(self) -> None:
        """May be repeated."""
        self._closed = True
        self._woken.set()

    def _run(self) -> None:
        pause = timing.ARRAY_PAUSE
        while not self._closed:
            sent = [self._send_wanted(share) for share in self._shares]
            pause = timing.ARRAY_PAUSE if any(sent) else min(2 * pause, timing.ARRAY_QUESTION)
            if self._woken.wait(pause):
                pause = timing.ARRAY_PAUSE
                self._woken.clear()

    def _send_wanted(self, share: ArrayShare) -> bool:
        """Sends the parts of one array that workers want; returns whether there were any."""
        sent = False
        # The dispatcher may be gone, or restarted without the dataset: `_run` asks again later.
        with contextlib.suppress(OpError):
            for _ in _send_parts(self._call, share):
                sent = True
                if self._closed:
                    break
        return sent


def send_everything(call: Call, share: ArrayShare) -> None:
    """Sends the dispatcher all parts of an array that it does not have."""
    for _ in _send_parts(call, share, everything=True):
        pass


def _send_parts(call: Call, share: ArrayShare, everything: bool = False) -> Iterator[int]:
    """Sends parts as long as workers want any; yields the offset of each."""
    request = PutArray(share.reference.name, share.reference.nbytes, everything=everything)
    while (wanted := _find_wanted(call, request)) >= 0:
        part = bytes(share.read(wanted, min(wanted + PART, request.total)))
        request = msgspec.structs.replace(request, offset=wanted, data=part)
        yield wanted


def _find_wanted(call: Call, request: PutArray) -> int:
    """Sends a part, if the request has one; returns the offset of the part to send next, or -1."""
    reply = call(request)
    assert isinstance(reply, PutArrayReply)
    return reply.wanted
