"""Random operations on images: by the element inside of `map`, or by the seed that they are given.

A function without `stateless_` and the one with it differ only in where the numbers come from.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.tf.distributions import Draws, StatelessDraws, current_draws
from penstock.tf.image import colors
from penstock.tf.operations import dims, operation
from penstock.tf.values import Array, to_array


def _number(draws: Draws, low: Any, high: Any) -> float:
    return float(draws.uniform([], float(low), float(high), np.float32))


def _flip(draws: Draws, image: Any, axis: int) -> Array:
    """Images of a batch are flipped independently, each with a chance of one half."""
    array = to_array(image)
    if array.ndim not in (3, 4):
        raise InvalidArgumentError(
            f"tf.image: images must have 3 or 4 dimensions, got the shape {array.shape}"
        )
    if array.ndim == 3:
        return np.flip(array, axis - 1) if _number(draws, 0, 1) < 0.5 else array
    chosen = draws.uniform([len(array)], 0, 1, np.float32).numpy() > 0.5
    return np.where(chosen[:, None, None, None], np.flip(array, axis), array)


@operation
def random_flip_left_right(image: Any, seed: int | None = None) -> Any:
    """Images of which half are flipped."""
    return _flip(current_draws(), image, 2)


@operation
def random_flip_up_down(image: Any, seed: int | None = None) -> Any:
    """Images of which half are turned upside down."""
    return _flip(current_draws(), image, 1)


@operation
def stateless_random_flip_left_right(image: Any, seed: Any) -> Any:
    """Images of which half are flipped."""
    return _flip(StatelessDraws(seed), image, 2)


@operation
def stateless_random_flip_up_down(image: Any, seed: Any) -> Any:
    """Images of which half are turned upside down."""
    return _flip(StatelessDraws(seed), image, 1)


def _crop(draws: Draws, value: Any, size: Any) -> Array:
    array, wanted = to_array(value), dims("image.random_crop", size)
    if len(wanted) != array.ndim or any(w > n for w, n in zip(wanted, array.shape, strict=True)):
        raise InvalidArgumentError(
            f"tf.image.random_crop: needs size <= shape, got {wanted} and {array.shape}"
        )
    limits = np.array(array.shape) - wanted + 1
    drawn = draws.uniform([array.ndim], 0, np.iinfo(np.int32).max, np.int32).numpy()
    starts = drawn % limits
    return array[tuple(slice(start, start + n) for start, n in zip(starts, wanted, strict=True))]


@operation
def random_crop(value: Any, size: Any, seed: int | None = None, name: str | None = None) -> Any:
    """A part of a tensor, at a random place."""
    return _crop(current_draws(), value, size)


@operation
def stateless_random_crop(value: Any, size: Any, seed: Any, name: str | None = None) -> Any:
    """A part of a tensor, at a random place."""
    return _crop(StatelessDraws(seed), value, size)


def _brightness(draws: Draws, image: Any, most: float) -> Any:
    if most < 0:
        raise InvalidArgumentError(f"tf.image: max_delta must not be negative, got {most}")
    return colors.adjust_brightness(image, _number(draws, -most, most))


def random_brightness(image: Any, max_delta: float, seed: int | None = None) -> Any:
    """Images with another brightness."""
    return _brightness(current_draws(), image, max_delta)


def stateless_random_brightness(image: Any, max_delta: float, seed: Any) -> Any:
    """Images with another brightness."""
    return _brightness(StatelessDraws(seed), image, max_delta)


def _check_range(lower: Any, upper: Any) -> None:
    if upper <= lower:
        raise InvalidArgumentError(f"tf.image: upper must be > lower, got {upper} and {lower}")
    if lower < 0:
        raise InvalidArgumentError(f"tf.image: lower must not be negative, got {lower}")


def _contrast(draws: Draws, image: Any, lower: float, upper: float) -> Any:
    _check_range(lower, upper)
    return colors.adjust_contrast(image, _number(draws, lower, upper))


def random_contrast(image: Any, lower: float, upper: float, seed: int | None = None) -> Any:
    """Images with another contrast."""
    return _contrast(current_draws(), image, lower, upper)


def stateless_random_contrast(image: Any, lower: float, upper: float, seed: Any) -> Any:
    """Images with another contrast."""
    return _contrast(StatelessDraws(seed), image, lower, upper)


def _hue(draws: Draws, image: Any, most: float) -> Any:
    if not 0 <= most <= 0.5:
        raise InvalidArgumentError(f"tf.image: max_delta must be within [0, 0.5], got {most}")
    return colors.adjust_hue(image, _number(draws, -most, most))


def random_hue(image: Any, max_delta: float, seed: int | None = None) -> Any:
    """Images with another hue."""
    return _hue(current_draws(), image, max_delta)


def stateless_random_hue(image: Any, max_delta: float, seed: Any) -> Any:
    """Images with another hue."""
    return _hue(StatelessDraws(seed), image, max_delta)


def _saturation(draws: Draws, image: Any, lower: float, upper: float) -> Any:
    _check_range(lower, upper)
    return colors.adjust_saturation(image, _number(draws, lower, upper))


def random_saturation(image: Any, lower: float, upper: float, seed: int | None = None) -> Any:
    """Images with another saturation."""
    return _saturation(current_draws(), image, lower, upper)


def stateless_random_saturation(image: Any, lower: float, upper: float, seed: Any = None) -> Any:
    """Images with another saturation."""
    return _saturation(StatelessDraws(seed), image, lower, upper)


def _quality(draws: Draws, image: Any, least: int, most: int) -> Any:
    if not 0 <= least < most <= 100:
        raise InvalidArgumentError(f"tf.image: needs 0 <= {least} < {most} <= 100")
    return colors.adjust_jpeg_quality(image, int(draws.uniform([], least, most, np.int32)))


def random_jpeg_quality(
    image: Any, min_jpeg_quality: int, max_jpeg_quality: int, seed: int | None = None
) -> Any:
    """Images after they were encoded as JPEGs."""
    return _quality(current_draws(), image, min_jpeg_quality, max_jpeg_quality)


def stateless_random_jpeg_quality(
    image: Any, min_jpeg_quality: int, max_jpeg_quality: int, seed: Any
) -> Any:
    """Images after they were encoded as JPEGs."""
    return _quality(StatelessDraws(seed), image, min_jpeg_quality, max_jpeg_quality)
