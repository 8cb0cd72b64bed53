"""`tf.lookup`: tables from keys to values, which nothing changes after they are made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NoReturn

import numpy as np

from penstock.element.dtypes import DType, as_dtype, of_numpy
from penstock.engine.formats.files import read_file
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.tf.hashing import fingerprint64
from penstock.tf.missing_operations import missing_from_tf
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
    result = np.empty(len(texts), object)
    result[:] = texts
    return result if dtype.name == "string" else result.astype(dtype.dtype)


class _LookupTable(ABC):
    """What tables share."""

    _found: dict[Any, Any]
    key_dtype: DType
    value_dtype: DType

    def size(self, name: str | None = None) -> Tensor:
        return as_tensor(np.int64(len(self._found)))

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, keys: Any) -> Any:
        return self.lookup(keys)

    def lookup(self, keys: Any, name: str | None = None) -> Any:
        """The values of keys, of any shape."""
        if isinstance(keys, RaggedTensor):
            return keys.with_flat_values(self.lookup(keys.flat_values))
        array = to_array(keys, None if isinstance(keys, Tensor) else self.key_dtype)
        if array.dtype != self.key_dtype.dtype:
            raise InvalidTypeError(
                f"{type(self).__name__}.lookup: keys are {self.key_dtype.name}, "
                f"got {array.dtype.name}"
            )
        result = np.empty(array.shape, self.value_dtype.dtype)
        result.ravel()[...] = [self._value(key) for key in array.ravel().tolist()]
        return as_tensor(result)

    @abstractmethod
    def _value(self, key: Any) -> Any:
        """The value of one key."""


class StaticHashTable(_LookupTable):
    """A value for each key, and a default for all others.

    >>> table = StaticHashTable(KeyValueTensorInitializer(["a", "b"], [1, 2]), default_value=-1)
    >>> table.lookup(["b", "x"]).numpy().tolist()
    [2, -1]
    """

    def __init__(
        self,
        initializer: KeyValueTensorInitializer,
        default_value: Any,
        name: str | None = None,
        experimental_is_anonymous: bool = False,
    ) -> None:
        self.key_dtype = of_numpy(initializer.keys.dtype)
        self.value_dtype = of_numpy(initializer.values.dtype)
        self._default = to_array(default_value, self.value_dtype).tolist()
        self._found = {}
        pairs = zip(initializer.keys.tolist(), initializer.values.tolist(), strict=True)
        for key, value in pairs:
            if self._found.setdefault(key, value) != value:
                raise InvalidArgumentError(f"StaticHashTable: the key {key!r} has two values")

    def _value(self, key: Any) -> Any:
        return self._found.get(key, self._default)


class StaticVocabularyTable(_LookupTable):
    """The number of each key; other keys get a bucket by their hash.

    >>> words = KeyValueTensorInitializer(["a", "b"], [0, 1], value_dtype=np.int64)
    >>> StaticVocabularyTable(words, num_oov_buckets=1)["x"].numpy()
    np.int64(2)
    """

    def __init__(
        self,
        initializer: KeyValueTensorInitializer | None,
        num_oov_buckets: int,
        lookup_key_dtype: Any = None,
        name: str | None = None,
        experimental_is_anonymous: bool = False,
    ) -> None:
        if num_oov_buckets <= 0:
            raise InvalidArgumentError(
                f"StaticVocabularyTable: num_oov_buckets must be at least 1, got {num_oov_buckets}"
            )
        self.value_dtype = as_dtype("int64")
        self._buckets = num_oov_buckets
        self._found = {}
        self.key_dtype = as_dtype(lookup_key_dtype or "string")
        if initializer is not None:
            if initializer.values.dtype != np.int64:
                raise InvalidTypeError("StaticVocabularyTable: values must be int64")
            self.key_dtype = of_numpy(initializer.keys.dtype)
            pairs = zip(initializer.keys.tolist(), initializer.values.tolist(), strict=True)
            self._found = dict(pairs)

    def _value(self, key: Any) -> Any:
        if key in self._found:
            return self._found[key]
        text = key if isinstance(key, bytes) else str(key).encode()
        return len(self._found) + fingerprint64(text) % self._buckets

    def size(self, name: str | None = None) -> Tensor:
        return as_tensor(np.int64(len(self._found) + self._buckets))


def __getattr__(name: str) -> NoReturn:
    raise missing_from_tf("lookup", name, __all__)
