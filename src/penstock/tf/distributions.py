"""Distributions over a source of random words: the source is an element's generator, or Philox."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from penstock.element.dtypes import DType, as_dtype
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.tf.operations import dims
from penstock.tf.philox import Words, normal_floats, philox_words, scramble_seed, uniform_floats
from penstock.tf.values import Array, Tensor, as_tensor, to_array


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
        floats = self._floats(size, kind, uniform_floats)
        return as_tensor((floats * (most - least) + least).astype(kind.dtype, copy=False))

    def normal(self, shape: Any, mean: Any, stddev: Any, dtype: Any) -> Tensor:
        """Numbers of a normal distribution."""
        kind = as_dtype(dtype)
        made = self._floats(_size("random.normal", shape), kind, normal_floats)
        return as_tensor(made * to_array(stddev, kind) + to_array(mean, kind))

    def truncated_normal(self, shape: Any, mean: Any, stddev: Any, dtype: Any) -> Tensor:
        """Numbers of a normal distribution, at most two deviations away from the mean."""
        kind, size = as_dtype(dtype), _size("random.truncated_normal", shape)
        kept = np.zeros(0, kind.dtype)
        while len(kept) < math.prod(size):
            more = self._floats((max(16, 2 * math.prod(size)),), kind, normal_floats)
            kept = np.concatenate([kept, more[np.abs(more) <= 2]])
        made = kept[: math.prod(size)].reshape(size)
        return as_tensor(made * to_array(stddev, kind) + to_array(mean, kind))

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
            (len(rows), count, rows.shape[1]), as_dtype("float64"), uniform_floats
        )
        noise = -np.log(-np.log(np.maximum(uniform, 1e-300)))
        return as_tensor((rows[:, None] + noise).argmax(-1).astype(as_dtype(dtype).dtype))

    def _floats(self, shape: tuple[int, ...], kind: DType, convert: Any) -> Array:
        per_number = 2 if kind.size == 8 else 1
        count = math.prod(shape)
        padded = -(-count * per_number // 4) * 4
        made: Array = convert(self.words(padded), kind.dtype)
        return made[:count].reshape(shape)

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
        """Unsigned integers: one word for each, or two if they have 64 bits."""
        count, wide = math.prod(shape), kind.size == 8
        words = self.words(-(-count * (2 if wide else 1) // 4) * 4)
        return (words.view(np.uint64) if wide else words)[:count].reshape(shape)


class ElementDraws(Draws):
    """Draws from a generator of NumPy: that of an element, or of the program."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator

    def words(self, count: int) -> Words:
        return self._generator.integers(0, 1 << 32, count, np.uint32)


class StatelessDraws(Draws):
    """Draws that depend only on a seed of two integers, with the numbers of TensorFlow."""

    def __init__(self, seed: Any) -> None:
        pair = to_array(seed)
        if pair.shape != (2,) or pair.dtype.kind not in "iu":
            raise InvalidArgumentError(f"tf.random: seed must be two integers, got {seed!r}")
        self._key, self._counter = scramble_seed((int(pair[0]), int(pair[1])))

    def words(self, count: int) -> Words:
        made = philox_words(self._key, self._counter, count)
        self._counter += -(-count // 4)
        return made
