"""`Optional`, which TensorFlow keeps under this name."""

from typing import TYPE_CHECKING

from penstock.element.optional import Optional
from penstock.missing_names import refuse_names

__all__ = ["Optional"]


if not TYPE_CHECKING:  # A type checker would take any name.
    __getattr__ = refuse_names("experimental", __all__)
