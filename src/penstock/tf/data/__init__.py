"""`tf.data` for ported code: the names of `penstock.data`, on tensors."""

from typing import NoReturn

from penstock.data import (
    AUTOTUNE,
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    AutotuneOptions,
    DatasetSpec,
    DistributeOptions,
    Iterator,
    IteratorSpec,
    NumpyIterator,
    OptimizationOptions,
    Options,
    ServiceOptions,
    ThreadingOptions,
)
from penstock.tf.data import experimental
from penstock.tf.missing_operations import missing_from_tf
from penstock.tf.ported_datasets import PortedDataset as Dataset
from penstock.tf.ported_datasets import (
    PortedFixedLengthRecordDataset as FixedLengthRecordDataset,
)
from penstock.tf.ported_datasets import PortedTextLineDataset as TextLineDataset
from penstock.tf.ported_datasets import PortedTFRecordDataset as TFRecordDataset

__all__ = [
    "AUTOTUNE",
    "INFINITE_CARDINALITY",
    "UNKNOWN_CARDINALITY",
    "Dataset",
    "FixedLengthRecordDataset",
    "TFRecordDataset",
    "TextLineDataset",
    "Iterator",
    "NumpyIterator",
    "DatasetSpec",
    "IteratorSpec",
    "Options",
    "AutotuneOptions",
    "DistributeOptions",
    "OptimizationOptions",
    "ServiceOptions",
    "ThreadingOptions",
    "experimental",
]


def __getattr__(name: str) -> NoReturn:
    raise missing_from_tf("data", name, __all__)
