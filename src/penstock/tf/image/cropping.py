"""Operations that cut, pad, flip and turn images."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.tf.image.resizing import ResizeMethod, resize
from penstock.tf.operations import image_operation
from penstock.tf.values import Array, to_array


@image_operation
def crop_to_bounding_box(
    image: Any, offset_height: Any, offset_width: Any, target_height: Any, target_width: Any
) -> Any:
    """The part of images at an offset."""
    return _crop(image, *map(int, (offset_height, offset_width, target_height, target_width)))


def _crop(batch: Array, top: int, left: int, height: int, width: int) -> Array:
    if min(top, left) < 0 or min(height, width) < 1:
        raise InvalidArgumentError(
            f"tf.image.crop_to_bounding_box: the box ({top}, {left}, {height}, {width}) is empty"
        )
    if top + height > batch.shape[1] or left + width > batch.shape[2]:
        raise InvalidArgumentError(
            f"tf.image.crop_to_bounding_box: the box ({top}, {left}, {height}, {width}) is not "
            f"inside the image of {batch.shape[1:3]}"
        )
    return batch[:, top : top + height, left : left + width]


@image_operation
def pad_to_bounding_box(
    image: Any, offset_height: Any, offset_width: Any, target_height: Any, target_width: Any
) -> Any:
    """Images at an offset in larger ones, which are zero elsewhere."""
    return _pad(image, *map(int, (offset_height, offset_width, target_height, target_width)))


def _pad(batch: Array, top: int, left: int, height: int, width: int) -> Array:
    count, rows, columns, channels = batch.shape
    if min(top, left) < 0 or top + rows > height or left + columns > width:
        raise InvalidArgumentError(
            f"tf.image.pad_to_bounding_box: an image of ({rows}, {columns}) at ({top}, {left}) is "
            f"not inside ({height}, {width})"
        )
    made = np.zeros((count, height, width, channels), batch.dtype)
    made[:, top : top + rows, left : left + columns] = batch
    return made


@image_operation
def central_crop(image: Any, central_fraction: float) -> Any:
    """The middle of images: a fraction of their height and width."""
    if not 0 < central_fraction <= 1:
        raise InvalidArgumentError(
            f"tf.image.central_crop: central_fraction must be within (0, 1], got {central_fraction}"
        )
    rows, columns = image.shape[1:3]
    top, left = (int((size - size * central_fraction) / 2) for size in (rows, columns))
    return image[:, top : rows - top, left : columns - left]


@image_operation
def resize_with_crop_or_pad(image: Any, target_height: Any, target_width: Any) -> Any:
    """Images cut at both ends, or filled up with zeros, to a size."""
    height, width = int(target_height), int(target_width)
    rows, columns = image.shape[1:3]
    top, left = max(rows - height, 0) // 2, max(columns - width, 0) // 2
    batch = _crop(image, top, left, min(rows, height), min(columns, width))
    return _pad(batch, max(height - rows, 0) // 2, max(width - columns, 0) // 2, height, width)


@image_operation
def resize_with_pad(
    image: Any,
    target_height: Any,
    target_width: Any,
    method: str = ResizeMethod.BILINEAR,
    antialias: bool = False,
) -> Any:
    """Images resized with their proportions, and filled up with zeros to a size."""
    height, width = int(target_height), int(target_width)
    if min(height, width) < 1:
        raise InvalidArgumentError(
            f"tf.image.resize_with_pad: height and width must be positive, got {height}, {width}"
        )
    rows, columns = image.shape[1:3]
    ratio = max(columns / width, rows / height)
    size = [max(1, int(rows / ratio)), max(1, int(columns / ratio))]
    made = to_array(resize(image, size, method, antialias=antialias))
    top, left = (height - rows / ratio) / 2, (width - columns / ratio) / 2
    return _pad(made, max(int(top), 0), max(int(left), 0), height, width)


@image_operation
def flip_left_right(image: Any) -> Any:
    """Images with left and right exchanged."""
    return image[:, :, ::-1]


@image_operation
def flip_up_down(image: Any) -> Any:
    """Images with top and bottom exchanged."""
    return image[:, ::-1]


@image_operation
def rot90(image: Any, k: Any = 1, name: str | None = None) -> Any:
    """Images turned by 90 degrees, `k` times, against the clock."""
    return np.rot90(image, int(k), (1, 2))


@image_operation
def transpose(image: Any, name: str | None = None) -> Any:
    """Images with rows and columns exchanged."""
    return image.swapaxes(1, 2)
