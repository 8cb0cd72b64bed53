"""`Optional`, which TensorFlow keeps under this name."""

from penstock.element.optional import Optional

__all__ = ["Optional"]
