"""Users' functions in datasets: they get tensors, and the engine gets plain NumPy back.

`wrap` and `unwrap` are called for every element, so both look at the exact types first.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from penstock.data.dataset import Dataset
from penstock.distribute.values.variables import Variable
from penstock.element import nest
from penstock.element.datasets import Datasets
from penstock.element.ragged import Ragged
from penstock.errors import OpError
from penstock.plan import seeds
from penstock.plan.read_values import keep_values
from penstock.tf.drawing import drawing_from
from penstock.tf.ragged_values import RaggedTensor, SparseTensor
from penstock.tf.values import (
    Tensor,
    as_tensor,
    has_any,
    list_leaves,
    plain_leaf,
    to_array,
)

_VIEW = np.ndarray.view
_ARRAY, _ASARRAY = np.array, np.asarray
_NUMBERS = {
    *(np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
    *(np.float16, np.float32, np.float64, np.complex64, np.complex128),
}


def wrap(value: Any) -> Any:
    """An element as users get it: arrays, numbers and strings are tensors."""
    kind = type(value)
    if kind is np.ndarray:
        return _VIEW(value, Tensor)
    if kind in _NUMBERS:
        return _VIEW(_ASARRAY(value), Tensor)
    if kind is bytes:
        return _VIEW(_ARRAY(value, object), Tensor)
    if kind is tuple:
        return tuple([wrap(part) for part in value])
    if kind is dict:
        return {key: wrap(part) for key, part in value.items()}
    if isinstance(value, np.generic | bytes):
        return as_tensor(value)
    if isinstance(value, Ragged):
        return RaggedTensor(value)
    if isinstance(value, Dataset):
        return _PORTED[0](value)
    if kind is Datasets:
        return Datasets([wrap(row) for row in value])
    if kind in _AS_THEY_ARE:
        return value
    leaves, tree = nest.flatten(value)
    return value if tree == nest.LEAF else nest.unflatten(tree, [wrap(leaf) for leaf in leaves])


_PORTED: list[Callable[[Dataset], Any]] = []


def set_dataset_class(make: Callable[[Dataset], Any]) -> None:
    """Says what becomes of datasets in elements: their class calls the functions here."""
    _PORTED[:] = [make]


_AS_THEY_ARE = {Tensor, RaggedTensor, type(None), int, float, bool, str, list}


def unwrap(value: Any) -> Any:
    """What a function returned, or an argument of the user, as the engine takes it."""
    kind = type(value)
    if kind is Tensor:
        return plain_leaf(value)
    if kind is tuple or kind is list:
        return kind([unwrap(part) for part in value])
    if kind is dict:
        return {key: unwrap(part) for key, part in value.items()}
    if kind is RaggedTensor:
        return value.ragged
    if kind is SparseTensor:
        return value.rows
    if kind in _PLAIN or isinstance(value, Dataset | np.generic):
        return value
    if isinstance(value, Variable):
        return unwrap(Variable.numpy(value))
    if isinstance(value, Tensor):
        return plain_leaf(value)
    leaves, tree = nest.flatten(value)
    return value if tree == nest.LEAF else nest.unflatten(tree, [unwrap(leaf) for leaf in leaves])


def unwrap_element(value: Any) -> Any:
    """An element that the user made, as the engine takes it: a list with tensors is one array."""
    kind = type(value)
    if kind is Tensor:
        return plain_leaf(value)
    if kind is tuple:
        return tuple([unwrap_element(part) for part in value])
    if kind is dict:
        return {key: unwrap_element(part) for key, part in value.items()}
    return _unwrap_list(value) if kind is list else unwrap(value)


def _unwrap_list(value: list[Any]) -> Any:
    """A list with tensors or numbers of NumPy as TensorFlow packs it; other lists unwrapped."""
    leaves = list(list_leaves(value))
    has_tensors = has_any(leaves, (Tensor, Variable))
    if not has_tensors and (not has_any(leaves, (np.number,)) or has_any(leaves, (np.ndarray,))):
        return unwrap(value)
    try:
        return to_array(value)
    except OpError:
        return unwrap(value)  # The engine refuses it, and names the function that returned it.


_PLAIN = {np.ndarray, Ragged, bytes, str, int, float, bool, type(None)}


class Ported:
    """A user's function between the engine and the user: tensors in, plain NumPy out.

    It keeps the values that its variables have now, as a function that TensorFlow traces does.
    """

    __wrapped__: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, self._prepare(function), updated=())

    _prepare = staticmethod(keep_values)

    def __call__(self, *args: Any) -> Any:
        made = self.__wrapped__(*[wrap(value) for value in args])
        # A list that a function returns has the parts of an element; the lists in it are arrays.
        return [*map(unwrap_element, made)] if type(made) is list else unwrap_element(made)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ported) and other.__wrapped__ == self.__wrapped__

    def __hash__(self) -> int:
        return hash(self.__wrapped__)


class PortedMap(Ported):
    """The function of a `map`: a list that it returns is a tuple, as in TensorFlow."""

    def __call__(self, *args: Any) -> Any:
        made = super().__call__(*args)
        return tuple(made) if type(made) is list else made


class PortedRandom(PortedMap):
    """A function that draws random numbers: its last argument is the generator of the element."""

    def __call__(self, *args: Any) -> Any:
        with drawing_from(args[-1]):
            return super().__call__(*args[:-1])

    @property
    def __signature__(self) -> inspect.Signature:
        """Of the function, with one more argument."""
        generator = inspect.Parameter("generator", inspect.Parameter.POSITIONAL_ONLY)
        kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
        signature = inspect.signature(self.__wrapped__)
        needed = [
            one.replace(kind=kinds[0])
            for one in signature.parameters.values()
            if one.kind in kinds and one.default is one.empty
        ]
        others = [one for one in signature.parameters.values() if one.kind not in kinds]
        return inspect.Signature([*needed, generator, *others])


class PortedKeyed(Ported):
    """The function of a `scan` over (key, element): it draws from the generator of the key."""

    def __call__(self, *args: Any) -> Any:
        state, (key, element) = args
        with drawing_from(seeds.generator(int(key))):
            return super().__call__(state, element)


class PortedGenerator(Ported):
    """A function that returns values to iterate over; it gets NumPy values, as in TensorFlow.

    TensorFlow calls it in each iteration and does not trace it, so its variables are read then.
    """

    @staticmethod
    def _prepare(function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def __call__(self, *args: Any) -> Iterator[Any]:
        return map(unwrap, self.__wrapped__(*args))
