"""The client's side of data connections: shared memory where possible, else TCP.

A worker must prove that it has the token before one of its messages is decoded.
"""

from __future__ import annotations

import contextlib
import ssl
import time

from penstock.errors import (
    InvalidArgumentError,
    UnauthenticatedError,
    UnavailableError,
)
from penstock.service.host.authentication import ProcessLoss, Terms, client_handshake
from penstock.service.host.channels import Channel, DescriptorChannel, TlsChannel
from penstock.service.host.chunk_memory import MappedSlabs, can_share
from penstock.service.host.compression import mode_of
from penstock.service.host.data_connection import Connection
from penstock.service.host.security import Security
from penstock.service.host.sockets import connect_tcp, connect_unix, limit_silence, split_address
from penstock.service.protocol import timing
from penstock.service.protocol.messages import WorkerInfo


def connect_data(
    info: WorkerInfo,
    security: Security,
    protocol: str | None,
    here: str,
    compression: str | None,
    plan: bytes = bytes(32),
    patience: float = timing.WORKER_TIMEOUT,
) -> Connection:
    """A connection to a worker: by `protocol`, or by shared memory where that can be, else tcp.

    `plan` is the digest of the plan that will be read: the worker runs each in its own process.
    The connection ends when the network carries nothing for `patience` seconds.
    """
    terms = Terms(mode_of(compression), plan=plan)
    if protocol not in (None, "tcp", "shm"):
        raise InvalidArgumentError(
            f'data_transfer_protocol must be None, "tcp" or "shm", got {protocol!r}'
        )
    shared = can_share() and info.host == here and "shm" in info.transfers
    if protocol == "shm" and not shared:
        raise UnavailableError(
            f"worker {info.address} shares no memory with this process ({info.host} and {here}); "
            'use data_transfer_protocol "tcp" or None'
        )
    if shared and protocol != "tcp":
        with contextlib.suppress(*(() if protocol else (UnavailableError,))):
            return _connect(info, "shm", security, Terms(plan=plan), patience)
    return _connect(info, "tcp", security, terms, patience, near=info.host == here)


def _connect(
    info: WorkerInfo,
    protocol: str,
    security: Security,
    terms: Terms,
    patience: float,
    near: bool = False,
) -> Connection:
    address = info.transfers.get(protocol)
    if address is None:
        raise UnavailableError(f"worker {info.address} hands out no data by {protocol}")
    try:
        channel, process_loss = _open(protocol, address, security, terms, patience, near)
    except UnauthenticatedError as error:
        raise UnauthenticatedError(
            f"worker {info.address} at {protocol} {address} {error.message}; all of a service "
            f"need one token, and this one comes from {security.origin}"
        ) from None
    except (OSError, InvalidArgumentError) as error:  # What the handshake raises is of them, too.
        raise UnavailableError(
            f"worker {info.address}: no data from {protocol} {address} ({error}); is the worker "
            "running, and can this machine reach that address? If not, start the worker with a "
            "worker_address or data_transfer_address that can be reached from here"
        ) from None
    channel.limit(patience)
    mapped = MappedSlabs() if protocol == "shm" else None
    made = Connection(channel, f"worker {info.address} ({protocol})", client=True, mapped=mapped)
    made.process_loss = process_loss
    return made


def _open(
    protocol: str, address: str, security: Security, terms: Terms, patience: float, near: bool
) -> tuple[Channel, ProcessLoss]:
    deadline = time.monotonic() + timing.HANDSHAKE
    connect = connect_unix if protocol == "shm" else connect_tcp
    made = connect(address, timing.HANDSHAKE)
    try:
        limit_silence(made, patience)
        if near:
            ports = {"own_port": made.getsockname()[1], "other_port": made.getpeername()[1]}
            terms = terms._replace(**ports)
        context = security.client_context() if protocol == "tcp" else None
        if context is not None:
            made = context.wrap_socket(made, server_hostname=split_address(address)[0])
        process_loss = client_handshake(made, security.token, terms, deadline).process_loss
        if isinstance(made, ssl.SSLSocket):
            return TlsChannel(made), process_loss
        return (DescriptorChannel(made) if protocol == "shm" else Channel(made)), process_loss
    except BaseException:
        made.close()
        raise
