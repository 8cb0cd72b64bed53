"""The programs of a service, penstock's or TensorFlow's, as command lines.

`python -m tests.integration.chaos.programs ROLE ...` is TensorFlow's dispatcher or worker; it runs
in an environment that has TensorFlow, so nothing here imports penstock.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORKER_TIMEOUT = 2.0
"""Seconds after which a silent worker counts as lost."""


@dataclass(frozen=True)
class Programs:
    """How the processes of one service are started."""

    name: str
    python: str

    def dispatcher(self, port: int, folder: Path) -> list[str]:
        if self.name == "penstock":
            timeout = ["--worker-timeout", str(WORKER_TIMEOUT)]
            return [*self._penstock("dispatcher", port), "--work-dir", str(folder), *timeout]
        return [*self._tensorflow, "dispatcher", str(port), str(folder)]

    def worker(self, dispatcher: int, port: int, reached_at: int) -> list[str]:
        if self.name == "penstock":
            told = ["--dispatcher", f"localhost:{dispatcher}"]
            return [*self._penstock("worker", port), *told,
                    "--worker-address", f"localhost:{reached_at}"]  # fmt: skip
        return [*self._tensorflow, "worker", str(port), str(dispatcher), str(reached_at)]

    def client(self, *arguments: str) -> list[str]:
        return [self.python, "-m", "tests.integration.chaos.client", self.name, *arguments]

    def _penstock(self, role: str, port: int) -> list[str]:
        return [self.python, "-m", "penstock", role, "--port", str(port)]

    @property
    def _tensorflow(self) -> list[str]:
        return [self.python, "-m", "tests.integration.chaos.programs"]


PENSTOCK = Programs("penstock", sys.executable)


def serve(arguments: Sequence[str]) -> None:
    import tensorflow as tf

    service = tf.data.experimental.service
    server: Any
    match arguments:
        case ["dispatcher", port, folder]:
            server = service.DispatchServer(
                service.DispatcherConfig(
                    port=int(port),
                    work_dir=folder,
                    fault_tolerant_mode=True,
                    worker_timeout_ms=int(1000 * WORKER_TIMEOUT),
                )
            )
        case ["worker", port, dispatcher, reached_at]:
            server = service.WorkerServer(
                service.WorkerConfig(
                    dispatcher_address=f"localhost:{dispatcher}",
                    worker_address=f"localhost:{reached_at}",
                    port=int(port),
                    heartbeat_interval_ms=200,
                )
            )
        case _:
            sys.exit(f"programs: expected dispatcher or worker, got {arguments}")
    print("ready", flush=True)
    server.join()


if __name__ == "__main__":
    serve(sys.argv[1:])
