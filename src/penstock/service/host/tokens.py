"""Tokens: the secret that everybody who may use a service knows, and where each one finds it.

On one machine nothing needs to be configured: each user has a private file, made when it is first
needed. What is found in a place where others could have written is refused, never used.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
)
from penstock.service.host.privacy import check_secret

SHORTEST = 16
"""Bytes of the shortest token that is taken."""

_LONGEST = 4096


class FoundToken(NamedTuple):
    """A token, and where it was found, in words. `given`: other machines may know it too."""

    token: bytes
    origin: str
    given: bool


def find_token(token: str | bytes | None = None, folder: str | None = None) -> FoundToken:
    """The first of: the argument, the environment, `folder` (of certificates), the user's file."""
    if token is not None:
        return FoundToken(checked(token, "token"), "the argument token", True)
    if value := os.environ.get("PENSTOCK_TOKEN"):
        return FoundToken(checked(value, "PENSTOCK_TOKEN"), "PENSTOCK_TOKEN", True)
    if path := os.environ.get("PENSTOCK_TOKEN_FILE"):
        return FoundToken(
            read_token(path, "PENSTOCK_TOKEN_FILE"), f"PENSTOCK_TOKEN_FILE={path}", True
        )
    if folder is not None:
        path = os.path.join(folder, "token")
        return FoundToken(read_token(path, "certificates"), path, True)
    return _user_token()


def checked(token: str | bytes, call: str) -> bytes:
    """A token that somebody gave, as bytes."""
    value = (token.encode() if isinstance(token, str) else bytes(token)).strip()
    if len(value) < SHORTEST:
        raise InvalidArgumentError(
            f"{call}: a token must have at least {SHORTEST} characters, got {len(value)}; "
            f"make one with: {_MAKE}"
        )
    return value


_MAKE = 'python -c "import secrets; print(secrets.token_hex(32))"'


def read_token(path: str, call: str) -> bytes:
    """The token in a file that the user named; PermissionDeniedError if others can see it."""
    try:
        with open(os.path.expanduser(path), "rb") as file:
            check_secret(path, os.fstat(file.fileno()), call)
            return checked(file.read(_LONGEST), f"{call}: {path!r}")
    except FileNotFoundError:
        raise NotFoundError(
            f"{call}: {path!r} does not exist; write a token into it, made with: {_MAKE}"
        ) from None
    except PermissionDeniedError:
        raise
    except OSError as error:
        raise PermissionDeniedError(
            f"{call}: {path!r} cannot be read ({error.strerror}); make it readable for this user"
        ) from None


def write_token(path: str) -> bytes:
    """A new token in a new private file; whoever comes second gets the token of the first."""
    token = secrets.token_hex(32).encode()
    mine = f"{path}.{secrets.token_hex(8)}"
    file = os.open(mine, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        with open(file, "wb") as writer:
            writer.write(token + b"\n")
        # A link never replaces anything and is never seen half-written.
        with contextlib.suppress(FileExistsError):
            os.link(mine, path)
    finally:
        os.unlink(mine)
    return _read_private(path) or token


def _user_token() -> FoundToken:
    """From the user's private file, in the first place where there can be one."""
    places = _places()
    for path in places:
        if (token := _read_private(path)) is None:
            token = _write_private(path)
        if token is not None:
            return FoundToken(token, path, False)
    raise FailedPreconditionError(
        f"token: no private file can be made at {' or '.join(places)}; set PENSTOCK_TOKEN for the "
        f"dispatcher, its workers and its clients, to a token made with: {_MAKE}"
    )


def _places() -> list[str]:
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    folders = [os.path.join(state, "penstock")]
    if hasattr(os, "getuid"):
        folders.append(f"/tmp/penstock-{os.getuid()}")
    return [os.path.join(folder, "token") for folder in folders]


def _write_private(path: str) -> bytes | None:
    """A new token in a private folder; None where the disk does not allow it."""
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
    """What only this user can have written; None if there is nothing."""
    folder = os.path.dirname(path)
    try:
        _check_private(folder, os.lstat(folder), stat.S_ISDIR)
        _check_private(path, os.lstat(path), stat.S_ISREG)
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except (FileNotFoundError, NotADirectoryError):
        return None
    with open(file, "rb") as reader:
        # The file that is open, not the one that had its name a moment ago.
        _check_private(path, os.fstat(file), stat.S_ISREG)
        return checked(reader.read(_LONGEST), f"token: {path!r}")


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
        f"token: {path!r} {what}, so a token there may be known to others; remove it (a new one "
        "is made when it is next needed) or set PENSTOCK_TOKEN"
    )
