"""`tf.io.gfile`: files and folders of this machine, with the names that TensorFlow has for them."""

from __future__ import annotations

import glob as python_glob
import os
import shutil
from typing import Any, NoReturn

from penstock.errors import AlreadyExistsError, NotFoundError
from penstock.tf.missing_operations import missing_from_tf
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
    "walk",
]


def _path(value: Any) -> str:
    return os.fsdecode(value.numpy() if isinstance(value, Tensor) else value)


def GFile(name: Any, mode: str = "r") -> Any:  # noqa: N802
    """An open file."""
    try:
        return open(_path(name), mode, encoding=None if "b" in mode else "utf-8")
    except FileNotFoundError as error:
        raise NotFoundError(f"tf.io.gfile.GFile: {error}") from None


def exists(path: Any) -> bool:
    return os.path.exists(_path(path))


def isdir(path: Any) -> bool:
    return os.path.isdir(_path(path))


def join(path: Any, *paths: Any) -> str:
    return os.path.join(_path(path), *map(_path, paths))


def listdir(path: Any) -> list[str]:
    """The names in a folder, sorted."""
    if not isdir(path):
        raise NotFoundError(f"tf.io.gfile.listdir: {_path(path)} is not a folder")
    return sorted(os.listdir(_path(path)))


def glob(pattern: Any) -> list[str]:
    """The files that match one or several patterns, sorted."""
    patterns = pattern if isinstance(pattern, list | tuple) else [pattern]
    return sorted(path for one in patterns for path in python_glob.glob(_path(one)))


def mkdir(path: Any) -> None:
    os.mkdir(_path(path))


def makedirs(path: Any) -> None:
    """A folder and those above it; it may exist."""
    os.makedirs(_path(path), exist_ok=True)


def remove(path: Any) -> None:
    try:
        os.remove(_path(path))
    except FileNotFoundError as error:
        raise NotFoundError(f"tf.io.gfile.remove: {error}") from None


def rmtree(path: Any) -> None:
    try:
        shutil.rmtree(_path(path))
    except FileNotFoundError as error:
        raise NotFoundError(f"tf.io.gfile.rmtree: {error}") from None


def copy(src: Any, dst: Any, overwrite: bool = False) -> None:
    _check_absent("copy", dst, overwrite)
    shutil.copyfile(_path(src), _path(dst))


def rename(src: Any, dst: Any, overwrite: bool = False) -> None:
    _check_absent("rename", dst, overwrite)
    os.replace(_path(src), _path(dst))


def _check_absent(call: str, path: Any, overwrite: bool) -> None:
    if not overwrite and exists(path):
        raise AlreadyExistsError(f"tf.io.gfile.{call}: {_path(path)} exists; pass overwrite=True")


def walk(top: Any, topdown: bool = True, onerror: Any = None) -> Any:
    return os.walk(_path(top), topdown, onerror)


def __getattr__(name: str) -> NoReturn:
    raise missing_from_tf("io.gfile", name, __all__)
