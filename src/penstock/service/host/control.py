"""Control: requests to the dispatcher, and its answers.

A request is repeated until it is answered, so whoever handles it must not mind to see it twice.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from penstock import errors
from penstock.engine.endings import Ending
from penstock.errors import (
    CancelledError,
    OpError,
    UnauthenticatedError,
    UnavailableError,
    UnknownError,
)
from penstock.service.host.envelopes import (
    nonce_of,
    open_reply,
    open_request,
    seal_reply,
    seal_request,
)
from penstock.service.host.grpc_calls import (
    CallError,
    is_mismatch,
    is_refused,
    is_stranger,
    make_channel,
    make_server,
    method_of,
    reason_of,
)
from penstock.service.host.ports import check_port, joined
from penstock.service.host.security import Security, is_loopback, split_address
from penstock.service.host.threads import DaemonPool
from penstock.service.protocol.messages import Refused, Reply, Request

_THREADS = 16
_ATTEMPT = 10.0
"""Seconds after which a request that is not answered is sent again."""
_PATIENCE = 5.0
"""Seconds that an attempt may take at least, however short the time in which it is repeated."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5

_LONG, _WARN = 10.0, 2.0
"""Whoever has so much time is told after so many seconds that there is no answer yet."""

_LOG = logging.getLogger("penstock.service")


class ControlServer:
    """Answers requests with what `handle` returns or raises. It stops when nobody holds it.

    It has its port from the beginning, and answers from `start` on.
    """

    def __init__(
        self, handle: Callable[[Request], Reply], host: str, port: int, security: Security
    ) -> None:
        security.check_exposure(host, port)
        check_port(host, port)
        pool = DaemonPool(_THREADS, "penstock-control")
        # A function that does not know `self`: the server's threads would keep it for ever.
        answer = _answering(handle, security.token)
        self._server, self.port = make_server(answer, pool, host, port, security)
        self._end = Ending(self, _stop_server, self._server, pool)

    def start(self) -> None:
        """Begins to answer."""
        self._server.start()

    def stop(self) -> None:
        """Finishes what it has in hand and gives the port back; twice is fine."""
        self._end()


def _stop_server(server: Any, pool: DaemonPool) -> None:
    with contextlib.suppress(ValueError):  # It runs already.
        server.start()  # One that never ran would keep its port.
    server.stop(1.0).wait(5.0)
    pool.shutdown()


def _answering(handle: Callable[[Request], Reply], token: bytes) -> Callable[[bytes], bytes | None]:
    def answer(envelope: bytes) -> bytes | None:
        try:
            request, nonce = open_request(token, envelope)
        except UnauthenticatedError:
            return None
        except OpError as error:
            return seal_reply(token, nonce_of(envelope), refusal(error))
        try:
            return seal_reply(token, nonce, handle(request))
        except Exception as error:
            return seal_reply(token, nonce, refusal(error))

    return answer


def refusal(error: Exception) -> Refused:
    """An error as an answer."""
    if isinstance(error, OpError):
        return Refused(type(error).__name__, error.message)
    return Refused("InternalError", f"the dispatcher failed with {type(error).__name__}: {error}")


def refused_as(reply: Refused) -> OpError:
    """An answer as the error that it was."""
    kind = getattr(errors, reply.kind, None)
    if isinstance(kind, type) and issubclass(kind, OpError):
        return kind(reply.message)
    return UnknownError(f"{reply.kind}: {reply.message}")


def is_transient(reply: Reply) -> bool:
    """Whether the dispatcher cannot answer for now (its disk is full), and is asked again."""
    return isinstance(reply, Refused) and reply.kind == UnavailableError.__name__


class ControlClient:
    """Calls the dispatcher at `address` (host:port), from any thread, through its restarts.

    Args:
        address: `host:port`.
        security: The token and the certificates.
        timeout: For how many seconds a call is repeated while nobody answers.
    """

    def __init__(self, address: str, security: Security, timeout: float = 30.0) -> None:
        self._host, self._port = split_address(address)
        self.address = joined(self._host, self._port)
        self._security, self._timeout = security, timeout
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._process = 0
        self._method: Callable[..., bytes]
        self._end: Callable[[], Any] = lambda: None

    def call(self, request: Request, timeout: float | None = None) -> Reply:
        """The answer; raises the error that the dispatcher answered with.

        UnavailableError if it has not answered for `timeout` seconds. Without a `timeout`, it may
        take some seconds more to answer an attempt that has reached it.
        """
        envelope = seal_request(self._security.token, request)
        if timeout is None:
            reply = self._repeat(envelope, self._timeout, _PATIENCE)
        else:
            reply = self._repeat(envelope, timeout, 0.001)
        if isinstance(reply, Refused):
            raise refused_as(reply)
        return reply

    def _repeat(self, envelope: bytes, timeout: float, least: float) -> Reply:
        start, attempts, pause = time.monotonic(), 0, _FIRST_PAUSE
        left, silent = timeout, timeout > _LONG
        while True:
            attempts += 1
            reply, reason = self._attempt(envelope, max(min(left, _ATTEMPT), least))
            if reply is not None and not is_transient(reply):
                return reply
            left = timeout - (time.monotonic() - start)
            if left <= 0:
                if reply is not None:
                    return reply
                raise self._unavailable(max(timeout, int(timeout - left)), attempts, reason)
            if silent and timeout - left > _WARN:
                silent = False
                _LOG.warning(
                    "dispatcher %s does not answer (%s); it is asked for %.0f s more",
                    *(self.address, reason, left),
                )
            self._closed.wait(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _attempt(self, envelope: bytes, seconds: float) -> tuple[Reply | None, str]:
        """The answer if there is one, and else, or if it says so itself, why to ask again."""
        try:
            answer = self._connected()(envelope, timeout=seconds)
        except CallError as error:
            failed = error
        except ValueError:  # grpc's word for a channel that another thread has closed.
            self._check_open()
            raise CancelledError(f"dispatcher {self.address}: this program ends") from None
        else:
            reply = self._opened(answer, envelope)
            return reply, reply.message if isinstance(reply, Refused) else ""
        return None, self._retried(failed)  # Out here: what it raises says all there is to say.

    def _opened(self, answer: bytes, envelope: bytes) -> Reply:
        try:
            return open_reply(self._security.token, answer, envelope)
        except UnauthenticatedError:
            raise self._unauthenticated("does not know the token") from None

    def _connected(self) -> Callable[..., bytes]:
        """The call itself, on a channel of this process: a child must not use its parent's."""
        with self._lock:
            self._check_open()
            if self._process != os.getpid():
                self._process = os.getpid()
                channel = make_channel(self._host, self._port, self._security)
                self._method = method_of(channel)
                self._end = Ending(self, channel.close)
            return self._method

    def _retried(self, error: Exception) -> str:
        """Why a call failed that is worth another attempt; raises if this one is not."""
        self._check_open()
        if is_refused(error):
            raise self._unauthenticated("does not accept the token of this process")
        if is_stranger(error):
            raise UnavailableError(
                f"{self.address} is not a penstock dispatcher; look at the address, or start one "
                f"on another port with: penstock dispatcher --port {self._port + 1}"
            )
        if is_mismatch(error):
            raise UnauthenticatedError(
                f"dispatcher {self.address}: {reason_of(error)}; give both sides certificates of "
                "one set (penstock certs makes one), or none"
            )
        return reason_of(error)

    def _unauthenticated(self, what: str) -> UnauthenticatedError:
        return UnauthenticatedError(
            f"dispatcher {self.address} {what} (from {self._security.origin}); both sides look for "
            "it in the argument token, PENSTOCK_TOKEN, PENSTOCK_TOKEN_FILE, the folder of "
            "certificates and a private file of their user, in this order: give both the same"
        )

    def _unavailable(self, timeout: float, attempts: int, reason: str) -> UnavailableError:
        there = "" if is_loopback(self._host) else f" on {self._host}"
        return UnavailableError(
            f"dispatcher {self.address} has not answered for {timeout:g} s ({attempts} "
            f"attempt{'s' * (attempts != 1)}, last: {reason}); is it running? start one{there} "
            f"with: penstock dispatcher --port {self._port}"
        )

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise CancelledError(f"dispatcher {self.address}: the connection was closed here")

    def close(self) -> None:
        """Ends every call that is under way; twice is fine."""
        self._closed.set()
        self._end()
