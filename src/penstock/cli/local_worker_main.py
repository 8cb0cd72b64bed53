"""The main program of the workers of `local://`: imports what they need once, and forks them.

A worker ends when the reader closes its channel, as `penstock worker --stop-with-stdin` does.
"""

from __future__ import annotations

import json
import os
import socket

from penstock.cli import server_processes
from penstock.data.experimental.service.servers import WorkerServer
from penstock.engine.processes import fork_server
from penstock.service.host import telemetry
from penstock.service.host import worker_server as worker_server  # Loads before the first fork.
from penstock.service.host.server_setup import WorkerConfig

_LARGEST = 1 << 12


def main(requests: int, parent: int) -> None:
    """Makes this process the fork server of workers, for the program `parent`."""
    telemetry.prepare()
    fork_server.serve(socket.socket(fileno=requests), parent, run)


def run(channel: socket.socket) -> None:
    """Runs a worker; the first message is its configuration, which holds the token."""
    with channel:
        message = channel.recv(_LARGEST)
        os.dup2(channel.fileno(), 0)
    if message:
        config = WorkerConfig(**json.loads(message))
        server_processes.run_worker(WorkerServer(config, start=False), quiet=True, with_stdin=True)
