"""`resize`: images in another size, by the methods of TensorFlow.

Most methods are a matrix of weights for each axis, of which most are zero. Bilinear and nearest
gather pixels instead, which is faster and gives the same bits as TensorFlow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.engine.heap import keep_freed_memory
from penstock.errors import InvalidArgumentError
from penstock.tf.operations import dims, image_operation
from penstock.tf.values import Array

Band = tuple[int, Array]
"""The weights of neighbouring sums: a small matrix, behind the first value that it is for."""

_BLOCK = 1 << 16
"""How many values are computed together."""

_LARGEST_PRODUCT = 1 << 18
"""How many multiplications a product of matrices has at most: OpenBLAS starts threads for more."""

_FEW_CHANNELS = 4
"""So many channels are weighed by one matrix, in which most weights are 0."""


class ResizeMethod:
    """The names of the methods."""

    BILINEAR = "bilinear"
    NEAREST_NEIGHBOR = "nearest"
    BICUBIC = "bicubic"
    AREA = "area"
    LANCZOS3 = "lanczos3"
    LANCZOS5 = "lanczos5"
    GAUSSIAN = "gaussian"
    MITCHELLCUBIC = "mitchellcubic"


@image_operation
@np.errstate(invalid="ignore")
def resize(
    images: Any,
    size: Any,
    method: str = ResizeMethod.BILINEAR,
    preserve_aspect_ratio: bool = False,
    antialias: bool = False,
    name: str | None = None,
) -> Any:
    """Images (3-D or 4-D) in the size (height, width), as float32 unless the method is nearest."""
    keep_freed_memory()
    wanted = dims("image.resize", size)
    if len(wanted) != 2:
        raise InvalidArgumentError(f"tf.image.resize: size must be two integers, got {wanted}")
    height, width = images.shape[1:3]
    if not images.shape[3]:
        raise InvalidArgumentError("tf.image.resize: images must have at least one channel")
    if preserve_aspect_ratio:
        scale = min(wanted[0] / height, wanted[1] / width)
        wanted = round(scale * height), round(scale * width)
    if (height, width) == wanted and method not in _BLURRING:
        return images if method == "nearest" else images.astype(np.float32, copy=False)
    if min(wanted) < 1:
        raise InvalidArgumentError(
            f"tf.image.resize: output dimensions must be positive, got {wanted}"
        )
    if method == "nearest":
        return _pick_nearest(images, wanted)
    if method == "bilinear" and not antialias:
        return _bilinear(images, wanted)
    return _apply(images, wanted, method, antialias)


def _pick_nearest(batch: Array, wanted: tuple[int, ...]) -> Array:
    rows, columns = (_nearest(*pair) for pair in zip(batch.shape[1:3], wanted, strict=True))
    places = _spread(columns, batch.shape[3])
    if wanted[0] > batch.shape[1]:  # Whole rows are copied faster than pixels.
        made = np.take(_take_rows(batch), places, 1).reshape(*batch.shape[:2], len(places))
        made = np.take(made, rows, 1)
    else:
        made = np.take(_take_rows(batch, rows), places, 1)
    return made.reshape(len(batch), *wanted, batch.shape[3])


def _nearest(have: int, want: int) -> Array:
    return np.minimum(_find_centers(have, want).astype(np.int64), have - 1)


@functools.lru_cache(maxsize=64)
def _neighbours(have: int, want: int) -> tuple[Array, Array, Array]:
    """For each place of the result the two places between which it lies, and how far."""
    places = _find_centers(have, want) - np.float32(0.5)
    below = np.floor(places)
    low = np.maximum(below, 0).astype(np.int64)
    high = np.minimum(np.ceil(places), have - 1).astype(np.int64)
    return low, high, (places - below).astype(np.float32)


def _bilinear(batch: Array, wanted: tuple[int, ...]) -> Array:
    count, height, width, channels = batch.shape
    top, bottom, down = _neighbours(height, wanted[0])
    left, right, across = _neighbours(width, wanted[1])
    columns = [_spread(one, channels) for one in (left, right)]
    share = np.repeat(across, channels)
    if height < wanted[0]:  # Each row is a neighbour of several rows of the result.
        wide = _interpolate(_take_rows(batch), columns, share).reshape(count, height, len(share))
        return _blend_rows(wide, wanted).reshape(count, *wanted, channels)
    rows = [_interpolate(_take_rows(batch, one), columns, share) for one in (top, bottom)]
    made = _blend(rows[0], rows[1], np.tile(down, count)[:, None])
    return made.reshape(count, *wanted, channels)


def _blend_rows(batch: Array, wanted: tuple[int, ...]) -> Array:
    """More rows, between those of each image; computed in blocks that fit into a cache."""
    top, bottom, down = _neighbours(batch.shape[1], wanted[0])
    made = np.empty((len(batch), wanted[0], batch.shape[2]), np.float32)
    size = max(1, _BLOCK // batch.shape[2])
    for image, result in zip(batch, made, strict=True):
        for start in range(0, wanted[0], size):
            block = slice(start, start + size)
            first = np.take(image, top[block], 0)
            second = np.take(image, bottom[block], 0, out=result[block], mode="clip")
            _blend(first, second, down[block, None])
    return made


def _spread(places: Array, channels: int) -> Array:
    """The places of values, from the places of pixels."""
    return (places[:, None] * channels + np.arange(channels)).ravel()


def _take_rows(batch: Array, places: Array | None = None) -> Array:
    """Rows of all images (by default all rows), each a vector of the values of its pixels.

    NumPy takes single values much faster than pixels of three bytes.
    """
    rows = batch if places is None else np.take(batch, places, 1)
    return rows.reshape(len(batch) * rows.shape[1], batch.shape[2] * batch.shape[3])


def _interpolate(rows: Array, columns: list[Array], share: Array) -> Array:
    first, second = (np.take(rows, one, 1).astype(np.float32, copy=False) for one in columns)
    return _blend(first, second, share)


def _blend(first: Array, second: Array, share: Array) -> Array:
    """`first + (second - first) * share`, in the memory of `second`, which is not used again."""
    second -= first
    second *= share
    second += first
    return second


def _apply(batch: Array, wanted: tuple[int, ...], method: str, antialias: bool) -> Array:
    """Images whose rows and columns are sums of others, by the weights of a method."""
    count, height, width, channels = batch.shape
    is_finite = batch.dtype.kind in "biu" or bool(np.isfinite(batch).all())
    mixed = channels if is_finite and channels <= _FEW_CHANNELS else 1
    down = _find_bands(method, antialias, height, wanted[0], 1, is_finite)
    across = _find_bands(method, antialias, width, wanted[1], mixed, is_finite)
    rows = np.empty((wanted[0], width * channels), np.float32)
    made = np.empty((count, *wanted, channels), np.float32)
    for image, result in zip(batch, made, strict=True):
        _weigh(image.reshape(1, height, -1), down, rows[None])
        if mixed == channels:
            _weigh(rows.T[None], across, result.reshape(wanted[0], -1).T[None])
        else:
            _weigh(rows.reshape(wanted[0], width, channels), across, result)
    return made


def _weigh(values: Array, bands: list[Band], made: Array) -> None:
    """Sums along the second of three axes, by products of small matrices."""
    start = 0
    for first, weights in bands:
        stop, last = start + weights.shape[0], first + weights.shape[1]
        size = max(1, _LARGEST_PRODUCT // weights.size)
        for left in range(0, values.shape[2], size):
            part = values[:, first:last, left : left + size].astype(np.float32, copy=False)
            np.matmul(weights, part, out=made[:, start:stop, left : left + size])
        start = stop


@functools.lru_cache(maxsize=64)
def _find_bands(
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
    return first * channels, np.kron(weights[:, first:last], np.eye(channels, dtype=np.float32))


def _find_centers(have: int, want: int) -> Array:
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
    places = _find_centers(have, want) - np.float32(0.5)
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


_BLURRING = {"gaussian", "mitchellcubic"}
"""Methods that change an image also if it keeps its size."""

_KERNELS: dict[str, tuple[Callable[[Array], Array], float]] = {
    "bilinear": (_triangle, 1),
    "bicubic": (_keys_cubic, 2),
    "lanczos3": (_lanczos(3.0), 3),
    "lanczos5": (_lanczos(5.0), 5),
    "gaussian": (_gaussian, 1.5),
    "mitchellcubic": (_mitchell, 2),
}
