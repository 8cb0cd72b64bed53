"""How features are declared, and how their columns become arrays.

Each class checks its arguments when it is made. `keys` says which features of an example it reads,
`build` makes the result for a batch.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from penstock.element import strings
from penstock.element.columns import Array
from penstock.element.dtypes import DType, as_dtype
from penstock.element.ragged import Ragged
from penstock.element.spec import RaggedTensorSpec, TensorShape, TensorSpec, TypeSpec
from penstock.element.values import as_value
from penstock.engine.formats.examples.feature_columns import Column
from penstock.engine.formats.examples.reading import Kind
from penstock.errors import InvalidArgumentError, InvalidTypeError, UnfitTypeError

_KINDS = {"string": Kind.BYTES, "float32": Kind.FLOAT, "int64": Kind.INT64}
_NAMES = {int(kind): name for name, kind in _KINDS.items()}


class Feature(ABC):
    """A declaration of a feature."""

    dtype: DType

    def keys(self, name: bytes) -> dict[bytes, Kind]:
        """The names of the features that it reads, and which lists they must hold."""
        return {name: _KINDS[self.dtype.name]}

    @abstractmethod
    def build(self, name: bytes, columns: Mapping[bytes, Column], call: str) -> Any:
        """The result for a batch, from the columns of its `keys`."""

    @abstractmethod
    def spec(self, rows: int | None) -> TypeSpec:
        """The spec of the result for a batch of `rows` examples."""


@dataclass(frozen=True)
class FixedLenFeature(Feature):
    """A feature with the same number of values in every example: an array of one shape.

    Args:
      shape: The shape of the feature in one example; `[]` for one value.
      dtype: `float32`, `int64` or `string`.
      default_value: The value for examples that do not have the feature. Without it, a missing
        feature is an error.

    >>> from penstock.io import parse_example, serialize_example
    >>> data = [serialize_example({"x": [1, 2]}), serialize_example({})]
    >>> parse_example(data, {"x": FixedLenFeature([2], "int64", [0, 0])})["x"].tolist()
    [[1, 2], [0, 0]]
    """

    shape: Any
    dtype: Any
    default_value: Any = None

    def __post_init__(self) -> None:
        _check_shape(self, "FixedLenFeature")
        _check_dtype(self, "FixedLenFeature")
        if self.default_value is not None:
            default = _default(self, "FixedLenFeature")
            if default.size != math.prod(self.shape):
                raise InvalidArgumentError(
                    f"FixedLenFeature: default_value has {default.size} values, but shape "
                    f"{list(self.shape)} has {math.prod(self.shape)}"
                )

    def spec(self, rows: int | None) -> TypeSpec:
        return TensorSpec((rows, *self.shape), self.dtype)

    def build(self, name: bytes, columns: Mapping[bytes, Column], call: str) -> Array:
        column, size = columns[name], math.prod(self.shape)
        if column.size == size:
            return column.values.reshape(len(column.counts), *self.shape)
        found = column.kinds != 0
        odd = found & (column.counts != size)
        if odd.any():
            fail_at(
                odd, name, call, f"{{}} values, but shape {list(self.shape)} has {size}", column
            )
        rows = len(found)
        if found.all():
            return column.values.reshape(rows, *self.shape)
        if self.default_value is None or not size:
            fail_at(
                ~found,
                name,
                call,
                "no value, and the feature has no default_value; give it one, or use VarLenFeature",
            )
        result = np.empty((rows, size), column.values.dtype)
        result[found] = column.values.reshape(-1, size)
        result[~found] = _default(self, "FixedLenFeature").ravel()
        return result.reshape(rows, *self.shape)


@dataclass(frozen=True)
class FixedLenSequenceFeature(Feature):
    """A feature with any number of values of one shape, filled up to the longest of the batch.

    Args:
      shape: The shape of one value; `[]` for single values.
      dtype: `float32`, `int64` or `string`.
      allow_missing: Whether an example without the feature has zero values; else it is an error.
        `parse_example` needs True.
      default_value: What the result is filled up with: one value; 0 or `b""` if None.

    >>> from penstock.io import parse_example, serialize_example
    >>> data = [serialize_example({"x": [1, 2]}), serialize_example({"x": 3})]
    >>> feature = FixedLenSequenceFeature([], "int64", allow_missing=True, default_value=-1)
    >>> parse_example(data, {"x": feature})["x"].tolist()
    [[1, 2], [3, -1]]
    """

    shape: Any
    dtype: Any
    allow_missing: bool = False
    default_value: Any = None

    def __post_init__(self) -> None:
        _check_shape(self, "FixedLenSequenceFeature")
        _check_dtype(self, "FixedLenSequenceFeature")
        if not math.prod(self.shape):
            raise InvalidArgumentError(
                f"FixedLenSequenceFeature: shape {list(self.shape)} has no values, so steps cannot "
                "be counted"
            )
        if self.default_value is not None and _default(self, "FixedLenSequenceFeature").size != 1:
            raise InvalidArgumentError(
                "FixedLenSequenceFeature: default_value must be one value, "
                f"got {self.default_value!r}"
            )

    def spec(self, rows: int | None) -> TypeSpec:
        return TensorSpec((rows, None, *self.shape), self.dtype)

    def build(self, name: bytes, columns: Mapping[bytes, Column], call: str) -> Array:
        if not self.allow_missing:
            raise InvalidArgumentError(
                f"{call}: feature {name.decode(errors='replace')!r} is a FixedLenSequenceFeature "
                "and needs allow_missing=True"
            )
        column, size = columns[name], math.prod(self.shape)
        odd = column.counts % size != 0
        if odd.any():
            text = f"{{}} values, which is no multiple of the {size} of shape {list(self.shape)}"
            fail_at(odd, name, call, text, column)
        return self.pad(column.values, column.counts // size)

    def pad(self, values: Array, steps: Array) -> Array:
        """Values as an array of (examples, steps, *shape), filled up with the default."""
        rows, most = len(steps), int(steps.max(initial=0))
        if (steps == most).all():
            return values.reshape(rows, most, *self.shape)
        result = np.empty((rows, most, *self.shape), values.dtype)
        result[:] = self.filling
        result[np.arange(most) < steps[:, None]] = values.reshape(-1, *self.shape)
        return result

    @property
    def filling(self) -> Any:
        if self.default_value is not None:
            return _default(self, "FixedLenSequenceFeature").ravel()[0]
        return b"" if self.dtype.name == "string" else 0


@dataclass(frozen=True)
class VarLenFeature(Feature):
    """A feature with any number of values: the result is a `Ragged` with a row for each example.

    Args:
      dtype: `float32`, `int64` or `string`.

    >>> from penstock.io import parse_example, serialize_example
    >>> data = [serialize_example({"x": [1, 2]}), serialize_example({})]
    >>> parse_example(data, {"x": VarLenFeature("int64")})["x"]
    <Ragged [[1, 2], []]>
    """

    dtype: Any

    def __post_init__(self) -> None:
        _check_dtype(self, "VarLenFeature")

    def spec(self, rows: int | None) -> TypeSpec:
        return RaggedTensorSpec((rows, None), self.dtype, ragged_rank=1)

    def build(self, name: bytes, columns: Mapping[bytes, Column], call: str) -> Ragged:
        return Ragged(columns[name].values, splits_of(columns[name].counts))


def splits_of(counts: Array) -> Array:
    """The row splits of rows with `counts` values."""
    splits = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=splits[1:])
    return splits


def check_kind(name: bytes, column: Column, kind: Kind, call: str) -> None:
    """Raises if an example has a list of another kind."""
    if column.size >= 0:
        return
    odd = (column.kinds != 0) & (column.kinds != kind)
    if odd.any():
        found = _NAMES[int(column.kinds[odd.argmax()])]
        fail_at(odd, name, call, f"{found} values, but its dtype was given as {_NAMES[kind]}")


def fail_at(
    odd: Array, name: bytes, call: str, problem: str, column: Column | None = None
) -> NoReturn:
    """Raises for the first example that is odd; `{}` in the problem is its number of values."""
    row = int(odd.argmax())
    text = problem if column is None else problem.format(column.counts[row])
    raise InvalidArgumentError(
        f"{call}: feature {name.decode(errors='replace')!r} of example {row} has {text}"
    )


def _check_dtype(feature: Any, call: str) -> None:
    try:
        dtype = None if feature.dtype is None else as_dtype(feature.dtype)
    except TypeError:
        dtype = None
    if dtype is None or dtype.name not in _KINDS:
        raise UnfitTypeError(
            f"{call}: dtype must be float32, int64 or string, got "
            f"{feature.dtype if dtype is None else dtype.name}; convert the result"
        )
    object.__setattr__(feature, "dtype", dtype)


def _check_shape(feature: Any, call: str) -> None:
    shape = TensorShape(feature.shape)
    if shape.dims is None or not shape.known:
        raise InvalidArgumentError(
            f"{call}: every dimension of shape must be a number, got {feature.shape!r}; "
            "use FixedLenSequenceFeature or VarLenFeature for a varying number of values"
        )
    object.__setattr__(feature, "shape", shape.dims)


def _default(feature: Any, call: str) -> Array:
    try:
        value = as_value(feature.default_value, feature.dtype)
    except (InvalidArgumentError, InvalidTypeError) as error:
        raise type(error)(f"{call}: default_value: {error.message}") from None
    # NumPy would drop the zero bytes at the end of a string.
    return strings.from_list([value]) if isinstance(value, bytes) else np.asarray(value)
