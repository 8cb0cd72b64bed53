"""The public API of datasets: `Dataset`, file readers, iterators, options and `experimental`."""

from typing import TYPE_CHECKING

from penstock.data import experimental
from penstock.data.arguments import AUTOTUNE
from penstock.data.dataset import Dataset
from penstock.data.file_datasets import FixedLengthRecordDataset, TextLineDataset, TFRecordDataset
from penstock.data.iterator import Iterator, NumpyIterator
from penstock.element.spec import DatasetSpec, IteratorSpec
from penstock.missing_names import refuse_names
from penstock.plan.nodes import INFINITE as INFINITE_CARDINALITY
from penstock.plan.nodes import UNKNOWN as UNKNOWN_CARDINALITY
from penstock.plan.options import (
    AutotuneOptions,
    DistributeOptions,
    OptimizationOptions,
    Options,
    ServiceOptions,
    ThreadingOptions,
)

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


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # A type checker would take any name.
    __getattr__ = refuse_names("data", __all__)
