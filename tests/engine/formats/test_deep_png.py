"""PNG images with 16 bits for each value: every filter, interlaced images, and damage."""

import io as streams
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from penstock import io
from penstock.engine.formats import images
from penstock.errors import InvalidArgumentError

PIXELS = np.random.default_rng(3).integers(0, 65536, (9, 11, 3)).astype(np.uint16)


def predict(kind, left, above, corner):
    """What a filter predicts, one byte at a time, as the standard defines it."""
    if kind == 4:
        slope = left + above - corner
        choices = [left, above, corner]
        return min(choices, key=lambda one: abs(slope - one))
    return [0, left, above, (left + above) // 2][kind]


def filter_rows(pixels, kinds):
    """The rows of an image as a PNG file has them."""
    size = 2 * pixels.shape[2]
    rows = pixels.astype(">u2").reshape(len(pixels), -1).view(np.uint8).astype(int)
    out = bytearray()
    for number, row in enumerate(rows):
        kind = kinds[number % len(kinds)]
        above = rows[number - 1] if number else np.zeros_like(row)
        out.append(kind)
        for at, byte in enumerate(row):
            left, corner = (row[at - size], above[at - size]) if at >= size else (0, 0)
            out.append((byte - predict(kind, left, above[at], corner)) % 256)
    return bytes(out)


def chunk(name, body):
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(pixels, stored, interlaced=0, more=b""):
    height, width, channels = pixels.shape
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    header = struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, interlaced)
    body = chunk(b"IHDR", header) + more + chunk(b"IDAT", zlib.compress(stored))
    return images._SIGNATURE + body + chunk(b"IEND", b"")


@pytest.mark.parametrize("kinds", [[0], [1], [2], [3], [4], [4, 3, 0, 1, 2]], ids=str)
def test_every_filter_is_undone(kinds):
    data = png(PIXELS, filter_rows(PIXELS, kinds))
    np.testing.assert_array_equal(io.decode_png(data, dtype="uint16"), PIXELS)


@pytest.mark.parametrize("shape", [(9, 11, 3), (1, 1, 4), (3, 2, 1)], ids=str)
def test_interlaced_images_are_put_together(shape):
    pixels = np.arange(np.prod(shape)).reshape(shape).astype(np.uint16) * 97
    passes = [pixels[r::dr, c::dc] for r, c, dr, dc in images._INTERLACED]
    stored = b"".join(filter_rows(part, [4, 1]) for part in passes if part.size)
    data = png(pixels, stored, interlaced=1)
    np.testing.assert_array_equal(io.decode_png(data, dtype="uint16"), pixels)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_what_is_written_is_read(channels):
    pixels = np.arange(4 * 5 * channels).reshape(4, 5, channels).astype(np.uint16) * 700
    data = io.encode_png(pixels)
    np.testing.assert_array_equal(io.decode_png(data, dtype="uint16"), pixels)
    np.testing.assert_array_equal(io.decode_png(data), pixels >> 8)


def test_pillow_reads_and_writes_the_same():
    grey = np.add.outer(np.arange(30), np.arange(40)).astype(np.uint16) * 900
    out = streams.BytesIO()
    Image.fromarray(grey).save(out, "PNG")
    assert io.decode_png(out.getvalue(), dtype="uint16")[:, :, 0].tolist() == grey.tolist()
    with Image.open(streams.BytesIO(io.encode_png(grey[:, :, None]))) as image:
        np.testing.assert_array_equal(np.asarray(image), grey)


def test_a_transparent_colour_becomes_opacity():
    pixels = np.array([[[1, 2, 3], [4, 5, 6]]], np.uint16)
    data = png(pixels, filter_rows(pixels, [0]), more=chunk(b"tRNS", struct.pack(">3H", 4, 5, 6)))
    assert io.decode_png(data, dtype="uint16")[0].tolist() == [[1, 2, 3, 65535], [4, 5, 6, 0]]
    assert io.decode_png(data, channels=3, dtype="uint16")[0].tolist() == pixels[0].tolist()


def test_channels_are_changed():
    with_opacity = io.encode_png(np.array([[[100, 200, 300, 7]]], np.uint16))
    assert io.decode_png(with_opacity, 1, "uint16").tolist() == [[[182]]]
    grey = io.encode_png(np.array([[[9, 7]]], np.uint16))
    assert io.decode_png(grey, 4, "uint16").tolist() == [[[9, 9, 9, 7]]]
    assert io.decode_png(grey, 1, "uint16").tolist() == [[[9]]]


def test_images_of_eight_bits_are_widened():
    data = io.encode_png(np.array([[[1, 255, 0]]], np.uint8))
    assert io.decode_png(data, dtype="uint16").tolist() == [[[257, 65535, 0]]]
    assert io.decode_image(data, dtype="uint16").tolist() == [[[257, 65535, 0]]]
    deep = io.encode_png(np.array([[[13107]]], np.uint16))
    assert io.decode_image(deep, dtype="float32").tolist() == [[[np.float32(0.2)]]]
    assert io.decode_image(deep).tolist() == [[[51]]]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (io.encode_png(PIXELS)[:-30], "cannot be read as PNG"),
        (io.encode_png(PIXELS).replace(b"IDAT", b"IDAT\0"), "the checksum of its part IDAT is wr"),
        (png(PIXELS, filter_rows(PIXELS, [0])[:-9]), "cannot be read as PNG: buffer is smaller"),
        (png(PIXELS, b"\5" * 9 * 67), "it has the unknown filter 5"),
        (images._SIGNATURE + b"\0" * 16 + b"\x10", "cannot be read as PNG"),
        (
            images._SIGNATURE + chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 16, 3, 0, 0, 0)),
            "its header is damaged",
        ),
    ],
)
def test_damage_is_reported(data, message):
    with pytest.raises(InvalidArgumentError, match=message):
        io.decode_png(data, dtype="uint16")
