"""Images to arrays and back, by Pillow, and JPEG by simplejpeg where it is installed.

simplejpeg returns the same pixels as Pillow in a third of the time. What it refuses, Pillow reads
or reports. PNG images with 16 bits for each value, which Pillow reads with eight, are read here.
"""

from __future__ import annotations

import functools
import io
import reprlib
import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from penstock.element.columns import Array
from penstock.element.dtypes import as_dtype
from penstock.engine.formats.extras import load_extra
from penstock.errors import (
    InvalidArgumentError,
    InvalidTypeError,
    UnavailableError,
    UnfitTypeError,
)

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
        if _is_deep(contents) and as_dtype(dtype).name != "uint8":
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
    if wanted == "uint16" and _is_deep(contents):
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
        return _write_deep(pixels, level)
    return _encode(image, (1, 2, 3, 4), "PNG", call, compress_level=level)


def _decode_jpeg(contents: bytes, channels: int, call: str, ratio: int = 1) -> Array:
    simplejpeg = _simplejpeg()
    if simplejpeg is not None:
        try:
            height, width, space = simplejpeg.decode_jpeg_header(contents)[:3]
            if space not in ("CMYK", "YCCK"):  # These, Pillow rounds differently.
                grey = channels == 1 or (not channels and space == "Gray")
                pixels: Array = simplejpeg.decode_jpeg(
                    contents,
                    "GRAY" if grey else "RGB",
                    min_height=-(-height // ratio),
                    min_width=-(-width // ratio),
                )
                return pixels if channels < 4 else _add_opacity(pixels)
        except ValueError:
            pass  # Pillow reads it, or says what is wrong.
    return _decode(contents, channels, ("JPEG",), call, ratio)


def _decode_deep(contents: bytes, channels: int, call: str) -> Array:
    try:
        return _read_deep(contents, channels)
    except (ValueError, struct.error, zlib.error) as error:
        raise _damage_error(contents, ("PNG",), call, error) from error


def _decode(
    contents: bytes, channels: int, formats: tuple[str, ...], call: str, ratio: int = 1
) -> Array:
    if _is_deep(contents) and contents[25:26] == b"\4":  # Pillow makes colours of grey + opacity.
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


# PNG images with 16 bits for each value. A decoder undoes the filter of every row: each byte was
# stored as its difference from a prediction, which the bytes to the left, above and left above
# decide.

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}
_KINDS = {channels: kind for kind, channels in _PNG_CHANNELS.items()}
_WHOLE = ((0, 0, 1, 1),)
_INTERLACED = (
    *((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4)),
    *((2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)),
)
"""The first row and column of each pass of an interlaced image, and the steps to the next ones."""

_RED, _GREEN, _BLUE = 9797, 19234, 3737
"""The weights of brightness that TensorFlow uses, in fractions of 32768."""


class _PngHeader(NamedTuple):
    width: int
    height: int
    depth: int
    kind: int
    compression: int
    filters: int
    interlaced: int


def _is_deep(contents: bytes) -> bool:
    """Whether the bytes begin as a PNG image with 16 bits for each value."""
    return contents.startswith(_SIGNATURE) and contents[24:25] == b"\x10"


def _read_deep(contents: bytes, channels: int) -> Array:
    """The pixels of such an image, (height, width, channels) of `uint16`.

    Raises ValueError, struct.error or zlib.error if the bytes are damaged.
    """
    header, packed, transparent = None, [], b""
    for name, body in _png_chunks(contents):
        if name == b"IHDR":
            header = _PngHeader(*struct.unpack(">IIBBBBB", body))
        elif name == b"IDAT":
            packed.append(body)
        elif name == b"tRNS":
            transparent = body
    if header is None or header.kind not in _PNG_CHANNELS:
        raise ValueError("its header is damaged")
    pixels = _unpack(header, zlib.decompress(b"".join(packed)))
    return _change_channels(_add_transparency(pixels, transparent), channels)


def _write_deep(pixels: Array, level: int) -> bytes:
    """The bytes of a PNG file of `uint16` pixels, (height, width, channels)."""
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 16, _KINDS[channels], 0, 0, 0)
    rows = pixels.astype(">u2").reshape(height, -1).view(np.uint8)
    filtered = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1)
    body = zlib.compress(filtered.tobytes(), level)
    parts = ((b"IHDR", header), (b"IDAT", body), (b"IEND", b""))
    return _SIGNATURE + b"".join(_png_chunk(name, part) for name, part in parts)


def _png_chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _png_chunks(contents: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(_SIGNATURE)
    while at < len(contents):
        size, name = struct.unpack_from(">I4s", contents, at)
        body = contents[at + 8 : at + 8 + size]
        (checksum,) = struct.unpack_from(">I", contents, at + 8 + size)
        if zlib.crc32(name + body) != checksum:
            raise ValueError(f"the checksum of its part {name.decode('latin-1')} is wrong")
        yield name, body
        at += 12 + size


def _unpack(header: _PngHeader, data: bytes) -> Array:
    size = 2 * _PNG_CHANNELS[header.kind]
    pixels = np.zeros((header.height, header.width, size), np.uint8)
    at = 0
    for row, column, rows, columns in _INTERLACED if header.interlaced else _WHOLE:
        height, width = pixels[row::rows, column::columns].shape[:2]
        if not height or not width:
            continue
        length = height * (1 + width * size)
        stored = np.frombuffer(data, np.uint8, length, at).reshape(height, -1)
        found = _undo_filters(stored[:, 0], stored[:, 1:].reshape(height, width, size))
        pixels[row::rows, column::columns] = found
        at += length
    return pixels.view(">u2").astype(np.uint16)


def _undo_filters(filters: Array, stored: Array) -> Array:
    """The bytes of rows whose differences are stored.

    One diagonal is computed at a time: what its bytes depend on is on the diagonals before.
    """
    if filters.max() > 4:
        raise ValueError(f"it has the unknown filter {filters.max()}")
    if not filters.any():
        return stored
    height, width, size = stored.shape
    known = np.zeros((height + 1, width + 1, size), np.int16)  # With a margin above and left.
    for diagonal in range(height + width - 1):
        rows = np.arange(max(0, diagonal - width + 1), min(height, diagonal + 1))
        columns = diagonal - rows
        left, above = known[rows + 1, columns], known[rows, columns + 1]
        predicted = _predict(filters[rows][:, None], left, above, known[rows, columns])
        known[rows + 1, columns + 1] = (stored[rows, columns] + predicted) & 255
    return known[1:, 1:].astype(np.uint8)


def _predict(filters: Array, left: Array, above: Array, corner: Array) -> Array:
    slope = left + above - corner
    to_left, to_above, to_corner = abs(slope - left), abs(slope - above), abs(slope - corner)
    nearest = np.where(
        (to_left <= to_above) & (to_left <= to_corner),
        left,
        np.where(to_above <= to_corner, above, corner),
    )
    choices = [filters == 1, filters == 2, filters == 3, filters == 4]
    return np.select(choices, [left, above, (left + above) // 2, nearest], 0)


def _add_transparency(pixels: Array, transparent: bytes) -> Array:
    """With a channel more if one colour of the image is transparent."""
    if not transparent or pixels.shape[2] not in (1, 3):
        return pixels
    colour = np.frombuffer(transparent, ">u2")
    opaque = np.where((pixels == colour).all(axis=2, keepdims=True), 0, 65535)
    return np.concatenate([pixels, opaque.astype(np.uint16)], axis=2)


def _change_channels(pixels: Array, channels: int) -> Array:
    found = pixels.shape[2]
    if channels in (0, found):
        return pixels
    colours = pixels[:, :, : found - (found in (2, 4))]
    if channels == 1:
        if colours.shape[2] == 1:
            return colours
        bright = colours.astype(np.uint64) @ np.array([_RED, _GREEN, _BLUE], np.uint64)
        return ((bright + 16384) >> 15).astype(np.uint16)[:, :, None]
    colours = np.broadcast_to(colours, (*colours.shape[:2], 3))
    if channels == 3:
        return np.ascontiguousarray(colours)
    opaque = np.full((*colours.shape[:2], 1), 65535, np.uint16)
    return np.concatenate([colours, pixels[:, :, -1:] if found in (2, 4) else opaque], axis=2)
