"""What `penstock doctor URL` checks of a service: the way of an element, step by step.

From this machine to the dispatcher, from this machine to every worker, and one element through all
of them. A check that cannot work after one that failed is not made.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from penstock.cli.findings import DOUBTFUL, FINE, WRONG, Finding, split_error
from penstock.data.dataset import Dataset
from penstock.data.experimental.service.remote_datasets import distribute
from penstock.errors import OpError
from penstock.service.protocol.messages import WorkerInfo
from penstock.version import VERSION

_LONGEST_READ = 45.0
"""Seconds; a reader itself gives up a dispatcher or workers that are missing after 30."""

_CONNECT_SECONDS = 5.0
_MOST_WORKERS = 32
"""How many workers are tried."""


def check_service(url: str) -> Iterator[Finding]:
    """All findings about the service at `url`."""
    from penstock.service.host.services import parse

    scheme, addresses = parse(url, "doctor")
    if scheme != "grpc":
        yield Finding(
            WRONG,
            "service",
            f"{scheme}:// names no dispatcher that runs already",
            "give the address of one, as in grpc://localhost:5050",
        )
        return
    ways = [check_way(address) for address in addresses.split(",")]
    yield from ways
    if all(way.state == WRONG for way in ways):
        return
    yield from _check_dispatcher(url, addresses)


def check_way(address: str) -> Finding:
    """Whether the name is known, and something listens at the port."""
    from penstock.service.host.sockets import split_address

    subject = f"way to {address}"
    try:
        host, port = split_address(address)
        began = time.perf_counter()
        with socket.create_connection((host, port), timeout=_CONNECT_SECONDS) as connected:
            seconds = time.perf_counter() - began
            _prove_token(connected, address, host)
    except OpError as error:
        return Finding(WRONG, subject, *split_error(error.message))
    except socket.gaierror as error:
        return Finding(
            WRONG,
            subject,
            f"this machine knows no address of the name ({error.strerror})",
            "correct the name, or add it to the DNS or to /etc/hosts",
        )
    except OSError as error:
        return Finding(
            WRONG,
            subject,
            f"nothing answers there ({error.strerror or error})",
            "start the dispatcher with this --host and --port, and open the port in firewalls "
            "and network policies",
        )
    return Finding(FINE, subject, f"connected in {1000 * seconds:.1f} ms")


def _prove_token(connected: socket.socket, address: str, host: str) -> None:
    """Ends the check of a way in order: a dispatcher logs connections that prove no token.

    Whether that works is another check, so errors are ignored here.
    """
    from penstock.service.host.authentication import CONTROL, Terms, client_handshake
    from penstock.service.host.security import Security

    deadline = time.monotonic() + _CONNECT_SECONDS
    with suppress(OpError, OSError):
        security = Security.of_client(address)
        if (context := security.client_context()) is not None:
            connected = context.wrap_socket(connected, server_hostname=host)
        client_handshake(connected, security.token, Terms(), deadline, CONTROL)
        connected.close()


def _check_dispatcher(url: str, addresses: str) -> Iterator[Finding]:
    from penstock.service.host.session import session

    try:
        dispatcher = session(addresses)
        began = time.perf_counter()
        functions = dispatcher.functions  # Its first use compares versions, and proves the token.
        seconds = time.perf_counter() - began
        status = dispatcher.status()
    except OpError as error:
        yield Finding(WRONG, "dispatcher", *split_error(error.message))
        return
    text = f"knows the token; answers in {1000 * seconds:.1f} ms; takes functions {functions}"
    yield Finding(FINE, "dispatcher", text)
    if not status["workers"]:
        start = f"start one: penstock worker --dispatcher {addresses.split(',')[0]}"
        yield Finding(WRONG, "workers", "the dispatcher has none", start)
        return
    for worker in status["workers"][:_MOST_WORKERS]:
        yield check_worker(worker, dispatcher.security, dispatcher.here)
    yield check_reading(url)


def check_worker(worker: dict[str, Any], security: Any, here: str) -> Finding:
    """Whether a reader on this machine can get data from a worker."""
    from penstock.service.host.data_client import connect_data

    subject = f"worker {worker['address']}"
    info = WorkerInfo(
        worker=worker["worker"],
        address=worker["address"],
        host=worker["host"],
        transfers=worker.get("transfers") or {"tcp": worker["address"]},
    )
    try:
        connection = connect_data(info, security, None, here, None)
    except OpError as error:
        return Finding(WRONG, subject, *split_error(error.message))
    peer = connection.peer
    connection.close()
    if worker["version"] != VERSION:
        return Finding(
            DOUBTFUL,
            subject,
            f"runs penstock {worker['version'] or 'of an unknown version'}, and this is {VERSION}",
            "finish the upgrade; releases next to each other work together",
        )
    if worker["state"] != "here":
        return Finding(
            DOUBTFUL,
            subject,
            f"is {worker['state']}",
            "suspected: a reader cannot reach it; draining: it is about to end",
        )
    return Finding(FINE, subject, f"reached by {peer.rpartition('(')[2].rstrip(')')}")


def check_reading(url: str) -> Finding:
    """Reads one element; the thread that reads may outlive this call, and not the program."""
    findings: queue.SimpleQueue[Finding] = queue.SimpleQueue()
    threading.Thread(target=lambda: findings.put(_read_element(url)), daemon=True).start()
    try:
        return findings.get(timeout=_LONGEST_READ)
    except queue.Empty:
        what = f"no element came within {_LONGEST_READ:.0f} s"
        return Finding(WRONG, "reading", what, f"see what the workers do: penstock top {url}")


def _read_element(url: str) -> Finding:
    """Reads one element of an anonymous job, which the dispatcher forgets with its reader."""
    began = time.perf_counter()
    try:
        found = list(Dataset.range(1).apply(distribute("distributed_epoch", url)))
    except OpError as error:
        return Finding(WRONG, "reading", *split_error(error.message))
    seconds = time.perf_counter() - began
    if [int(element) for element in found] != [0]:
        return Finding(WRONG, "reading", f"one element was expected, got {found}", "report it")
    return Finding(FINE, "reading", f"one element through the service in {1000 * seconds:.0f} ms")
