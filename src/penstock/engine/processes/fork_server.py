"""The fork server: a process with one thread, which forks processes for its owner.

A process with threads must not fork, and a worker or a user's program has many. So a worker forks
its fork server before it starts any thread, and a user's program starts one as a new program
(`boot.py`). The fork server has all modules imported: a process then starts within milliseconds.
The kernel kills the fork server with its owner, and the processes with the fork server, also after
kill -9.
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
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import NamedTuple, NoReturn

import numpy as np

from penstock.engine.heap import keep_large_arrays
from penstock.engine.processes import boot
from penstock.engine.processes.descriptors import receive_descriptor, send_descriptors
from penstock.engine.processes.surroundings import find_search_path

AVAILABLE = sys.platform == "linux"
"""Whether this system can kill a process together with its parent.

Elsewhere a fork server and its processes end when their owner's end of their sockets is closed.
"""

_THREAD_LIMITS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

CANNOT_FORK = os.EX_OSERR
"""The exit code that is reported for a process that could not be started."""

is_child = False
"""Whether this process was started by a fork server, or is one."""

_START = struct.Struct("<I")
_EXIT = struct.Struct("<Ii")
_PR_SET_PDEATHSIG = 1
_KIND = socket.SOCK_SEQPACKET if AVAILABLE else socket.SOCK_STREAM

Run = Callable[[socket.socket], None]


class ProcessExit(NamedTuple):
    """The number of a process that ended, and its exit code, which is negative for a signal."""

    number: int
    code: int


def describe_exit(code: int) -> str:
    """Says in words how a process ended, from its exit code."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = (signal.strsignal(-code) or "").lower()
    except ValueError:
        name = ""
    return f"was killed by signal {-code}" + (f" ({name})" if name else "")


class ForkServer:
    """The owner's side; `requests` is its end of the socket to the fork server."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests

    @classmethod
    def fork(cls, run: Run) -> ForkServer:
        """Forks a fork server from this process. Every process calls `run` with its channel."""
        requests, asked = cls.socketpair()
        parent = os.getpid()
        if os.fork() == 0:
            requests.close()
            serve(asked, parent, run)
        asked.close()
        return cls(requests)

    @staticmethod
    def socketpair() -> tuple[socket.socket, socket.socket]:
        """Makes the two ends of a socket: of the owner, and of the fork server or a process."""
        return socket.socketpair(socket.AF_UNIX, _KIND)

    def fileno(self) -> int:
        return self._requests.fileno()

    def start(self, number: int) -> socket.socket:
        """Starts process `number`; returns the owner's end of its channel."""
        near, far = self.socketpair()
        try:
            with far:
                send_descriptors(self._requests, _START.pack(number), [far.fileno()])
        except BaseException:
            near.close()
            raise
        return near

    def wait_exit(self) -> ProcessExit | None:
        """Blocks until a process ends; returns None if the fork server itself has ended."""
        data = b""
        with contextlib.suppress(OSError):
            data = self._requests.recv(_EXIT.size)
        if not data:
            self._requests.close()
            return None
        return ProcessExit(*_EXIT.unpack(data))

    def close(self) -> None:
        """Ends the fork server, and all of its processes with it."""
        with contextlib.suppress(OSError):
            self._requests.shutdown(socket.SHUT_RDWR)


def start_program(name: str, asked: socket.socket, threads: int) -> subprocess.Popen[bytes]:
    """Starts a new program that is a fork server; `name` says of which processes (`boot.py`).

    It finds the modules that this program finds. The kernel kills it with the calling thread.

    `threads`: how many each native library (BLAS, OpenMP) uses in each of its processes, unless
    the environment says so. If every process used a thread for each core, they would wait for each
    other: on 16 cores, 14 processes multiplied matrices 65 times as slowly.
    """
    # OMP_NUM_THREADS counts for all libraries whose own variable is not set.
    limit = os.environ.get("OMP_NUM_THREADS", str(threads))
    limits = dict.fromkeys(_THREAD_LIMITS, limit)
    code = f"import sys; sys.path[:] = {find_search_path()!r}; {boot.program(name)}"
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return subprocess.Popen(
        [sys.executable, *flags, "-c", code, str(asked.fileno()), str(os.getpid())],
        pass_fds=[asked.fileno()],
        stdin=subprocess.DEVNULL,
        env={**limits, **os.environ},
        start_new_session=True,  # Ctrl-C in the terminal does not reach it.
    )


def serve(asked: socket.socket, parent: int, run: Run) -> NoReturn:
    """Makes this process a fork server; `parent` is its owner."""
    _run_child(parent, lambda: _ForkLoop(asked, run).run())


class _ForkLoop:
    """The process's side: forks when the owner asks for it, and reports exits."""

    def __init__(self, asked: socket.socket, run: Run) -> None:
        self._asked, self._run = asked, run
        self._numbers: dict[int, int] = {}
        self._woken, self._waker = os.pipe()

    def run(self) -> None:
        """Runs until the owner closes its end of the socket."""
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
                self._report_exits()
            if asked in ready and not self._fork():
                return

    def _fork(self) -> bool:
        """Starts the process that the owner asked for; returns False if the owner is gone."""
        try:
            data, descriptor = receive_descriptor(self._asked, _START.size)
        except ConnectionResetError:
            return False  # The owner ended before it had received all reports.
        if not data:
            return False
        [number] = _START.unpack(data)
        channel = socket.socket(fileno=descriptor)
        fork_server = os.getpid()
        try:
            process = os.fork()
        except OSError as error:
            print(f"penstock: cannot start a process ({error})", file=sys.stderr, flush=True)
            self._report(number, CANNOT_FORK)
        else:
            if process == 0:
                self._leave()
                _run_child(fork_server, lambda: self._run(channel))
            self._numbers[process] = number
        channel.close()
        return True

    def _leave(self) -> None:
        """Called in a new process: closes what belongs to the fork server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._asked.close()
        os.close(self._woken)
        os.close(self._waker)

    def _report_exits(self) -> None:
        while self._numbers:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            self._report(self._numbers.pop(process), os.waitstatus_to_exitcode(status))

    def _report(self, number: int, code: int) -> None:
        # The owner may be gone; the kernel is then about to kill this process.
        with contextlib.suppress(OSError):
            self._asked.send(_EXIT.pack(number, code))


def _run_child(parent: int, work: Callable[[], None]) -> NoReturn:
    """Does `work` in a new process, and always ends the process."""
    global is_child
    is_child = True
    code = 1
    try:
        _die_with(parent)
        keep_large_arrays()
        # Ctrl-C and systemd's SIGTERM go to all processes, but the owner decides when they end.
        # Not SIG_IGN, which programs that a function starts would inherit.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _do_nothing)
        with open(os.devnull, encoding="ascii") as nothing:
            os.dup2(nothing.fileno(), 0)
        # Functions may use it, and processes must draw different numbers.
        np.random.seed()
        with contextlib.suppress(Exception):  # stderr may be closed.
            faulthandler.enable(all_threads=False)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _die_with(parent: int) -> None:
    """Asks the kernel to kill this process when its parent ends."""
    if AVAILABLE:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)  # The parent ended before the call.


def _do_nothing(number: int, frame: object) -> None:
    pass
