"""The functions of `scripts/bench workloads`: what people let their data loaders do."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

SEED = 20_210


@dataclass(frozen=True)
class Work:
    """A function of one item, the items, and how many of them a batch has."""

    text: str
    items: Callable[[int], Any]
    function: Callable[[Any], Any]
    batch: int
    count: int
    quick: int


def pictures(count: int) -> list[bytes]:
    """JPEG files of 500 x 375 pixels; a few different ones, again and again."""
    from PIL import Image

    random = np.random.default_rng(SEED)
    files = []
    for _ in range(16):
        coarse = random.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(coarse).resize((500, 375)).save(file, "JPEG")
        files.append(file.getvalue())
    return [files[i % 16] for i in range(count)]


def decode(data: bytes) -> Any:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(data)).resize((256, 256)).crop((16, 16, 240, 240)))


def texts(count: int) -> list[bytes]:
    """Documents of 200 words."""
    random = np.random.default_rng(SEED)
    words = [b"".join(bytes([97 + c]) for c in word) for word in random.integers(0, 26, (999, 6))]
    return [b" ".join(words[i] for i in random.integers(0, 999, 200)) for _ in range(count)]


def tokenise(text: bytes) -> Any:
    """Python that keeps the interpreter's lock: a number for each word."""
    numbers = []
    for word in text.split(b" "):
        number = 5381
        for letter in word:
            number = (number * 33 + letter) & 0xFFFF
        numbers.append(number)
    return np.array(numbers, np.int32)


def images(count: int) -> Any:
    return np.random.default_rng(SEED).integers(0, 256, (count, 128, 128, 3), dtype=np.uint8)


def augment(image: Any) -> Any:
    """A flip, a shift and a change of contrast in NumPy."""
    moved = np.roll(image[:, ::-1], 5, axis=0).astype(np.float32)
    return (moved - moved.mean()) / (moved.std() + 1.0)


def rows(count: int) -> Any:
    return np.random.default_rng(SEED).random((count, 128), dtype=np.float32)


def double(row: Any) -> Any:
    return row * 2


def numbers(count: int) -> Any:
    return np.arange(count)


def wait(number: Any) -> Any:
    """5 ms of waiting, as for a remote file."""
    time.sleep(0.005)
    return number


WORKS = {
    "jpeg": Work("decode, resize and crop with Pillow", pictures, decode, 64, 4096, 256),
    "tokenise": Work("pure Python on 200 words", texts, tokenise, 256, 16384, 2048),
    "augment": Work("flip, shift and contrast in NumPy", images, augment, 64, 4096, 256),
    "rows": Work("a row of 128 floats, doubled", rows, double, 256, 100_000, 10_000),
    "wait": Work("5 ms of waiting", numbers, wait, 64, 4096, 512),
}
