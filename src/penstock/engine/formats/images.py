"""Images to arrays and back, by Pillow, and JPEG by simplejpeg where it is installed.

simplejpeg returns the same pixels as Pillow in a third of the time. What it refuses, Pillow reads
or reports.
"""

from __future__ import annotations

import functools
import io
import reprlib
import struct
import zlib
from typing import Any

import numpy as np

from penstock.element.dtypes import as_dtype
from penstock.engine.formats import deep_png
from penstock.engine.formats.extras import load_extra
from penstock.errors import (
    InvalidArgumentError,
    InvalidTypeError,
    UnavailableError,
    UnfitTypeError,
)

Array = np.ndarray[Any, Any]

_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
_SMALLEST_CHANNELS = {"1": 1, "L": 1, "LA": 2, "I;16": 1, "RGB": 3, "RGBA": 4}


def decode_image(
    contents: bytes, channels: int | None = 0, dtype: Any = "uint8", expand_animations: bool = True
) -> Array:
    """The pixels of a JPEG, PNG, GIF or BMP image.

    Args:
      contents: The bytes of the file.
      channels: 1 for grey, 3 for colour, 4 for colour with opacity; 0 or None as in the file.
      dtype: `uint8`, `uint16`, or a float dtype for values from 0 to 1.
      expand_animations: Whether the result of a GIF has all its frames, as a first dimension. If
        not, it is the first frame.

    Returns:
      An array of (height, width, channels).

    >>> data = encode_png(np.full((2, 3, 3), 7, np.uint8))
    >>> decode_image(data).shape, decode_image(data, channels=1).shape
    ((2, 3, 3), (2, 3, 1))
    """
    call = "io.decode_image"
    _check_channels(channels, (0, 1, 3, 4), call)
    contents = _check_bytes(contents, call)
    if contents[:3] == b"\xff\xd8\xff":
        pixels = _decode_jpeg(contents, channels or 0, call)
    elif contents[:4] != b"GIF8":
        if not contents.startswith((b"\x89PNG", b"BM")):
            raise InvalidArgumentError(
                f"{call}: {len(contents)} bytes that begin with {contents[:8]!r} are no JPEG, PNG, "
                "GIF or BMP image; decode other kinds with their own package, in a map"
            )
        if deep_png.is_deep(contents) and as_dtype(dtype).name != "uint8":
            pixels = _decode_deep(contents, channels or 0, call)
        else:
            pixels = _decode(contents, channels or 0, ("PNG", "BMP"), call)
    elif not expand_animations:
        pixels = _decode(contents, channels or 3, ("GIF",), call)
    else:
        _check_channels(channels, (0, 3), f"{call} of all frames of a GIF")
        pixels = _decode_gif(contents, call)
    return _convert(pixels, dtype, call)


def decode_jpeg(contents: bytes, channels: int = 0, ratio: int = 1) -> Array:
    """The pixels of a JPEG image, as an array of (height, width, channels).

    Args:
      contents: The bytes of the file.
      channels: 1 for grey, 3 for colour, 0 as in the file.
      ratio: 2, 4 or 8 for an image of that fraction of the size, which takes less time.

    >>> data = encode_jpeg(np.zeros((4, 6, 3), np.uint8))
    >>> decode_jpeg(data).shape, decode_jpeg(data, ratio=2).shape
    ((4, 6, 3), (2, 3, 3))
    """
    call = "io.decode_jpeg"
    _check_channels(channels, (0, 1, 3), call)
    if ratio not in (1, 2, 4, 8):
        raise InvalidArgumentError(f"{call}: ratio must be 1, 2, 4 or 8, got {ratio}")
    return _decode_jpeg(_check_bytes(contents, call), channels, call, ratio)


def decode_png(contents: bytes, channels: int = 0, dtype: Any = "uint8") -> Array:
    """The pixels of a PNG image, as an array of (height, width, channels).

    Args:
      contents: The bytes of the file.
      channels: 1 for grey, 3 for colour, 4 for colour with opacity, 0 as in the file.
      dtype: `uint8` or `uint16`. Of images with 16 bits for each value, `uint8` is the high eight.

    >>> decode_png(encode_png(np.zeros((4, 6, 1), np.uint8)), channels=4)[0, 0].tolist()
    [0, 0, 0, 255]
    """
    call, wanted = "io.decode_png", as_dtype(dtype).name
    _check_channels(channels, (0, 1, 3, 4), call)
    if wanted not in ("uint8", "uint16"):
        raise InvalidArgumentError(f"{call}: dtype must be uint8 or uint16, got {wanted}")
    contents = _check_bytes(contents, call)
    if wanted == "uint16" and deep_png.is_deep(contents):
        return _decode_deep(contents, channels, call)
    return _convert(_decode(contents, channels, ("PNG",), call), dtype, call)


def encode_jpeg(image: Any, quality: int = 95) -> bytes:
    """The bytes of a JPEG file.

    Args:
      image: An array of `uint8`, (height, width, channels) with 1 or 3 channels.
      quality: From 0 to 100.

    >>> encode_jpeg(np.zeros((4, 6, 3), np.uint8))[:2]
    b'\\xff\\xd8'
    """
    call = "io.encode_jpeg"
    if not 0 <= quality <= 100:
        raise InvalidArgumentError(f"{call}: quality must be from 0 to 100, got {quality}")
    return _encode(image, (1, 3), "JPEG", call, quality=quality)


def encode_png(image: Any, compression: int = -1) -> bytes:
    """The bytes of a PNG file.

    Args:
      image: An array of `uint8` or `uint16`, (height, width, channels) with 1 to 4 channels.
      compression: From 0 (fast) to 9 (small), or -1 for the default.

    >>> decode_png(encode_png(np.array([[[1, 2, 3]]], np.uint8))).tolist()
    [[[1, 2, 3]]]
    """
    call = "io.encode_png"
    if not -1 <= compression <= 9:
        raise InvalidArgumentError(f"{call}: compression must be from -1 to 9, got {compression}")
    level = 6 if compression < 0 else compression
    pixels = np.asarray(image)
    if pixels.dtype == np.uint16:
        _check_pixels(pixels, (1, 2, 3, 4), call)
        return deep_png.encode_deep(pixels, level)
    return _encode(image, (1, 2, 3, 4), "PNG", call, compress_level=level)


def _decode_jpeg(contents: bytes, channels: int, call: str, ratio: int = 1) -> Array:
    simplejpeg = _simplejpeg()
    if simplejpeg is not None:
        try:
            height, width, space = simplejpeg.decode_jpeg_header(contents)[:3]
            if space not in ("CMYK", "YCCK"):  # These, Pillow rounds differently.
                grey = channels == 1 or (not channels and space == "Gray")
                smaller = (
                    {"min_height": -(-height // ratio), "min_width": -(-width // ratio)}
                    if ratio > 1
                    else {}
                )
                pixels: Array = simplejpeg.decode_jpeg(
                    contents, "GRAY" if grey else "RGB", **smaller
                )
                return pixels if channels < 4 else _add_opacity(pixels)
        except ValueError:
            pass  # Pillow reads it, or says what is wrong.
    return _decode(contents, channels, ("JPEG",), call, ratio)


def _decode_deep(contents: bytes, channels: int, call: str) -> Array:
    try:
        return deep_png.decode_deep(contents, channels)
    except (ValueError, struct.error, zlib.error) as error:
        raise _damage_error(contents, ("PNG",), call, error) from error


def _decode(
    contents: bytes, channels: int, formats: tuple[str, ...], call: str, ratio: int = 1
) -> Array:
    if deep_png.is_grey_with_opacity(contents):  # Pillow makes colours of it.
        return (_decode_deep(contents, channels, call) >> 8).astype(np.uint8)
    image = _open_image(contents, formats, call)
    try:
        if ratio > 1:
            image.draft(None, tuple(max(1, size // ratio) for size in image.size))
        if image.mode.startswith("I;16"):
            image = _pillow(call).fromarray((np.asarray(image) >> 8).astype(np.uint8))
        if channels == 1 and image.format == "JPEG":
            image.draft("L", image.size)  # The brightness as it is in the file.
        channels = channels or _count_channels(image)
        pixels = np.array(image.convert(_MODES[channels]))
    except (OSError, ValueError, SyntaxError) as error:
        raise _damage_error(contents, formats, call, error) from error
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def _decode_gif(contents: bytes, call: str) -> Array:
    image = _open_image(contents, ("GIF",), call)
    frames = []
    try:
        for number in range(image.n_frames):
            image.seek(number)
            frames.append(np.array(image.convert("RGB")))
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise _damage_error(contents, ("GIF",), call, error) from error
    return np.stack(frames)


def _open_image(contents: bytes, formats: tuple[str, ...], call: str) -> Any:
    pillow = _pillow(call)
    try:
        return pillow.open(io.BytesIO(contents), formats=formats)
    except (OSError, ValueError, SyntaxError) as error:
        raise _damage_error(contents, formats, call, error) from error


def _count_channels(image: Any) -> int:
    """As in the file; a palette is expanded."""
    if image.mode == "P":
        return 4 if "transparency" in image.info else 3
    return _SMALLEST_CHANNELS.get(image.mode, 3)


def _add_opacity(pixels: Array) -> Array:
    opaque = np.full((*pixels.shape[:2], 1), 255, np.uint8)
    return np.concatenate([pixels, opaque], axis=2)


def _encode(image: Any, allowed: tuple[int, ...], format: str, call: str, **options: Any) -> bytes:
    pixels = np.asarray(image)
    if pixels.dtype != np.uint8:
        raise UnfitTypeError(f"{call}: image must have dtype uint8, got {pixels.dtype}")
    _check_pixels(pixels, allowed, call)
    out = io.BytesIO()
    one = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
    _pillow(call).fromarray(np.ascontiguousarray(one)).save(out, format, **options)
    return out.getvalue()


def _check_pixels(pixels: Array, allowed: tuple[int, ...], call: str) -> None:
    if pixels.ndim != 3 or pixels.shape[2] not in allowed or not pixels.size:
        raise InvalidArgumentError(
            f"{call}: image must have the shape (height, width, channels) with "
            f"{' or '.join(map(str, allowed))} channels, got {pixels.shape}"
        )


def _convert(pixels: Array, dtype: Any, call: str) -> Array:
    wanted = as_dtype(dtype)
    if wanted.dtype == pixels.dtype:
        return pixels
    if wanted.name == "uint16":
        return pixels.astype(np.uint16) * np.uint16(257)
    if not wanted.is_floating:
        raise InvalidArgumentError(
            f"{call}: dtype must be uint8, uint16 or a float, got {wanted.name}"
        )
    return (pixels / np.float32(np.iinfo(pixels.dtype).max)).astype(wanted.dtype, copy=False)


def _check_bytes(contents: Any, call: str) -> bytes:
    if not isinstance(contents, bytes):
        raise InvalidTypeError(
            f"{call}: contents must be the bytes of one image, got {reprlib.repr(contents)}"
        )
    return contents


def _check_channels(channels: int | None, allowed: tuple[int, ...], call: str) -> None:
    if (channels or 0) not in allowed:
        raise InvalidArgumentError(f"{call}: channels must be one of {allowed}, got {channels}")


def _damage_error(
    contents: bytes, formats: tuple[str, ...], call: str, error: Exception
) -> InvalidArgumentError:
    reason = str(error)
    if "BytesIO" in reason:  # Pillow names its input, which is not a file of the user.
        reason = "they are no such image"
    return InvalidArgumentError(
        f"{call}: {len(contents)} bytes that begin with {contents[:8]!r} cannot be read as "
        f"{' or '.join(formats)}: {reason}"
    )


def _pillow(call: str) -> Any:
    return load_extra("PIL.Image", call, "images")


@functools.cache
def _simplejpeg() -> Any:
    try:
        return load_extra("simplejpeg", "", "images")
    except UnavailableError:
        return None
