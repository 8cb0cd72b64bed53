"""Adapters: a dataset in the form that a framework iterates over, as that framework's tensors.

Each framework has a module here, `<framework>_adapter`, imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import Any

from penstock.errors import UnavailableError


def load(where: str, framework: str) -> Any:
    """The module of that framework; `where` is the call that asks for it."""
    try:
        return importlib.import_module(f"penstock.data.adapters.{framework}_adapter")
    except ModuleNotFoundError as error:
        raise missing(where, framework, error) from error


def missing(where: str, framework: str, error: ModuleNotFoundError) -> UnavailableError:
    """The error for a framework that cannot be imported."""
    return UnavailableError(
        f"{where}: {error.name} is not installed; install it with: "
        f"pip install 'penstock[{framework}]'"
    )
