"""Optional packages: imported at the first use, and named if they are missing."""

from __future__ import annotations

import importlib
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
