"""Seeds: the source of every random decision.

No random decision may depend on the process, the thread or the time. Keys are derived from a seed
and from positions (epoch, index), and a generator is made from a key when it is needed.
"""

from __future__ import annotations

import functools
import itertools
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import numpy as np

from penstock.errors import InvalidArgumentError, InvalidTypeError

_MASK = (1 << 64) - 1
# The increment and the two multipliers of splitmix64 (Steele, Lea, Flood 2014).
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def _mix(z: int) -> int:
    """The finaliser of splitmix64: a bijection in which every bit reaches every other."""
    z &= _MASK
    z = ((z ^ (z >> 30)) * _FIRST) & _MASK
    z = ((z ^ (z >> 27)) * _SECOND) & _MASK
    return z ^ (z >> 31)


def _scatter(key: int) -> int:
    """A key as the start of a sequence; changed first, because `_mix` maps 0 to 0."""
    return _mix(int(key) ^ _SECOND)


def derive(key: int, *parts: int) -> int:
    """A 64-bit key from a key and numbers; `derive(a, b, c) == derive(derive(a, b), c)`.

    For one `key`, different `parts[0]` (modulo 2**64) give different results.

    >>> derive(7, 0) == derive(7, 0), derive(7, 0) == derive(7, 1)
    (True, False)
    """
    if not parts:
        return _scatter(key)
    for part in parts:
        key = _mix(_scatter(key) + (int(part) + 1) * _GOLDEN)
    return key


def derive_array(base: int, values: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """`derive(base, value)` for every value of an array of integers."""
    if values.shape == (1,):  # Several times faster than the array operations.
        return np.array([derive(base, int(values[0]))], np.uint64)
    z = values.astype(np.uint64)
    z += np.uint64(1)
    z *= np.uint64(_GOLDEN)
    z += np.uint64(_scatter(base))
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        z ^= z >> np.uint64(shift)
        z *= np.uint64(factor)
    z ^= z >> np.uint64(31)
    return z


def numbers_from(first: int, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The numbers `first` to `first + count`, from which keys of elements are derived."""
    return np.arange(first, first + count, dtype=np.uint64)


class _Words:
    """The seed words of a generator, derived from a key without NumPy's slower mixing."""

    def __init__(self, key: int) -> None:
        self.key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray[Any, Any]:
        start = _scatter(self.key)
        words = [_mix(start + i * _GOLDEN) for i in range(1, n_words + 1)]
        return np.array(words, np.uint64).astype(dtype, copy=False)


@functools.cache
def _register_words() -> None:
    """Makes NumPy accept `_Words`; not at import, because only its use loads `numpy.random`."""
    np.random.bit_generator.ISeedSequence.register(_Words)


def generator(key: int, *parts: int) -> np.random.Generator:
    """The random generator that belongs to `derive(key, *parts)`."""
    _register_words()
    words = cast(np.random.SeedSequence, _Words(derive(key, *parts)))
    return np.random.Generator(np.random.PCG64(words))


Draw = Callable[[], int]
"""Returns a new seed; thread-safe."""


def _draw_from(key: int) -> Draw:
    """Seeds derived from a key and a count of draws."""
    numbers = itertools.count()
    return lambda: derive(key, next(numbers)) >> 1


_global: Draw | None = None
_scope: ContextVar[Draw | None] = ContextVar("penstock_seed_scope", default=None)


def set_seed(seed: int | None) -> None:
    """Makes every seed that is not given explicitly follow from `seed`, counted from this call.

    Args:
        seed: Any 64-bit integer, or None to draw seeds from the operating system again.

    >>> set_seed(1); first = draw(), draw()
    >>> set_seed(1); first == (draw(), draw())
    True
    >>> set_seed(None)
    """
    global _global
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer | None):
        raise InvalidTypeError(
            f"random.set_seed: seed must be an int or None, got {seed!r} ({type(seed).__name__})"
        )
    if seed is not None and not -(1 << 63) <= seed < 1 << 64:
        raise InvalidArgumentError(f"random.set_seed: seed must fit into 64 bits, got {seed}")
    _global = None if seed is None else _draw_from(derive(int(seed)))


def draw() -> int:
    """A new seed of 63 bits: from `seed_scope`, from `set_seed`, or from the operating system."""
    source = _scope.get() or _global
    return secrets.randbits(63) if source is None else source()


def is_reproducible() -> bool:
    """Whether `draw` would return the same seeds in another process."""
    return (_scope.get() or _global) is not None


@contextmanager
def seed_scope(key: int) -> Iterator[None]:
    """In this context, `draw` depends only on `key` and on the number of draws before.

    Functions that build datasets are called in such a scope, so that a dataset that is built again
    gets the same seeds.
    """
    token = _scope.set(_draw_from(int(key)))
    try:
        yield
    finally:
        _scope.reset(token)
