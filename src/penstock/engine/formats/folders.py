"""Folders to write into, on the local disk or behind an fsspec URL.

`replace` is the only step that file readers can see: before it they find the old file, after it
the new one, and never some bytes of either.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import Any, Protocol

from penstock.engine.formats.files import open_bytes, translate_write_errors
from penstock.errors import NotFoundError


class Folder(Protocol):
    """A folder; names in it are relative, with `/` between their parts."""

    def make(self, name: str) -> None:
        """Makes a folder in it, with all above it."""

    def replace(self, name: str, data: bytes) -> None:
        """Writes a small file as a whole."""

    def remove(self, name: str) -> None:
        """Removes a folder in it with its content; does nothing if it does not exist."""


def open_folder(path: str, call: str) -> Folder:
    return RemoteFolder(path, call) if "://" in path else LocalFolder(path, call)


def join(path: str, name: str) -> str:
    return f"{path.rstrip('/')}/{name}" if path else name


def read_small(path: str, call: str) -> bytes | None:
    """All bytes of a file; None if it does not exist."""
    try:
        with (
            contextlib.closing(open_bytes(path, call=call)) as file,
            translate_write_errors(path, call),
        ):
            return file.read()
    except NotFoundError:
        return None


class LocalFolder:
    """On the local disk."""

    def __init__(self, path: str, call: str) -> None:
        self._path, self._call = path, call

    def make(self, name: str) -> None:
        path = join(self._path, name)
        with translate_write_errors(path, self._call):
            os.makedirs(path, exist_ok=True)

    def replace(self, name: str, data: bytes) -> None:
        path = join(self._path, name)
        partial = f"{path}.partial"
        with translate_write_errors(path, self._call):
            try:
                with open(partial, "wb") as file:
                    file.write(data)
                os.replace(partial, path)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(partial)
                raise

    def remove(self, name: str) -> None:
        shutil.rmtree(join(self._path, name), ignore_errors=True)


class RemoteFolder:
    """Behind an fsspec URL, where a file appears when it is complete."""

    def __init__(self, url: str, call: str) -> None:
        self._url, self._call = url, call

    def _inside(self, name: str) -> tuple[Any, str]:
        from fsspec.core import url_to_fs

        system, path = url_to_fs(join(self._url, name))
        return system, path

    def make(self, name: str) -> None:
        with translate_write_errors(self._url, self._call):
            system, path = self._inside(name)
            system.makedirs(path, exist_ok=True)

    def replace(self, name: str, data: bytes) -> None:
        with translate_write_errors(self._url, self._call):
            system, path = self._inside(name)
            system.pipe_file(path, data)

    def remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            system, path = self._inside(name)
            system.rm(path, recursive=True)
