"""What `penstock doctor` checks on this machine: versions, limits, memory, secrets and devices."""

from __future__ import annotations

import datetime
import glob
import importlib.util
import os
import platform
import resource
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from penstock.cli.findings import DOUBTFUL, FINE, WRONG, Finding, split_error
from penstock.engine.processes.chunk_memory import can_share
from penstock.errors import OpError
from penstock.service.protocol.versions import PROTOCOL
from penstock.version import VERSION

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
    from penstock.service.host.sockets import listen_tcp

    try:
        listen_tcp("localhost", 0).close()
    except OpError as error:
        return Finding(WRONG, "ports", *split_error(error.message))
    return Finding(FINE, "ports", "servers can listen on localhost")


def check_secrets(certificates: str | None) -> Iterator[Finding]:
    """The token, and the certificates if there are any."""
    from penstock.service.host.security import Security

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


def check_certificates(security: Any) -> Finding:
    """Whether both sides can load them, and for how long they are valid."""
    from penstock.service.host import certificates

    try:
        security.server_context()
        security.client_context()
    except OpError as error:
        return Finding(WRONG, "certificates", *split_error(error.message))
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
