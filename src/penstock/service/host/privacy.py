"""Privacy: files and folders that other users of this machine can read or write are refused.

What decides is the file that a name leads to, links followed: another user cannot make a file that
belongs to this one. Each message says the command that makes the file private.
"""

from __future__ import annotations

import os
import shlex
import stat

from penstock.errors import PermissionDeniedError

ROOT = 0


def check_secret(path: str, found: os.stat_result, call: str) -> None:
    """Raises if another user could know or change what is in the file.

    Root may give a secret to a group to read: Kubernetes does.
    """
    forbidden = 0o077 if found.st_uid == _me() else 0o037
    _check(path, found, call, forbidden, "600")


def check_unchanged(path: str, call: str) -> None:
    """Raises if another user could change the file; anybody may read it."""
    _check(path, os.stat(path), call, 0o022, "644")


def check_folder(path: str, call: str) -> None:
    """Raises if another user could see or change what is in the folder."""
    found = os.stat(path)
    if found.st_uid == ROOT != _me():
        raise PermissionDeniedError(f"{call}: {_belongs(path, found)}; {_OWN_FOLDER}")
    _check(path, found, call, 0o077, "700", f", or {_OWN_FOLDER}")


_OWN_FOLDER = "name a folder that does not exist yet, which is made private"


def _check(
    path: str, found: os.stat_result, call: str, forbidden: int, cure: str, instead: str = ""
) -> None:
    if not hasattr(os, "geteuid"):
        return  # Such systems have other means.
    if found.st_uid not in (_me(), ROOT):
        raise PermissionDeniedError(
            f"{call}: {_belongs(path, found)}; chown {_me()} {shlex.quote(path)}{instead}"
        )
    if found.st_mode & forbidden:
        raise PermissionDeniedError(
            f"{call}: {path!r} is open to other users (mode {stat.S_IMODE(found.st_mode):o}); "
            f"chmod {cure} {shlex.quote(path)}{instead}"
        )


def _belongs(path: str, found: os.stat_result) -> str:
    return f"{path!r} belongs to user {found.st_uid}, and this process runs as user {_me()}"


def _me() -> int:
    return os.geteuid() if hasattr(os, "geteuid") else ROOT
