"""`resize`: images in another size, by the methods of TensorFlow.

A method is a matrix of weights for each axis; bilinear and nearest gather pixels instead, which is
faster and gives the same bits as TensorFlow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.tf.operations import dims, image_operation
from penstock.tf.values import Array


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
def resize(
    images: Any,
    size: Any,
    method: str = ResizeMethod.BILINEAR,
    preserve_aspect_ratio: bool = False,
    antialias: bool = False,
    name: str | None = None,
) -> Any:
    """Images (3-D or 4-D) in the size (height, width), as float32 unless the method is nearest."""
    wanted = dims("image.resize", size)
    if len(wanted) != 2:
        raise InvalidArgumentError(f"tf.image.resize: size must be two integers, got {wanted}")
    height, width = images.shape[1:3]
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
        rows, columns = (_nearest(*pair) for pair in zip((height, width), wanted, strict=True))
        return np.take(np.take(images, rows, 1), columns, 2)
    if method == "bilinear" and not antialias:
        return _bilinear(images, wanted)
    weights = _find_weights(method, antialias)
    return _apply(images, *(weights(*pair) for pair in zip((height, width), wanted, strict=True)))


def _nearest(have: int, want: int) -> Array:
    return np.minimum(_centers(have, want).astype(np.int64), have - 1)


def _centers(have: int, want: int) -> Array:
    """The centers of the pixels of the result, on the scale of the image's pixels."""
    scale = np.float32(have) / np.float32(want)
    return (np.arange(want, dtype=np.float32) + np.float32(0.5)) * scale


@functools.lru_cache(maxsize=64)
def _neighbours(have: int, want: int) -> tuple[Array, Array, Array]:
    """For each place of the result the two places between which it lies, and how far."""
    places = _centers(have, want) - np.float32(0.5)
    below = np.floor(places)
    low = np.maximum(below, 0).astype(np.int64)
    high = np.minimum(np.ceil(places), have - 1).astype(np.int64)
    return low, high, (places - below).astype(np.float32)


def _bilinear(batch: Array, wanted: tuple[int, ...]) -> Array:
    channels = batch.shape[3]
    top, bottom, down = _neighbours(batch.shape[1], wanted[0])
    left, right, across = _neighbours(batch.shape[2], wanted[1])
    columns = [_spread(one, channels) for one in (left, right)]
    share = np.repeat(across, channels)
    rows = [_interpolate(_take_rows(batch, one), columns, share) for one in (top, bottom)]
    made = _blend(rows[0], rows[1], np.tile(down, len(batch))[:, None])
    return made.reshape(len(batch), *wanted, channels)


def _spread(places: Array, channels: int) -> Array:
    """The places of values, from the places of pixels."""
    return (places[:, None] * channels + np.arange(channels)).ravel()


def _take_rows(batch: Array, places: Array) -> Array:
    """Rows of all images, each a vector of the values of its pixels.

    NumPy takes single values much faster than pixels of three bytes.
    """
    rows = np.take(batch, places, 1)
    return rows.reshape(len(batch) * len(places), batch.shape[2] * batch.shape[3])


def _interpolate(rows: Array, columns: list[Array], share: Array) -> Array:
    first, second = (np.take(rows, one, 1).astype(np.float32, copy=False) for one in columns)
    return _blend(first, second, share)


def _blend(first: Array, second: Array, share: Array) -> Array:
    """`first + (second - first) * share`, in the memory of `second`, which is not used again."""
    second -= first
    second *= share
    second += first
    return second


def _apply(batch: Array, down: Array, across: Array) -> Array:
    """Images with both axes multiplied by matrices of weights."""
    count, height, width, channels = batch.shape
    floats = batch.astype(np.float32, copy=False)
    rows = _weigh(floats.reshape(count, height, width * channels), down)
    turned = rows.reshape(count, len(down), width, channels).swapaxes(1, 2)
    made = _weigh(turned.reshape(count, width, -1), across)
    made = made.reshape(count, len(across), len(down), channels)
    return np.ascontiguousarray(made.swapaxes(1, 2))


def _weigh(rows: Array, weights: Array) -> Array:
    """Sums of rows by weights, of which each sum has only a few that are not zero."""
    starts, taps = _taps(weights)
    last = rows.shape[1] - 1
    total = np.take(rows, starts, 1) * taps[:, :1]
    for number in range(1, taps.shape[1]):
        part = np.take(rows, np.minimum(starts + number, last), 1)
        part *= taps[:, number : number + 1]
        total += part
    return total


def _taps(weights: Array) -> tuple[Array, Array]:
    """For each sum the first row with a weight, and the weights from there on."""
    used = weights != 0
    starts = used.argmax(1)
    counts = weights.shape[1] - used[:, ::-1].argmax(1) - starts
    columns = starts[:, None] + np.arange(counts.max())
    inside = columns < weights.shape[1]
    taken = np.take_along_axis(weights, np.where(inside, columns, 0), 1)
    return starts, np.where(inside, taken, 0).astype(np.float32)


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


@functools.lru_cache(maxsize=64)
def _area(have: int, want: int) -> Array:
    """The share of each pixel that lies under a pixel of the result."""
    scale = have / want
    starts = np.arange(want)[:, None] * scale
    pixels = np.arange(have)
    overlap = np.minimum(starts + scale, pixels + 1) - np.maximum(starts, pixels)
    return (np.maximum(overlap, 0) / scale).astype(np.float32)


@functools.lru_cache(maxsize=64)
def _bicubic(have: int, want: int) -> Array:
    """Keys' cubic, from a table of 1024 steps as in TensorFlow."""
    places = _centers(have, want) - np.float32(0.5)
    first = np.floor(places).astype(np.int64)
    steps = np.rint((places - first) * 1024) / 1024
    result = np.zeros((want, have), np.float64)
    for offset in (-1, 0, 1, 2):
        columns = first + offset
        inside = (columns >= 0) & (columns < have)
        weights = _keys_cubic(np.abs(offset - steps))
        result[np.flatnonzero(inside), columns[inside]] = weights[inside]
    return (result / result.sum(1, keepdims=True)).astype(np.float32)


@functools.lru_cache(maxsize=64)
def _kernel_weights(method: str, have: int, want: int, antialias: bool) -> Array:
    """The weights of TensorFlow's scale_and_translate."""
    kernel, radius = _KERNELS[method]
    stretch = np.float32(max(have / want, 1.0) if antialias else 1)
    pixels = np.arange(have, dtype=np.float32) + np.float32(0.5)
    distances = np.abs((pixels - _centers(have, want)[:, None]) * (np.float32(1) / stretch))
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
