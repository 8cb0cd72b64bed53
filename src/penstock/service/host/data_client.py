"""The client's side of data connections: shared memory where possible, else TCP.

A worker must prove that it has the token before one of its messages is decoded.
"""

from __future__ import annotations

import ssl
import time

from penstock.engine.processes.chunk_memory import MappedSlabs, can_share
from penstock.errors import (
    InvalidArgumentError,
    UnauthenticatedError,
    UnavailableError,
)
from penstock.service.host.authentication import ProcessLoss, Terms, client_handshake
from penstock.service.host.channels import Channel, DescriptorChannel, TlsChannel
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
    own_host: str,
    compression: str | None,
    plan: bytes = bytes(32),
    patience: float = timing.WORKER_TIMEOUT,
) -> Connection:
    """A connection to a worker: by `protocol`, or else by shared memory if possible, else TCP.

    `plan` is the digest of the plan that will be read: a worker runs each plan in a process of its
    own. `own_host` is the `host_id` of this process. The connection fails when the network carries
    nothing for `patience` seconds.
    """
    terms = Terms(mode_of(compression), plan=plan)
    if protocol not in (None, "tcp", "shm"):
        raise InvalidArgumentError(
            f'data_transfer_protocol must be None, "tcp" or "shm", got {protocol!r}'
        )
    shared = can_share() and info.host == own_host and "shm" in info.transfers
    if protocol == "shm" and not shared:
        raise UnavailableError(
            f"worker {info.address} shares no memory with this process ({info.host} and "
            f'{own_host}); use data_transfer_protocol "tcp" or None'
        )
    if shared and protocol != "tcp":
        try:
            return _connect(info, "shm", security, terms=Terms(plan=plan), patience=patience)
        except UnavailableError:
            if protocol == "shm":
                raise
    return _connect(
        info, "tcp", security, terms=terms, patience=patience, same_host=info.host == own_host
    )


def _connect(
    info: WorkerInfo,
    protocol: str,
    security: Security,
    *,
    terms: Terms,
    patience: float,
    same_host: bool = False,
) -> Connection:
    address = info.transfers.get(protocol)
    if address is None:
        raise UnavailableError(f"worker {info.address} hands out no data by {protocol}")
    try:
        channel, process_loss = _open_channel(
            protocol, address, security, terms=terms, patience=patience, same_host=same_host
        )
    except UnauthenticatedError as error:
        raise UnauthenticatedError(
            f"worker {info.address} at {protocol} {address} {error.message}; all processes "
            f"of a service need one token, and this one comes from {security.origin}"
        ) from None
    except (OSError, InvalidArgumentError) as error:  # Errors of the handshake are OSErrors, too.
        raise UnavailableError(
            f"worker {info.address}: no data from {protocol} {address} ({error}); is the worker "
            "running, and can this machine reach that address? If not, start the worker with a "
            "worker_address or data_transfer_address that can be reached from here"
        ) from None
    channel.set_receive_timeout(patience)
    mapped = MappedSlabs() if protocol == "shm" else None
    connection = Connection(
        channel, f"worker {info.address} ({protocol})", client=True, mapped=mapped
    )
    connection.process_loss = process_loss
    return connection


def _open_channel(
    protocol: str,
    address: str,
    security: Security,
    *,
    terms: Terms,
    patience: float,
    same_host: bool,
) -> tuple[Channel, ProcessLoss]:
    deadline = time.monotonic() + timing.HANDSHAKE
    connect = connect_unix if protocol == "shm" else connect_tcp
    connected = connect(address, timing.HANDSHAKE)
    try:
        limit_silence(connected, patience)
        if same_host:
            own_port, other_port = connected.getsockname()[1], connected.getpeername()[1]
            terms = terms._replace(own_port=own_port, other_port=other_port)
        context = security.client_context() if protocol == "tcp" else None
        if context is not None:
            connected = context.wrap_socket(connected, server_hostname=split_address(address)[0])
        process_loss = client_handshake(connected, security.token, terms, deadline).process_loss
        if isinstance(connected, ssl.SSLSocket):
            return TlsChannel(connected), process_loss
        return (
            DescriptorChannel(connected) if protocol == "shm" else Channel(connected)
        ), process_loss
    except BaseException:
        connected.close()
        raise
