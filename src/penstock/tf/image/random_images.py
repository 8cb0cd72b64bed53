"""Random operations on images: by the element inside of `map`, or by the seed that they are given.

A function without `stateless_` calls the one with it, and passes draws in place of a seed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.tf.distributions import Draws, StatelessDraws, current_draws, draws_by
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


def random_crop(value: Any, size: Any, seed: int | None = None, name: str | None = None) -> Any:
    """A part of a tensor, at a random place."""
    return stateless_random_crop(value, size, current_draws())


@operation
def stateless_random_crop(value: Any, size: Any, seed: Any, name: str | None = None) -> Any:
    """A part of a tensor, at a random place."""
    array, wanted = to_array(value), dims("image.random_crop", size)
    if len(wanted) != array.ndim or any(w > n for w, n in zip(wanted, array.shape, strict=True)):
        raise InvalidArgumentError(
            f"tf.image.random_crop: needs size <= shape, got {wanted} and {array.shape}"
        )
    limits = np.array(array.shape) - wanted + 1
    drawn = draws_by(seed).uniform([array.ndim], 0, np.iinfo(np.int32).max, np.int32).numpy()
    starts = drawn % limits
    return array[tuple(slice(start, start + n) for start, n in zip(starts, wanted, strict=True))]


def random_brightness(image: Any, max_delta: float, seed: int | None = None) -> Any:
    """Images with another brightness."""
    return stateless_random_brightness(image, max_delta, current_draws())


def stateless_random_brightness(image: Any, max_delta: float, seed: Any) -> Any:
    """Images with another brightness."""
    if max_delta < 0:
        raise InvalidArgumentError(f"tf.image: max_delta must not be negative, got {max_delta}")
    return colors.adjust_brightness(image, _number(draws_by(seed), -max_delta, max_delta))


def _factor(seed: Any, lower: Any, upper: Any) -> float:
    if upper <= lower:
        raise InvalidArgumentError(f"tf.image: upper must be > lower, got {upper} and {lower}")
    if lower < 0:
        raise InvalidArgumentError(f"tf.image: lower must not be negative, got {lower}")
    return _number(draws_by(seed), lower, upper)


def random_contrast(image: Any, lower: float, upper: float, seed: int | None = None) -> Any:
    """Images with another contrast."""
    return stateless_random_contrast(image, lower, upper, current_draws())


def stateless_random_contrast(image: Any, lower: float, upper: float, seed: Any) -> Any:
    """Images with another contrast."""
    return colors.adjust_contrast(image, _factor(seed, lower, upper))


def random_hue(image: Any, max_delta: float, seed: int | None = None) -> Any:
    """Images with another hue."""
    return stateless_random_hue(image, max_delta, current_draws())


def stateless_random_hue(image: Any, max_delta: float, seed: Any) -> Any:
    """Images with another hue."""
    if not 0 <= max_delta <= 0.5:
        raise InvalidArgumentError(f"tf.image: max_delta must be within [0, 0.5], got {max_delta}")
    return colors.adjust_hue(image, _number(draws_by(seed), -max_delta, max_delta))


def random_saturation(image: Any, lower: float, upper: float, seed: int | None = None) -> Any:
    """Images with another saturation."""
    return stateless_random_saturation(image, lower, upper, current_draws())


def stateless_random_saturation(image: Any, lower: float, upper: float, seed: Any = None) -> Any:
    """Images with another saturation."""
    return colors.adjust_saturation(image, _factor(seed, lower, upper))


def random_jpeg_quality(
    image: Any, min_jpeg_quality: int, max_jpeg_quality: int, seed: int | None = None
) -> Any:
    """Images after they were encoded as JPEGs."""
    draws = current_draws()
    return stateless_random_jpeg_quality(image, min_jpeg_quality, max_jpeg_quality, draws)


def stateless_random_jpeg_quality(
    image: Any, min_jpeg_quality: int, max_jpeg_quality: int, seed: Any
) -> Any:
    """Images after they were encoded as JPEGs."""
    least, most = min_jpeg_quality, max_jpeg_quality
    if not 0 <= least < most <= 100:
        raise InvalidArgumentError(f"tf.image: needs 0 <= {least} < {most} <= 100")
    quality = int(draws_by(seed).uniform([], least, most, np.int32))
    return colors.adjust_jpeg_quality(image, quality)
