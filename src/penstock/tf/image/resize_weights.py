"""The weights of the methods of `resize`: which pixels make a pixel of the result, and how much.

A method is a matrix of weights for each axis, of which most are zero.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.tf.values import Array


class Band(NamedTuple):
    """The weights of neighbouring sums: a small matrix, and the first value that it is for."""

    first: int
    weights: Array


@functools.lru_cache(maxsize=64)
def find_bands(
    method: str, antialias: bool, have: int, want: int, channels: int, is_finite: bool
) -> list[Band]:
    """The weights of a few pixels at a time, with so many values each.

    The values of such pixels are multiplied by all their weights, and 0 times inf is nan. So pixels
    that may be nan or inf are weighed one by one.
    """
    weights = _find_weights(method, antialias)(have, want).astype(np.float32)
    step = min(max(2, _BAND * want // have), 8) if is_finite else 1
    parts = (weights[start : start + step] for start in range(0, want, step))
    return [_cut_band(part, channels) for part in parts]


_BAND = 16
"""About so many pixels are weighed together: fewer cost calls, more are multiplied by 0."""


def _cut_band(weights: Array, channels: int) -> Band:
    """Leaves out the pixels around those that have a weight."""
    used = np.flatnonzero(weights.any(0))
    first, last = int(used[0]), int(used[-1]) + 1
    return Band(
        first * channels, np.kron(weights[:, first:last], np.eye(channels, dtype=np.float32))
    )


def find_centers(have: int, want: int) -> Array:
    """The centers of the pixels of the result, on the scale of the image's pixels."""
    scale = np.float32(have) / np.float32(want)
    return (np.arange(want, dtype=np.float32) + np.float32(0.5)) * scale


def _find_weights(method: str, antialias: bool) -> Callable[[int, int], Array]:
    if method == "area":
        return _area
    if method == "bicubic" and not antialias:
        return _bicubic
    if method not in _KERNELS:
        raise InvalidArgumentError(
            f"tf.image.resize: method must be one of nearest, area, {', '.join(_KERNELS)}, "
            f"got {method!r}"
        )
    return lambda have, want: _kernel_weights(method, have, want, antialias)


def _area(have: int, want: int) -> Array:
    """The share of each pixel that lies under a pixel of the result."""
    scale = have / want
    starts = np.arange(want)[:, None] * scale
    pixels = np.arange(have)
    overlap = np.minimum(starts + scale, pixels + 1) - np.maximum(starts, pixels)
    return (np.maximum(overlap, 0) / scale).astype(np.float32)


def _bicubic(have: int, want: int) -> Array:
    """Keys' cubic, from a table of 1024 steps as in TensorFlow."""
    places = find_centers(have, want) - np.float32(0.5)
    first = np.floor(places).astype(np.int64)
    steps = np.rint((places - first) * 1024) / 1024
    result = np.zeros((want, have), np.float64)
    for offset in (-1, 0, 1, 2):
        columns = first + offset
        inside = (columns >= 0) & (columns < have)
        weights = _keys_cubic(np.abs(offset - steps))
        result[np.flatnonzero(inside), columns[inside]] = weights[inside]
    return (result / result.sum(1, keepdims=True)).astype(np.float32)


def _kernel_weights(method: str, have: int, want: int, antialias: bool) -> Array:
    """The weights of TensorFlow's scale_and_translate."""
    kernel, radius = _KERNELS[method]
    stretch = np.float32(max(have / want, 1.0) if antialias else 1)
    pixels = np.arange(have, dtype=np.float32) + np.float32(0.5)
    scale = np.float32(1) / (np.float32(want) / np.float32(have))
    centers = (np.arange(want, dtype=np.float32) + np.float32(0.5)) * scale
    distances = np.abs((pixels - centers[:, None]) * (np.float32(1) / stretch))
    reach = np.where(distances <= radius, kernel(distances), 0).astype(np.float32)
    return reach / reach.sum(1, keepdims=True)


def _keys_cubic(x: Array) -> Array:
    near = ((1.5 * x - 2.5) * x) * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x >= 2, 0, np.where(x >= 1, far, near))


def _mitchell(x: Array) -> Array:
    near = ((7 * x - 12) * x * x + 16 / 3) / 6
    far = (((-7 / 3 * x + 12) * x - 20) * x + 32 / 3) / 6
    return np.where(x >= 2, 0, np.where(x >= 1, far, near))


def _triangle(x: Array) -> Array:
    return np.maximum(0, 1 - x)


def _lanczos(radius: float) -> Callable[[Array], Array]:
    return lambda x: np.where(x > radius, 0, np.sinc(x) * np.sinc(x / radius))


def _gaussian(x: Array) -> Array:
    return np.where(x >= 1.5, 0, np.exp(-x * x / (2 * 0.5 * 0.5)))


BLURRING = {"gaussian", "mitchellcubic"}
"""Methods that change an image also if it keeps its size."""

_KERNELS: dict[str, tuple[Callable[[Array], Array], float]] = {
    "bilinear": (_triangle, 1),
    "bicubic": (_keys_cubic, 2),
    "lanczos3": (_lanczos(3.0), 3),
    "lanczos5": (_lanczos(5.0), 5),
    "gaussian": (_gaussian, 1.5),
    "mitchellcubic": (_mitchell, 2),
}
