"""`tf.lookup`: tables from keys to values, which nothing changes after they are made."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.data.experimental import lookup_tables
from penstock.data.experimental.lookup_tables import DatasetInitializer, LookupTable
from penstock.element.dtypes import DType, as_dtype, of_numpy
from penstock.engine.formats.files import read_file
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.tf.missing_operations import refuse_names_of_tf
from penstock.tf.operations import vector
from penstock.tf.ported_functions import unwrap
from penstock.tf.ragged_values import RaggedTensor
from penstock.tf.values import Array, Tensor, as_tensor, to_array

__all__ = [
    "KeyValueTensorInitializer",
    "StaticHashTable",
    "StaticVocabularyTable",
    "TextFileIndex",
    "TextFileInitializer",
]


class TextFileIndex:
    """What of a line of a file is a key or a value."""

    WHOLE_LINE = -2
    LINE_NUMBER = -1


class KeyValueTensorInitializer:
    """Keys, and a value for each."""

    def __init__(
        self,
        keys: Any,
        values: Any,
        key_dtype: Any = None,
        value_dtype: Any = None,
        name: str | None = None,
    ) -> None:
        self.keys, self.values = to_array(keys, key_dtype), to_array(values, value_dtype)
        if self.keys.shape != self.values.shape:
            raise InvalidArgumentError(
                f"KeyValueTensorInitializer: {self.keys.shape} keys, {self.values.shape} values"
            )


class TextFileInitializer(KeyValueTensorInitializer):
    """Keys and values of the lines of a file: whole lines, their numbers, or columns."""

    def __init__(
        self,
        filename: Any,
        key_dtype: Any,
        key_index: int,
        value_dtype: Any,
        value_index: int,
        vocab_size: int | None = None,
        delimiter: str = "\t",
        name: str | None = None,
        value_index_offset: int = 0,
    ) -> None:
        path = filename.numpy() if isinstance(filename, Tensor) else filename
        lines = read_file(path).splitlines()[:vocab_size]
        parts = [line.split(delimiter.encode()) for line in lines]

        def column(index: int, dtype: Any, offset: int) -> Array:
            if index == TextFileIndex.WHOLE_LINE:
                return _cells(lines, as_dtype(dtype))
            if index == TextFileIndex.LINE_NUMBER:
                return np.arange(len(lines), dtype=as_dtype(dtype).dtype) + offset
            return _cells([part[index] for part in parts], as_dtype(dtype))

        super().__init__(
            column(key_index, key_dtype, 0), column(value_index, value_dtype, value_index_offset)
        )


def _cells(texts: list[bytes], dtype: DType) -> Array:
    column = vector(texts)
    return column if dtype.name == "string" else column.astype(dtype.dtype)


class PortedTable:
    """A table whose keys and values are tensors."""

    def __init__(self, table: LookupTable) -> None:
        self._table = table

    @property
    def key_dtype(self) -> DType:
        return self._table.key_dtype

    @property
    def value_dtype(self) -> DType:
        return self._table.value_dtype

    def size(self, name: str | None = None) -> Tensor:
        """The number of keys, and of the buckets of other keys."""
        return as_tensor(np.int64(self._table.size()))

    def __len__(self) -> int:
        return self._table.size()

    @property
    def default_value(self) -> Tensor:
        """What other keys get."""
        return as_tensor(to_array(self._table.default, self.value_dtype))

    def export(self, name: str | None = None) -> tuple[Tensor, Tensor]:
        """All keys, and their values."""
        keys, values = self._table.entries()
        return as_tensor(keys), as_tensor(values)

    def __getitem__(self, keys: Any) -> Any:
        return self.lookup(keys)

    def lookup(self, keys: Any, name: str | None = None) -> Any:
        """The values of keys, of any shape."""
        if isinstance(keys, RaggedTensor):
            return keys.with_flat_values(self.lookup(keys.flat_values))
        array = to_array(keys, None if isinstance(keys, Tensor) else self.key_dtype)
        return as_tensor(self._table.values_of(array, f"{type(self).__name__}.lookup"))


Initializer = KeyValueTensorInitializer | DatasetInitializer


def _pairs_of(initializer: Initializer) -> Any:
    return zip(initializer.keys.tolist(), initializer.values.tolist(), strict=True)


class StaticHashTable(PortedTable):
    """A value for each key, and a default for all other keys.

    >>> table = StaticHashTable(KeyValueTensorInitializer(["a", "b"], [1, 2]), default_value=-1)
    >>> table.lookup(["b", "x"]).numpy().tolist()
    [2, -1]
    """

    def __init__(
        self,
        initializer: Initializer,
        default_value: Any,
        name: str | None = None,
        experimental_is_anonymous: bool = False,
    ) -> None:
        dtypes = of_numpy(initializer.keys.dtype), of_numpy(initializer.values.dtype)
        default = to_array(default_value, dtypes[1]).tolist()
        super().__init__(LookupTable("StaticHashTable", _pairs_of(initializer), dtypes, default))


class StaticVocabularyTable(PortedTable):
    """The number of each key; other keys get a bucket by their hash.

    >>> words = KeyValueTensorInitializer(["a", "b"], [0, 1], value_dtype=np.int64)
    >>> StaticVocabularyTable(words, num_oov_buckets=1)["x"].numpy()
    np.int64(2)
    """

    def __init__(
        self,
        initializer: Initializer | None,
        num_oov_buckets: int,
        lookup_key_dtype: Any = None,
        name: str | None = None,
        experimental_is_anonymous: bool = False,
    ) -> None:
        where = "StaticVocabularyTable"
        if num_oov_buckets <= 0:
            raise InvalidArgumentError(
                f"{where}: num_oov_buckets must be at least 1, got {num_oov_buckets}"
            )
        key_dtype, pairs = as_dtype(lookup_key_dtype or "string"), []
        if initializer is not None:
            if initializer.values.dtype != np.int64:
                raise InvalidTypeError(f"{where}: values must be int64")
            key_dtype, pairs = of_numpy(initializer.keys.dtype), _pairs_of(initializer)
        dtypes = key_dtype, as_dtype("int64")
        super().__init__(LookupTable(where, pairs, dtypes, buckets=num_oov_buckets))


def table_from_dataset(*args: Any, **kwargs: Any) -> PortedTable:
    """`tf.data.experimental.table_from_dataset`, whose keys and values are tensors."""
    return PortedTable(lookup_tables.table_from_dataset(*unwrap(args), **unwrap(kwargs)))


def index_table_from_dataset(*args: Any, **kwargs: Any) -> PortedTable:
    """`tf.data.experimental.index_table_from_dataset`, whose keys and values are tensors."""
    return PortedTable(lookup_tables.index_table_from_dataset(*unwrap(args), **unwrap(kwargs)))


__getattr__ = refuse_names_of_tf("lookup", __all__)
