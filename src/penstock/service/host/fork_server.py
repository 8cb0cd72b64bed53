"""The nursery: a process with one thread, which forks the processes that run plans.

A process with threads must not fork, and a worker has many. So the nursery is forked before the
worker starts any, with everything imported: a new process is there within milliseconds. The kernel
kills the nursery with its worker and all processes with the nursery, also after kill -9.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from typing import NamedTuple, NoReturn

import numpy as np

from penstock.service.host.sockets import receive_descriptor, send_descriptors

AVAILABLE = sys.platform == "linux"
"""Whether this system has what is needed."""

CANNOT_FORK = os.EX_OSERR if hasattr(os, "EX_OSERR") else 71
"""The exit code of a process that could not be started."""

_BORN = struct.Struct("<I")
_DIED = struct.Struct("<Ii")
_PR_SET_PDEATHSIG = 1

Run = Callable[[socket.socket], None]


class Death(NamedTuple):
    """The end of a process: its number, and its exit code, which is negative for a signal."""

    number: int
    code: int


class Nursery:
    """The worker's side. `run` is what every process does with its end of a channel."""

    def __init__(self, run: Run) -> None:
        self._asking, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        if os.fork() == 0:
            self._asking.close()
            _as_child(parent, lambda: _Nurse(asked, run).live())
        asked.close()

    def fileno(self) -> int:
        return self._asking.fileno()

    def start(self, number: int) -> socket.socket:
        """Starts a process that is called `number`; gives the other end of its channel."""
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with far:
                send_descriptors(self._asking, _BORN.pack(number), [far.fileno()])
        except BaseException:
            near.close()
            raise
        return near

    def death(self) -> Death | None:
        """Waits for the next process that ends; None if the nursery itself has ended."""
        data = b""
        with contextlib.suppress(OSError):
            data = self._asking.recv(_DIED.size)
        if not data:
            self._asking.close()
            return None
        return Death(*_DIED.unpack(data))

    def close(self) -> None:
        """Ends the nursery, and all of its processes with it."""
        with contextlib.suppress(OSError):
            self._asking.shutdown(socket.SHUT_RDWR)


class _Nurse:
    """The nursery's own life: forks when it is asked, and tells who has died."""

    def __init__(self, asked: socket.socket, run: Run) -> None:
        self._asked, self._run = asked, run
        self._numbers: dict[int, int] = {}
        self._woken, self._waker = os.pipe()

    def live(self) -> None:
        for end in (self._woken, self._waker):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _do_nothing)
        gc.freeze()  # The collector would write to pages that all processes share.
        while True:
            asked = self._asked.fileno()
            ready, _, _ = select.select([asked, self._woken], [], [])
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._tell_deaths()
            if asked in ready and not self._fork():
                return

    def _fork(self) -> bool:
        """Starts the process that was asked for; whether there may be more."""
        data, descriptor = receive_descriptor(self._asked, _BORN.size)
        if not data:
            return False
        [number] = _BORN.unpack(data)
        channel = socket.socket(fileno=descriptor)
        nursery = os.getpid()
        try:
            process = os.fork()
        except OSError as error:
            print(f"penstock worker: cannot start a process ({error})", file=sys.stderr, flush=True)
            self._tell(number, CANNOT_FORK)
        else:
            if process == 0:
                self._leave()
                _as_child(nursery, lambda: self._run(channel))
            self._numbers[process] = number
        channel.close()
        return True

    def _leave(self) -> None:
        """In a new process: nothing of the nursery is left."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._asked.close()
        os.close(self._woken)
        os.close(self._waker)

    def _tell_deaths(self) -> None:
        while self._numbers:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            self._tell(self._numbers.pop(process), os.waitstatus_to_exitcode(status))

    def _tell(self, number: int, code: int) -> None:
        with contextlib.suppress(OSError):  # The worker is gone, and this process soon, too.
            self._asked.send(_DIED.pack(number, code))


def _as_child(parent: int, live: Callable[[], None]) -> NoReturn:
    """Lives in a new process, and ends it, whatever happens."""
    code = 1
    try:
        _die_with(parent)
        # Ctrl-C and systemd's SIGTERM go to all processes, but the worker decides when they end.
        # Not SIG_IGN, which programs that a function starts would inherit.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _do_nothing)
        with open(os.devnull, encoding="ascii") as nothing:
            os.dup2(nothing.fileno(), 0)
        np.random.seed()  # noqa: NPY002: functions may use it, and must not all draw the same.
        with contextlib.suppress(Exception):  # There may be no place for its words.
            faulthandler.enable(all_threads=False)
        live()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _die_with(parent: int) -> None:
    """Has the kernel kill this process when its parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)  # It ended before.


def _do_nothing(number: int, frame: object) -> None:
    pass
