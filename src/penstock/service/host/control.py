"""Control: requests to the dispatcher, and its answers.

A request is repeated until it is answered, so whoever handles it must not mind to see it twice.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable

from penstock.engine.endings import Ending
from penstock.errors import (
    DataLossError,
    UnauthenticatedError,
    UnavailableError,
)
from penstock.service.host.admission import Admission
from penstock.service.host.answering import Answering, Caller, refusal, refused_as
from penstock.service.host.calls import CallConnections
from penstock.service.host.envelopes import decode_reply, encode
from penstock.service.host.handshake import CONTROL
from penstock.service.host.ports import joined, listen
from penstock.service.host.security import Security, is_loopback, split_address
from penstock.service.protocol.messages import Refused, Reply, Request

__all__ = ["ControlClient", "ControlServer", "refusal", "refused_as"]

_ATTEMPT = 10.0
"""Seconds after which a request that is not answered is sent again."""
_PATIENCE = 5.0
"""Seconds that an attempt may take at least, however short the time in which it is repeated."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
_GRACE = 1.0
"""Seconds in which a server that stops finishes what it has in hand."""

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
        listening = listen(host, port)
        self.port: int = listening.getsockname()[1]
        # Nothing here knows `self`: the server's threads would keep it for ever.
        self._admission = Admission(
            [listening],
            security,
            CONTROL,
            lambda connected, admitted: Caller(connected, admitted.key, answering),
            grace=_GRACE,
        )
        answering = Answering(handle)
        self._end = Ending(self, _stop, self._admission, answering)

    def start(self) -> None:
        """Begins to answer."""
        self._admission.start()

    def stop(self) -> None:
        """Finishes what it has in hand and gives the port back; twice is fine."""
        self._end()


def _stop(admission: Admission, answering: Answering) -> None:
    admission.close()
    answering.close()


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
        self._calls = CallConnections(self._host, self._port, security)
        Ending(self, self._calls.close)

    def call(self, request: Request, timeout: float | None = None) -> Reply:
        """The answer; raises the error that the dispatcher answered with.

        UnavailableError if it has not answered for `timeout` seconds. Without a `timeout`, it may
        take some seconds more to answer an attempt that has reached it.
        """
        message = encode(request)
        if timeout is None:
            reply = self._repeat(message, self._timeout, _PATIENCE)
        else:
            reply = self._repeat(message, timeout, 0.001)
        if isinstance(reply, Refused):
            raise refused_as(reply)
        return reply

    def _repeat(self, message: bytes, timeout: float, least: float) -> Reply:
        start, attempts, pause = time.monotonic(), 0, _FIRST_PAUSE
        left, silent = timeout, timeout > _LONG
        while True:
            attempts += 1
            reply, reason = self._attempt(message, max(min(left, _ATTEMPT), least))
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

    def _attempt(self, message: bytes, seconds: float) -> tuple[Reply | None, str]:
        """The answer if there is one, and else, or if it says so itself, why to ask again."""
        try:
            answer = self._calls.call(message, time.monotonic() + seconds)
        except (OSError, EOFError) as error:
            failed = error
        else:
            reply = decode_reply(answer)
            return reply, reply.message if isinstance(reply, Refused) else ""
        return None, self._retried(failed)  # Out here: what it raises says all there is to say.

    def _retried(self, error: OSError | EOFError) -> str:
        """Why a call failed that is worth another attempt; raises if this one is not."""
        match error:
            case UnauthenticatedError():
                raise self._unauthenticated(error.message)
            case DataLossError():
                raise UnavailableError(
                    f"{self.address} is not a penstock dispatcher; look at the address, or start "
                    f"one on another port with: penstock dispatcher --port {self._port + 1}"
                )
        if (mismatch := _mismatch_in(error)) is not None:
            raise UnauthenticatedError(
                f"dispatcher {self.address}: {mismatch}; give both sides certificates of "
                "one set (penstock certs makes one), or none"
            )
        return _reason_of(error)

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

    def close(self) -> None:
        """Ends every call that is under way; twice is fine."""
        self._calls.close()
        self._closed.set()


def _reason_of(error: OSError | EOFError) -> str:
    """Why a call failed, in few words."""
    match error:
        case TimeoutError():
            return "no answer in time"
        case ConnectionRefusedError():
            return "connection refused"
        case socket.gaierror():
            return "the name of the host is not known"
        case EOFError() | ConnectionResetError() | BrokenPipeError() | ssl.SSLEOFError():
            return "the connection was closed"
    return getattr(error, "strerror", None) or str(error)


def _mismatch_in(error: OSError | EOFError) -> str | None:
    """How certificates do not fit, where that is why; no later attempt would be better."""
    if not isinstance(error, ssl.SSLError):
        return None
    text = str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        if "match" in error.verify_message:  # The name or the address.
            return f"the other side's certificate is for another host ({error.verify_message})"
        if "expired" in error.verify_message or "not yet" in error.verify_message:
            return f"the other side's {error.verify_message}"
        return "the other side's certificate is not from the same set"
    return next((words for sign, words in _MISMATCHES if sign in text), None)


_MISMATCHES = (
    ("the other side uses certificates", "the other side uses certificates and this one does not"),
    ("WRONG_VERSION_NUMBER", "this side uses certificates and the other does not"),
    ("RECORD_LAYER_FAILURE", "this side uses certificates and the other does not"),
    ("ALERT_UNKNOWN_CA", "the other side says that this certificate is not from the same set"),
    ("ALERT_CERTIFICATE_EXPIRED", "the other side says that this certificate has expired"),
    ("ALERT_DECRYPT_ERROR", "the other side says that this certificate is not from the same set"),
    ("ALERT_BAD_CERTIFICATE", "the other side says that this certificate is not usable"),
    ("ALERT_CERTIFICATE", "the other side says that this certificate is not usable"),
)
