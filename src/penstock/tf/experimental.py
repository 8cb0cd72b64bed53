"""`tf.experimental`: `Optional`, which TensorFlow keeps under this name."""

from typing import NoReturn

from penstock.tf.missing_operations import missing_from_tf
from penstock.tf.ported_datasets import PortedOptional as Optional

__all__ = ["Optional"]


def __getattr__(name: str) -> NoReturn:
    raise missing_from_tf("experimental", name, __all__)
