"""Arguments of the public calls: checked at the call, and converted to what a plan holds.

Every check takes `where`, the call as the user wrote it, which opens the message. A value of the
wrong type is an `InvalidTypeError`, a missing or impossible one an `InvalidArgumentError`.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from penstock.element import nest
from penstock.element.chunk import Chunk
from penstock.element.datasets import Datasets
from penstock.element.dtypes import DType, as_dtype
from penstock.element.ragged import Ragged
from penstock.element.spec import TypeSpec
from penstock.element.values import as_element, short_repr
from penstock.errors import (
    InvalidArgumentError,
    InvalidTypeError,
    NotADatasetError,
    OpError,
    UnfitTypeError,
)
from penstock.plan import seeds
from penstock.plan.nodes import Data, Node, Slices

AUTOTUNE = -1

_INT64 = np.iinfo(np.int64)


def describe(value: Any) -> str:
    """A value and its type, as error messages show them."""
    return f"{short_repr(value)} ({type(value).__name__})"


def integer(where: str, name: str, value: Any, at_least: int | None = None) -> int:
    """An integer of 64 bits; a bool counts as one, a float does not."""
    if value is None:
        raise InvalidArgumentError(f"{where}: {name} must be an integer, got None")
    if isinstance(value, list | tuple) or getattr(value, "ndim", 0) > 0:
        raise InvalidArgumentError(f"{where}: {name} must be one integer, got {describe(value)}")
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidTypeError(
            f"{where}: {name} must be an integer, got {describe(value)}"
        ) from None
    if not _INT64.min <= number <= _INT64.max:
        raise InvalidArgumentError(f"{where}: {name} must fit into 64 bits, got {number}")
    if at_least is not None and number < at_least:
        raise InvalidArgumentError(f"{where}: {name} must be at least {at_least}, got {number}")
    return number


def range_end(where: str, name: str, value: Any) -> int:
    """An int of Python or an int64; other integer dtypes are refused, not widened."""
    if isinstance(value, np.integer) and value.dtype != np.int64:
        raise InvalidArgumentError(
            f"{where}: {name} must be an int64, got an {value.dtype}; convert it with int()"
        )
    return integer(where, name, value)


def boolean(where: str, name: str, value: Any) -> bool:
    """A bool of Python or NumPy; truthy values are refused."""
    if value is None:
        raise InvalidArgumentError(f"{where}: {name} must be True or False, got None")
    if isinstance(value, np.ndarray) and value.dtype == bool and value.ndim == 0:
        return bool(value)
    if not isinstance(value, bool | np.bool_):
        raise InvalidTypeError(f"{where}: {name} must be True or False, got {describe(value)}")
    return bool(value)


def flag(where: str, name: str, value: Any) -> bool:
    """True or False; None is False."""
    return value is not None and boolean(where, name, value)


def number(where: str, name: str, value: Any, kind: DType) -> Any:
    """One number as a NumPy scalar of the dtype `kind`; a float is no integer."""
    if kind.is_integer:
        whole, limits = integer(where, name, value), np.iinfo(kind.dtype)
        if not limits.min <= whole <= limits.max:
            raise InvalidArgumentError(f"{where}: {name} must fit into {kind.name}, got {whole}")
        return kind.dtype.type(whole)
    if not kind.is_floating or not isinstance(value, int | float | np.integer | np.floating):
        raise InvalidTypeError(f"{where}: {name} must be a {kind.name}, got {describe(value)}")
    return kind.dtype.type(value)


def parallelism(where: str, name: str, value: Any) -> int | None:
    """The number of parallel calls: None for no parallelism, AUTOTUNE for the engine's choice."""
    if value is None:
        return None
    number = integer(where, name, value)
    if number < 1 and number != AUTOTUNE:
        raise InvalidArgumentError(
            f"{where}: {name} must be at least 1, or AUTOTUNE (-1), got {number}"
        )
    return number


def determinism(where: str, value: Any) -> bool | None:
    return None if value is None else boolean(where, "deterministic", value)


def seed(where: str, value: Any, name: str = "seed") -> int:
    """A seed; drawn at random if it is None."""
    return seeds.draw() if value is None else integer(where, name, value)


def text(where: str, name: str, value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, str):
        raise InvalidTypeError(f"{where}: {name} must be a string, got {describe(value)}")
    return value


def one_of(where: str, name: str, value: Any, options: Sequence[str]) -> str:
    if value not in options:
        shown = ", ".join(f'"{option}"' for option in options)
        raise InvalidArgumentError(f"{where}: {name} must be one of {shown}, got {value!r}")
    return str(value)


def feature_values(where: str, name: str, value: Any) -> Any:
    """One number (or None), or pairs of a feature's name and a number, of a dict."""
    pairs = tuple(value.items()) if isinstance(value, dict) else ((None, value),)
    for _, one in pairs:
        if one is not None and (np.ndim(one) or np.asarray(one).dtype.kind not in "biuf"):
            raise InvalidTypeError(
                f"{where}: {name} must be a number, or a dict of one for each feature, "
                f"got {value!r:.60}"
            )
    return pairs if isinstance(value, dict) else value


def path(where: str, name: str, value: Any) -> str:
    """The path of one file or folder."""
    if value is None:
        raise UnfitTypeError(f"{where}: {name} must be a path, got None")
    if not isinstance(value, str | bytes | os.PathLike):
        raise InvalidTypeError(
            f"{where}: {name} must be a str, bytes or os.PathLike, got {describe(value)}"
        )
    return os.fsdecode(value)


def paths(where: str, name: str, value: Any) -> list[bytes]:
    """File names as bytes, in order, from a path, a list (of lists) of paths or an array.

    >>> paths("f", "filenames", ["a", [b"b"]])
    [b'a', b'b']
    """
    if value is None:
        raise InvalidArgumentError(f"{where}: {name} must be file names, got None")
    if isinstance(value, str | bytes | os.PathLike):
        return [os.fsencode(value)]
    if isinstance(value, np.ndarray):
        value = value.ravel().tolist()
    if not isinstance(value, list | tuple):
        raise InvalidTypeError(f"{where}: {name} must be file names, got {describe(value)}")
    return [one for item in value for one in paths(where, name, item)]


def compression(where: str, value: Any) -> str | None:
    """How saved elements are packed: None or "GZIP"; "SNAPPY" means "GZIP"."""
    name = "NONE" if value is None else text(where, "compression", value)
    if name not in ("", "NONE", "GZIP", "SNAPPY"):
        raise InvalidArgumentError(f'{where}: compression must be "GZIP" or None, got {name!r}')
    return "GZIP" if name in ("GZIP", "SNAPPY") else None


def plan_of(where: str, name: str, value: Any) -> Node:
    """The plan of a dataset."""
    if not is_dataset(value):
        raise NotADatasetError(f"{where}: {name} must be a Dataset, got {describe(value)}")
    node: Node = value.__plan__
    return node


def is_dataset(value: Any) -> bool:
    return hasattr(type(value), "__plan__")


def plans_of(where: str, datasets: Any) -> list[Node]:
    """The plans of a list of datasets that is not empty."""
    if datasets is not None and not isinstance(datasets, Sequence):
        raise NotADatasetError(
            f"{where}: datasets must be a list of datasets, got {describe(datasets)}"
        )
    if not datasets:
        raise InvalidArgumentError(f"{where}: datasets must not be empty")
    return [plan_of(where, f"datasets[{i}]", value) for i, value in enumerate(datasets)]


def dtype(where: str, name: str, value: Any) -> DType:
    if value is None:
        raise InvalidTypeError(f"{where}: {name} must be a data type, got None")
    try:
        return as_dtype(value)
    except TypeError as error:
        message = str(error).removeprefix("penstock: ")
        raise InvalidTypeError(f"{where}: {name}: {message}") from None


_FOREIGN = "; that one is TensorFlow's own: write penstock.TensorSpec with the same arguments"


def signature(where: str, value: Any, name: str = "output_signature") -> Any:
    """A structure of specs."""
    for leaf in nest.flatten(value)[0]:
        if not isinstance(leaf, TypeSpec):
            raise UnfitTypeError(
                f"{where}: {name} must hold specs such as TensorSpec, got {describe(leaf)}"
                f"{_FOREIGN if type(leaf).__module__.startswith('tensorflow') else ''}"
            )
    return value


def element(where: str, value: Any, convert: Callable[[Any], Any] = as_element) -> Any:
    """A structure of values, converted; with `as_value` as `convert`, one value."""
    try:
        return convert(value)
    except OpError as error:
        raise type(error)(f"{where}: {error.message.removeprefix('penstock: ')}") from None


def single(where: str, value: Any) -> Data:
    """One element, as data of a plan; read-only, because every iteration returns the same one."""
    return Data(Chunk.of([element(where, value)], where).as_read_only())


def positions(where: str, value: Any, count: int) -> np.ndarray[Any, Any]:
    """An array of positions in a dataset of `count` elements; -1 elements are without end."""
    found = np.asarray(value)
    if found.ndim != 1 or (found.dtype.kind not in "iu" and found.size):
        remedy = "; numpy.flatnonzero makes positions of a mask" if found.dtype.kind == "b" else ""
        raise InvalidTypeError(
            f"{where}: positions must be a list or an array of integers, got "
            f"{describe(value)}{remedy}"
        )
    wrong = found[(found < 0) | ((found >= count) & (count >= 0))]
    if wrong.size:
        raise InvalidArgumentError(
            f"{where}: positions must be from 0 to {count - 1}, got {wrong[0]}"
            if count >= 0
            else f"{where}: positions must be at least 0, got {wrong[0]}"
        )
    return found.astype(np.int64)


def rows(where: str, value: Any) -> Data:
    """The rows of arrays of one length, as data of a plan."""
    leaves, tree = nest.flatten(element(where, value))
    places = zip(nest.leaf_places(tree), leaves, strict=True)
    lengths = {place: _count_rows(where, place, leaf) for place, leaf in places if leaf is not None}
    if not lengths:
        raise InvalidArgumentError(f"{where}: there is nothing to slice in {describe(value)}")
    (first, length), *others = lengths.items()
    for place, other in others:
        if other != length:
            raise InvalidArgumentError(
                f"{where}: all components must have as many rows as the first, got {length} in "
                f"{first} and {other} in {place}"
            )
    columns = [[None] * length if leaf is None else _column(leaf) for leaf in leaves]
    # Elements share memory with the caller's arrays, so they are read-only.
    return Data(Chunk(tree, columns, length).as_read_only())


def _column(leaf: Any) -> Any:
    return list(leaf) if isinstance(leaf, Datasets) else leaf


def _count_rows(where: str, place: str, leaf: Any) -> int:
    if isinstance(leaf, Ragged | Datasets) or (isinstance(leaf, np.ndarray) and leaf.ndim):
        return len(leaf)
    inside = f" in {place}" if place else ""
    raise InvalidArgumentError(
        f"{where}: needs arrays with at least one dimension, got {describe(leaf)}{inside}; use "
        "from_tensors for a single element"
    )


def names(where: str, name: str, value: Any) -> Slices:
    """A plan of file names that were given one by one."""
    return Slices(texts(paths(where, name, value)))


def texts(values: Iterable[bytes]) -> Data:
    column = np.array([*values, b""], object)[:-1]
    return Data(Chunk(nest.LEAF, [column], len(column)))
