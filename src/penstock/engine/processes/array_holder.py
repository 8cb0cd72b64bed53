"""The holder of a shared array: the one process of a machine that fills the array's memory.

A holder listens under an abstract name that follows from the name of the array and the user, so
there is at most one. It passes the memory to every process that connects, and fills the blocks
that they request. When the holder ends, the kernel frees the name, and a process that has the
memory becomes the holder (`shared_arrays`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock import errors
from penstock.element.columns import Array
from penstock.engine.processes.array_memory import BLOCK, ArrayMemory, runs_of
from penstock.engine.processes.descriptors import receive_descriptor, send_descriptors
from penstock.errors import DataLossError, OpError, kind_of

ReadBytes = Callable[[int, int], Any]
"""Returns the bytes of an array from one offset to another; may raise an `OpError`."""

_GREETING = b"penstock array 1"
_MOST_RUNS = 2048
"""Runs of blocks in one request; more would not fit into one packet."""
_LARGEST = 1 << 16
_CREDENTIALS = struct.Struct("3i")


def _address(name: str) -> str:
    return f"\0penstock-array-{os.getuid()}-{name}"


class ArrayHolder:
    """Fills `memory` with what `read` returns, for this process and processes that connect.

    `unit`: the bytes that `read` is asked for at once, a multiple of a block. Raises OSError if
    this machine has a holder of an array of this name already; without a name, no process connects.
    """

    def __init__(
        self, name: str | None, memory: ArrayMemory, read: ReadBytes, unit: int = BLOCK
    ) -> None:
        self.memory = memory
        self._read, self._unit = read, max(unit // BLOCK, 1)
        self._writing = threading.Lock()
        """Held while blocks are written. The kernel writes to a file by one thread at a time, and
        threads that wait for it inside the kernel use up their cores."""
        self._changed = threading.Condition()
        self._claimed = np.zeros(memory.blocks, np.bool_)  #: guarded by _changed
        """Blocks that a thread is filling."""
        self._sockets: set[socket.socket] = set()  #: guarded by _changed
        self._closed = False  #: guarded by _changed
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if name is not None:
            self._listen(_address(name))

    def _listen(self, address: str) -> None:
        try:
            self._listening.bind(address)
            self._listening.listen(128)
        except BaseException:
            self._listening.close()
            raise
        _OPEN.add(self)
        _start_thread(self._accept)

    def provide(self, runs: list[tuple[int, int]]) -> None:
        """Blocks until the blocks of all runs are filled; raises the error of `read`."""
        wanted = np.zeros(self.memory.blocks, np.bool_)
        for first, stop in runs:
            wanted[first - first % self._unit : stop + -stop % self._unit] = True
        blocks = np.flatnonzero(wanted)
        while (mine := self._claim(blocks)) is not None:
            try:
                for first, stop in runs_of(mine):
                    self._fill(first, stop)
            finally:
                with self._changed:
                    self._claimed[mine] = False
                    self._changed.notify_all()

    def _claim(self, blocks: Array) -> Array | None:
        """Claims missing blocks, after a wait if other threads fill all; None if none is missing.

        A thread that fails gives back its claim, and a waiting thread takes it over.
        """
        with self._changed:
            while True:
                missing = blocks[~self.memory.flags[blocks]]
                if not len(missing):
                    return None
                free: Array = missing[~self._claimed[missing]]
                if len(free):
                    self._claimed[free] = True
                    return free
                self._changed.wait()

    def _fill(self, first: int, stop: int) -> None:
        step = max(self._unit, (4 << 20) // BLOCK)
        for begin in range(first, stop, step):
            start, end = begin * BLOCK, min(min(begin + step, stop) * BLOCK, self.memory.size)
            try:
                data = self._read(start, end)
                with self._writing:
                    self.memory.write(begin, data)
            except OpError:
                raise  # Some are also OSErrors.
            except OSError as error:
                raise DataLossError(f"shared array: it cannot be copied ({error})") from error

    # Other processes

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connected, _ = self._listening.accept()
                with self._changed:
                    if self._closed:
                        connected.close()
                        return
                    self._sockets.add(connected)
                _start_thread(self._serve, connected)

    def _serve(self, connected: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), connected:
            if _is_same_user(connected):
                send_descriptors(connected, _GREETING, [self.memory.descriptor])
                while request := connected.recv(_LARGEST):
                    connected.send(self._answer(request))
        with self._changed:
            self._sockets.discard(connected)

    def _answer(self, request: bytes) -> bytes:
        """An empty text if the blocks are filled, else the class and the text of the error."""
        try:
            firsts, stops = np.frombuffer(request, np.int64).reshape(-1, 2).T.tolist()
            self.provide(list(zip(firsts, stops, strict=True)))
        except Exception as error:
            text = error.message if isinstance(error, OpError) else repr(error)
            return f"{kind_of(error).__name__}\n{text}".encode()[:_LARGEST]
        return b"\n"

    def close(self) -> None:
        """Ends all connections; processes that need more blocks find another holder."""
        with self._changed:
            self._closed = True
            held = [self._listening, *self._sockets]
        for each in held:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def leave_to_parent(self) -> None:
        """In a forked child: closes the sockets, which the parent still uses."""
        for each in [self._listening, *self._sockets]:
            with contextlib.suppress(OSError):  # It was closed before.
                os.close(each.detach())


class NoHolderError(Exception):
    """This machine has no holder, of this user, of an array of this name."""


class HolderConnection:
    """A process's connection to the holder; not thread-safe. Raises NoHolderError."""

    def __init__(self, name: str, size: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.memory = ArrayMemory(size, self._receive_memory(_address(name)))
        except BaseException:
            self._socket.close()
            raise

    def _receive_memory(self, address: str) -> int:
        try:
            self._socket.connect(address)
            if _is_same_user(self._socket):
                greeting, descriptor = receive_descriptor(self._socket, _LARGEST)
                if greeting == _GREETING and descriptor >= 0:
                    return descriptor
        except ConnectionError:
            pass
        raise NoHolderError("no process of this machine has this array")

    def provide(self, runs: list[tuple[int, int]]) -> None:
        """Blocks until the blocks of all runs are filled."""
        for start in range(0, len(runs), _MOST_RUNS):
            try:
                self._socket.send(np.array(runs[start : start + _MOST_RUNS], np.int64).tobytes())
                reply = self._socket.recv(_LARGEST)
            except OSError:
                reply = b""
            if not reply:
                raise NoHolderError("the process that had this array has ended")
            kind, _, text = reply.decode().partition("\n")
            if kind:
                raise getattr(errors, kind, errors.UnknownError)(text)

    def close(self) -> None:
        self._socket.close()


def _is_same_user(connected: socket.socket) -> bool:
    """Whether the process at the other end runs as this user; any process may use the name."""
    found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(found)[1] == os.getuid())


_OPEN: weakref.WeakSet[ArrayHolder] = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    for holder in list(_OPEN):
        holder.leave_to_parent()
    _OPEN.clear()


os.register_at_fork(after_in_child=_leave_all_to_parent)


def _start_thread(task: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=task, args=arguments, name="penstock-arrays", daemon=True).start()
