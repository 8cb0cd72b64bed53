"""Weights of datasets to sample from: a list for all elements, or a dataset with one for each."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError, InvalidTypeError


def checked_weights(where: str, value: Any, count: int) -> list[float]:
    """One weight per dataset; without any they are equal."""
    if value is None:
        return [1.0] * count
    weights = np.asarray(value)
    if weights.shape != (count,):
        raise InvalidArgumentError(
            f"{where}: weights must be one number for each of the {count} datasets, got {value!r}"
        )
    if weights.dtype.kind != "f":
        raise InvalidTypeError(
            f"{where}: weights must be floats, got {value!r} ({weights.dtype}); write 1.0 for 1"
        )
    if not np.all(np.isfinite(weights)):
        raise InvalidArgumentError(f"{where}: weights must be finite, got {value!r}")
    return [float(weight) for weight in weights]


def pick(weights: Any, word: Any) -> np.int64:
    """The number of a dataset, by weights and a random number below 2**32.

    >>> pick((0.25, 0.75), 2**30), pick((0.25, 0.75), 2**30 - 1)
    (np.int64(1), np.int64(0))
    """
    edges = np.cumsum(np.ravel(weights), dtype=np.float64)
    point = int(word) / 2**32 * edges[-1]
    return np.int64(min(np.searchsorted(edges, point, side="right"), len(edges) - 1))
