"""Packages that are imported at their first use; optional ones are named if they are missing."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

from penstock.errors import UnavailableError


def load_extra(module: str, call: str, extra: str = "files") -> Any:
    """The module, or an error that says how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if (error.name or package).partition(".")[0] != package:
            raise
        raise UnavailableError(
            f'{call}: needs {package}; install it with: pip install "penstock[{extra}]"'
        ) from error


class _Arrow:
    """The package pyarrow and its modules, which are loaded when they are first used.

    Code that may be the first to need them calls `load_extra`, whose error names the user's call.
    """

    _modules = ("compute", "ipc", "json", "parquet", "types")

    def __getattr__(self, name: str) -> Any:
        if name not in self._modules:
            return getattr(load_extra("pyarrow", "Dataset"), name)
        module = load_extra(f"pyarrow.{name}", "Dataset")
        setattr(self, name, module)  # It is found without a call from now on.
        return module


arrow: Any = _Arrow()


@cache
def load_crc32c(name: str = "value") -> Callable[..., int]:
    """A function of google_crc32c: `value` computes a checksum, `extend` that of more bytes.

    Both take bytes and contiguous arrays.
    """
    function: Callable[..., int] = getattr(importlib.import_module("google_crc32c"), name)
    return function


def crc32c(data: bytes) -> int:
    return load_crc32c()(data)
