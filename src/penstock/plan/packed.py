"""Packed rows: which features they have, and which values separate and fill them.

The features of an element are its arrays by name; an element that is one array has the feature
`tokens`. Nothing here reads an array: the method, the spec and the stream share these checks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.element.dtypes import is_number
from penstock.element.spec import RaggedTensorSpec, TensorSpec
from penstock.errors import InvalidArgumentError, InvalidTypeError

WHERE = "Dataset.pack"

TOKENS = "tokens"
"""The name of the only feature of elements that are bare arrays."""

SEGMENTS, POSITIONS, MASK = "segment_ids", "positions", "loss_mask"
"""The features that packing adds. A `loss_mask` of the input is packed as well."""

STRATEGIES = ("first_fit", "best_fit", "concat_split")
TOO_LONG = ("error", "split", "truncate")

Values = tuple[tuple[str, Any], ...] | Any
"""One value for all features that need one, or pairs of a feature and its value."""

Dtypes = dict[str, "np.dtype[Any]"]


def packed_spec(spec: Any, length: int) -> dict[str, TensorSpec]:
    """The spec of rows that are made of elements of `spec`."""
    rows = {name: TensorSpec((length,), dtype) for name, dtype in dtypes_of(spec).items()}
    added = {name: TensorSpec((length,), np.int32) for name in (SEGMENTS, POSITIONS)}
    return rows | added | {MASK: TensorSpec((length,), np.bool_)}


def dtypes_of(spec: Any) -> Dtypes:
    """The features of elements of `spec`; InvalidTypeError if they cannot be packed."""
    leaves = spec if type(spec) is dict else {TOKENS: spec}
    return check_dtypes({name: _dtype(name, leaf) for name, leaf in leaves.items()})


def _dtype(name: Any, leaf: Any) -> np.dtype[Any]:
    if isinstance(leaf, TensorSpec | RaggedTensorSpec) and leaf.shape.rank in (1, None):
        return leaf.dtype.dtype
    raise InvalidTypeError(
        f"{WHERE}: every feature must be a 1-D array of tokens, got {leaf} as {name!r}; "
        "elements are one such array or a dict of them"
    )


def check_dtypes(dtypes: Dtypes) -> Dtypes:
    """The same features, if their names and dtypes can be packed."""
    for name, dtype in dtypes.items():
        if name in (SEGMENTS, POSITIONS):
            raise InvalidArgumentError(
                f"{WHERE}: there is a feature {name!r}, which packing adds itself; rename it"
            )
        if not is_number(dtype):
            raise InvalidTypeError(
                f"{WHERE}: the feature {name!r} holds strings; map them to numbers before"
            )
        if name == MASK and dtype != np.bool_:
            raise InvalidTypeError(f"{WHERE}: the feature {MASK!r} must be bool, got {dtype}")
    if not set(dtypes) - {MASK}:
        raise InvalidArgumentError(f"{WHERE}: elements have no feature; each needs an array")
    return dtypes


def values_for(argument: str, given: Values, dtypes: Dtypes, default: Any) -> dict[str, Any]:
    """The value of every feature, in its dtype.

    One value is meant for the only feature besides `loss_mask`. Features that are not named get
    `default`; InvalidArgumentError if that is None.
    """
    values: dict[str, Any] = {MASK: argument == "separator"} if MASK in dtypes else {}
    names = [name for name in dtypes if name != MASK]
    if isinstance(given, tuple):
        values |= dict(given)
    elif given is not None:
        values |= dict.fromkeys(names if default is not None else names[:1], given)
    missing = [name for name in names if name not in values]
    unknown = [name for name in values if name not in dtypes]
    if unknown or (missing and default is None):
        raise InvalidArgumentError(
            f"{WHERE}: {argument} must have a value for each of the features {names}, "
            f"got {given!r}; give a dict of them"
        )
    values |= dict.fromkeys(missing, default)
    return {name: _fit(argument, values[name], dtype) for name, dtype in dtypes.items()}


def _fit(argument: str, value: Any, dtype: np.dtype[Any]) -> Any:
    with np.errstate(all="ignore"):
        made = np.asarray(value).astype(dtype)[()]
    if made != value and dtype.kind != "f":
        raise InvalidArgumentError(
            f"{WHERE}: {argument} {value!r} cannot be stored as {dtype.name} without loss"
        )
    return made
