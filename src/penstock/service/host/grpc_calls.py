"""gRPC, as the service uses it: one method, which takes bytes and gives bytes.

The only module that knows gRPC. Who may call, and what the bytes mean, is decided elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from penstock.errors import FailedPreconditionError
from penstock.service.host.envelopes import LARGEST
from penstock.service.host.ports import joined, numeric
from penstock.service.host.security import Security

# grpc tells its caller what goes wrong and, unless told not to when it is loaded, stderr as well.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
import grpc  # type: ignore[import-untyped]

_SERVICE, _METHOD = "penstock.Control", "Call"
_AT_ONCE = 256
"""Requests that a server has in hand; more are turned away, and come again."""

_BOTH = (
    ("grpc.max_receive_message_length", LARGEST),
    ("grpc.max_send_message_length", LARGEST),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)
_SERVER = (
    *_BOTH,
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
)
_CLIENT = (
    *_BOTH,
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    # How soon a dispatcher that came back is found.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 500),
)

CallError = grpc.RpcError


def make_server(
    answer: Callable[[bytes], bytes | None],
    pool: Executor,
    host: str,
    port: int,
    security: Security,
) -> tuple[Any, int]:
    """A server, not yet started, and its port. `answer` gives None to who must not be answered."""

    def handle(envelope: bytes, context: Any) -> bytes:
        if (reply := answer(envelope)) is None:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no proof of the token")
        return reply or b""

    server = grpc.server(pool, options=_SERVER, maximum_concurrent_rpcs=_AT_ONCE)
    method = grpc.unary_unary_rpc_method_handler(handle)
    handlers = grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: method})
    server.add_generic_rpc_handlers((handlers,))
    return server, _bind(server, joined(numeric(host), port), security)


def _bind(server: Any, place: str, security: Security) -> int:
    try:
        if security.certificates is None:
            return int(server.add_insecure_port(place))
        pair = (security.file("server-key.pem"), security.file("server.pem"))
        credentials = grpc.ssl_server_credentials([pair], security.file("ca.pem"), True)
        return int(server.add_secure_port(place, credentials))
    except RuntimeError:
        raise FailedPreconditionError(
            f"no server can listen at {place}; choose another port, and look at the certificates "
            "if there are any"
        ) from None


def make_channel(host: str, port: int, security: Security) -> Any:
    """A channel to a server; it connects when it is first used, and again when it was cut."""
    place = joined(numeric(host), port)
    if security.certificates is None:
        return grpc.insecure_channel(place, _CLIENT)
    credentials = grpc.ssl_channel_credentials(
        security.file("ca.pem"), security.file("client-key.pem"), security.file("client.pem")
    )
    # The certificate is for the name that the user wrote.
    return grpc.secure_channel(
        place, credentials, (*_CLIENT, ("grpc.ssl_target_name_override", host))
    )


def method_of(channel: Any) -> Callable[..., bytes]:
    """What is called with an envelope."""
    method: Callable[..., bytes] = channel.unary_unary(f"/{_SERVICE}/{_METHOD}")
    return method


def is_refused(error: Any) -> bool:
    """Whether the server does not let this client in."""
    return bool(error.code() == grpc.StatusCode.UNAUTHENTICATED)


def is_stranger(error: Any) -> bool:
    """Whether what answers is a server of something else."""
    return bool(error.code() == grpc.StatusCode.UNIMPLEMENTED)


def is_mismatch(error: Any) -> bool:
    """Whether certificates do not fit, so that no later attempt will be better."""
    details = str(error.details() or "")
    return any(sign in details for sign in _MISMATCHES)


def reason_of(error: Any) -> str:
    """Why a call failed, in few words."""
    details = str(error.details() or "")
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return "no answer in time"
    for sign, words in _REASONS:
        if sign in details:
            return words
    return details.rpartition("last error: ")[2][:200] or str(error.code().name).lower()


_MISMATCHES = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER")
_REASONS = (
    ("Connection refused", "connection refused"),
    ("lookup", "the name of the host is not known"),
    ("CERTIFICATE_VERIFY_FAILED", "the other side's certificate is not from the same set"),
    ("WRONG_VERSION_NUMBER", "this side uses certificates and the other does not"),
    ("Socket closed", "the connection was closed; does only one side use certificates?"),
    ("Concurrent RPC limit", "it has too much to do"),
)
