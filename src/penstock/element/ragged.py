"""`Ragged`: rows of different lengths, as flat values and row splits.

Nothing may change a `Ragged`: rows and slices share its memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from penstock.element import strings
from penstock.errors import InvalidArgumentError, InvalidTypeError, OutOfRangeError

Values = "np.ndarray[Any, Any] | Ragged"


class Ragged:
    """Row `i` is `values[row_splits[i]:row_splits[i + 1]]`; values may be ragged again.

    >>> r = Ragged.from_rows([[1], [2, 3], []])
    >>> len(r), r[1].tolist(), r.to_list(), r.shape
    (3, [2, 3], [[1], [2, 3], []], (3, None))
    >>> other = Ragged.from_row_splits(np.array([1, 2, 3]), [0, 1, 3, 3])
    >>> Ragged.concat([r, other]).to_list(), other.take([1, 0]).to_list()
    ([[1], [2, 3], [], [1], [2, 3], []], [[2, 3], [1]])
    >>> r.numpy().dtype
    dtype('O')
    """

    __slots__ = ("row_splits", "values")

    def __init__(self, values: np.ndarray[Any, Any] | Ragged, row_splits: Any) -> None:
        self.values = values if isinstance(values, Ragged) else _array(values)
        self.row_splits = np.asarray(row_splits)
        if self.row_splits.dtype not in (np.int64, np.int32):
            self.row_splits = self.row_splits.astype(np.int64)

    @classmethod
    def from_row_splits(cls, values: Any, row_splits: Any) -> Ragged:
        """Checks `row_splits`, and raises InvalidArgumentError if they do not fit `values`."""
        ragged = cls(values, row_splits)
        splits = ragged.row_splits
        fits = splits.ndim == 1 and len(splits) > 0
        fits = fits and bool(splits[0] == 0 and splits[-1] == len(ragged.values))
        if not fits or bool(np.any(np.diff(splits) < 0)):
            raise InvalidArgumentError(
                "Ragged.from_row_splits: row_splits must rise from 0 to the number of values "
                f"({len(ragged.values)}), got {splits.ravel().tolist()[:8]}"
            )
        return ragged

    @classmethod
    def from_rows(cls, rows: Sequence[Any], dtype: Any = None) -> Ragged:
        """A `Ragged` of rows that are sequences, arrays or `Ragged`s."""
        rows = _list_rows(rows)
        if rows and isinstance(rows[0], Ragged):
            return cls(Ragged.concat(rows), _splits([len(row) for row in rows]))
        if dtype is not None and np.dtype(dtype).kind in "SU":
            dtype = object
        arrays = [_array(row) if len(row) else np.asarray(row, dtype) for row in rows]
        filled = [array for array in arrays if len(array)]
        if not filled:
            flat = arrays[0] if arrays else np.zeros(0, dtype or np.float32)
        else:
            flat = _join(filled) if len(filled) > 1 else filled[0]
        flat = flat if dtype is None else flat.astype(dtype, copy=False)
        return cls(flat, _splits([len(array) for array in arrays]))

    @classmethod
    def concat(cls, parts: Sequence[Ragged]) -> Ragged:
        """The rows of all parts, in order."""
        if len(parts) == 1:
            return parts[0]
        lengths = np.concatenate([part.row_lengths for part in parts])
        flat = [part.flat for part in parts]
        if isinstance(flat[0], Ragged):
            return cls(Ragged.concat(flat), _splits(lengths))  # type: ignore[arg-type]
        return cls(np.concatenate(flat), _splits(lengths))  # type: ignore[arg-type]

    @property
    def flat(self) -> np.ndarray[Any, Any] | Ragged:
        """The values of the rows. In a slice, `values` also has those of other rows."""
        return self.values[int(self.row_splits[0]) : int(self.row_splits[-1])]

    @property
    def row_lengths(self) -> np.ndarray[Any, Any]:
        return np.diff(self.row_splits)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    @property
    def flat_values(self) -> np.ndarray[Any, Any]:
        flat = self.flat
        return flat.flat_values if isinstance(flat, Ragged) else flat

    @property
    def ragged_rank(self) -> int:
        return 1 + (self.values.ragged_rank if isinstance(self.values, Ragged) else 0)

    @property
    def shape(self) -> tuple[int | None, ...]:
        inner = self.values.shape[1:]
        return (len(self), None, *inner)

    @property
    def nbytes(self) -> int:
        return int(self.flat.nbytes) + int(self.row_splits.nbytes)

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    def __getitem__(self, key: int | slice) -> Any:
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step != 1:
                return self.take(np.arange(start, stop, step))
            return Ragged(self.values, self.row_splits[start : max(stop, start) + 1])
        if not -len(self) <= key < len(self):
            raise OutOfRangeError(f"Ragged[{key}]: there are {len(self)} rows")
        key %= len(self)
        return self.values[int(self.row_splits[key]) : int(self.row_splits[key + 1])]

    def take(self, indices: np.ndarray[Any, Any]) -> Ragged:
        """The rows at `indices`, copied."""
        starts = self.row_splits[:-1][indices]
        splits = _splits(self.row_lengths[indices])
        within = np.arange(splits[-1]) - np.repeat(splits[:-1], np.diff(splits))
        where = np.repeat(starts, np.diff(splits)) + within
        flat = self.values.take(where) if isinstance(self.values, Ragged) else self.values[where]
        return Ragged(flat, splits)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def to_list(self) -> list[Any]:
        return [row.to_list() if isinstance(row, Ragged) else row.tolist() for row in self]

    def numpy(self) -> np.ndarray[Any, Any]:
        """An array of objects: one array for each row."""
        rows = np.empty(len(self), object)
        rows[:] = [row.numpy() if isinstance(row, Ragged) else row for row in self]
        return rows

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ragged) and self.to_list() == other.to_list()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Ragged {self.to_list()}>"


def _array(values: Any) -> np.ndarray[Any, Any]:
    """Values as an array; strings become bytes."""
    try:
        if isinstance(values, list | tuple) and strings.holds_only_strings(values):
            return strings.from_list(values)
        array = np.asarray(values)
        if isinstance(values, list | tuple):
            strings.refuse_large_integers(values, array)
    except InvalidArgumentError:
        raise
    except ValueError:
        raise InvalidArgumentError(
            f"Ragged: the rows of {values!r:.60} differ in length; make it a Ragged first"
        ) from None
    return strings.from_array(array) if array.dtype.kind in "SU" else array


def _list_rows(rows: Any) -> list[Any]:
    try:
        listed = list(rows)
    except TypeError:
        raise InvalidTypeError(
            f"Ragged.from_rows: rows must be a list of rows, got {rows!r:.60}"
        ) from None
    for number, row in enumerate(listed):
        if not _is_row(row):
            raise InvalidTypeError(
                f"Ragged.from_rows: row {number} must be a list or an array, got {row!r:.60}; "
                "write a row of one value as [value]"
            )
    return listed


def _is_row(value: Any) -> bool:
    if isinstance(value, str | bytes | dict | set | frozenset):
        return False
    try:
        return len(value) >= 0
    except TypeError:  # Also of an array without axes.
        return False


def _join(arrays: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """The values of several rows as one array."""
    if len({array.dtype == object for array in arrays}) > 1:
        raise InvalidArgumentError(
            "Ragged.from_rows: the rows mix strings and numbers; make a Ragged of each"
        )
    try:
        return np.concatenate(arrays)
    except ValueError:
        shapes = sorted({array.shape[1:] for array in arrays})
        raise InvalidArgumentError(
            f"Ragged.from_rows: the values of all rows must have one shape, got {shapes}; make "
            "each row a Ragged first"
        ) from None


def _splits(lengths: Any) -> np.ndarray[Any, Any]:
    splits = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=splits[1:])
    return splits
