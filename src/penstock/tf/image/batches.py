"""Images and batches of images: operations work on batches, and take single images, too."""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import InvalidArgumentError
from penstock.tf.values import Array


def on_images(call: str, images: Array, function: Callable[[Array], Array]) -> Array:
    """A function of a batch (4-D), applied to a batch or to one image (3-D)."""
    if images.ndim == 4:
        return function(images)
    if images.ndim != 3:
        raise InvalidArgumentError(
            f"tf.{call}: images must have 3 or 4 dimensions, got the shape {images.shape}"
        )
    return function(images[None])[0]
