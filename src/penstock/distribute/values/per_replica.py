"""Values of replicas: one object for each replica, usually a tensor, and trees of them.

The values of a `PerReplica` may differ, those of a `Mirrored` are equal. Trees of penstock treat
both as leaves; `jax.tree` and `torch.utils._pytree` treat them as nodes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from penstock.distribute.backends import load
from penstock.distribute.replica_context import local_index
from penstock.distribute.values import texts
from penstock.distribute.values.operators import BINARY, ActsAsValue
from penstock.distribute.values.trees import container_of, describe, leaves, map_leaves
from penstock.element.spec import TensorSpec, TypeSpec
from penstock.errors import DisagreementError, InvalidArgumentError


class DistributedValues:
    """One value for each replica of this process: `.values`, a tuple.

    >>> PerReplica((1, 2)).values
    (1, 2)
    """

    __slots__ = ("__weakref__", "_values")

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = tuple(values)

    @property
    def values(self) -> tuple[Any, ...]:
        return self._values

    def __str__(self) -> str:
        return self._text(texts.short)

    def __repr__(self) -> str:
        return self._text(texts.full)

    def _text(self, text: Callable[[Any], str]) -> str:
        lines = (f"  {index}: {text(value)}" for index, value in enumerate(self._values))
        return f"{type(self).__name__}:{{\n" + ",\n".join(lines) + "\n}"


class PerReplica(DistributedValues):
    """Values that may differ; returned by distributed datasets and `Strategy.run`.

    >>> print(PerReplica((np.arange(2), np.arange(2, 4))))
    PerReplica:{
      0: tf.Tensor([0 1], shape=(2,), dtype=int64),
      1: tf.Tensor([2 3], shape=(2,), dtype=int64)
    }
    >>> import jax.numpy as jnp
    >>> one = PerReplica((jnp.zeros(2),)).to_global()
    >>> one.shape, PerReplica.from_global(one).values[0].shape
    ((2,), (2,))
    """

    __slots__ = ()

    @classmethod
    def from_global(cls, array: Any) -> PerReplica:
        """The shards of a `jax.Array` on this process's devices, without a copy."""
        made: PerReplica = load("jax").from_global(array)  # type: ignore[attr-defined]
        return made

    def to_global(self, axis: int = 0) -> Any:
        """One `jax.Array` of the replicas' arrays, joined along `axis` without a copy.

        It has a `NamedSharding` over the mesh axis "replica"; nothing moves between devices.
        """
        return load("jax").to_global(self, axis)  # type: ignore[attr-defined]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise InvalidArgumentError(
            f"PerReplica: {len(self._values)} values, one for each replica, are not one array; "
            "use strategy.experimental_local_results, reduce or gather, or pass it to strategy.run"
        )

    __array_ufunc__ = None


class Mirrored(DistributedValues, ActsAsValue):
    """Equal values: in arithmetic, the value of the current replica, or the first one.

    >>> Mirrored((np.float32(2), np.float32(2))) + 1
    np.float32(3.0)
    >>> Mirrored((np.arange(2), np.arange(2))).numpy()
    array([0, 1])
    """

    __slots__ = ()
    __hash__ = object.__hash__
    __str__ = DistributedValues.__str__
    __repr__ = DistributedValues.__repr__

    def _current_value(self) -> Any:
        return self._values[local_index() or 0]

    def numpy(self) -> Any:
        """The value as a NumPy array or scalar."""
        value = self._current_value()
        return value.numpy() if hasattr(value, "numpy") else np.asarray(value)[()]


def _make_mirrored_operator(name: str) -> Callable[[Mirrored, Any], Any]:
    one = getattr(ActsAsValue, f"__{name}__")

    def apply(self: Mirrored, other: Any) -> Any:
        if not isinstance(other, Mirrored) or local_index() is not None:
            return one(self, other)
        pairs = zip(self._values, other._values, strict=True)
        return Mirrored([getattr(a, f"__{name}__")(b) for a, b in pairs])

    return apply


for _name in BINARY:
    setattr(Mirrored, f"__{_name}__", _make_mirrored_operator(_name))


class SyncOnRead(DistributedValues):
    """Values that each replica changes for itself, and that are aggregated when they are read.

    >>> SyncOnRead((1, 2)).values
    (1, 2)
    """

    __slots__ = ()


def regroup(
    trees: Sequence[Any], always: bool, who: str = "Strategy.run: the replicas returned"
) -> Any:
    """Combines trees of one structure, one per replica, into one tree of `PerReplica`.

    Unless `always` is set, a leaf that is the same object in all trees is not wrapped.
    """
    first = trees[0]
    container = container_of(type(first))
    if container is None:
        return _regroup_leaf(trees, always, who)
    columns = [container.children(first)]
    for index, other in enumerate(trees[1:], 1):
        same_type = type(other) is type(first)
        parts = container.children_like(first, other) if same_type else None
        if parts is None:
            raise _structure_error(who, first, other, index)
        columns.append(parts)
    rows = zip(*columns, strict=True)
    return container.rebuild(first, [regroup(row, always, who) for row in rows])


def _regroup_leaf(trees: Sequence[Any], always: bool, who: str) -> Any:
    first, same = trees[0], not always
    for index, other in enumerate(trees[1:], 1):
        if other is not first:
            same = False
            if container_of(type(other)) is not None:
                raise _structure_error(who, first, other, index)
    return first if same and not isinstance(first, _INTERNED) else PerReplica(trees)


# Python and NumPy intern these scalars, so that replicas may return the same object by accident.
_INTERNED = (np.bool_, bytes)


def _structure_error(who: str, first: Any, other: Any, index: int) -> DisagreementError:
    return DisagreementError(
        f"{who} different structures: {describe(first)} from replica 0, {describe(other)} from "
        f"replica {index}; every replica must give the same structure"
    )


def select(index: int, tree: Any) -> Any:
    """The tree with every distributed value replaced by the value of one replica."""

    def select_leaf(leaf: Any) -> Any:
        return leaf._values[index] if isinstance(leaf, DistributedValues) else leaf

    return map_leaves(select_leaf, tree)


def spread(tree: Any, count: int, call: str) -> Sequence[Any]:
    """The tree for each of `count` replicas. Variables are kept: they know the current replica."""
    found = _spread(tree, count, call)
    return (tree,) * count if found is None else found


def _spread(tree: Any, count: int, call: str) -> Sequence[Any] | None:
    container = container_of(type(tree))
    if container is None:
        return values_of(tree, count, call) if isinstance(tree, PerReplica | Mirrored) else None
    parts = container.children(tree)
    columns = [_spread(part, count, call) for part in parts]
    if all(column is None for column in columns):
        return None
    filled = [
        repeat(part, count) if column is None else column
        for part, column in zip(parts, columns, strict=True)
    ]
    return [container.rebuild(tree, row) for row in zip(*filled, strict=True)]


def values_of(value: DistributedValues, count: int, call: str) -> tuple[Any, ...]:
    """The value of each of `count` replicas; raises if the value is that of another strategy."""
    if len(value._values) != count:
        raise InvalidArgumentError(
            f"{call}: the value has {len(value._values)} replicas but this strategy has {count}; "
            "pass a value returned by this strategy's run()"
        )
    return value._values


def local_results(tree: Any, count: int) -> tuple[Any, ...]:
    """The tree for each of `count` replicas; a value that is not distributed comes once."""
    for leaf in leaves(tree):
        if isinstance(leaf, DistributedValues):
            return tuple(select(index, tree) for index in range(len(leaf._values)))
    return (tree,) if container_of(type(tree)) is None else (tree,) * count


_registered: set[str] = set()
"""The frameworks with which `register_pytrees` has registered its types."""


def register_pytrees() -> None:
    """Registers `PerReplica` and `Mirrored` as tree nodes with every loaded framework."""
    for framework, register in (("jax", _register_with_jax), ("torch", _register_with_torch)):
        if sys.modules.get(framework) is not None and framework not in _registered:
            _registered.add(framework)
            register(PerReplica)
            register(Mirrored)


def _register_with_jax(kind: type[DistributedValues]) -> None:
    from jax import tree_util

    tree_util.register_pytree_node(
        kind, lambda value: (value._values, None), lambda _, parts: kind(parts)
    )


def _register_with_torch(kind: type[DistributedValues]) -> None:
    from torch.utils import _pytree

    _pytree.register_pytree_node(
        kind,
        lambda value: (list(value._values), None),
        lambda parts, _: kind(list(parts)),
        serialized_type_name=f"penstock.{kind.__name__}",
    )


class PerReplicaSpec(TypeSpec):
    """The specs of the values of a `PerReplica`.

    >>> PerReplicaSpec(TensorSpec([None]), TensorSpec([None])).specs[0]
    TensorSpec(shape=(None,), dtype=tf.float32, name=None)
    """

    __slots__ = ("specs",)

    def __init__(self, *specs: TypeSpec) -> None:
        self.specs = specs

    def fits(self, value: Any) -> bool:
        if isinstance(value, PerReplicaSpec):
            return _all_fit(self.specs, value.specs)
        return isinstance(value, DistributedValues) and _all_fit(
            self.specs, tuple(map(_describe_tensor, value.values))
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PerReplicaSpec) and self.specs == other.specs

    def __hash__(self) -> int:
        return hash(self.specs)

    def __repr__(self) -> str:
        comma = "," if len(self.specs) == 1 else ""
        return f"PerReplicaSpec({', '.join(map(repr, self.specs))}{comma})"


def _all_fit(specs: tuple[TypeSpec, ...], values: tuple[Any, ...]) -> bool:
    return len(specs) == len(values) and all(map(lambda s, v: s.fits(v), specs, values))


def _describe_tensor(value: Any) -> Any:
    """The spec of a torch tensor; anything else unchanged."""
    dtype = str(getattr(value, "dtype", ""))
    if not dtype.startswith("torch."):
        return value
    return TensorSpec(tuple(value.shape), dtype.removeprefix("torch."))
