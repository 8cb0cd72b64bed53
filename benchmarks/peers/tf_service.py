"""The elements through tf.data service, whose dispatcher and worker are processes of their own.

They are read eagerly, as users do, and without compression, which makes everything slower here.
`python -m benchmarks.peers.tf_service ROLE` is one of those.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from functools import cache, partial
from typing import Any

import tensorflow as tf

from benchmarks.peers import elements
from benchmarks.peers.elements import UnderWay
from benchmarks.peers.serve import Program, serve

service = tf.data.experimental.service


def start_server(*words: str) -> str:
    """Starts a server, which runs until this process's group is killed; returns its output."""
    command = [sys.executable, "-m", "benchmarks.peers.tf_service", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    _SERVERS.append(process)
    return process.stdout.readline().strip()


_SERVERS: list[subprocess.Popen[str]] = []


@cache
def running() -> str:
    """The address of a dispatcher with one worker."""
    target = start_server("dispatcher")
    start_server("worker", target.split("://")[1])
    return target


def run_server(role: str, *arguments: str) -> None:
    server: Any
    if role == "dispatcher":
        server = service.DispatchServer()
        print(server.target, flush=True)
    else:
        server = service.WorkerServer(service.WorkerConfig(dispatcher_address=arguments[0]))
        print("ready", flush=True)
    server.join()


def transfer(name: str, n: int) -> Iterable[Any]:
    array = tf.constant(elements.PROGRAMS[name]())
    dataset = tf.data.Dataset.from_tensors(array).repeat()
    remote = service.distribute("parallel_epochs", running(), compression=None)
    return UnderWay(dataset.apply(remote), n)


PROGRAMS: dict[str, Program] = {name: partial(transfer, name) for name in elements.PROGRAMS}

if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_server(*sys.argv[1:])
    else:
        serve(PROGRAMS, "tensorflow-cpu")
