"""`tf.data.experimental`: free functions, CSV files, policies, and the data service."""

from typing import TYPE_CHECKING

from penstock.data.arguments import AUTOTUNE
from penstock.data.dataset import SHARD_HINT
from penstock.data.experimental import service
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
from penstock.data.experimental.transformations import (
    Counter,
    RandomDataset,
    Reducer,
    assert_cardinality,
    at,
    bucket_by_sequence_length,
    cardinality,
    choose_from_datasets,
    dense_to_ragged_batch,
    enable_debug_mode,
    enumerate_dataset,
    from_list,
    get_next_as_optional,
    get_single_element,
    get_structure,
    group_by_reducer,
    group_by_window,
    ignore_errors,
    load,
    map_and_batch,
    pad_to_cardinality,
    parallel_interleave,
    rejection_resample,
    sample_from_datasets,
    save,
    scan,
    shuffle_and_repeat,
    snapshot,
    take_while,
    unbatch,
    unique,
)
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
    "Counter",
    "CsvDataset",
    "DatasetInitializer",
    "Optional",
    "RandomDataset",
    "Reducer",
    "SqlDataset",
    "TFRecordWriter",
    "assert_cardinality",
    "at",
    "bucket_by_sequence_length",
    "cardinality",
    "choose_from_datasets",
    "dense_to_ragged_batch",
    "distributed_save",
    "enable_debug_mode",
    "enumerate_dataset",
    "from_list",
    "get_next_as_optional",
    "get_single_element",
    "get_structure",
    "group_by_reducer",
    "group_by_window",
    "ignore_errors",
    "index_table_from_dataset",
    "load",
    "make_batched_features_dataset",
    "make_csv_dataset",
    "map_and_batch",
    "pad_to_cardinality",
    "parallel_interleave",
    "parse_example_dataset",
    "rejection_resample",
    "sample_from_datasets",
    "save",
    "scan",
    "service",
    "shuffle_and_repeat",
    "snapshot",
    "table_from_dataset",
    "take_while",
    "unbatch",
    "unique",
]


if not TYPE_CHECKING:  # A type checker would take any name.
    __getattr__ = refuse_names("data.experimental", __all__)
