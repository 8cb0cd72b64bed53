"""Operations on the values of pixels: dtypes, brightness, contrast, hue, saturation, grey."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.element.dtypes import as_dtype
from penstock.engine.formats.images import decode_jpeg, encode_jpeg
from penstock.errors import InvalidArgumentError
from penstock.tf.arrays import clip_to_limits
from penstock.tf.operations import operation
from penstock.tf.values import Array, Tensor, to_array


@operation
def convert_image_dtype(
    image: Any, dtype: Any, saturate: bool = False, name: str | None = None
) -> Any:
    """Pixels in another dtype; floats are from 0 to 1, integers from 0 to their greatest value."""
    return convert_pixels(to_array(image), as_dtype(dtype).dtype, saturate)


def convert_pixels(image: Array, dtype: Any, saturate: bool = False) -> Array:
    kind = np.dtype(dtype)
    if image.dtype == kind:
        return image
    if image.dtype.kind in "iu" and kind.kind in "iu":
        return _rescale(image, kind, saturate)
    if image.dtype.kind == "f" and kind.kind == "f":
        return image.astype(kind)
    if image.dtype.kind in "iu":
        return image.astype(kind) * kind.type(1.0 / np.iinfo(image.dtype).max)
    scaled = image * image.dtype.type(np.iinfo(kind).max + 0.5)
    return _cast(scaled, kind, saturate)


def _cast(image: Array, kind: Any, saturate: bool) -> Array:
    if saturate:
        image = clip_to_limits(image, np.dtype(kind))
    with np.errstate(all="ignore"):
        return image.astype(kind)


def _rescale(image: Array, kind: Any, saturate: bool) -> Array:
    have, want = int(np.iinfo(image.dtype).max), int(np.iinfo(kind).max)
    if have > want:
        return _cast(image // ((have + 1) // (want + 1)), kind, saturate)
    return _cast(image, kind, saturate) * kind.type((want + 1) // (have + 1))


def in_floats(image: Any, function: Callable[[Array], Array]) -> Array:
    """A function of floats, applied to pixels of any dtype, which they keep."""
    array = to_array(image)
    floats = array if array.dtype in (np.float16, np.float32) else convert_pixels(array, np.float32)
    return convert_pixels(function(floats), array.dtype, saturate=True)


@operation
def adjust_brightness(image: Any, delta: Any) -> Any:
    """Pixels with `delta` added, on the scale from 0 to 1."""
    return in_floats(image, lambda pixels: pixels + pixels.dtype.type(delta))


@operation
def adjust_contrast(images: Any, contrast_factor: Any) -> Any:
    """Pixels at another distance from the mean of their channel."""

    def adjust(pixels: Array) -> Array:
        mean = pixels.mean((-3, -2), keepdims=True, dtype=np.float64).astype(pixels.dtype)
        return (pixels - mean) * pixels.dtype.type(contrast_factor) + mean

    return in_floats(images, adjust)


@operation
def adjust_gamma(image: Any, gamma: Any = 1, gain: Any = 1) -> Any:
    """`gain * pixel ** gamma`, on the scale from 0 to 1."""
    if float(gamma) < 0:
        raise InvalidArgumentError(
            f"tf.image.adjust_gamma: gamma must not be negative, got {gamma}"
        )
    return in_floats(
        image, lambda pixels: pixels.dtype.type(gain) * pixels ** pixels.dtype.type(gamma)
    )


@operation
def adjust_hue(image: Any, delta: Any, name: str | None = None) -> Any:
    """Pixels with `delta` added to their hue, which is a circle from 0 to 1."""
    if not -1 <= float(delta) <= 1:
        raise InvalidArgumentError(
            f"tf.image.adjust_hue: delta must be within [-1, 1], got {delta}"
        )

    def adjust(pixels: Array) -> Array:
        # By the least and greatest colour: saturations do not describe negative values.
        hue = (hsv_of(pixels)[..., 0] + pixels.dtype.type(delta)) % 1
        value, least = pixels.max(-1), pixels.min(-1)
        made = [least + (value - least) * part for part in _shares(hue)]
        return np.stack(made, -1).astype(pixels.dtype, copy=False)

    return in_floats(_colors("adjust_hue", image), adjust)


@operation
def adjust_saturation(image: Any, saturation_factor: Any, name: str | None = None) -> Any:
    """Pixels with their saturation multiplied."""

    def adjust(pixels: Array) -> Array:
        hue, saturation, value = np.moveaxis(hsv_of(pixels), -1, 0)
        more = np.clip(saturation * pixels.dtype.type(saturation_factor), 0, 1)
        return rgb_of(np.stack([hue, more, value], -1))

    return in_floats(_colors("adjust_saturation", image), adjust)


def _colors(call: str, image: Any) -> Array:
    array = to_array(image)
    if array.ndim < 1 or array.shape[-1] != 3:
        raise InvalidArgumentError(
            f"tf.image.{call}: the last dimension must be 3 colours, got the shape {array.shape}"
        )
    return array


def _color_floats(call: str, image: Any) -> Array:
    """Colours as floats: an array becomes float32, but a tensor must have floats."""
    array = _colors(call, image)
    if not isinstance(image, Tensor):
        return array.astype(np.float32, copy=False)
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        raise InvalidArgumentError(
            f"tf.image.{call}: needs floats, got {array.dtype.name}; "
            "use tf.image.convert_image_dtype"
        )
    return array


def hsv_of(pixels: Array) -> Array:
    """Red, green and blue as hue, saturation and value."""
    red, green, blue = np.moveaxis(pixels, -1, 0)
    value, least = pixels.max(-1), pixels.min(-1)
    span = value - least
    safe = np.where(span > 0, span, 1)
    hue = np.where(
        red == value,
        (green - blue) / safe,
        np.where(green == value, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    hue = np.where(span > 0, (hue / 6) % 1, 0)
    saturation = np.where(value > 0, span / np.where(value > 0, value, 1), 0)
    return np.stack([hue, saturation, value], -1).astype(pixels.dtype, copy=False)


def rgb_of(pixels: Array) -> Array:
    """Hue, saturation and value as red, green and blue."""
    hue, saturation, value = np.moveaxis(pixels, -1, 0)
    made = np.stack([(1 + saturation * (part - 1)) * value for part in _shares(hue)], -1)
    return made.astype(pixels.dtype, copy=False)


def _shares(hue: Array) -> list[Array]:
    """How much red, green and blue the pure colour of a hue has, each from 0 to 1."""
    angle = hue * 6
    return [
        np.clip(np.abs(angle - 3) - 1, 0, 1),
        np.clip(2 - np.abs(angle - 2), 0, 1),
        np.clip(2 - np.abs(angle - 4), 0, 1),
    ]


@operation
def rgb_to_hsv(images: Any, name: str | None = None) -> Any:
    """Colours as hue, saturation and value, each from 0 to 1."""
    return hsv_of(_color_floats("rgb_to_hsv", images))


@operation
def hsv_to_rgb(images: Any, name: str | None = None) -> Any:
    """Hue, saturation and value as red, green and blue."""
    return rgb_of(_color_floats("hsv_to_rgb", images))


@operation
def rgb_to_grayscale(images: Any, name: str | None = None) -> Any:
    """Colours as one channel of grey."""
    array = _colors("rgb_to_grayscale", images)
    weights = np.array([0.2989, 0.5870, 0.1140], np.float32)
    floats = convert_pixels(array, np.float32)
    return convert_pixels((floats @ weights)[..., None], array.dtype)


@operation
def grayscale_to_rgb(images: Any, name: str | None = None) -> Any:
    """One channel of grey as three colours."""
    array = to_array(images)
    if array.shape[-1:] != (1,):
        raise InvalidArgumentError(
            f"tf.image.grayscale_to_rgb: the last dimension must be 1, got the shape {array.shape}"
        )
    return np.repeat(array, 3, -1)


@operation
def per_image_standardization(image: Any) -> Any:
    """Each image with a mean of 0 and a deviation of 1."""
    pixels = to_array(image).astype(np.float32)
    axes = (-3, -2, -1)
    count = int(np.prod(pixels.shape[-3:]))
    mean = pixels.mean(axes, keepdims=True)
    least = pixels.dtype.type(1 / np.sqrt(np.float32(max(count, 1))))
    deviation = np.maximum(pixels.std(axes, keepdims=True), least)
    return ((pixels - mean) / deviation).astype(pixels.dtype, copy=False)


@operation
def adjust_jpeg_quality(
    image: Any, jpeg_quality: Any, dct_method: str = "", name: Any = None
) -> Any:
    """Pixels after they were encoded as a JPEG of this quality."""
    array = to_array(image)
    pixels = convert_pixels(array, np.uint8, saturate=True)
    made = decode_jpeg(encode_jpeg(pixels, int(jpeg_quality)), pixels.shape[-1])
    return convert_pixels(made, array.dtype, saturate=True)


_YUV = np.array(
    [
        [0.299, -0.14714119, 0.61497538],
        [0.587, -0.28886916, -0.51496512],
        [0.114, 0.43601035, -0.10001026],
    ],
    np.float32,
)
_RGB_OF_YUV = np.array(
    [[1, 1, 1], [0, -0.394642334, 2.03206185], [1.13988303, -0.58062185, 0]], np.float32
)
_YIQ = np.array(
    [
        [0.299, 0.59590059, 0.2115],
        [0.587, -0.27455667, -0.52273617],
        [0.114, -0.32134392, 0.31119955],
    ],
    np.float32,
)
_RGB_OF_YIQ = np.array(
    [[1, 1, 1], [0.95598634, -0.27201283, -1.10674021], [0.6208248, -0.64720424, 1.70423049]],
    np.float32,
)


@operation
def rgb_to_yuv(images: Any) -> Any:
    """Colours as brightness and two differences of colour."""
    return _colors("rgb_to_yuv", images) @ _YUV


@operation
def yuv_to_rgb(images: Any) -> Any:
    """Brightness and two differences of colour as colours."""
    return _colors("yuv_to_rgb", images) @ _RGB_OF_YUV


@operation
def rgb_to_yiq(images: Any) -> Any:
    """Colours as brightness and two components of colour."""
    return _colors("rgb_to_yiq", images) @ _YIQ


@operation
def yiq_to_rgb(images: Any) -> Any:
    """Brightness and two components of colour as colours."""
    return _colors("yiq_to_rgb", images) @ _RGB_OF_YIQ


@operation
def psnr(a: Any, b: Any, max_val: Any, name: str | None = None) -> Any:
    """The ratio of the greatest signal to the noise between images, in decibels."""
    left, right = (convert_pixels(to_array(one), np.float32) for one in (a, b))
    most = convert_pixels(np.asarray(max_val, to_array(a).dtype), np.float32)
    noise = np.mean(np.square(left - right), (-3, -2, -1))
    return (20 * np.log10(most) - 10 * np.log10(noise)).astype(np.float32)


@operation
def total_variation(images: Any, name: str | None = None) -> Any:
    """The sum of the differences between neighbouring pixels of each image."""
    array = to_array(images)
    parts = [np.abs(np.diff(array, axis=axis)).sum((-3, -2, -1)) for axis in (-3, -2)]
    return sum(parts).astype(array.dtype)
