"""`penstock doctor`: checks this machine and a service; prints what is wrong and what to change."""

from __future__ import annotations

import datetime
import glob
import importlib.util
import os
import platform
import queue
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from penstock.data.dataset import Dataset
from penstock.data.experimental.service.remote_datasets import distribute
from penstock.engine.processes.chunk_memory import can_share
from penstock.errors import OpError
from penstock.service.host.data_client import connect_data
from penstock.service.host.security import CONTROL, Security, Terms, client_handshake
from penstock.service.host.services import parse, session
from penstock.service.host.sockets import listen_tcp, split_address
from penstock.service.protocol.messages import WorkerInfo
from penstock.version import PROTOCOL, VERSION

FINE, DOUBTFUL, WRONG = "ok", "warning", "wrong"
_COLORS = {FINE: "\x1b[32m", DOUBTFUL: "\x1b[33m", WRONG: "\x1b[31m"}


class Finding(NamedTuple):
    """One thing that was checked. `change` says what to do, unless the state is `FINE`."""

    state: str
    subject: str
    text: str
    change: str = ""


def split_error(message: str) -> tuple[str, str]:
    """What is wrong and what to do, from the message of an error, which has both."""
    text, _, change = message.partition("; ")
    return text, change or "see docs/operations.md"


def run(service: str | None, certificates: str | None) -> int:
    """Checks this machine, and the service if one is given; returns 1 if something is wrong."""
    found = print_findings(check_machine(certificates))
    if service is not None:
        found += print_findings(check_service(service))
    wrong = sum(finding.state == WRONG for finding in found)
    doubtful = sum(finding.state == DOUBTFUL for finding in found)
    warnings = "1 warning" if doubtful == 1 else f"{doubtful} warnings"
    print(f"{len(found)} checks: {wrong} wrong, {warnings}")
    return 1 if wrong else 0


def print_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Prints each finding as soon as it is known; returns all of them."""
    found = []
    for finding in findings:
        found.append(finding)
        print(f"{_format_state(finding.state)}  {finding.subject}: {finding.text}", flush=True)
        if finding.change:
            print(f"         to do: {finding.change}", flush=True)
    return found


def _format_state(state: str) -> str:
    padded = f"{state:<7}"
    return f"{_COLORS[state]}{padded}\x1b[0m" if sys.stdout.isatty() else padded


# This machine: versions, limits, memory, secrets and devices

FEW_FILES, MANY_FILES = 1024, 8192
"""Open files: fewer than the first are too few, and the second is enough for any service."""

SMALL_MEMORY = 64 << 20
"""Bytes: less shared memory than this is too little for any batch of images."""

SOON = 30
"""Days: certificates that end sooner should be renewed now."""


def check_machine(certificates: str | None) -> Iterator[Finding]:
    """All findings about this machine. Every check reports its own errors."""
    yield check_versions()
    yield check_files()
    yield check_shared_memory()
    yield check_ports()
    yield from check_secrets(certificates)
    yield from check_devices()


def check_versions() -> Finding:
    found = f"penstock {VERSION} (protocol {PROTOCOL}), Python {platform.python_version()}"
    return Finding(FINE, "versions", f"{found}, NumPy {np.__version__}")


def check_files() -> Finding:
    """Every connection is an open file."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= MANY_FILES:
        return Finding(FINE, "open files", "enough for thousands of readers and workers")
    state = WRONG if hard < FEW_FILES else DOUBTFUL
    return Finding(
        state,
        "open files",
        f"at most {hard}: a dispatcher here has room for {hard // 2} readers and workers",
        f"raise the hard limit to {MANY_FILES}: ulimit -Hn, LimitNOFILE= of systemd, or the "
        "limits of the container",
    )


def check_shared_memory() -> Finding:
    """Workers and readers of one machine share memory, which is no file in /dev/shm."""
    if not can_share():
        return Finding(
            DOUBTFUL,
            "shared memory",
            "this system has no sealed memory files: elements travel through sockets",
            "nothing for correctness; use Linux with /proc for speed on one machine",
        )
    free = find_free_memory()
    if free < SMALL_MEMORY:
        return Finding(
            WRONG,
            "shared memory",
            f"{free / 1e6:.0f} MB of memory are free, which shared memory is a part of",
            "stop other programs, or raise the memory limit of the container",
        )
    return Finding(FINE, "shared memory", f"by descriptors; {free / 1e9:.1f} GB of memory are free")


def find_free_memory() -> int:
    """Bytes that this process may still use: of the machine, or of its control group."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        sizes = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    free = int(sizes["MemAvailable"][0]) * 1024
    limit, used = (_read_number(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    return free if limit is None or used is None else min(free, limit - used)


def _read_number(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):  # No control group, or "max".
        return None


def check_ports() -> Finding:
    try:
        listen_tcp("localhost", 0).close()
    except OpError as error:
        return Finding(WRONG, "ports", *split_error(error.message))
    return Finding(FINE, "ports", "servers can listen on localhost")


def check_secrets(certificates: str | None) -> Iterator[Finding]:
    """The token, and the certificates if there are any."""
    folder = certificates or os.environ.get("PENSTOCK_CERTIFICATES") or None
    try:
        security = Security.of_server("localhost", 0, certificates=folder)
    except OpError as error:
        yield Finding(WRONG, "token", *split_error(error.message))
        return
    far = "" if security.given else ", for programs of this user on this machine only"
    yield Finding(FINE, "token", f"from {security.origin}{far}")
    if folder is None:
        yield Finding(FINE, "certificates", "none: other machines need penstock certs")
        return
    yield check_certificates(security)


def check_certificates(security: Security) -> Finding:
    """Whether both sides can load them, and for how long they are valid."""
    from penstock.cli import certificates

    try:
        security.server_context()
        security.client_context()
    except OpError as error:
        return Finding(WRONG, "certificates", *split_error(error.message))
    assert security.certificates is not None
    path = os.path.join(security.certificates, "server.pem")
    left = (certificates.read_end(path) - datetime.datetime.now(datetime.UTC)).days
    renew = "make a new set with penstock certs, and copy it to every machine"
    if left < 0:
        return Finding(WRONG, "certificates", f"{path} ended {-left} days ago", renew)
    if left < SOON:
        return Finding(DOUBTFUL, "certificates", f"{path} ends in {left} days", renew)
    return Finding(FINE, "certificates", f"valid for {left} days more")


def check_devices(
    has_gpu: Callable[[], bool] = lambda: bool(glob.glob("/dev/nvidia[0-9]*")),
) -> Iterator[Finding]:
    """Whether the installed frameworks see the GPUs of this machine, and can pin memory."""
    frameworks = [name for name in ("torch", "jax") if importlib.util.find_spec(name) is not None]
    if not has_gpu():
        yield Finding(FINE, "GPU", "this machine has none of NVIDIA's")
        return
    if not frameworks:
        yield Finding(
            DOUBTFUL,
            "GPU",
            "there is one, but neither torch nor jax",
            'install one, as in: pip install "penstock[torch]"',
        )
    for name in frameworks:
        yield _CHECKS[name]()


def check_torch() -> Finding:
    import torch

    if not torch.cuda.is_available():
        return Finding(
            WRONG,
            "GPU, torch",
            f"torch {torch.__version__} sees no GPU, but the machine has one",
            "install a build of torch for the CUDA version that nvidia-smi shows",
        )
    try:
        torch.empty(1 << 20, pin_memory=True)
    except RuntimeError as error:
        return Finding(
            WRONG,
            "pinned memory, torch",
            f"1 MB of memory cannot be pinned ({error})",
            "raise the limit of locked memory: ulimit -l unlimited, or that of the container",
        )
    count = torch.cuda.device_count()
    return Finding(FINE, "GPU, torch", f"torch sees {count} of them, and memory can be pinned")


def check_jax() -> Finding:
    import jax

    backend = jax.default_backend()
    if backend == "cpu":
        return Finding(
            WRONG,
            "GPU, jax",
            f"jax {jax.__version__} uses the CPU, but the machine has a GPU",
            'install jax with its plugin for CUDA: pip install "jax[cuda12]"',
        )
    return Finding(FINE, "GPU, jax", f"jax sees {jax.device_count()}, of kind {backend}")


_CHECKS: dict[str, Callable[[], Finding]] = {"torch": check_torch, "jax": check_jax}


# A service: the way of an element, step by step. From this machine to the dispatcher, from this
# machine to every worker, and one element through all of them. A check that depends on a failed
# check is skipped.

_LONGEST_READ = 45.0
"""Seconds; a reader itself gives up a dispatcher or workers that are missing after 30."""

_CONNECT_SECONDS = 5.0
_MOST_WORKERS = 32
"""How many workers are tried."""


def check_service(url: str) -> Iterator[Finding]:
    """All findings about the service at `url`."""
    scheme, addresses = parse(url, "doctor")
    if scheme != "grpc":
        yield Finding(
            WRONG,
            "service",
            f"{scheme}:// names no dispatcher that runs already",
            "give the address of one, as in grpc://localhost:5050",
        )
        return
    ways = [check_connection(address) for address in addresses.split(",")]
    yield from ways
    if all(way.state == WRONG for way in ways):
        return
    yield from _check_dispatcher(url, addresses)


def check_connection(address: str) -> Finding:
    """Whether the name is known, and something listens at the port."""
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
    """Proves the token before the connection is closed, because a dispatcher logs it otherwise.

    Whether that works is another check, so errors are ignored here.
    """
    deadline = time.monotonic() + _CONNECT_SECONDS
    with suppress(OpError, OSError):
        security = Security.of_client(address)
        if (context := security.client_context()) is not None:
            connected = context.wrap_socket(connected, server_hostname=host)
        client_handshake(connected, security.token, Terms(), deadline, CONTROL)
        connected.close()


def _check_dispatcher(url: str, addresses: str) -> Iterator[Finding]:
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
        yield check_worker(worker, dispatcher.security, dispatcher.own_host)
    yield check_reading(url)


def check_worker(worker: dict[str, Any], security: Security, here: str) -> Finding:
    """Whether a reader on this machine can get data from a worker."""
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
