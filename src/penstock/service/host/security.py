"""Security: the token and the certificates of a service, and where each process finds them.

A plan contains code, so a peer without the token is rejected before anything is decoded. On one
machine nothing needs to be configured: each user has a private file with a token, made when it is
first needed. A secret in a file that other users can read or write is refused.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shlex
import ssl
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
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
        found = cls._find(token, certificates)
        found.check_exposure(host, port)
        found.warn_of_exposure(f"server at {join_address(host, port)}", host)
        return found

    @classmethod
    def of_client(
        cls, address: str, token: str | bytes | None = None, certificates: str | None = None
    ) -> Security:
        """For a client or a worker of the dispatcher at `address`, or at one of several."""
        found = cls._find(token, certificates)
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

    @classmethod
    def _find(cls, token: str | bytes | None, certificates: str | None) -> Security:
        folder = certificates or os.environ.get("PENSTOCK_CERTIFICATES") or None
        if folder is not None:
            folder = os.path.abspath(os.path.expanduser(folder))
            if not os.path.isdir(folder):
                raise NotFoundError(
                    f"certificates: there is no folder {folder!r}; make a working set with: "
                    f"penstock certs {folder}"
                )
        found = find_token(token, folder)
        return cls(token=found.token, certificates=folder, origin=found.origin, given=found.given)

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


class FoundToken(NamedTuple):
    """A token, and a phrase that says where it was found. `given`: see `Security`."""

    token: bytes
    origin: str
    given: bool


def find_token(token: str | bytes | None = None, folder: str | None = None) -> FoundToken:
    """The first of: the argument, the environment, `folder` (of certificates), the user's file."""
    if token is not None:
        return FoundToken(check_token(token, "token"), "the argument token", True)
    if value := os.environ.get("PENSTOCK_TOKEN"):
        return FoundToken(check_token(value, "PENSTOCK_TOKEN"), "PENSTOCK_TOKEN", True)
    if path := os.environ.get("PENSTOCK_TOKEN_FILE"):
        origin = f"{path}, which --token-file or PENSTOCK_TOKEN_FILE names"
        return FoundToken(read_token(path, "PENSTOCK_TOKEN_FILE"), origin, True)
    if folder is not None:
        path = os.path.join(folder, "token")
        return FoundToken(read_token(path, "certificates"), path, True)
    return _user_token()


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


def _user_token() -> FoundToken:
    """The token in the user's private file, which is made in the first folder that allows it."""
    paths = _token_paths()
    for path in paths:
        if (token := _read_private(path)) is None:
            token = _write_private(path)
        if token is not None:
            return FoundToken(token, path, False)
    raise FailedPreconditionError(
        f"token: no private file can be made at {' or '.join(paths)}; set PENSTOCK_TOKEN for the "
        f"dispatcher, its workers and its clients, to a token made with: {_TOKEN_COMMAND}"
    )


def _token_paths() -> list[str]:
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    folders = [os.path.join(state, "penstock")]
    if hasattr(os, "getuid"):
        folders.append(f"/tmp/penstock-{os.getuid()}")
    return [os.path.join(folder, "token") for folder in folders]


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
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except (FileNotFoundError, NotADirectoryError):
        return None
    with open(file, "rb") as reader:
        # Checked again: the name may have changed its file since `lstat`.
        _check_private(path, os.fstat(file), stat.S_ISREG)
        return check_token(reader.read(_LONGEST), f"token: {path!r}")


def _check_private(path: str, found: os.stat_result, kind: Callable[[int], bool]) -> None:
    if not kind(found.st_mode):
        what = "is a symbolic link" if stat.S_ISLNK(found.st_mode) else "is of the wrong kind"
    elif hasattr(os, "getuid") and found.st_uid != os.getuid():
        what = f"belongs to user {found.st_uid}"
    elif hasattr(os, "getuid") and found.st_mode & 0o077:
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
    forbidden = 0o077 if found.st_uid == _own_user() else 0o037
    _check_owner_and_mode(path, found, call, forbidden=forbidden, mode="600")


def check_unchanged(path: str, call: str) -> None:
    """Raises if another user can write the file; all users may read it."""
    _check_owner_and_mode(path, os.stat(path), call, forbidden=0o022, mode="644")


def check_folder(path: str, call: str) -> None:
    """Raises if another user can list or change the folder."""
    found = os.stat(path)
    if found.st_uid == ROOT != _own_user():
        raise PermissionDeniedError(f"{call}: {_describe_owner(path, found)}; {_OWN_FOLDER}")
    _check_owner_and_mode(
        path, found, call, forbidden=0o077, mode="700", instead=f", or {_OWN_FOLDER}"
    )


def _check_owner_and_mode(
    path: str, found: os.stat_result, call: str, *, forbidden: int, mode: str, instead: str = ""
) -> None:
    if not hasattr(os, "geteuid"):
        return  # Systems without user ids have no such mode bits.
    if found.st_uid not in (_own_user(), ROOT):
        raise PermissionDeniedError(
            f"{call}: {_describe_owner(path, found)}; "
            f"chown {_own_user()} {shlex.quote(path)}{instead}"
        )
    if found.st_mode & forbidden:
        raise PermissionDeniedError(
            f"{call}: {path!r} is open to other users (mode {stat.S_IMODE(found.st_mode):o}); "
            f"chmod {mode} {shlex.quote(path)}{instead}"
        )


def _describe_owner(path: str, found: os.stat_result) -> str:
    return f"{path!r} belongs to user {found.st_uid}, and this process runs as user {_own_user()}"


def _own_user() -> int:
    return os.geteuid() if hasattr(os, "geteuid") else ROOT
