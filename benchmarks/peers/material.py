"""The arrays that every peer reads: made from a fixed seed, so all peers hold the same data.

Floats are whole numbers, so that a sum does not depend on the order of its terms.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SEED = 20_210


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
