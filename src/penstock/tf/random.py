"""`tf.random`: numbers at random.

Inside a function of `Dataset.map` they depend on the seed, the epoch and the element, as with
`map(random=True)`. The stateless operations depend on their seed alone, and return the numbers that
TensorFlow returns.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn

import numpy as np

from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.plan import seeds
from penstock.plan.seeds import set_seed
from penstock.tf.distributions import Draws, PhiloxDraws, StatelessDraws, current_draws, draws_by
from penstock.tf.drawing import is_in_element
from penstock.tf.missing_operations import Namespace, missing_from_tf, refuse_names_of_tf
from penstock.tf.operations import dims
from penstock.tf.values import Tensor, as_tensor, to_array

__all__ = [
    "Generator",
    "categorical",
    "experimental",
    "fold_in",
    "get_global_generator",
    "normal",
    "set_global_generator",
    "set_seed",
    "shuffle",
    "split",
    "stateless_categorical",
    "stateless_normal",
    "stateless_shuffle",
    "stateless_truncated_normal",
    "stateless_uniform",
    "truncated_normal",
    "uniform",
]


def uniform(
    shape: Any,
    minval: Any = 0,
    maxval: Any = None,
    dtype: Any = np.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Numbers between `minval` and `maxval`, which is not included."""
    return current_draws().uniform(shape, minval, maxval, dtype)


def normal(
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = np.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Numbers of a normal distribution."""
    return current_draws().normal(shape, mean, stddev, dtype)


def truncated_normal(
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = np.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Numbers of a normal distribution, at most two deviations away from the mean."""
    return current_draws().truncated_normal(shape, mean, stddev, dtype)


def shuffle(value: Any, seed: int | None = None, name: str | None = None) -> Tensor:
    """The rows in random order."""
    array = to_array(value)
    return stateless_shuffle(array, current_draws()) if array.ndim else as_tensor(array)


def categorical(
    logits: Any, num_samples: Any, dtype: Any = np.int64, seed: Any = None, name: Any = None
) -> Tensor:
    """For each row of logits, numbers of classes."""
    return current_draws().categorical(logits, int(num_samples), dtype)


def stateless_uniform(
    shape: Any,
    seed: Any,
    minval: Any = 0,
    maxval: Any = None,
    dtype: Any = np.float32,
    name: str | None = None,
    alg: Any = "auto_select",
) -> Tensor:
    """Numbers between `minval` and `maxval`, by the seed alone; all integers if both are None."""
    if minval is None and maxval is None:
        return StatelessDraws(seed).full_integers(shape, dtype)
    return StatelessDraws(seed).uniform(shape, minval, maxval, dtype)


def stateless_normal(
    shape: Any,
    seed: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = np.float32,
    name: str | None = None,
    alg: Any = "auto_select",
) -> Tensor:
    """Numbers of a normal distribution, by the seed alone."""
    return StatelessDraws(seed).normal(shape, mean, stddev, dtype)


def stateless_truncated_normal(
    shape: Any,
    seed: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = np.float32,
    name: str | None = None,
    alg: Any = "auto_select",
) -> Tensor:
    """Numbers of a normal distribution, at most two deviations from the mean, by the seed alone."""
    return StatelessDraws(seed).truncated_normal(shape, mean, stddev, dtype)


def stateless_shuffle(value: Any, seed: Any, alg: Any = "auto_select", name: Any = None) -> Tensor:
    """The rows in an order that depends on the seed alone."""
    array = to_array(value)
    if not array.ndim:
        return as_tensor(array)
    return as_tensor(array[draws_by(seed).permutation(len(array))])


def stateless_categorical(
    logits: Any, num_samples: Any, seed: Any, dtype: Any = np.int64, name: Any = None
) -> Tensor:
    """For each row of logits, numbers of classes, by the seed alone."""
    return StatelessDraws(seed).categorical(logits, int(num_samples), dtype)


def split(seed: Any, num: Any = 2, alg: Any = "auto_select") -> Tensor:
    """New seeds from a seed."""
    return StatelessDraws(seed).full_integers([int(num), 2], to_array(seed).dtype)


def fold_in(seed: Any, data: Any, alg: Any = "auto_select") -> Tensor:
    """A new seed from a seed and a number."""
    more = to_array(data)
    return as_tensor(np.stack([StatelessDraws(seed).full_integers([], more.dtype), more]))


class SeededGenerator:
    """A generator with a state; inside of `map` it draws by the element instead.

    >>> rng = SeededGenerator.from_seed(1)
    >>> rng.uniform([2]).shape
    TensorShape([2])
    """

    __draws_numbers__ = True

    algorithm = 1
    """The number of TensorFlow for Philox."""

    def __init__(
        self, copy_from: SeededGenerator | None = None, state: Any = None, alg: Any = None
    ) -> None:
        _check_algorithm(alg)
        if not isinstance(copy_from, SeededGenerator | None):
            raise InvalidTypeError(
                f"tf.random.Generator: copy_from must be a generator, got {copy_from!r}; for a "
                "seed use tf.random.Generator.from_seed"
            )
        self._key, self._counter = seeds.draw(), 0
        given = state if copy_from is None else copy_from.state
        if given is not None:
            self.reset(given)

    @classmethod
    def from_seed(cls, seed: Any, alg: Any = None) -> SeededGenerator:
        return cls(state=_make_state(seed), alg=alg)

    @classmethod
    def from_non_deterministic_state(cls, alg: Any = None) -> SeededGenerator:
        return cls(alg=alg)

    @classmethod
    def from_state(cls, state: Any, alg: Any = None) -> SeededGenerator:
        return cls(state=state, alg=alg)

    @classmethod
    def from_key_counter(cls, key: Any, counter: Any, alg: Any = None) -> SeededGenerator:
        return cls(state=[*to_array(counter), key], alg=alg)

    @property
    def state(self) -> Tensor:
        parts = [self._counter & (1 << 64) - 1, self._counter >> 64, self._key]
        return as_tensor(np.array(parts, np.uint64).view(np.int64))

    @property
    def key(self) -> Tensor:
        return self.state[2]

    def __getattr__(self, name: str) -> NoReturn:
        raise missing_from_tf("random.Generator", name, dir(type(self)))

    def reset(self, state: Any) -> None:
        """Continues at another state: two numbers of a counter, and a key."""
        given = state if isinstance(state, list) else to_array(state)
        parts = [int(one) & (1 << 64) - 1 for one in given]
        if len(parts) != 3:
            raise InvalidArgumentError(
                f"tf.random.Generator: state must have 3 numbers, got {len(parts)}"
            )
        low, high, self._key = parts
        self._counter = low | high << 64

    def reset_from_seed(self, seed: Any) -> None:
        self.reset(_make_state(seed))

    def reset_from_key_counter(self, key: Any, counter: Any) -> None:
        self.reset([*to_array(counter), key])

    def state_dict(self) -> dict[str, Any]:
        """What `tf.train.Checkpoint` saves."""
        return {"state": self.state.numpy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reset(state["state"])

    def skip(self, delta: Any) -> None:
        """Moves on, as if `delta` numbers had been drawn."""
        self._counter += int(to_array(delta)) * 256

    def _draws(self, shape: Any) -> Draws:
        """Draws for a shape; the generator moves on by 256 blocks for each number."""
        if is_in_element():
            return current_draws()
        draws = PhiloxDraws(self._key, self._counter)
        self.skip(math.prod(dims("random.Generator", shape)))
        return draws

    def uniform(
        self,
        shape: Any,
        minval: Any = 0,
        maxval: Any = None,
        dtype: Any = np.float32,
        name: Any = None,
    ) -> Tensor:
        return self._draws(shape).uniform(shape, minval, maxval, dtype)

    def normal(
        self,
        shape: Any,
        mean: Any = 0.0,
        stddev: Any = 1.0,
        dtype: Any = np.float32,
        name: Any = None,
    ) -> Tensor:
        return self._draws(shape).normal(shape, mean, stddev, dtype)

    def truncated_normal(
        self,
        shape: Any,
        mean: Any = 0.0,
        stddev: Any = 1.0,
        dtype: Any = np.float32,
        name: Any = None,
    ) -> Tensor:
        return self._draws(shape).truncated_normal(shape, mean, stddev, dtype)

    def uniform_full_int(self, shape: Any, dtype: Any = np.uint64, name: Any = None) -> Tensor:
        """Integers of all values that the dtype has."""
        return self._draws(shape).full_integers(shape, dtype)

    def make_seeds(self, count: Any = 1) -> Tensor:
        """Seeds for stateless operations: two rows of integers."""
        first = self.uniform_full_int([int(count)], np.int64).numpy()
        return as_tensor(np.stack([first, np.zeros_like(first)]))

    def split(self, count: Any = 1) -> list[SeededGenerator]:
        """Other generators, which draw other numbers."""
        keys = self.make_seeds(count).numpy()[0]
        return [SeededGenerator(state=[0, 0, key]) for key in keys]


def _make_state(seed: Any) -> list[int]:
    """The state for a seed: an integer of any size, or a tensor whose last number is the key."""
    if isinstance(seed, int):
        return [seed >> 64 * part & (1 << 64) - 1 for part in range(3)]
    parts = [int(one) for one in to_array(seed).ravel()[:3]]
    return [0] * (3 - len(parts)) + parts


def _check_algorithm(alg: Any) -> None:
    if isinstance(alg, str) and alg not in ("philox", "threefry", "auto_select"):
        raise InvalidArgumentError(
            f"tf.random.Generator: alg must be philox, threefry or auto_select, got {alg!r}"
        )


Generator = SeededGenerator


_global: list[SeededGenerator] = []


def get_global_generator() -> SeededGenerator:
    """The generator of the program."""
    if not _global:
        _global.append(Generator.from_non_deterministic_state())
    return _global[0]


def set_global_generator(generator: SeededGenerator) -> None:
    """Makes a generator that of the program."""
    if not isinstance(generator, Generator):
        raise InvalidArgumentError(f"tf.random.set_global_generator: got {generator!r}")
    _global[:] = [generator]


class experimental(Namespace, module="random.experimental"):  # noqa: N801
    """Older names of the same."""

    Generator = Generator
    stateless_split = staticmethod(split)
    stateless_fold_in = staticmethod(fold_in)
    stateless_shuffle = staticmethod(stateless_shuffle)
    get_global_generator = staticmethod(get_global_generator)
    set_global_generator = staticmethod(set_global_generator)


__getattr__ = refuse_names_of_tf("random", __all__)
