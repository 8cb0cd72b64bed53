"""A service for one test: a dispatcher, workers in this process, and workers that can be killed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from penstock.data.experimental import service
from tests.integration.chaos.cluster import Program, free_port
from tests.integration.chaos.programs import PENSTOCK

FEW = 16
"""The most elements requested at once. Few, so that faults come in the middle of the work."""


class Stage:
    """The programs of one test, which end with it. `kept`: the dispatcher has a journal."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self.port = free_port()
        self.url = f"grpc://localhost:{self.port}"
        self._names = iter(range(100))

    def dispatcher(self, **options: Any) -> service.DispatchServer:
        """A dispatcher in this process."""
        config = service.DispatcherConfig(port=self.port, **options)
        return self._stack.enter_context(service.DispatchServer(config))

    def own_dispatcher(self, kept: bool = True, source: Path | None = None) -> Program:
        """A dispatcher that can be killed, perhaps of another installation of penstock."""
        command = PENSTOCK.dispatcher(self.port, self._folder / "journal")
        if not kept:
            at = command.index("--work-dir")
            del command[at : at + 2]
        return self._start_program(command, source)

    def worker(self, port: int = 0) -> service.WorkerServer:
        """A worker in this process."""
        config = service.WorkerConfig(dispatcher_address=f"localhost:{self.port}", port=port)
        return self._stack.enter_context(service.WorkerServer(config))

    def own_worker(self, port: int | None = None, source: Path | None = None) -> Program:
        """A worker that can be killed and restarted on its port."""
        port = port or free_port()
        return self._start_program(PENSTOCK.worker(self.port, port, port), source)

    def _start_program(self, command: list[str], source: Path | None = None) -> Program:
        log = self._folder / f"program-{next(self._names)}.log"
        program = Program(command, log, source)
        self._stack.callback(program.kill)
        program.start()
        return program

    def distribute(self, mode: Any = "distributed_epoch", **options: Any) -> Callable[..., Any]:
        options.setdefault("max_outstanding_requests", FEW)
        return service.distribute(mode, self.url, **options)

    def status(self) -> dict[str, Any]:
        return service.status(self.url)

    def until(self, true: Callable[[dict[str, Any]], bool]) -> None:
        """Waits until the status is as it should be."""
        never = threading.Event()
        while not true(self.status()):
            never.wait(0.05)


@contextmanager
def open_stage(folder: Path) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(folder, stack)
