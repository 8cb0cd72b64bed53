"""`tf.data.experimental` for ported code: the names of `penstock.data.experimental`, on tensors."""

from typing import Any

from penstock.data import experimental as plain
from penstock.data.dataset import Dataset
from penstock.tf.data.experimental import service
from penstock.tf.lookup import index_table_from_dataset, table_from_dataset
from penstock.tf.missing_operations import refuse_names_of_tf
from penstock.tf.ported_datasets import (
    PortedCsvDataset,
    PortedOptional,
    PortedRecordsWriter,
    PortedReducer,
    PortedSqlDataset,
    make_csv_dataset,
    port,
    port_transformation,
)

_OWN = {
    "service": service,
    "CsvDataset": PortedCsvDataset,
    "Optional": PortedOptional,
    "Reducer": PortedReducer,
    "SqlDataset": PortedSqlDataset,
    "TFRecordWriter": PortedRecordsWriter,
    "make_csv_dataset": make_csv_dataset,
    "index_table_from_dataset": index_table_from_dataset,
    "table_from_dataset": table_from_dataset,
}

__all__ = sorted(plain.__all__)


def _name(name: str) -> Any:
    if name in _OWN:
        return _OWN[name]
    value: Any = getattr(plain, name)
    if _repeats_method(value):
        return port_transformation(value)
    is_call = callable(value) and not isinstance(value, type)
    return port(value) if is_call else value


def _repeats_method(value: Any) -> bool:
    """Whether a function makes a transformation for `apply` of a method of `Dataset`."""
    method = getattr(Dataset, getattr(value, "__name__", ""), None)
    return method is not None and getattr(value, "__wrapped__", None) is method


globals().update({name: _name(name) for name in __all__})

__getattr__ = refuse_names_of_tf("data.experimental", __all__)
