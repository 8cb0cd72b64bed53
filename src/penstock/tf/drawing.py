"""Where random operations draw from: the generator of the element, or the seed of the program.

Inside a function of a dataset, numbers depend on the seed, the epoch and the element alone, so
that a resumed iteration and every worker draw the same ones. Elsewhere they follow `set_seed`.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from penstock.plan import seeds
from penstock.plan.read_values import codes_of, is_empty

_current: ContextVar[np.random.Generator | None] = ContextVar("penstock_tf_draws", default=None)


@contextmanager
def drawing_from(generator: np.random.Generator) -> Iterator[None]:
    """In this context, random operations draw from `generator`."""
    token = _current.set(generator)
    try:
        yield
    finally:
        _current.reset(token)


def current_generator() -> np.random.Generator:
    """The generator of the element; elsewhere, a new one by the seed of the scope or program."""
    return _current.get() or seeds.generator(seeds.draw())


def is_in_element() -> bool:
    """Whether this is a function that draws by the element."""
    return _current.get() is not None


def draws_numbers(function: Callable[..., Any]) -> bool:
    """Whether a function may call a random operation, itself or through functions that it names.

    Its code is searched for the names of random operations, and its values for generators. A name
    that means something else costs only time. Stateless operations do not count.
    """
    return _Search().draws(function)


_DRAWING = {
    *("uniform", "normal", "truncated_normal", "shuffle", "categorical", "uniform_full_int"),
    *("make_seeds", "Generator", "get_global_generator"),
}


def _is_random_operation(value: Any) -> bool:
    home, name = getattr(value, "__module__", None), getattr(value, "__name__", "")
    if home not in ("penstock.tf.random", "penstock.tf.image.random_images"):
        return False
    return name in _DRAWING or name.startswith("random_")


class _Search:
    """A search through the code of functions, each only once.

    What was found is kept in a list, not on the stack: code of libraries is many functions deep.
    """

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._found: list[Any] = []  # Also keeps alive what `_seen` knows by its id.
        self._next = 0

    def draws(self, function: Any) -> bool:
        self._add([function])
        while self._next < len(self._found):
            value = self._found[self._next]
            self._next += 1
            if getattr(value, "__draws_numbers__", False) or _is_random_operation(value):
                return True
            if self._look_into(value):
                return True
        return False

    def _add(self, values: Iterable[Any]) -> None:
        for value in values:
            if id(value) not in self._seen and not isinstance(value, types.ModuleType):
                self._seen.add(id(value))
                self._found.append(value)

    def _look_into(self, value: Any) -> bool:
        """Adds the functions and objects that a value uses; True if its code draws."""
        if isinstance(value, types.MethodType):
            self._add([value.__self__, value.__func__])
            return False
        wrapped = getattr(value, "__wrapped__", None)
        if isinstance(value, functools.partial):
            wrapped = value.func
        if wrapped is not None:
            self._add([wrapped])
        if isinstance(value, types.FunctionType):
            return self._look_into_function(value)
        self._look_into_object(value)
        return False

    def _look_into_function(self, function: types.FunctionType) -> bool:
        if (function.__module__ or "").startswith(("numpy", "penstock.")):
            return False
        names = {name for code in codes_of(function.__code__) for name in code.co_names}
        if any(name in _DRAWING or name.startswith("random_") for name in names):
            return True
        self._add(cell.cell_contents for cell in function.__closure__ or () if not is_empty(cell))
        self._add(function.__globals__[name] for name in names if name in function.__globals__)
        return False

    def _look_into_object(self, value: Any) -> None:
        """Adds the methods and the state of an object that users call."""
        kind = value if isinstance(value, type) else type(value)
        if kind.__module__.split(".")[0] in ("builtins", "numpy", "penstock", "torch", "jax"):
            return
        self._add(part for part in vars(kind).values() if isinstance(part, types.FunctionType))
        if kind is not value:
            self._add(getattr(value, "__dict__", {}).values())
