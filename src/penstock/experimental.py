"""`Optional`, which TensorFlow keeps under this name."""

from typing import TYPE_CHECKING, NoReturn

from penstock.element.optional import Optional
from penstock.missing_names import missing_from_module

__all__ = ["Optional"]


if not TYPE_CHECKING:  # A type checker would take any name.

    def __getattr__(name: str) -> NoReturn:
        raise missing_from_module("experimental", name, __all__)
