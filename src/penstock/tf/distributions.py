"""Distributions over a source of random words: the source is an element's generator, or Philox."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from penstock.element.dtypes import DType, as_dtype
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.tf.drawing import current_generator
from penstock.tf.operations import dims
from penstock.tf.values import Array, Tensor, as_tensor, to_array

Words = np.ndarray[Any, np.dtype[np.uint32]]


def _size(call: str, shape: Any) -> tuple[int, ...]:
    size = dims(call, shape)
    if min(size, default=0) < 0:
        raise InvalidArgumentError(f"tf.{call}: no dimension may be negative, got {list(size)}")
    return size


class Draws(ABC):
    """A source of random words, and the distributions drawn from it."""

    @abstractmethod
    def words(self, count: int) -> Words:
        """The next `count` words."""

    def uniform(self, shape: Any, low: Any, high: Any, dtype: Any) -> Tensor:
        """Numbers in [low, high): floats, or integers."""
        kind, size = as_dtype(dtype), _size("random.uniform", shape)
        if kind.is_integer:
            return as_tensor(self._integers(size, low, high, kind))
        if not kind.is_floating:
            raise InvalidTypeError(f"tf.random: dtype must be a float or int, got {kind.name}")
        least, most = (to_array(one, kind) for one in (low, 1 if high is None else high))
        floats = self._floats(size, kind, _uniform_floats)
        return as_tensor((floats * (most - least) + least).astype(kind.dtype, copy=False))

    def normal(self, shape: Any, mean: Any, stddev: Any, dtype: Any) -> Tensor:
        """Numbers of a normal distribution."""
        kind = as_dtype(dtype)
        made = self._floats(_size("random.normal", shape), kind, _normal_floats)
        return as_tensor(made * to_array(stddev, kind) + to_array(mean, kind))

    def truncated_normal(self, shape: Any, mean: Any, stddev: Any, dtype: Any) -> Tensor:
        """Numbers of a normal distribution, at most two deviations away from the mean."""
        kind, size = as_dtype(dtype), _size("random.truncated_normal", shape)
        made = self._truncated_floats(math.prod(size), kind)[: math.prod(size)]
        made = made.reshape(size).astype(kind.dtype, copy=False)
        return as_tensor(made * to_array(stddev, kind) + to_array(mean, kind))

    def _truncated_floats(self, count: int, kind: DType) -> Array:
        """At least `count` numbers of the standard normal distribution, between -2 and 2."""
        kept = np.zeros(0, kind.dtype)
        while len(kept) < count:
            more = self._floats((max(16, 2 * count),), kind, _normal_floats)
            kept = np.concatenate([kept, more[np.abs(more) <= 2]])
        return kept

    def permutation(self, count: int) -> Array:
        """The numbers below `count` in random order."""
        words = self.words(2 * count).reshape(count, 2)
        return np.lexsort((words[:, 1], words[:, 0]))

    def categorical(self, logits: Any, count: int, dtype: Any) -> Tensor:
        """For each row of logits, `count` numbers of classes."""
        rows = to_array(logits)
        if count < 0:
            raise InvalidArgumentError(
                f"tf.random.categorical: num_samples must not be negative, got {count}"
            )
        if rows.ndim != 2:
            raise InvalidArgumentError(
                f"tf.random.categorical: logits need rank 2, got {rows.shape}"
            )
        uniform = self._floats(
            (len(rows), count, rows.shape[1]), as_dtype("float64"), _uniform_floats
        )
        noise = -np.log(-np.log(np.maximum(uniform, 1e-300)))
        return as_tensor((rows[:, None] + noise).argmax(-1).astype(as_dtype(dtype).dtype))

    def _floats(self, shape: tuple[int, ...], kind: DType, convert: Any) -> Array:
        made: Array = convert(self._words_for(shape, kind), kind.dtype)
        return made[: math.prod(shape)].reshape(shape)

    def _words_for(self, shape: tuple[int, ...], kind: DType) -> Words:
        """One word for each number, or two if it has 64 bits; in blocks of four words."""
        count = math.prod(shape) * (2 if kind.size == 8 else 1)
        return self.words(-(-count // 4) * 4)

    def _integers(self, shape: tuple[int, ...], low: Any, high: Any, kind: DType) -> Array:
        if high is None:
            raise InvalidArgumentError("tf.random: integers need maxval")
        least, most = int(to_array(low)), int(to_array(high))
        if least >= most:
            raise InvalidArgumentError(f"tf.random: needs minval < maxval, got {least} >= {most}")
        numbers = self._bits(shape, kind)
        made = numbers % np.array(most - least, numbers.dtype)
        return made.astype(kind.dtype) + np.array(least, kind.dtype)

    def full_integers(self, shape: Any, dtype: Any) -> Tensor:
        """Integers of all values that a dtype has."""
        kind = as_dtype(dtype)
        if not kind.is_integer or kind.size < 4:
            raise InvalidTypeError(f"tf.random: dtype must have 32 or 64 bits, got {kind.name}")
        return as_tensor(self._bits(_size("random.uniform", shape), kind).view(kind.dtype))

    def _bits(self, shape: tuple[int, ...], kind: DType) -> Array:
        """Unsigned integers of 64 bits, or of 32."""
        words = self._words_for(shape, kind)
        numbers = words.view(np.uint64) if kind.size == 8 else words
        return numbers[: math.prod(shape)].reshape(shape)


class ElementDraws(Draws):
    """Draws from a generator of NumPy: that of an element, or of the program."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator

    def words(self, count: int) -> Words:
        return self._generator.integers(0, 1 << 32, count, np.uint32)


def current_draws() -> Draws:
    """Draws of the element whose function runs; elsewhere, of the program."""
    return ElementDraws(current_generator())


class PhiloxDraws(Draws):
    """Draws from one state of Philox, with the numbers of TensorFlow."""

    def __init__(self, key: int, counter: int) -> None:
        self._key, self._counter = key, counter

    def words(self, count: int) -> Words:
        made = _philox_words(self._key, self._counter, count)
        self._counter += -(-count // 4)
        return made

    def _truncated_floats(self, count: int, kind: DType) -> Array:
        """As in `Draws`: the first fitting ones of each group, for which blocks are reserved."""
        group, single = (2, np.float64) if kind.size == 8 else (4, np.float32)
        starts = np.arange(-(-count // group), dtype=np.uint64)
        starts *= np.uint64(_RESERVED_WORDS * group // 4)
        for blocks in (4, 16, 64):
            steps = starts[:, None] + np.arange(blocks, dtype=np.uint64)
            words = _philox_blocks(self._key, self._counter, steps.ravel())
            made = _normal_floats(words, single).reshape(len(starts), blocks * group)
            fits = np.abs(made) < 2
            ranks = fits.cumsum(1)
            if (ranks[:, -1] >= group).all():
                break
        return made[fits & (ranks <= group)]

    def permutation(self, count: int) -> Array:
        """As `Draws.permutation`: each place is exchanged with one behind it."""
        words = self.words(count).tolist()
        order = list(range(count))
        for place in range(count - 1):
            other = place + words[place] % (count - place)
            order[place], order[other] = order[other], order[place]
        return np.array(order, np.int64)


class StatelessDraws(PhiloxDraws):
    """Draws that depend only on a seed of two integers."""

    def __init__(self, seed: Any) -> None:
        pair = to_array(seed)
        if pair.shape != (2,) or pair.dtype.kind not in "iu":
            raise InvalidArgumentError(f"tf.random: seed must be two integers, got {seed!r}")
        super().__init__(*_scramble_seed((int(pair[0]), int(pair[1]))))


def draws_by(seed: Any) -> Draws:
    """Draws by a seed of two integers; draws are returned as they are."""
    return seed if isinstance(seed, Draws) else StatelessDraws(seed)


# Philox 4x32-10 as TensorFlow uses it: the random words of stateless operations and generators


_FACTORS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_SCRAMBLE = 0x02461E293EC8F720
"""The key by which seeds are scrambled."""

_ROUNDS = 10

_RESERVED_WORDS = 256
"""How many words TensorFlow reserves for a number whose distribution discards some."""


def _philox_words(key: int, counter: int, count: int) -> Words:
    """`count` random words, from the 128-bit `counter` on."""
    return _philox_blocks(key, counter, np.arange(-(-count // 4), dtype=np.uint64))[:count]


def _philox_blocks(key: int, counter: int, steps: Array) -> Words:
    """Blocks of four random words, each at a number of steps from the 128-bit `counter` on."""
    places = steps + np.uint64(counter & (1 << 64) - 1)
    carried = places < np.uint64(counter & (1 << 64) - 1)
    high = np.full(len(steps), counter >> 64 & (1 << 64) - 1, np.uint64) + carried
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
    return np.stack(state, 1).ravel().astype(np.uint32)


def _scramble_seed(seed: tuple[int, int]) -> tuple[int, int]:
    """The key and the counter for a seed of two integers."""
    first, second = (one & (1 << 64) - 1 for one in seed)
    words = [int(word) for word in _philox_words(_SCRAMBLE, first | second << 64, 4)]
    return words[0] | words[1] << 32, (words[2] | words[3] << 32) << 64


def _uniform_floats(words: Words, dtype: Any) -> np.ndarray[Any, Any]:
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


def _normal_floats(words: Words, dtype: Any) -> np.ndarray[Any, Any]:
    """Numbers of the standard normal distribution, by the transformation of Box and Muller."""
    kind = np.float64 if np.dtype(dtype) == np.float64 else np.float32
    pairs = _uniform_floats(words, kind).reshape(-1, 2)
    radius = np.sqrt(kind(-2) * np.log(np.maximum(pairs[:, 0], kind(1e-7))))
    angle = kind(2 * np.pi) * pairs[:, 1]
    return np.stack([np.sin(angle) * radius, np.cos(angle) * radius], 1).ravel().astype(dtype)
