"""`tf.experimental`: `Optional`, and the shape of ragged tensors."""

from penstock.tf.missing_operations import refuse_names_of_tf
from penstock.tf.ported_datasets import PortedOptional as Optional
from penstock.tf.ragged_shapes import DynamicRaggedShape

__all__ = ["DynamicRaggedShape", "Optional"]

__getattr__ = refuse_names_of_tf("experimental", __all__)
