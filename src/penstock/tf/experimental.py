"""`tf.experimental`: `Optional`, and the shape of ragged tensors."""

from typing import NoReturn

from penstock.tf.missing_operations import missing_from_tf
from penstock.tf.ported_datasets import PortedOptional as Optional
from penstock.tf.ragged_shapes import DynamicRaggedShape

__all__ = ["DynamicRaggedShape", "Optional"]


def __getattr__(name: str) -> NoReturn:
    raise missing_from_tf("experimental", name, __all__)
