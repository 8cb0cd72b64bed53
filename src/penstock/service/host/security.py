"""Security: the token and the certificates of a service, and the handshake that proves the token.

A plan contains code, so a peer without the token is rejected before anything is decoded. On one
machine nothing needs to be configured: each user has a private file with a token, made when it is
first needed. A secret in a file that other users can read or write is refused.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import secrets
import shlex
import socket
import ssl
import stat
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock import version
from penstock.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)
from penstock.service.host.sockets import is_loopback, join_address, split_addresses

_GIVE = (
    "set PENSTOCK_TOKEN (or PENSTOCK_TOKEN_FILE) to one secret for the dispatcher, its workers and "
    "its clients, or PENSTOCK_CERTIFICATES to a folder made with: penstock certs"
)

_NO_TLS = (
    "anyone on the network between the machines can read functions and data, and change data; "
    "make certificates with: penstock certs FOLDER --host NAME, and set PENSTOCK_CERTIFICATES to a "
    "copy of that folder for the dispatcher, its workers and its clients"
)

_WARNED: set[str] = set()
"""Addresses of dispatchers whose exposure was logged: a program may open many readers of one."""

SHORTEST = 16
"""Bytes of the shortest token that is accepted."""

_LONGEST = 4096

_TOKEN_COMMAND = 'python -c "import secrets; print(secrets.token_hex(32))"'

ROOT = 0

_OWN_FOLDER = "name a folder that does not exist yet, which is made private"

_LOG = logging.getLogger("penstock.service")


@dataclass(frozen=True)
class Security:
    """The token, and the folder of certificates if a server or a client uses TLS.

    `given`: the user configured the token, so that other machines may have it; else it comes from
    a private file of this user.
    """

    token: bytes = field(repr=False)
    certificates: str | None = None
    origin: str = "the argument token"
    given: bool = True

    @classmethod
    def of_server(
        cls,
        host: str,
        port: int,
        token: str | bytes | None = None,
        certificates: str | None = None,
    ) -> Security:
        """For a server at `host`; raises if other machines can reach it and no token was given."""
        found = _find_secrets(token, certificates)
        found.check_exposure(host, port)
        found.warn_of_exposure(f"server at {join_address(host, port)}", host)
        return found

    @classmethod
    def of_client(
        cls, address: str, token: str | bytes | None = None, certificates: str | None = None
    ) -> Security:
        """For a client or a worker of the dispatcher at `address`, or at one of several."""
        found = _find_secrets(token, certificates)
        hosts = [host for host, _ in split_addresses(address)]
        farthest = next((host for host in hosts if not is_loopback(host)), hosts[0])
        if not found.given and not is_loopback(farthest):
            raise UnauthenticatedError(
                f"dispatcher {address} is on another machine, and no token was given; {_GIVE}"
            )
        if address not in _WARNED:
            found.warn_of_exposure(f"dispatcher {address}", farthest)
            _WARNED.add(address)
        return found

    def check_exposure(self, host: str, port: int) -> None:
        """Raises FailedPreconditionError if other machines reach `host` and no token was given."""
        if not self.given and not is_loopback(host):
            raise FailedPreconditionError(
                f"{host}:{port} can be reached from other machines, and no token was given; {_GIVE}"
            )

    def warn_of_exposure(self, who: str, host: str) -> None:
        """Logs a warning if data would cross a network without encryption."""
        if self.certificates is None and not is_loopback(host):
            _LOG.warning("%s: without TLS, %s", who, _NO_TLS)

    def _find_file(self, name: str) -> str:
        assert self.certificates is not None
        path = os.path.join(self.certificates, name)
        if not os.path.isfile(path):
            raise NotFoundError(
                f"certificates: {path!r} does not exist; make a working set with: "
                f"penstock certs {self.certificates}"
            )
        return path

    def server_context(self) -> ssl.SSLContext | None:
        """TLS for a server, which requires client certificates; None without TLS."""
        return self._context(ssl.PROTOCOL_TLS_SERVER, "server") if self.certificates else None

    def client_context(self) -> ssl.SSLContext | None:
        """TLS for a client, which checks the server's certificate and name; None without TLS."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT, "client") if self.certificates else None

    def _context(self, protocol: int, role: str) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        certificate, key = self._find_file(f"{role}.pem"), self._find_file(f"{role}-key.pem")
        authority = self._find_file("ca.pem")
        check_secret(key, os.stat(key), "certificates")
        for path in (authority, certificate):
            check_unchanged(path, "certificates")
        try:
            context.load_verify_locations(authority)
            context.load_cert_chain(certificate, key)
        except ssl.SSLError as error:
            raise InvalidArgumentError(
                f"certificates: {self.certificates!r} has no usable {role} certificate ({error}); "
                "make a working set with: penstock certs"
            ) from None
        return context


def _find_secrets(token: str | bytes | None, certificates: str | None) -> Security:
    folder = certificates or os.environ.get("PENSTOCK_CERTIFICATES") or None
    if folder is not None:
        folder = os.path.abspath(os.path.expanduser(folder))
        if not os.path.isdir(folder):
            raise NotFoundError(
                f"certificates: there is no folder {folder!r}; make a working set with: "
                f"penstock certs {folder}"
            )
    return find_token(token, folder)


def find_token(token: str | bytes | None = None, folder: str | None = None) -> Security:
    """With the first of: the argument, the environment, `folder` (of certificates), the user's
    file."""
    if token is not None:
        return Security(check_token(token, "token"), folder)
    if value := os.environ.get("PENSTOCK_TOKEN"):
        return Security(check_token(value, "PENSTOCK_TOKEN"), folder, "PENSTOCK_TOKEN")
    if path := os.environ.get("PENSTOCK_TOKEN_FILE"):
        origin = f"{path}, which --token-file or PENSTOCK_TOKEN_FILE names"
        return Security(read_token(path, "PENSTOCK_TOKEN_FILE"), folder, origin)
    if folder is not None:
        path = os.path.join(folder, "token")
        return Security(read_token(path, "certificates"), folder, path)
    return _read_user_token()


def check_token(token: str | bytes, call: str) -> bytes:
    """The given token as bytes, without space around it; raises if it is too short."""
    value = (token.encode() if isinstance(token, str) else bytes(token)).strip()
    if len(value) < SHORTEST:
        raise InvalidArgumentError(
            f"{call}: a token must have at least {SHORTEST} characters, got {len(value)}; "
            f"make one with: {_TOKEN_COMMAND}"
        )
    return value


def read_token(path: str, call: str) -> bytes:
    """The token in a file that the user named; raises if other users can read or write it."""
    try:
        with open(os.path.expanduser(path), "rb") as file:
            check_secret(path, os.fstat(file.fileno()), call)
            return check_token(file.read(_LONGEST), f"{call}: {path!r}")
    except FileNotFoundError:
        raise NotFoundError(
            f"{call}: {path!r} does not exist; write a token into it, made with: {_TOKEN_COMMAND}"
        ) from None
    except PermissionDeniedError:
        raise
    except OSError as error:
        raise PermissionDeniedError(
            f"{call}: {path!r} cannot be read ({error.strerror}); make it readable for this user"
        ) from None


def write_token(path: str) -> bytes:
    """Writes a new token into a new private file, and returns the token that is in it.

    Of several processes that do this at once, one writes its token and all return that one.
    """
    token = secrets.token_hex(32).encode()
    mine = f"{path}.{secrets.token_hex(8)}"
    file = os.open(mine, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        with open(file, "wb") as writer:
            writer.write(token + b"\n")
        # `link` never replaces a file, and the linked file is complete.
        with contextlib.suppress(FileExistsError):
            os.link(mine, path)
    finally:
        os.unlink(mine)
    return _read_private(path) or token


def _read_user_token() -> Security:
    """The token in the user's private file, which is made in the first folder that allows it."""
    paths = _token_paths()
    for path in paths:
        if (token := _read_private(path)) is None:
            token = _write_private(path)
        if token is not None:
            return Security(token, origin=path, given=False)
    raise FailedPreconditionError(
        f"token: no private file can be made at {' or '.join(paths)}; set PENSTOCK_TOKEN for the "
        f"dispatcher, its workers and its clients, to a token made with: {_TOKEN_COMMAND}"
    )


def _token_paths() -> list[str]:
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return [os.path.join(state, "penstock", "token"), f"/tmp/penstock-{os.getuid()}/token"]


def _write_private(path: str) -> bytes | None:
    """Writes a new token into a private folder; returns None if the disk does not allow it."""
    folder = os.path.dirname(path)
    try:
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        return write_token(path)
    except PermissionDeniedError:
        raise
    except OSError:
        return None


def _read_private(path: str) -> bytes | None:
    """The token in a file that only this user can have written; None if there is no file."""
    folder = os.path.dirname(path)
    try:
        _check_private(folder, os.lstat(folder), stat.S_ISDIR)
        _check_private(path, os.lstat(path), stat.S_ISREG)
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with open(file, "rb") as reader:
        # Checked again: the name may have changed its file since `lstat`.
        _check_private(path, os.fstat(file), stat.S_ISREG)
        return check_token(reader.read(_LONGEST), f"token: {path!r}")


def _check_private(path: str, found: os.stat_result, kind: Callable[[int], bool]) -> None:
    if not kind(found.st_mode):
        what = "is a symbolic link" if stat.S_ISLNK(found.st_mode) else "is of the wrong kind"
    elif found.st_uid != os.getuid():
        what = f"belongs to user {found.st_uid}"
    elif found.st_mode & 0o077:
        what = f"is open to other users (mode {stat.S_IMODE(found.st_mode):o})"
    else:
        return
    raise PermissionDeniedError(
        f"token: {path!r} {what}, so other users may know a token there; remove it (a new one "
        "is made when it is next needed) or set PENSTOCK_TOKEN"
    )


def check_secret(path: str, found: os.stat_result, call: str) -> None:
    """Raises if another user can read or write the file.

    A file of root may be readable by a group, as the secrets of Kubernetes are. `found` is the
    status of the file that `path` leads to, links followed: another user cannot make a file that
    belongs to this one.
    """
    forbidden = 0o077 if found.st_uid == os.geteuid() else 0o037
    _check_owner_and_mode(path, found, call, forbidden=forbidden, mode="600")


def check_unchanged(path: str, call: str) -> None:
    """Raises if another user can write the file; all users may read it."""
    _check_owner_and_mode(path, os.stat(path), call, forbidden=0o022, mode="644")


def check_folder(path: str, call: str) -> None:
    """Raises if another user can list or change the folder."""
    found = os.stat(path)
    if found.st_uid == ROOT != os.geteuid():
        raise PermissionDeniedError(f"{call}: {_describe_owner(path, found)}; {_OWN_FOLDER}")
    _check_owner_and_mode(
        path, found, call, forbidden=0o077, mode="700", instead=f", or {_OWN_FOLDER}"
    )


def _check_owner_and_mode(
    path: str, found: os.stat_result, call: str, *, forbidden: int, mode: str, instead: str = ""
) -> None:
    if found.st_uid not in (os.geteuid(), ROOT):
        raise PermissionDeniedError(
            f"{call}: {_describe_owner(path, found)}; "
            f"chown {os.geteuid()} {shlex.quote(path)}{instead}"
        )
    if found.st_mode & forbidden:
        raise PermissionDeniedError(
            f"{call}: {path!r} is open to other users (mode {stat.S_IMODE(found.st_mode):o}); "
            f"chmod {mode} {shlex.quote(path)}{instead}"
        )


def _describe_owner(path: str, found: os.stat_result) -> str:
    return f"{path!r} belongs to user {found.st_uid}, and this process runs as user {os.geteuid()}"


# The handshake: each side of a connection proves the token, and names its protocol.
#
#     client   greeting, nonce, terms with its version of the protocol
#     server   greeting, nonce
#     client   proof
#     server   verdict, its version of the protocol, process loss, proof
#
# All parts have fixed sizes (a server reads 120 bytes) and must arrive before a deadline; nothing
# is decoded. Both sides then know a key that belongs to this connection alone, and that they can
# talk to each other (`penstock.version`).


DATA, CONTROL = b"penstock data 6\n", b"penstock ctrl 3\n"
"""Greetings, which each side sends first: the purpose of a connection, the form of its handshake.

The form of the handshake is the one thing that the version of the protocol does not cover.
"""

_PURPOSE = len(b"penstock data")
"""Bytes of a greeting that name the purpose."""

_TLS_ONLY = b"penstock by TLS\n"
"""The greeting of a server that requires TLS, sent to clients that begin without it."""

_NONCE = 32
_TERMS = struct.Struct("<BxHH32sH")
_VERSION = struct.Struct("<H")
_LOSS = struct.Struct("<I i f ? 95s")
_CLIENT, _SERVER, _SESSION = b"client", b"server", b"session"
_REJECTED, _ACCEPTED, _FULL, _TOO_OLD = b"\x00", b"\x01", b"\x02", b"\x03"
_DISCONNECTED = (ConnectionResetError, BrokenPipeError)

PROOF_SIZE = 32
"""Bytes of a proof."""


class Terms(NamedTuple):
    """What a client requests: the mode of compression, and the plan to read, by its digest.

    A client on the worker's machine also sends the ports of both ends. If the worker sees the same
    ports, no proxy is between the two, and the bytes never leave the machine's memory.
    """

    compression: int = 0
    own_port: int = 0
    other_port: int = 0
    plan: bytes = bytes(32)
    protocol: int = version.PROTOCOL

    def is_direct(self, connected: socket.socket) -> bool:
        """Whether the client sees the ports that the worker sees at its socket `connected`."""
        ports = (connected.getpeername()[1], connected.getsockname()[1])
        return (self.own_port, self.other_port) == ports


class ProcessLoss(NamedTuple):
    """How a worker lost the process that ran a plan; `number` is 0 if it lost none."""

    number: int = 0
    """Counts the processes that the worker has lost, which distinguishes two losses."""
    code: int = 0
    """The exit code of the process, negative for a signal."""
    pause: float = 0.0
    """Seconds that the worker waits before it starts the next process."""
    is_traced: bool = False
    """Whether the worker has found the call that crashed it, or may find it next time."""
    function: bytes = b""
    """The user's function that was running, if it is known: its first bytes in UTF-8."""

    @classmethod
    def unpack(cls, data: bytes) -> ProcessLoss:
        """Returns what `pack` has packed."""
        number, code, pause, is_traced, function = _LOSS.unpack(data)
        return cls(number, code, pause, is_traced, function.rstrip(b"\0"))

    def pack(self) -> bytes:
        """Returns a text of fixed size; a long name of a function is cut."""
        return _LOSS.pack(*self)


class ServerHandshake(NamedTuple):
    """What a server learns from a client that has proved the token."""

    terms: Terms
    key: bytes


class ClientHandshake(NamedTuple):
    """What a client learns from a server that has proved the token."""

    key: bytes
    process_loss: ProcessLoss = ProcessLoss()
    protocol: int = version.PROTOCOL


def no_process_loss(plan: bytes) -> ProcessLoss:
    """The answer of a server that has lost no process."""
    return ProcessLoss()


def server_handshake(
    connected: socket.socket,
    token: bytes,
    deadline: float,
    greeting: bytes = DATA,
    has_room: Callable[[], bool] = lambda: True,
    last_loss: Callable[[bytes], ProcessLoss] = no_process_loss,
) -> ServerHandshake:
    """The server's side; `deadline` is a time of `time.monotonic`.

    Raises UnauthenticatedError if the client does not know the token, UnavailableError if
    `has_room` returns False, FailedPreconditionError if the client is too old, DataLossError if it
    is not one of penstock's.
    """
    asked = _receive(connected, len(greeting) + _NONCE + _TERMS.size, deadline)
    answered = greeting + os.urandom(_NONCE)
    # Sent to clients with another greeting, too: their error message says what listens here.
    _send(connected, answered, deadline)
    if not asked.startswith(greeting):
        raise DataLossError("the other side does not speak this protocol")
    claim = _receive(connected, PROOF_SIZE, deadline)
    if not is_proof(claim, token, _CLIENT, asked, answered):
        _send(connected, _REJECTED + bytes(_VERSION.size + _LOSS.size + PROOF_SIZE), deadline)
        raise UnauthenticatedError("the client does not know the token")
    terms = Terms(*_TERMS.unpack(asked[-_TERMS.size :]))
    mismatch = version.describe_mismatch(terms.protocol)
    if mismatch:
        verdict = _TOO_OLD
    else:
        verdict = _ACCEPTED if has_room() else _FULL
    said = verdict + _VERSION.pack(version.PROTOCOL) + last_loss(terms.plan).pack()
    _send(connected, said + make_proof(token, _SERVER, said, asked, answered), deadline)
    if mismatch:
        raise FailedPreconditionError(f"the client {mismatch}")
    if verdict == _FULL:
        raise UnavailableError("there are too many connections")
    return ServerHandshake(terms, make_proof(token, _SESSION, asked, answered))


def client_handshake(
    connected: socket.socket, token: bytes, terms: Terms, deadline: float, greeting: bytes = DATA
) -> ClientHandshake:
    """The client's side.

    Raises UnauthenticatedError if the tokens differ, ssl.SSLError if only the server uses TLS,
    FailedPreconditionError if one side is too old for the other, DataLossError if the server is not
    one of penstock's, or not of the kind that `greeting` names.
    """
    asked = greeting + os.urandom(_NONCE) + _TERMS.pack(*terms)
    _send(connected, asked, deadline)
    answered = _receive_answer(connected, greeting, deadline)
    _send(connected, make_proof(token, _CLIENT, asked, answered), deadline)
    received = _receive(connected, 1 + _VERSION.size + _LOSS.size + PROOF_SIZE, deadline)
    said, claim = received[:-PROOF_SIZE], received[-PROOF_SIZE:]
    if said.startswith(_REJECTED):
        raise UnauthenticatedError("does not accept the token of this process")
    if not is_proof(claim, token, _SERVER, said, asked, answered):
        raise UnauthenticatedError("does not know the token")
    (protocol,) = _VERSION.unpack_from(said, 1)
    _check_verdict(said[:1], protocol)
    process_loss = ProcessLoss.unpack(said[1 + _VERSION.size :])
    return ClientHandshake(make_proof(token, _SESSION, asked, answered), process_loss, protocol)


def _check_verdict(verdict: bytes, protocol: int) -> None:
    """Raises if the server, of this version of the protocol, does not talk to this process."""
    if verdict == _TOO_OLD:
        raise FailedPreconditionError(version.describe_refusal(protocol))
    mismatch = version.describe_mismatch(protocol)
    if mismatch is not None:
        raise FailedPreconditionError(mismatch)
    if verdict == _FULL:
        raise UnavailableError("it has too many connections")


def refuse_without_tls(connected: socket.socket, deadline: float) -> bool:
    """Returns whether a client of a TLS server begins without TLS, and answers that it must.

    The client's first byte stays unread, because the TLS handshake needs it.
    """
    set_timeout(connected, deadline)
    if connected.recv(1, socket.MSG_PEEK) not in (DATA[:1], CONTROL[:1]):
        return False
    _send(connected, _TLS_ONLY + bytes(_NONCE), deadline)
    return True


def _receive_answer(connected: socket.socket, greeting: bytes, deadline: float) -> bytes:
    answered = _receive(connected, len(greeting), deadline)
    if answered == _TLS_ONLY or answered.startswith((b"\x15\x03", b"\x16\x03")):
        raise ssl.SSLError(1, "the other side uses certificates and this one does not")
    if answered != greeting and answered.startswith(greeting[:_PURPOSE]):
        raise FailedPreconditionError(
            f"begins connections as {answered.decode(errors='replace').strip()!r}, and this "
            f"process as {greeting.decode().strip()!r}; install neighbouring versions of penstock"
        )
    if answered != greeting:
        raise DataLossError(f"what answers speaks another protocol ({answered!r})")
    return answered + _receive(connected, _NONCE, deadline)


def _send(connected: socket.socket, data: bytes, deadline: float) -> None:
    set_timeout(connected, deadline)
    with contextlib.suppress(*_DISCONNECTED):  # The next receive raises.
        connected.sendall(data)


def _receive(connected: socket.socket, size: int, deadline: float) -> bytes:
    data = b""
    while len(data) < size:
        set_timeout(connected, deadline)
        received = b""
        with contextlib.suppress(*_DISCONNECTED):
            received = connected.recv(size - len(data))
        if not received:
            raise UnavailableError("the other side closed the connection")
        data += received
    return data


def set_timeout(connected: socket.socket, deadline: float) -> None:
    """Sets the timeout of the socket to the time until `deadline`; raises if it has passed."""
    if (left := deadline - time.monotonic()) <= 0:
        raise UnavailableError("it took too long to answer")
    connected.settimeout(left)


def make_proof(token: bytes, *parts: bytes | bytearray | memoryview) -> bytes:
    """The HMAC of these parts, each preceded by its length, under the key `token`."""
    mac = hmac.new(token, digestmod="sha256")
    for part in parts:
        mac.update(len(part).to_bytes(8, "big"))
        mac.update(part)
    return mac.digest()


def is_proof(claim: bytes, token: bytes, *parts: bytes | bytearray | memoryview) -> bool:
    """Whether `claim` is the proof of these parts; compares in constant time."""
    return hmac.compare_digest(claim, make_proof(token, *parts))
