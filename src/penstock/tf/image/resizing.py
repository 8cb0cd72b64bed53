"""`resize`: images in another size, by the methods of TensorFlow.

Most methods are products with the weights of rows and columns (`resize_weights`). Bilinear and
nearest gather pixels instead, which is faster and gives the same bits as TensorFlow.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from penstock.engine.heap import keep_freed_memory
from penstock.errors import InvalidArgumentError
from penstock.tf.image.resize_weights import BLURRING, Band, find_bands, find_centers
from penstock.tf.operations import dims, image_operation
from penstock.tf.values import Array

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
    if (height, width) == wanted and method not in BLURRING:
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
    return np.minimum(find_centers(have, want).astype(np.int64), have - 1)


@functools.lru_cache(maxsize=64)
def _neighbours(have: int, want: int) -> tuple[Array, Array, Array]:
    """For each place of the result the two places between which it lies, and how far."""
    places = find_centers(have, want) - np.float32(0.5)
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
    down = find_bands(method, antialias, height, wanted[0], 1, is_finite)
    across = find_bands(method, antialias, width, wanted[1], mixed, is_finite)
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
