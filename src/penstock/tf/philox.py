"""Philox 4x32-10 as TensorFlow uses it: the random words of stateless operations and generators."""

from __future__ import annotations

from typing import Any

import numpy as np

Words = np.ndarray[Any, np.dtype[np.uint32]]

_FACTORS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_SCRAMBLE = 0x02461E293EC8F720
"""The key by which seeds are scrambled."""

_ROUNDS = 10


def philox_words(key: int, counter: int, count: int) -> Words:
    """`count` random words, from the 128-bit `counter` on."""
    blocks = -(-count // 4)
    places = np.arange(blocks, dtype=np.uint64) + np.uint64(counter & (1 << 64) - 1)
    carried = places < np.uint64(counter & (1 << 64) - 1)
    high = np.full(blocks, counter >> 64 & (1 << 64) - 1, np.uint64) + carried
    state = [places & _LOW, places >> _SHIFT, high & _LOW, high >> _SHIFT]
    low_key, high_key = key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF
    for step in range(_ROUNDS):
        keys = [
            np.uint64((one + step * weyl) & 0xFFFFFFFF)
            for one, weyl in zip((low_key, high_key), _WEYL, strict=True)
        ]
        first, second = state[0] * _FACTORS[0], state[2] * _FACTORS[1]
        state = [
            (second >> _SHIFT) ^ state[1] ^ keys[0],
            second & _LOW,
            (first >> _SHIFT) ^ state[3] ^ keys[1],
            first & _LOW,
        ]
    return np.stack(state, 1).ravel()[:count].astype(np.uint32)


def scramble_seed(seed: tuple[int, int]) -> tuple[int, int]:
    """The key and the counter that a seed of two integers stands for."""
    first, second = (one & (1 << 64) - 1 for one in seed)
    words = [int(word) for word in philox_words(_SCRAMBLE, first | second << 64, 4)]
    return words[0] | words[1] << 32, (words[2] | words[3] << 32) << 64


def uniform_floats(words: Words, dtype: Any) -> np.ndarray[Any, Any]:
    """Numbers in [0, 1); float64 takes two words for each."""
    if np.dtype(dtype) == np.float64:
        pairs = words.reshape(-1, 2).astype(np.uint64)
        bits = (pairs[:, 0] & np.uint64(0xFFFFF)) << _SHIFT | pairs[:, 1]
        return (bits | np.uint64(1023 << 52)).view(np.float64) - 1.0
    if np.dtype(dtype) == np.float16:
        bits16 = (words.astype(np.uint16) & np.uint16(0x3FF)) | np.uint16(15 << 10)
        return bits16.view(np.float16) - np.float16(1)
    bits32 = (words & np.uint32(0x7FFFFF)) | np.uint32(127 << 23)
    return bits32.view(np.float32) - np.float32(1)


def normal_floats(words: Words, dtype: Any) -> np.ndarray[Any, Any]:
    """Numbers of the standard normal distribution, by the transformation of Box and Muller."""
    kind = np.float64 if np.dtype(dtype) == np.float64 else np.float32
    pairs = uniform_floats(words, kind).reshape(-1, 2)
    radius = np.sqrt(kind(-2) * np.log(np.maximum(pairs[:, 0], kind(1e-7))))
    angle = kind(2 * np.pi) * pairs[:, 1]
    return np.stack([np.sin(angle) * radius, np.cos(angle) * radius], 1).ravel().astype(dtype)
