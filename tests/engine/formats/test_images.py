"""Images and whole files, beside the pixels that TensorFlow decoded."""

import io as streams
import pathlib

import numpy as np
import pytest
from PIL import Image

from penstock import io
from penstock.engine.formats import extras, images
from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    NotFoundError,
    UnavailableError,
)

with np.load(pathlib.Path(__file__).parent / "cases" / "images.npz") as recorded:
    RECORDED = dict(recorded)
FILES = {name: array.tobytes() for name, array in RECORDED.items() if ":" not in name}
# To these, TensorFlow adds an opacity of 15 or 1, for it takes the depth of the file's pixels.
WRONG = {"palette.png:4", "bits.png:4"}
DECODED = [name for name in RECORDED if ":" in name and name not in WRONG]
NATIVE = {"jpg": io.decode_jpeg, "png": io.decode_png}


@pytest.fixture(params=["simplejpeg", "Pillow"])
def decoder(request, monkeypatch):
    """JPEG images are decoded by either."""
    if request.param == "Pillow":
        monkeypatch.setattr(images, "_simplejpeg", lambda: None)
    return request.param


def largest_difference(one, other):
    assert one.dtype == np.uint8
    assert one.shape == other.shape
    return int(np.abs(one.astype(int) - other).max())


@pytest.mark.parametrize("name", DECODED)
def test_pixels_are_those_of_tensorflow(name, decoder):
    file, channels = name.split(":")
    # TensorFlow decodes JPEG by a faster and less exact transform, and rounds grey differently.
    allowed = 4 if file.endswith("jpg") else int(channels == "1")
    found = io.decode_image(FILES[file], int(channels))
    assert largest_difference(found, RECORDED[name]) <= allowed
    decode = NATIVE.get(file[-3:], io.decode_image)
    np.testing.assert_array_equal(decode(FILES[file], channels=int(channels)), found)


@pytest.mark.parametrize("file", [name for name in FILES if name.endswith("jpg")])
def test_both_decoders_of_jpeg_agree(file, monkeypatch):
    fast = io.decode_jpeg(FILES[file], channels=3)
    monkeypatch.setattr(images, "_simplejpeg", lambda: None)
    np.testing.assert_array_equal(io.decode_jpeg(FILES[file], channels=3), fast)
    with Image.open(streams.BytesIO(FILES[file])) as image:
        np.testing.assert_array_equal(np.asarray(image.convert("RGB")), fast)


@pytest.mark.parametrize("ratio", [2, 4, 8])
@pytest.mark.parametrize("shape", [(40, 30, 3), (21, 19, 1)], ids=str)
def test_a_smaller_jpeg_is_decoded_at_once(shape, ratio, decoder):
    ramp = np.add.outer(np.arange(shape[0]), np.arange(shape[1])).astype(np.uint8) * 2
    data = io.encode_jpeg(np.repeat(ramp[:, :, None], shape[2], axis=2))
    small = io.decode_jpeg(data, ratio=ratio)
    assert small.shape == (-(-shape[0] // ratio), -(-shape[1] // ratio), shape[2])
    inside = small[:-1, :-1].astype(int)
    middle = ramp[ratio // 2 :: ratio, ratio // 2 :: ratio, None][: len(inside), : inside.shape[1]]
    assert np.abs(inside - middle).max() <= ratio + 2


def test_floats_are_between_0_and_1():
    pixels = io.decode_image(FILES["colour.png"], dtype="float32")
    assert pixels.dtype == np.float32
    np.testing.assert_array_equal(pixels, RECORDED["colour.png:0"] / np.float32(255))


def test_a_gif_has_frames_unless_the_first_is_asked_for():
    assert io.decode_image(FILES["moving.gif"]).shape == (3, 10, 14, 3)
    first = io.decode_image(FILES["moving.gif"], expand_animations=False)
    np.testing.assert_array_equal(first, RECORDED["moving.gif:0"][0])


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_png_keeps_every_pixel(channels):
    pixels = np.random.default_rng(channels).integers(0, 256, (5, 7, channels), np.uint8)
    for compression in (-1, 0, 9):
        data = io.encode_png(pixels, compression)
        np.testing.assert_array_equal(io.decode_png(data), pixels)


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_is_written_as_pillow_writes_it(channels):
    pixels = np.random.default_rng(channels).integers(0, 256, (8, 8, channels), np.uint8)
    out = streams.BytesIO()
    Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels).save(out, "JPEG", quality=80)
    assert io.encode_jpeg(pixels, quality=80) == out.getvalue()


@pytest.mark.parametrize("file", ["colour.jpg", "colour.png", "still.gif", "colour.bmp"])
def test_truncated_images_are_refused(file, decoder):
    with pytest.raises(InvalidArgumentError, match="io.decode_image: .* cannot be read as "):
        io.decode_image(FILES[file][: len(FILES[file]) // 2])


PIXELS = np.zeros((2, 2, 3), np.uint8)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: io.decode_image(b"no image"),
            InvalidArgumentError,
            "8 bytes that begin with b'no",
        ),
        (lambda: io.decode_image(b""), InvalidArgumentError, "0 bytes .* are no JPEG, PNG"),
        (lambda: io.decode_png(FILES["grey.jpg"]), InvalidArgumentError, "cannot be read as PNG"),
        (lambda: io.decode_jpeg(FILES["grey.png"]), InvalidArgumentError, "cannot be read as JPEG"),
        (lambda: io.decode_image("x"), InvalidTypeError, "contents must be the bytes of one image"),
        (
            lambda: io.decode_jpeg(b"", channels=4),
            InvalidArgumentError,
            r"one of \(0, 1, 3\), got 4",
        ),
        (
            lambda: io.decode_image(FILES["still.gif"], channels=1),
            InvalidArgumentError,
            r"io.decode_image of all frames of a GIF: channels must be one of \(0, 3\), got 1",
        ),
        (
            lambda: io.decode_image(FILES["grey.png"], dtype="int32"),
            InvalidArgumentError,
            "dtype must be uint8, uint16 or a float, got int32",
        ),
        (
            lambda: io.decode_png(FILES["grey.png"], dtype="int32"),
            InvalidArgumentError,
            "io.decode_png: dtype must be uint8 or uint16, got int32",
        ),
        (
            lambda: io.decode_jpeg(FILES["grey.jpg"], ratio=3),
            InvalidArgumentError,
            "io.decode_jpeg: ratio must be 1, 2, 4 or 8, got 3",
        ),
        (lambda: io.encode_png(PIXELS[0]), InvalidArgumentError, r"with 1 or 2 or 3 or 4 channels"),
        (lambda: io.encode_jpeg(PIXELS * 1.0), InvalidTypeError, "dtype uint8, got float64"),
        (
            lambda: io.encode_jpeg(PIXELS, 101),
            InvalidArgumentError,
            "quality must be from 0 to 100",
        ),
        (
            lambda: io.encode_png(PIXELS, 10),
            InvalidArgumentError,
            "compression must be from -1 to 9",
        ),
    ],
)
def test_wrong_arguments_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_missing_package_is_named(monkeypatch):
    def find(module, *rest):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(extras.importlib, "import_module", find)
    images._simplejpeg.cache_clear()
    try:
        message = r'io.decode_jpeg: needs PIL; install it with: pip install "penstock\[images\]"'
        with pytest.raises(UnavailableError, match=message):
            io.decode_jpeg(FILES["colour.jpg"])
    finally:
        images._simplejpeg.cache_clear()


@pytest.mark.parametrize("scheme", ["", "memory://test_images"])
def test_files_are_written_and_read(scheme, tmp_path):
    path = f"{scheme or tmp_path}/new folder/file"
    io.write_file(path, b"\0bytes" * 100_000)
    assert io.read_file(path) == b"\0bytes" * 100_000
    io.write_file(path, "text")
    assert io.read_file(path) == b"text"


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(FailedPreconditionError, match="io.write_file: .*folder' is a directory"):
        io.write_file(tmp_path / "folder", b"x")
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_wrong_files_are_refused(tmp_path):
    with pytest.raises(NotFoundError, match="io.read_file: .* does not exist"):
        io.read_file(tmp_path / "missing")
    with pytest.raises(InvalidTypeError, match="io.write_file: contents must be bytes or text"):
        io.write_file(tmp_path / "x", 3)
