"""Finds the names of wanted features among those of many examples, by comparing whole words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from penstock.element.columns import Array
from penstock.engine.formats.examples.wire import Wire, encode_length


class Keys:
    """Names to find. A name is compared with its length before it, as words of eight bytes."""

    def __init__(self, names: Sequence[bytes]) -> None:
        self._count = len(names)
        texts = [encode_length(len(name)) + name for name in names]
        count = max(map(len, texts), default=0) // 8 + 1
        self.longest = 8 * count
        """How many bytes are compared."""
        padded = b"".join(text.ljust(self.longest, b"\0") for text in texts)
        words = np.frombuffer(padded, "<u8").reshape(len(names), count)
        factor = 0x9E3779B97F4A7C15  # Odd, with bits everywhere.
        while len({*(found := _mix(words.T, factor)).tolist()}) < len({*names}):
            factor += 2
        self._factor = factor
        self._order = np.argsort(found)
        self._sorted = found[self._order]
        self._table = words[self._order].T.copy()
        self._masks = [_masks(8 * place, self.longest) for place in range(count)]

    def __len__(self) -> int:
        return self._count

    def find(self, wire: Wire, starts: Array, stops: Array) -> Array:
        """Which name each range holds, with its length before it; -1 for any other."""
        if not self._count or not len(starts):
            return np.full(len(starts), -1)
        # A name with more bytes than the longest one is equal to none: its length differs.
        sizes = np.minimum(stops - starts, self.longest)
        words = [
            wire.words[starts + 8 * place] & masks[sizes] for place, masks in enumerate(self._masks)
        ]
        nearest = self._sorted.searchsorted(_mix(words, self._factor))
        nearest = np.minimum(nearest, self._count - 1)
        equal = words[0] == self._table[0][nearest]
        for word, table in zip(words[1:], self._table[1:], strict=True):
            equal &= word == table[nearest]
        return np.where(equal, self._order[nearest], -1)


@lru_cache(maxsize=64)
def keys_of(names: tuple[bytes, ...]) -> Keys:
    """The `Keys` for these names, which every batch of a dataset asks for."""
    return Keys(names)


def _masks(place: int, longest: int) -> Array:
    """For each size of a name: a word that keeps what a word from byte `place` on has of it."""
    kept = [min(max(size - place, 0), 8) for size in range(longest + 1)]
    return np.array([(1 << 8 * count) - 1 for count in kept], np.uint64)


def _mix(words: Any, factor: int) -> Array:
    mixed: Array = words[0]
    for word in words[1:]:
        mixed = mixed * np.uint64(factor) + word
    return mixed
