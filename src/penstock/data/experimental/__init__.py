"""`tf.data.experimental`: free functions, CSV files, policies, and the data service."""

from typing import TYPE_CHECKING

from penstock.data.arguments import AUTOTUNE
from penstock.data.dataset import SHARD_HINT
from penstock.data.experimental import service, transformations
from penstock.data.experimental.csv_files import CsvDataset, make_csv_dataset
from penstock.data.experimental.example_datasets import (
    make_batched_features_dataset,
    parse_example_dataset,
)
from penstock.data.experimental.lookup_tables import (
    DatasetInitializer,
    index_table_from_dataset,
    table_from_dataset,
)
from penstock.data.experimental.record_writers import RecordsWriter as TFRecordWriter
from penstock.data.experimental.service.saving import distributed_save
from penstock.data.experimental.sql import SqlDataset
from penstock.data.experimental.transformations import *  # noqa: F403
from penstock.element.optional import Optional
from penstock.missing_names import refuse_names
from penstock.plan.nodes import INFINITE as INFINITE_CARDINALITY
from penstock.plan.nodes import UNKNOWN as UNKNOWN_CARDINALITY
from penstock.plan.options import (
    AutoShardPolicy,
    AutotuneAlgorithm,
    AutotuneOptions,
    DistributeOptions,
    ExternalStatePolicy,
    OptimizationOptions,
    ServiceOptions,
    ThreadingOptions,
)

__all__ = [
    "AUTOTUNE",
    "INFINITE_CARDINALITY",
    "SHARD_HINT",
    "UNKNOWN_CARDINALITY",
    "AutoShardPolicy",
    "AutotuneAlgorithm",
    "AutotuneOptions",
    "DistributeOptions",
    "ExternalStatePolicy",
    "OptimizationOptions",
    "ServiceOptions",
    "ThreadingOptions",
    "CsvDataset",
    "DatasetInitializer",
    "Optional",
    "SqlDataset",
    "TFRecordWriter",
    "distributed_save",
    "index_table_from_dataset",
    "make_batched_features_dataset",
    "make_csv_dataset",
    "parse_example_dataset",
    "service",
    "table_from_dataset",
]
__all__ += transformations.__all__


if not TYPE_CHECKING:  # A type checker would take any name.
    __getattr__ = refuse_names("data.experimental", __all__)
