"""Which values Arrow changes as it converts them to a type: it cuts 2.5 to the integer 2.

Arrow refuses most values that do not fit, but not all. A whole float is an integer, an integer
that a float holds exactly is that float, and floats are rounded to the precision of the type.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.engine.formats.extras import arrow


def find_changed(values: Sequence[Any], array: Any) -> int | None:
    """The number of the first value that differs in the Arrow array that was made of them."""
    if _keeps_types(values, array):
        return None
    pairs = enumerate(zip(values, array, strict=True))
    return next((number for number, pair in pairs if not _is_kept(*pair)), None)


def _is_kept(value: Any, scalar: Any) -> bool:
    """Whether an Arrow scalar has the value that it was made of."""
    kind = scalar.type
    if value is None or not scalar.is_valid:
        return True
    if arrow.types.is_dictionary(kind) or hasattr(kind, "storage_type"):
        return _is_kept(value, scalar.value)
    if arrow.types.is_struct(kind):
        given = dict(value)
        names = {field.name for field in kind}
        return given.keys() <= names and all(_is_kept(given[key], scalar[key]) for key in given)
    if is_list(kind) or arrow.types.is_fixed_size_list(kind):
        return find_changed(list(value), scalar.values) is None
    if is_bytes(kind):
        return not isinstance(value, str)
    if arrow.types.is_temporal(kind):
        return _is_time_kept(value, kind)
    if arrow.types.is_integer(kind) or arrow.types.is_floating(kind):
        return _is_number_kept(value, scalar.as_py())
    return True


def is_list(kind: Any) -> bool:
    """Whether a type has lists of any length."""
    return bool(arrow.types.is_list(kind) or arrow.types.is_large_list(kind))


def is_string(kind: Any) -> bool:
    is_plain = arrow.types.is_string(kind) or arrow.types.is_large_string(kind)
    return bool(is_plain or arrow.types.is_string_view(kind))


def is_bytes(kind: Any) -> bool:
    """Whether a type holds bytes, which are no text."""
    return bool(
        arrow.types.is_binary(kind)
        or arrow.types.is_large_binary(kind)
        or arrow.types.is_binary_view(kind)
        or arrow.types.is_fixed_size_binary(kind)
    )


def _is_number_kept(value: Any, kept: Any) -> bool:
    if isinstance(value, np.datetime64 | np.timedelta64):
        return False
    if isinstance(value, np.generic | np.ndarray):
        value = value.item()  # NumPy rounds an integer before it compares it with a float.
    if isinstance(value, bool):
        return False
    if isinstance(value, float) and isinstance(kept, float):
        return math.isfinite(value) == math.isfinite(kept)
    return bool(value == kept)


def _is_time_kept(value: Any, kind: Any) -> bool:
    """Numbers are counts of the type's unit; all other values may have a finer one."""
    try:
        found = arrow.scalar(value)
        if arrow.types.is_temporal(found.type):
            return bool(found.cast(kind).cast(found.type) == found)
    except (arrow.ArrowException, ValueError):
        return False
    return not isinstance(value, bool | np.bool_) and bool(value == int(value))


def _keeps_types(values: Sequence[Any], array: Any) -> bool:
    """Whether the types of all values alone show that Arrow keeps them; False if they may not.

    This looks at columns, and is many times faster than a look at each value.
    """
    kind = array.type
    found = set(map(type, values)) - {type(None)}
    if arrow.types.is_boolean(kind) or is_string(kind):
        return True
    if is_bytes(kind):
        return not any(issubclass(each, str) for each in found)
    if arrow.types.is_integer(kind):
        return all(each is int or _is_integer(each) for each in found)
    if arrow.types.is_floating(kind):
        if kind.bit_width > 16:  # Arrow refuses integers that these do not hold exactly.
            found.discard(int)
        return all(issubclass(each, float | np.floating) for each in found) and _is_finite(array)
    if is_list(kind) or arrow.types.is_fixed_size_list(kind):
        return _keeps_items(found, [value for value in values if value is not None], array)
    if arrow.types.is_struct(kind):
        return all(issubclass(each, Mapping) for each in found) and _keeps_fields(values, array)
    return False


def _is_integer(each: type) -> bool:
    return issubclass(each, np.integer) and not issubclass(each, np.timedelta64)


def _is_finite(array: Any) -> bool:
    """False also where values are infinite, because Arrow may have made them so."""
    return not np.isinf(array.to_numpy(zero_copy_only=False)).any()


def _keeps_items(found: set[type], lists: Sequence[Any], array: Any) -> bool:
    items = array.flatten()
    if found == {np.ndarray}:
        dtypes = {value.dtype for value in lists}
        if arrow.types.is_floating(items.type) and all(dtype.kind == "f" for dtype in dtypes):
            return _is_finite(items)
        if arrow.types.is_integer(items.type) and all(dtype.kind in "iu" for dtype in dtypes):
            return True  # Arrow refuses integers that are out of range.
    elif not found <= {list, tuple}:
        return False
    return _keeps_types(list(itertools.chain.from_iterable(lists)), items)


def _keeps_fields(values: Sequence[Any], array: Any) -> bool:
    names = [field.name for field in array.type]
    if not all(value is None or value.keys() <= set(names) for value in values):
        return False
    return all(
        _keeps_types([None if value is None else value.get(name) for value in values], part)
        for name, part in zip(names, array.flatten(), strict=True)
    )
