"""`tf.Module`: an object that finds the variables and modules among its attributes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from penstock.distribute.values.variables import Variable
from penstock.errors import InvalidArgumentError
from penstock.tf.control import name_scope as name_scope_of


class Module:
    """A class for layers and models: `variables` are those of its attributes, at any depth.

    Lists, tuples and dicts in attributes are searched, too. A checkpoint saves a module.

    Args:
        name: The name; by default that of the class, in lower case.

    >>> from penstock import tf
    >>> class Dense(tf.Module):
    ...     def __init__(self, size):
    ...         super().__init__()
    ...         self.weights = tf.Variable([1.0] * size, name="weights")
    ...         self.steps = tf.Variable(0, trainable=False, name="steps")
    >>> class Net(tf.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layers = [Dense(2), Dense(3)]
    >>> net = Net()
    >>> net.name, [layer.name for layer in net.submodules]
    ('net', ['dense', 'dense'])
    >>> [weights.shape.as_list() for weights in net.trainable_variables], len(net.variables)
    ([[2], [3]], 4)
    """

    def __init__(self, name: str | None = None) -> None:
        if name is None:
            name = re.sub(r"((?<=[a-z0-9])[A-Z]|(?!^)[A-Z](?=[a-z]))", r"_\1", type(self).__name__)
            name = name.lower()
        if not name.isidentifier():
            raise InvalidArgumentError(
                f"Module: name must be an identifier of Python, got {name!r:.60}"
            )
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    @property
    def name_scope(self) -> Any:
        """A context that changes nothing: names have no scopes here."""
        return name_scope_of(self._name)

    @property
    def variables(self) -> tuple[Any, ...]:
        """The variables of this module, then those of its modules."""
        return tuple(self._find(Variable))

    @property
    def trainable_variables(self) -> tuple[Any, ...]:
        return tuple(one for one in self.variables if one.trainable)

    @property
    def non_trainable_variables(self) -> tuple[Any, ...]:
        return tuple(one for one in self.variables if not one.trainable)

    @property
    def submodules(self) -> tuple[Any, ...]:
        """The modules among the attributes, and theirs."""
        return tuple(self._find(Module))

    def _find(self, kind: type) -> Iterator[Any]:
        """The objects of a class in this module and in its modules, each once."""
        seen = {id(self)}
        waiting: list[Any] = [self]
        while waiting:
            modules: list[Any] = []
            for leaf in _leaves(_attributes(waiting.pop(0))):
                if id(leaf) in seen:
                    continue
                seen.add(id(leaf))
                if isinstance(leaf, kind):
                    yield leaf
                if isinstance(leaf, Module):
                    modules.append(leaf)
            waiting[:0] = modules

    def _checkpoint_parts(self) -> dict[str, Any]:
        """What a checkpoint saves of this module, by the names of attributes."""
        found = {name: _parts_of(value) for name, value in _attributes(self).items()}
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def with_name_scope(cls, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method itself: names have no scopes here."""
        return method


def _attributes(module: Any) -> dict[str, Any]:
    """The attributes of a module, by name."""
    return dict(sorted(vars(module).items()))


def _leaves(value: Any) -> Iterator[Any]:
    """What is inside of dicts, lists and tuples."""
    if isinstance(value, Mapping):
        keys = sorted(value) if all(isinstance(key, str) for key in value) else list(value)
        for key in keys:
            yield from _leaves(value[key])
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


def _parts_of(value: Any) -> Any:
    """What a checkpoint saves of an attribute; None for what it does not save."""
    if isinstance(value, Variable | Module):
        return value
    if isinstance(value, Mapping):
        parts = {str(key): _parts_of(part) for key, part in value.items()}
    elif isinstance(value, list | tuple):
        parts = {str(number): _parts_of(part) for number, part in enumerate(value)}
    else:
        return value if hasattr(value, "state_dict") else None
    return {key: part for key, part in parts.items() if part is not None} or None
