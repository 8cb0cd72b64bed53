"""`RaggedFeature`: values that other features of the same example divide into rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from penstock.element.columns import Array
from penstock.element.dtypes import as_dtype
from penstock.element.ragged import Ragged
from penstock.element.spec import RaggedTensorSpec
from penstock.element.strings import bytes_of
from penstock.engine.formats.examples.feature_columns import Column
from penstock.engine.formats.examples.features import (
    Feature,
    _check_dtype,
    fail_at,
    splits_of,
)
from penstock.engine.formats.examples.reading import Kind
from penstock.errors import InvalidArgumentError, InvalidTypeError


@dataclass(frozen=True)
class Partition:
    """A feature of integers that divides values into rows."""

    key: str

    def lengths(self, column: Column, counts: Array) -> tuple[Array, Array]:
        """The lengths of rows, and how many rows each example has.

        `counts` says how many values each example has.
        """
        raise AssertionError("a subclass defines it")


class RowLengths(Partition):
    """The length of each row."""

    def lengths(self, column: Column, counts: Array) -> tuple[Array, Array]:
        return column.values, column.counts


class RowStarts(Partition):
    """Where each row begins."""

    def lengths(self, column: Column, counts: Array) -> tuple[Array, Array]:
        limits = np.append(column.values[1:], 0)
        ends = np.cumsum(column.counts)
        filled = column.counts > 0
        limits[ends[filled] - 1] = counts[filled]
        return _refuse_late(limits - column.values, column), column.counts


class RowLimits(Partition):
    """Where each row ends."""

    def lengths(self, column: Column, counts: Array) -> tuple[Array, Array]:
        starts = np.concatenate(([0], column.values[:-1]))[: len(column.values)]
        begins = np.cumsum(column.counts) - column.counts
        starts[begins[column.counts > 0]] = 0
        return column.values - starts, column.counts


class RowSplits(Partition):
    """Where each row begins, and where the last one ends."""

    def lengths(self, column: Column, counts: Array) -> tuple[Array, Array]:
        lengths = _refuse_late(np.append(np.diff(column.values), 0)[: len(column.values)], column)
        last = np.zeros(len(lengths), bool)
        last[np.cumsum(column.counts)[column.counts > 0] - 1] = True
        return lengths[~last], np.maximum(column.counts - 1, 0)


class ValueRowIds(Partition):
    """The row of each value."""

    def lengths(self, column: Column, counts: Array) -> tuple[Array, Array]:
        ends = np.cumsum(column.counts)
        rows = np.zeros(len(counts), np.int64)
        filled = column.counts > 0
        rows[filled] = column.values[ends[filled] - 1] + 1
        rows = np.maximum(rows, 0)
        examples = np.repeat(np.arange(len(counts)), column.counts)
        first = np.ones(len(column.values), bool)
        first[1:] = examples[1:] != examples[:-1]
        falls = (np.diff(column.values, prepend=0) < 0) & ~first | (column.values < 0)
        if falls.any():
            return np.full(int(rows.sum()), -1), rows
        where = column.values + np.repeat(np.cumsum(rows) - rows, column.counts)
        return np.bincount(where, minlength=int(rows.sum())), rows


@dataclass(frozen=True)
class UniformRowLength:
    """The length of every row, in every example."""

    length: int

    def __post_init__(self) -> None:
        if self.length < 1:
            raise InvalidArgumentError(
                f"RaggedFeature.UniformRowLength: length must be at least 1, got {self.length}"
            )


@dataclass(frozen=True)
class RaggedFeature(Feature):
    """A feature with any number of values, divided into rows: the result is a `Ragged`.

    Args:
      dtype: `float32`, `int64` or `string`.
      value_key: The name of the feature that has the values; by default the key of this
        declaration.
      partitions: What divides the values into rows, from the outermost to the innermost:
        `RaggedFeature.RowSplits(key)`, `RowLengths(key)`, `RowStarts(key)`, `RowLimits(key)`,
        `ValueRowIds(key)` with the name of a feature of integers, or `UniformRowLength(length)`.
      row_splits_dtype: `int32` or `int64`.
      validate: Accepted and ignored: partitions are always checked.

    >>> from penstock.io import parse_example, serialize_example
    >>> data = [serialize_example({"x": [1, 2, 3], "sizes": [2, 1]}), serialize_example({})]
    >>> feature = RaggedFeature("int64", "x", [RaggedFeature.RowLengths("sizes")])
    >>> parse_example(data, {"rows": feature})["rows"]
    <Ragged [[[1, 2], [3]], []]>
    """

    dtype: Any
    value_key: str | None = None
    partitions: Any = ()
    row_splits_dtype: Any = "int32"
    validate: bool = False

    RowSplits: ClassVar = RowSplits
    RowLengths: ClassVar = RowLengths
    RowStarts: ClassVar = RowStarts
    RowLimits: ClassVar = RowLimits
    ValueRowIds: ClassVar = ValueRowIds
    UniformRowLength: ClassVar = UniformRowLength

    def __post_init__(self) -> None:
        _check_dtype(self, "RaggedFeature")
        splits = as_dtype(self.row_splits_dtype)
        if splits.name not in ("int32", "int64"):
            raise InvalidArgumentError(
                f"RaggedFeature: row_splits_dtype must be int32 or int64, got {splits.name}"
            )
        object.__setattr__(self, "row_splits_dtype", splits)
        object.__setattr__(self, "partitions", tuple(self.partitions))
        for partition in self.partitions:
            if not isinstance(partition, Partition | UniformRowLength):
                raise InvalidTypeError(
                    "RaggedFeature: partitions must be RaggedFeature.RowSplits, RowLengths, "
                    "RowStarts, RowLimits, ValueRowIds or UniformRowLength, "
                    f"got {partition!r}"
                )

    def keys(self, name: bytes) -> dict[bytes, Kind]:
        sizes = [part.key for part in self.partitions if isinstance(part, Partition)]
        return super().keys(self._value_key(name)) | {bytes_of(key): Kind.INT64 for key in sizes}

    def _value_key(self, name: bytes) -> bytes:
        return name if self.value_key is None else bytes_of(self.value_key)

    def spec(self, rows: int | None) -> RaggedTensorSpec:
        ragged = 1
        inner: list[int] = []
        for partition in reversed(self.partitions):
            if isinstance(partition, UniformRowLength) and ragged == 1:
                inner.insert(0, partition.length)
            else:
                ragged += 1
        shape = (rows, *[None] * ragged, *inner)
        return RaggedTensorSpec(shape, self.dtype, ragged, self.row_splits_dtype)

    def build(self, name: bytes, columns: Mapping[bytes, Column], call: str) -> Ragged:
        column = columns[self._value_key(name)]
        values: Array | Ragged = column.values
        counts = column.counts
        for partition in reversed(self.partitions):
            lengths, rows = _divide(partition, columns, counts, call)
            if isinstance(partition, UniformRowLength) and not isinstance(values, Ragged):
                values = values.reshape(-1, partition.length, *values.shape[1:])
            else:
                values = Ragged(values, self._splits(lengths))
            counts = rows
        return Ragged(values, self._splits(counts))

    def _splits(self, counts: Array) -> Array:
        return splits_of(counts).astype(self.row_splits_dtype.dtype)


def _divide(
    partition: Partition | UniformRowLength,
    columns: Mapping[bytes, Column],
    counts: Array,
    call: str,
) -> tuple[Array, Array]:
    """The lengths of rows, and how many rows each example has; raises if they do not fit."""
    if isinstance(partition, UniformRowLength):
        if (odd := counts % partition.length != 0).any():
            text = f"{counts[odd.argmax()]} values, which cannot be divided by {partition.length}"
            fail_at(odd, b"(values)", call, text)
        rows = counts // partition.length
        return np.full(int(rows.sum()), partition.length), rows
    key = bytes_of(partition.key)
    lengths, rows = partition.lengths(columns[key], counts)
    ends = np.cumsum(rows)
    before = np.concatenate(([0], np.cumsum(lengths)))
    lowest = np.concatenate(([0], np.cumsum(lengths < 0)))
    odd = (before[ends] - before[ends - rows] != counts) | (lowest[ends] > lowest[ends - rows])
    if odd.any():
        fail_at(
            odd,
            key,
            call,
            f"{type(partition).__name__} that do not fit the {counts[odd.argmax()]} values "
            "that they divide",
        )
    return lengths, rows


def _refuse_late(lengths: Array, column: Column) -> Array:
    """Marks the first row of an example with -1, if the row does not begin at 0."""
    begins = (np.cumsum(column.counts) - column.counts)[column.counts > 0]
    late = begins[column.values[begins] != 0]
    lengths[late] = -1
    return lengths
