"""`tf.io.gfile`: files and folders, with the names that TensorFlow has for them.

A path with `://` in it is fsspec's, as everywhere in penstock; every other path is local.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from penstock.engine.formats import files
from penstock.engine.formats.remote_files import connect
from penstock.errors import AlreadyExistsError, NotFoundError, PermissionDeniedError
from penstock.missing_names import attribute_error
from penstock.tf.missing_operations import refuse_names_of_tf
from penstock.tf.values import Tensor

__all__ = [
    "GFile",
    "copy",
    "exists",
    "glob",
    "isdir",
    "join",
    "listdir",
    "makedirs",
    "mkdir",
    "remove",
    "rename",
    "rmtree",
    "stat",
    "walk",
]


def _path(value: Any) -> str:
    return os.fsdecode(value.numpy() if isinstance(value, Tensor) else value)


def _is_remote(path: str) -> bool:
    return "://" in path


def _call(
    call: str, path: Any, local: Callable[[str], Any], remote: Callable[[Any, str], Any]
) -> Any:
    """Calls `local` with a path, or `remote` with a file system of fsspec and the path in it."""
    name = _path(path)
    with _name_errors(call, name):
        return remote(*connect(name)) if _is_remote(name) else local(name)


@contextlib.contextmanager
def _name_errors(call: str, path: str) -> Iterator[None]:
    """Errors of penstock's kinds, with the call and the path."""
    with files.translate_errors(path, f"tf.io.gfile.{call}"):
        try:
            yield
        except FileExistsError:
            raise AlreadyExistsError(f"tf.io.gfile.{call}: {path!r} exists") from None


class GFile:
    """An open file: Python's, with the calls that only TensorFlow's has.

    >>> import os, tempfile
    >>> name = os.path.join(tempfile.mkdtemp(), "text")
    >>> with GFile(name, "w") as file:
    ...     _ = file.write("one")
    >>> with GFile(name) as file:
    ...     print(file.size(), file.read())
    3 one
    """

    def __init__(self, name: Any, mode: str = "r") -> None:
        self.name = name
        self.mode = mode
        self._path = _path(name)
        self._file = _open_file(self._path, mode)

    def size(self) -> int:
        """The number of bytes in the file, without bytes that `flush` still has to write."""
        return stat(self._path).length

    def read(self, n: int = -1) -> Any:
        """The next `n` characters, or bytes of a file that is open with "rb"; -1 for all."""
        self._check_mode("reading", "r+")
        return self._file.read(n)

    def write(self, file_content: Any) -> int:
        """Writes text, or bytes to a file that is open with "wb"."""
        given = file_content.numpy() if isinstance(file_content, Tensor) else file_content
        if isinstance(given, bytes) and "b" not in self.mode:
            given = given.decode()
        self._check_mode("writing", "wax+")
        return int(self._file.write(given))

    def readline(self, *args: int) -> Any:
        """The next line; an empty one at the end."""
        self._check_mode("reading", "r+")
        return self._file.readline(*args)

    def readlines(self) -> list[Any]:
        """All lines that are left."""
        return list(self)

    def seek(self, offset: int = 0, whence: int = 0, position: int | None = None) -> int:
        """Moves to a position: from the beginning, from here (1) or from the end (2)."""
        if position is not None:
            return int(self._file.seek(position))
        # Files of text only seek from the beginning.
        if whence == 1:
            offset += self._file.tell()
        elif whence == 2:
            offset += self.size()
        return int(self._file.seek(offset))

    def __iter__(self) -> Iterator[Any]:
        # Not Python's iterator: `tell` does not work inside of it.
        return iter(self.readline, b"" if "b" in self.mode else "")

    def __next__(self) -> Any:
        if line := self.readline():
            return line
        raise StopIteration

    next = __next__

    def __enter__(self) -> GFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        """The other attributes of Python's files, such as `tell`, `flush` and `close`."""
        if name.startswith("_"):
            raise attribute_error(f"GFile has no attribute {name}")
        return getattr(self._file, name)

    def _check_mode(self, purpose: str, letters: str) -> None:
        if not any(letter in self.mode for letter in letters):
            raise PermissionDeniedError(
                f"tf.io.gfile.GFile: {self._path!r} is not open for {purpose}, "
                f"but with mode {self.mode!r}"
            )


def _open_file(path: str, mode: str) -> Any:
    """The file of Python or of fsspec."""
    encoding = None if "b" in mode else "utf-8"
    with _name_errors("GFile", path):
        if not _is_remote(path):
            return open(path, mode, encoding=encoding)
        if "a" in mode or "+" in mode:
            system, inside = connect(path)
            return system.open(inside, mode, encoding=encoding)
        call = "tf.io.gfile.GFile"
        file: Any = (
            files.create_bytes(path, call) if "w" in mode else files.open_bytes(path, call=call)
        )
        return file if encoding is None else io.TextIOWrapper(file, encoding)


def exists(path: Any) -> bool:
    """Whether there is a file or a folder at a path."""
    return bool(_call("exists", path, os.path.exists, lambda system, name: system.exists(name)))


def isdir(path: Any) -> bool:
    """Whether there is a folder at a path."""
    return bool(_call("isdir", path, os.path.isdir, lambda system, name: system.isdir(name)))


def join(path: Any, *paths: Any) -> str:
    """The parts of a path as one path."""
    return os.path.join(_path(path), *map(_path, paths))


def listdir(path: Any) -> list[str]:
    """The names in a folder, sorted."""
    if not isdir(path):
        raise NotFoundError(f"tf.io.gfile.listdir: {_path(path)} is not a folder")
    found = _call("listdir", path, os.listdir, lambda system, name: system.ls(name, False))
    return sorted(os.path.basename(name.rstrip("/")) for name in found)


def glob(pattern: Any) -> list[str]:
    """The files that match one or several patterns, those of each pattern sorted.

    They begin with `./` if the first part of the pattern has a wildcard, as in TensorFlow.
    """
    patterns = pattern if isinstance(pattern, list | tuple) else [pattern]
    call = "tf.io.gfile.glob"
    return [path for one in patterns for path in sorted(files.find_matches(_path(one), call))]


def mkdir(path: Any) -> None:
    """Makes a folder in a folder that exists."""
    _call("mkdir", path, os.mkdir, lambda system, name: system.mkdir(name, create_parents=False))


def makedirs(path: Any) -> None:
    """Makes a folder, and the folders above it that are missing; it may exist."""
    _call(
        "makedirs",
        path,
        lambda name: os.makedirs(name, exist_ok=True),
        lambda system, name: system.makedirs(name, exist_ok=True),
    )


def remove(path: Any) -> None:
    """Deletes a file."""
    _call("remove", path, os.remove, lambda system, name: system.rm_file(name))


def rmtree(path: Any) -> None:
    """Deletes a folder with all that is in it."""
    _call("rmtree", path, shutil.rmtree, lambda system, name: system.rm(name, recursive=True))


def copy(src: Any, dst: Any, overwrite: bool = False) -> None:
    """Copies a file; a file at `dst` is an error, unless `overwrite` is true."""
    source, target = _path(src), _path(dst)
    _check_absent("copy", target, overwrite)
    with _name_errors("copy", source):
        _copy(source, target)


def _copy(source: str, target: str) -> None:
    if not _is_remote(source) and not _is_remote(target):
        shutil.copyfile(source, target)
        return
    with (
        files.open_bytes(source, call="tf.io.gfile") as given,
        files.create_bytes(target, "tf.io.gfile") as made,
    ):
        shutil.copyfileobj(given, made)


def rename(src: Any, dst: Any, overwrite: bool = False) -> None:
    """Moves a file or a folder; `dst` must not exist, unless `overwrite` is true."""
    source, target = _path(src), _path(dst)
    _check_absent("rename", target, overwrite)
    with _name_errors("rename", source):
        if not _is_remote(source) and not _is_remote(target):
            os.replace(source, target)
            return
        if not isdir(source):
            _copy(source, target)
            remove(source)
            return
        system, inside = connect(source)
        system.mv(inside, connect(target)[1], recursive=True)


def _check_absent(call: str, path: str, overwrite: bool) -> None:
    if not overwrite and exists(path):
        raise AlreadyExistsError(f"tf.io.gfile.{call}: {path} exists; pass overwrite=True")


class FileStatistics(NamedTuple):
    """What `stat` says of a file or a folder."""

    length: int
    mtime_nsec: int
    is_directory: bool


def stat(path: Any) -> FileStatistics:
    """The length and the time of a file; the time is 0 where the server does not say."""
    path = _path(path)
    with _name_errors("stat", path):
        if not _is_remote(path):
            found = os.stat(path)
            return FileStatistics(found.st_size, found.st_mtime_ns, os.path.isdir(path))
        system, inside = connect(path)
        info = system.info(inside)
        modified = info.get("LastModified") or info.get("created")
        nanoseconds = int(modified.timestamp() * 1e9) if hasattr(modified, "timestamp") else 0
        return FileStatistics(info.get("size") or 0, nanoseconds, info["type"] == "directory")


def walk(top: Any, topdown: bool = True, onerror: Any = None) -> Any:
    """For each folder below `top`: its path, the folders in it and the files in it."""
    path = _path(top)
    return _walk(path, topdown) if _is_remote(path) else os.walk(path, topdown, onerror)


def _walk(url: str, topdown: bool) -> Iterator[tuple[str, list[str], list[str]]]:
    system, inside = connect(url)
    for folder, folders, names in system.walk(inside, topdown=topdown):
        below = folder.removeprefix(inside.rstrip("/")).strip("/")
        yield (f"{url.rstrip('/')}/{below}" if below else url, sorted(folders), sorted(names))


__getattr__ = refuse_names_of_tf("io.gfile", __all__)
