"""Tables from keys to values, which are filled from a dataset and do not change."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable
from typing import Any

import numpy as np

from penstock.data import arguments as check
from penstock.data.dataset import Dataset
from penstock.data.experimental.transformations import assert_cardinality
from penstock.element.columns import Array
from penstock.element.dtypes import DType, as_dtype, of_numpy
from penstock.element.hashing import fingerprint64
from penstock.element.spec import TensorSpec
from penstock.element.values import as_value
from penstock.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError


class LookupTable:
    """Values by key. Other keys get a default, or a number by their hash.

    `table_from_dataset` makes it, and `tf.lookup` of ported code.
    """

    def __init__(
        self,
        where: str,
        pairs: Iterable[tuple[Any, Any]],
        dtypes: tuple[DType, DType],
        default: Any = None,
        buckets: int = 0,
    ) -> None:
        self.key_dtype, self.value_dtype = dtypes
        self.default, self._buckets = default, buckets
        self._found: dict[Any, Any] = {}
        for key, value in pairs:
            if self._found.setdefault(key, value) != value:
                raise FailedPreconditionError(
                    f"{where}: the key {key!r} has two values, {self._found[key]!r} and {value!r}"
                )

    def lookup(self, keys: Any) -> Any:
        """The values of keys: an array of their shape, or one value."""
        found = as_value(keys)
        array = np.array(found, object) if isinstance(found, bytes) else np.asarray(found)
        values = self.values_of(array)
        return values if values.ndim else values[()]

    def values_of(self, keys: Array, where: str = "LookupTable.lookup") -> Array:
        """The values of an array of keys."""
        if keys.dtype != self.key_dtype.dtype:
            raise InvalidTypeError(
                f"{where}: keys are {self.key_dtype.name}, got {of_numpy(keys.dtype).name}"
            )
        result = np.empty(keys.shape, self.value_dtype.dtype)
        result.ravel()[...] = [self._value(key) for key in keys.ravel().tolist()]
        return result

    def _value(self, key: Any) -> Any:
        if key in self._found:
            return self._found[key]
        if not self._buckets:
            return self.default
        text = key if isinstance(key, bytes) else str(key).encode()
        return len(self._found) + fingerprint64(text) % self._buckets

    __getitem__ = lookup

    def entries(self) -> tuple[Array, Array]:
        """The keys and their values, without buckets."""
        return (
            _column(list(self._found), self.key_dtype),
            _column(list(self._found.values()), self.value_dtype),
        )

    def size(self) -> int:
        """The number of keys, and of the buckets of other keys."""
        return len(self._found) + self._buckets

    __len__ = size


class DatasetInitializer:
    """The keys and values of a dataset, for a table.

    Args:
        dataset: A dataset of pairs of single values: a key, and the value of the key.

    >>> pairs = Dataset.from_tensor_slices((["a", "b"], [1, 2]))
    >>> DatasetInitializer(pairs).values
    array([1, 2], dtype=int32)
    """

    def __init__(self, dataset: Dataset, where: str = "DatasetInitializer") -> None:
        check.plan_of(where, "dataset", dataset)
        self.dataset = dataset
        self.key_dtype, self.value_dtype = _dtypes_of(where, dataset.element_spec)

    @functools.cached_property
    def _columns(self) -> tuple[Array, Array]:
        keys: list[Any] = []
        values: list[Any] = []
        with contextlib.closing(self.dataset._chunks()) as chunks:
            for chunk in chunks:
                keys.extend(chunk.columns[0])
                values.extend(chunk.columns[1])
        return _column(keys, self.key_dtype), _column(values, self.value_dtype)

    @property
    def keys(self) -> Array:
        """The keys; reads the dataset, once."""
        return self._columns[0]

    @property
    def values(self) -> Array:
        """The values; reads the dataset, once."""
        return self._columns[1]


def _column(values: list[Any], dtype: DType) -> Array:
    column = np.empty(len(values), dtype.dtype)
    column[:] = values
    return column


def _dtypes_of(where: str, spec: Any) -> tuple[DType, DType]:
    """The dtypes of keys and values."""
    if not isinstance(spec, tuple):
        raise InvalidTypeError(f"{where}: needs a dataset of (key, value), got one of {spec}")
    singles = [part for part in spec if isinstance(part, TensorSpec) and not part.shape.rank]
    if len(spec) != 2 or len(singles) != 2:
        raise InvalidArgumentError(
            f"{where}: needs a dataset of pairs of single values, got one of {spec}"
        )
    return singles[0].dtype, singles[1].dtype


def table_from_dataset(
    dataset: Dataset,
    num_oov_buckets: int = 0,
    vocab_size: int | None = None,
    default_value: Any = None,
    hasher_spec: Any = None,
    key_dtype: Any = "string",
    name: str | None = None,
) -> LookupTable:
    """A table of the keys and values of a dataset, which is read at once.

    Args:
        dataset: A dataset of (key, value).
        num_oov_buckets: How many numbers other keys share: the number of keys, and those after it.
        vocab_size: How many elements to read; all if None.
        default_value: The value of other keys where there are no buckets; -1 if None.
        hasher_spec: None: the hash of `tf.strings.to_hash_bucket_fast`.
        key_dtype: The dtype of keys: an integer's, or a string.
        name: Accepted and ignored.

    >>> table = table_from_dataset(Dataset.from_tensor_slices((["a", "b"], [1, 2])))
    >>> table.lookup(["b", "x"])
    array([ 2, -1], dtype=int32)
    """
    return make_table("table_from_dataset", locals())


def index_table_from_dataset(
    dataset: Dataset,
    num_oov_buckets: int = 0,
    vocab_size: int | None = None,
    default_value: Any = -1,
    hasher_spec: Any = None,
    key_dtype: Any = "string",
    name: str | None = None,
) -> LookupTable:
    """A table of the positions of keys in a dataset; the arguments of `table_from_dataset`.

    >>> index_table_from_dataset(Dataset.from_tensor_slices(["a", "b"])).lookup("b")
    np.int64(1)
    """
    where = "index_table_from_dataset"
    check.plan_of(where, "dataset", dataset)
    given = locals() | {"dataset": dataset.enumerate().map(_swap)}
    return make_table(where, given)


def _swap(number: Any, key: Any) -> Any:
    return key, number


def make_table(where: str, given: dict[str, Any]) -> LookupTable:
    """The table of the arguments of a call."""
    dataset = given["dataset"]
    pairs = DatasetInitializer(dataset, where)
    buckets = check.integer(where, "num_oov_buckets", given["num_oov_buckets"], at_least=0)
    keys = check.dtype(where, "key_dtype", given["key_dtype"])
    if not keys.is_integer and keys.name != "string":
        raise InvalidTypeError(f"{where}: key_dtype must be an integer or string, got {keys.name}")
    if buckets:
        _check_buckets(where, pairs, keys)
    if getattr(given["hasher_spec"], "hasher", "fasthash") != "fasthash":
        raise InvalidArgumentError(
            f"{where}: hasher_spec must be None, got {given['hasher_spec']!r}"
        )
    if given["vocab_size"] is not None:
        count = check.integer(where, "vocab_size", given["vocab_size"], at_least=1)
        pairs = DatasetInitializer(dataset.take(count).apply(assert_cardinality(count)), where)
    return LookupTable(
        where,
        zip(pairs.keys.tolist(), pairs.values.tolist(), strict=True),
        (pairs.key_dtype, pairs.value_dtype),
        _default(where, given["default_value"], pairs.value_dtype),
        buckets,
    )


def _check_buckets(where: str, pairs: DatasetInitializer, keys: DType) -> None:
    if pairs.value_dtype != as_dtype("int64") or pairs.key_dtype.is_integer != keys.is_integer:
        raise InvalidTypeError(
            f"{where}: num_oov_buckets needs keys of key_dtype ({keys.name}) and int64 values, got "
            f"{pairs.key_dtype.name} and {pairs.value_dtype.name}"
        )


def _default(where: str, value: Any, dtype: DType) -> Any:
    if value is None:
        if not (dtype.is_integer or dtype.is_floating):
            raise InvalidArgumentError(
                f"{where}: default_value must be given where values are {dtype.name}, got None"
            )
        value = -1
    return check.element(where, value, lambda one: as_value(one, dtype))
