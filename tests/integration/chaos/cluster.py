"""A service of real processes: a dispatcher with a journal, workers behind proxies, and readers.

Every process has a fixed port, also after a restart. Leaving the `with` block ends all of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import selectors
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.integration.chaos.plans import Plan
from tests.integration.chaos.programs import Programs
from tests.integration.chaos.proxy import Proxy

ROOT = Path(__file__).resolve().parents[3]


def free_port() -> int:
    """A port that stays free while its server is away: outgoing connections get higher ones."""
    while True:
        port = random.randrange(10_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("localhost", port)):
            return port


class Program:
    """A process that can be killed and started again any number of times.

    `source` is the folder of another installation of penstock, for the process to import.
    """

    def __init__(self, command: list[str], log: Path, source: Path | None = None) -> None:
        self._command, self._log, self.source = command, log, source
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, wait: bool = True) -> None:
        installed = [] if self.source is None else [str(self.source)]
        paths = os.pathsep.join([*installed, str(ROOT), *filter(None, sys.path)])
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1"}
        if "-m" in self._command and self._command[0] == sys.executable:
            quiet["PYTHONPATH"] = paths
        with self._log.open("ab") as log:
            # Without a buffer: reading the first line must not take bytes of the next one.
            self._process = subprocess.Popen(
                self._command,
                bufsize=0,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | quiet,
            )
        if wait:
            self.first_line()

    def first_line(self) -> None:
        assert self.process.stdout is not None
        if not self.process.stdout.readline():
            raise RuntimeError(f"{' '.join(self._command)}: {self.last_words()}")

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def kill(self) -> bytes:
        """Kills it with SIGKILL, and returns its remaining output."""
        if self._process is None:
            return b""
        process, self._process = self._process, None
        process.kill()
        process.wait()
        with process:
            assert process.stdout is not None
            os.set_blocking(process.stdout.fileno(), True)
            return process.stdout.read()

    def last_words(self) -> str:
        lines = [line for line in self._log.read_text().splitlines() if line.strip()]
        return lines[-1] if lines else "it said nothing"

    def signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def limit_files(self, size: int) -> None:
        """No file of this process may grow beyond `size` bytes: a full disk."""
        if self._process is not None:
            limits = (size, resource.RLIM_INFINITY)
            resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, limits)


class Reader(Program):
    """A client process, and all that it has read. It reads an element when it is allowed to."""

    def __init__(self, command: list[str], log: Path, state: Path) -> None:
        super().__init__(command, log)
        self._state = state
        self._rest = b""
        self._counted = 0
        """Elements that were counted since it was last allowed to read one."""
        self.elements: list[list[int]] = []
        self.ended = False

    def start(self, wait: bool = True) -> None:
        super().start(wait)
        os.set_blocking(self.process.stdout.fileno(), False)  # type: ignore[union-attr]
        self._counted = 1

    def allow(self) -> None:
        """Lets it read one more element for each that was counted, so it is at most one ahead."""
        if self._process is not None and self._counted:
            with contextlib.suppress(BrokenPipeError):  # It has ended.
                self.process.stdin.write(b"x" * self._counted)  # type: ignore[union-attr]
            self._counted = 0

    def read(self) -> bool:
        """Takes the output that is there; returns False once the client has ended."""
        piece = os.read(self.process.stdout.fileno(), 1 << 16)  # type: ignore[union-attr]
        self._take(piece)
        return bool(piece)

    def _take(self, piece: bytes) -> None:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if line == b"end":
                self.ended = True
            elif line != b"ready":
                self.elements.append(json.loads(line))
                self._counted += 1

    def kill_and_forget(self) -> None:
        """Kills it; elements that it read after its last saved state do not count."""
        self._take(self.kill())
        self._rest = b""
        del self.elements[self.saved :]

    @property
    def saves(self) -> bool:
        """Whether it saves states at all; TensorFlow's readers do not."""
        return self._state.exists()

    @property
    def saved(self) -> int:
        """How many elements it had read when it last saved its state."""
        return int(json.loads(self._state.read_text())["count"]) if self.saves else 0


class Cluster:
    """The processes of one service, and their readers."""

    def __init__(self, programs: Programs, folder: Path, workers: int = 2) -> None:
        self.programs, self.folder = programs, folder
        self.data = folder / "data"
        self.data.mkdir(exist_ok=True)
        self._stack = ExitStack()
        self.port = free_port()
        work_dir = folder / "journal"
        self.dispatcher = self._program(programs.dispatcher(self.port, work_dir), "dispatcher")
        self.workers: list[Program] = []
        self.proxies: list[Proxy] = []
        self.ports = [self.port]
        """The ports of the dispatcher and of the workers behind their proxies."""
        for number in range(workers):
            port = free_port()
            self.ports.append(port)
            proxy = Proxy(port)
            self._stack.callback(proxy.close)
            self.proxies.append(proxy)
            command = programs.worker(self.port, port, proxy.port)
            self.workers.append(self._program(command, f"worker-{number}"))
        self.readers: list[Reader] = []

    def _program(self, command: list[str], name: str) -> Program:
        program = Program(command, self.folder / f"{name}.log")
        self._stack.callback(program.kill)
        return program

    def __enter__(self) -> Cluster:
        try:
            self.dispatcher.start()
            for worker in self.workers:
                worker.start(wait=False)
            for worker in self.workers:
                worker.first_line()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for program in (self.dispatcher, *self.workers):
            program.signal(signal.SIGCONT)
        self._stack.close()

    def read(self, plan: Plan, n: int, pace: float) -> list[Reader]:
        """Starts the readers of a plan."""
        for number in range(plan.readers):
            state = self.folder / f"reader-{number}.state"
            url = f"grpc://localhost:{self.port}"
            where = (url, str(self.data), str(n), str(pace), str(state))
            command = self.programs.client(plan.name, *where)
            reader = Reader(command, self.folder / f"reader-{number}.log", state)
            self._stack.callback(reader.kill)
            reader.start()
            self.readers.append(reader)
        return self.readers

    def ready(self, timeout: float) -> list[Reader]:
        """The readers that have sent output, or have ended."""
        with selectors.DefaultSelector() as selector:
            for reader in self.readers:
                if reader._process is not None and not reader.ended:
                    selector.register(reader.process.stdout, selectors.EVENT_READ, reader)  # type: ignore[arg-type]
            return [key.data for key, _ in selector.select(timeout)]
