"""`tf.data` for ported code: the names of `penstock.data`, on tensors."""

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
from penstock.tf.missing_operations import refuse_names_of_tf
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

__getattr__ = refuse_names_of_tf("data", __all__)
