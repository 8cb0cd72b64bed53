"""Operations that cut, pad, flip and turn images."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.tf.image.batches import on_images
from penstock.tf.image.resizing import ResizeMethod, resize
from penstock.tf.operations import operation
from penstock.tf.values import Array, to_array


@operation
def crop_to_bounding_box(
    image: Any, offset_height: Any, offset_width: Any, target_height: Any, target_width: Any
) -> Any:
    """The part of images at an offset."""
    top, left, height, width = map(int, (offset_height, offset_width, target_height, target_width))
    return on_images(
        "image.crop_to_bounding_box",
        to_array(image),
        lambda batch: _crop(batch, top, left, height, width),
    )


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


@operation
def pad_to_bounding_box(
    image: Any, offset_height: Any, offset_width: Any, target_height: Any, target_width: Any
) -> Any:
    """Images at an offset in larger ones, which are zero elsewhere."""
    top, left, height, width = map(int, (offset_height, offset_width, target_height, target_width))
    return on_images(
        "image.pad_to_bounding_box",
        to_array(image),
        lambda batch: _pad(batch, top, left, height, width),
    )


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


@operation
def central_crop(image: Any, central_fraction: float) -> Any:
    """The middle of images: a fraction of their height and width."""
    if not 0 < central_fraction <= 1:
        raise InvalidArgumentError(
            f"tf.image.central_crop: central_fraction must be within (0, 1], got {central_fraction}"
        )

    def crop(batch: Array) -> Array:
        top, left = (int((size - size * central_fraction) / 2) for size in batch.shape[1:3])
        return batch[:, top : batch.shape[1] - top, left : batch.shape[2] - left]

    return on_images("image.central_crop", to_array(image), crop)


@operation
def resize_with_crop_or_pad(image: Any, target_height: Any, target_width: Any) -> Any:
    """Images cut at both ends, or filled up with zeros, to a size."""
    height, width = int(target_height), int(target_width)

    def fit(batch: Array) -> Array:
        rows, columns = batch.shape[1:3]
        top, left = max(rows - height, 0) // 2, max(columns - width, 0) // 2
        batch = _crop(batch, top, left, min(rows, height), min(columns, width))
        return _pad(batch, max(height - rows, 0) // 2, max(width - columns, 0) // 2, height, width)

    return on_images("image.resize_with_crop_or_pad", to_array(image), fit)


@operation
def resize_with_pad(
    image: Any,
    target_height: Any,
    target_width: Any,
    method: str = ResizeMethod.BILINEAR,
    antialias: bool = False,
) -> Any:
    """Images resized with their proportions, and filled up with zeros to a size."""
    height, width = int(target_height), int(target_width)

    def fit(batch: Array) -> Array:
        rows, columns = batch.shape[1:3]
        ratio = max(columns / width, rows / height)
        size = [max(1, int(np.floor(rows / ratio))), max(1, int(np.floor(columns / ratio)))]
        made = to_array(resize(batch, size, method, antialias=antialias))
        made = made if method == "nearest" else made.astype(np.float32, copy=False)
        top, left = (height - rows / ratio) / 2, (width - columns / ratio) / 2
        return _pad(made, max(int(top), 0), max(int(left), 0), height, width)

    return on_images("image.resize_with_pad", to_array(image), fit)


@operation
def flip_left_right(image: Any) -> Any:
    """Images with left and right exchanged."""
    return on_images("image.flip_left_right", to_array(image), lambda batch: batch[:, :, ::-1])


@operation
def flip_up_down(image: Any) -> Any:
    """Images with top and bottom exchanged."""
    return on_images("image.flip_up_down", to_array(image), lambda batch: batch[:, ::-1])


@operation
def rot90(image: Any, k: Any = 1, name: str | None = None) -> Any:
    """Images turned by 90 degrees, `k` times, against the clock."""
    return on_images("image.rot90", to_array(image), lambda batch: np.rot90(batch, int(k), (1, 2)))


@operation
def transpose(image: Any, name: str | None = None) -> Any:
    """Images with rows and columns exchanged."""
    return on_images("image.transpose", to_array(image), lambda batch: batch.swapaxes(1, 2))
