"""Records small images, as Pillow writes them, and the pixels that TensorFlow decodes.

Run it from the repository's root with a Python that has TensorFlow 2.21 and Pillow:

    python -m tests.engine.formats.record_images
"""

from __future__ import annotations

import io
import pathlib
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image

CASES = pathlib.Path(__file__).parent / "cases"


def image(mode: str) -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 255, (3, 4, 3), np.uint8)
    return Image.fromarray(noise).resize((14, 10), Image.Resampling.BICUBIC).convert(mode)


def encode(one: Image.Image, format: str, **options: Any) -> bytes:
    out = io.BytesIO()
    one.save(out, format, **options)
    return out.getvalue()


def files() -> dict[str, bytes]:
    deep = np.random.default_rng(1).integers(0, 65535, (5, 6)).astype(np.uint16)
    palette = image("RGB").quantize(8)
    turned = [image("RGB").rotate(angle).quantize(8) for angle in (90, 180)]
    return {
        "colour.jpg": encode(image("RGB"), "JPEG"),
        "full.jpg": encode(image("RGB"), "JPEG", subsampling=0),
        "progressive.jpg": encode(image("RGB"), "JPEG", progressive=True),
        "grey.jpg": encode(image("L"), "JPEG"),
        "ink.jpg": encode(image("CMYK"), "JPEG"),
        "colour.png": encode(image("RGB"), "PNG"),
        "opacity.png": encode(image("RGBA"), "PNG"),
        "grey.png": encode(image("L"), "PNG"),
        "grey_opacity.png": encode(image("LA"), "PNG"),
        "palette.png": encode(palette, "PNG"),
        "transparent.png": encode(palette, "PNG", transparency=3),
        "bits.png": encode(image("1"), "PNG"),
        "deep.png": encode(Image.fromarray(deep), "PNG"),
        "colour.bmp": encode(image("RGB"), "BMP"),
        "still.gif": encode(palette, "GIF"),
        "moving.gif": encode(palette, "GIF", save_all=True, append_images=turned),
    }


def main() -> None:
    arrays: dict[str, Any] = {}
    for name, data in files().items():
        arrays[name] = np.frombuffer(data, np.uint8)
        for channels in (0, 1, 3, 4):
            try:
                arrays[f"{name}:{channels}"] = tf.io.decode_image(data, channels).numpy()
            except tf.errors.InvalidArgumentError:
                continue  # TensorFlow cannot convert it.
    np.savez_compressed(CASES / "images.npz", **arrays)


if __name__ == "__main__":
    main()
