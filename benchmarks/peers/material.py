"""The arrays and files that every peer reads: made from a fixed seed, so all have the same data.

Floats are whole numbers, so that a sum does not depend on the order of its terms.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SEED = 20_210
RECORDS = Path(__file__).resolve().parents[2] / ".bench" / "records"
RECORD, FILES = 1000, 8
FRAMED = RECORD + 16
"""A record in a TFRecord file has its length before it, and two checksums."""


def rows(n: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """`n` rows of 128 features, and a label for each."""
    generator = np.random.default_rng(SEED)
    features = generator.integers(0, 100, (n, 128), dtype=np.int8).astype(np.float32)
    return features, generator.integers(0, 1000, n)


def features() -> NDArray[np.float32]:
    """65,536 rows of 128 features: whole passes of 256 batches of 256."""
    return rows(65_536)[0]


def images(n: int) -> NDArray[np.uint8]:
    """`n` images of 224 x 224 pixels in three colours."""
    return np.random.default_rng(SEED).integers(0, 256, (n, 224, 224, 3), dtype=np.uint8)


def tokens(n: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """`n` token lists of 1 to 200, laid end to end; where each one starts and where it ends."""
    generator = np.random.default_rng(SEED)
    ends = np.cumsum(generator.integers(1, 201, n))
    starts = np.concatenate(([0], ends[:-1]))
    return generator.integers(1, 50_000, int(ends[-1])), starts, ends


def documents(n: int) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """`n` documents of 500 tokens on average, laid end to end; where each starts and ends."""
    generator = np.random.default_rng(SEED)
    ends = np.cumsum(1 + generator.exponential(500, n).astype(np.int64))
    starts = np.concatenate(([0], ends[:-1]))
    return generator.integers(1, 50_000, int(ends[-1]), dtype=np.int32), starts, ends


def document_list(n: int) -> list[NDArray[np.int32]]:
    """The same documents, each in memory of its own."""
    flat, starts, ends = documents(n)
    return [flat[start:end].copy() for start, end in zip(starts, ends, strict=True)]


def record_files(n: int) -> list[str]:
    """The TFRecord files of `n` records, which the first peer that asks for them writes."""
    folder = RECORDS / str(n)
    names = [folder / f"{number}.tfrecord" for number in range(FILES)]
    shares = [n // FILES + (number < n % FILES) for number in range(FILES)]
    for number, (name, share) in enumerate(zip(names, shares, strict=True)):
        if not name.exists():
            folder.mkdir(parents=True, exist_ok=True)
            partial = name.with_suffix(f".{os.getpid()}")
            partial.write_bytes(_frame(share, SEED + number))
            partial.rename(name)
    return [str(name) for name in names]


def _frame(count: int, seed: int) -> bytes:
    """`count` records of random bytes as a TFRecord file has them."""
    frames = np.zeros((count, FRAMED), np.uint8)
    frames[:, :8] = np.frombuffer(RECORD.to_bytes(8, "little"), np.uint8)
    frames[:, 8:12] = _masked_crcs(frames[:, :8])
    data = np.random.default_rng(seed).integers(0, 256, (count, RECORD), dtype=np.uint8)
    frames[:, 12:-4] = data
    frames[:, -4:] = _masked_crcs(data)
    return frames.tobytes()


def _masked_crcs(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The CRC32C of each row, masked as TFRecord files have it, as four bytes."""
    crcs = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in np.ascontiguousarray(rows.T):
        crcs = _table()[(crcs ^ column) & 0xFF] ^ (crcs >> 8)
    crcs ^= np.uint32(0xFFFFFFFF)
    masked = (crcs >> 15 | crcs << 17) + np.uint32(0xA282EAD8)
    return masked.astype("<u4").view(np.uint8).reshape(-1, 4)


@cache
def _table() -> NDArray[Any]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(0x82F63B78), table >> 1)
    return table
