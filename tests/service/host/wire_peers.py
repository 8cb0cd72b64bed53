"""Two ends of a data connection, in one process or in two."""

import contextlib
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.element import nest
from penstock.element.chunk import Chunk
from penstock.engine.processes.chunk_memory import host_id
from penstock.service.host.admission import DataListener
from penstock.service.host.data_client import connect_data
from penstock.service.host.data_connection import Connection
from penstock.service.host.security import Security
from penstock.service.protocol.data_messages import Rows
from penstock.service.protocol.messages import WorkerInfo

SECURITY = Security(b"a token of these tests, 32 bytes!")


def info_of(transfers: dict[str, str]) -> WorkerInfo:
    return WorkerInfo("worker", "localhost:1", host_id(), dict(transfers))


@contextlib.contextmanager
def open_link(
    protocol: str, compression: str | None = None, security: Security = SECURITY
) -> Iterator[tuple[Connection, Connection]]:
    """A client's end and a worker's."""
    arrived: queue.Queue[Connection] = queue.Queue()
    over = threading.Event()

    def handle(connection: Connection) -> None:
        arrived.put(connection)
        over.wait()

    with DataListener(handle, security) as listener:
        info = info_of(listener.transfers)
        with connect_data(info, security, protocol, host_id(), compression) as client:
            try:
                yield client, arrived.get()
            finally:
                over.set()


def in_thread(call: Any, *args: Any) -> threading.Thread:
    thread = threading.Thread(target=call, args=args, daemon=True)
    thread.start()
    return thread


def receive_all(connection: Connection) -> None:
    """Receives messages until the connection fails."""
    while True:
        connection.receive()


def rows_in(worker: Connection, client: Connection, size: int, fill: int) -> Any:
    """One array through the connection, and the segment it lies in."""
    sender = in_thread(worker.send_rows, 1, 0, rows_of(size, fill))
    message, columns = client.receive()
    sender.join()
    assert isinstance(message, Rows)
    assert columns is not None
    return columns[0], message.segment


def chunk(*columns: Any) -> Chunk:
    return Chunk(nest.tuple_of(len(columns)), list(columns), len(columns[0]))


def rows_of(size: int, fill: int = 0) -> Chunk:
    """One element of so many bytes."""
    return chunk(np.full((1, size), fill, np.uint8))


PROGRAM = """
import json, sys
import numpy as np
from penstock.service.host.admission import DataListener
from penstock.service.protocol.data_messages import Done, Fetch
from tests.service.host.wire_peers import SECURITY, rows_of

def handle(connection):
    while True:
        message, _ = connection.receive()
        if isinstance(message, Fetch):
            for ordinal in range(message.start, message.stop):
                connection.send_rows(message.request, ordinal, rows_of(200_000, ordinal % 251))
            connection.send(Done(message.request))

with DataListener(handle, SECURITY) as listener:
    print(json.dumps(listener.transfers), flush=True)
    sys.stdin.read()
"""
"""A worker that answers a fetch with 200,000 bytes for each element."""


@contextlib.contextmanager
def worker_process() -> Iterator[tuple[WorkerInfo, "subprocess.Popen[str]"]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        try:
            yield info_of(json.loads(process.stdout.readline())), process
        finally:
            process.kill()
