"""Adapters: a dataset in the form that a framework iterates over, as that framework's tensors.

Each framework has a module here, `<framework>_adapter`, imported by its first use.
"""

from __future__ import annotations

import importlib
from typing import Any

from penstock.errors import UnavailableError


def load(where: str, framework: str) -> Any:
    """Imports the module of a framework; `where` is the call of the user that needs it."""
    try:
        return importlib.import_module(f"penstock.data.adapters.{framework}_adapter")
    except ModuleNotFoundError as error:
        raise missing_framework(where, framework, error) from error


def missing_framework(where: str, framework: str, error: ModuleNotFoundError) -> UnavailableError:
    """The error for a framework that cannot be imported."""
    return UnavailableError(
        f"{where}: {error.name} is not installed; install it with: "
        f"pip install 'penstock[{framework}]'"
    )
