"""Values of replicas: one tensor (or anything) for each, and trees of them.

`PerReplica` says that the values may differ, `Mirrored` that they are the same. For NumPy elements
they are leaves; in `jax.tree` and `torch.utils._pytree` they are nodes.
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
    """One value for each replica of this process: `.values`, a tuple."""

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
    """Values that may differ, as distributed datasets and `Strategy.run` give them.

    >>> print(PerReplica((np.arange(2), np.arange(2, 4))))
    PerReplica:{
      0: tf.Tensor([0 1], shape=(2,), dtype=int64),
      1: tf.Tensor([2 3], shape=(2,), dtype=int64)
    }
    """

    __slots__ = ()

    @classmethod
    def from_global(cls, array: Any) -> PerReplica:
        """The pieces of a `jax.Array` that lie on this process's devices, without a copy."""
        made: PerReplica = load("jax").from_global(array)  # type: ignore[attr-defined]
        return made

    def to_global(self, axis: int = 0) -> Any:
        """One `jax.Array` of the replicas' arrays, joined along `axis` without a copy.

        It has a `NamedSharding` over the mesh axis "replica": what each device has stays there.
        """
        return load("jax").to_global(self, axis)  # type: ignore[attr-defined]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise InvalidArgumentError(
            f"PerReplica: {len(self._values)} values, one for each replica, are not one array; "
            "use strategy.experimental_local_results, reduce or gather, or hand it to strategy.run"
        )

    __array_ufunc__ = None


class Mirrored(DistributedValues, ActsAsValue):
    """Values that are the same: in arithmetic, the replica's own one, or the first of them."""

    __slots__ = ()
    __hash__ = object.__hash__
    __str__ = DistributedValues.__str__
    __repr__ = DistributedValues.__repr__

    def _current_value(self) -> Any:
        return self._values[local_index() or 0]


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
    """Values that each replica keeps for itself until somebody reads them all."""

    __slots__ = ()


def regroup(
    trees: Sequence[Any], always: bool, who: str = "Strategy.run: the replicas returned"
) -> Any:
    """Trees of one structure, one per replica, as one tree of `PerReplica`.

    Unless `always`, a leaf that is one and the same object in all of them stays as it is.
    """
    first = trees[0]
    container = container_of(type(first))
    if container is None:
        return _regroup_leaf(trees, always, who)
    columns = [container.parts(first)]
    for index, other in enumerate(trees[1:], 1):
        same_type = type(other) is type(first)
        parts = container.parts_like(first, other) if same_type else None
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


# Scalar values of which Python or NumPy may keep only one object, so that being the same object
# says nothing: the two truth values, and short strings.
_INTERNED = (np.bool_, bytes)


def _structure_error(who: str, first: Any, other: Any, index: int) -> DisagreementError:
    return DisagreementError(
        f"{who} different structures: {describe(first)} from replica 0, {describe(other)} from "
        f"replica {index}; every replica must give the same structure"
    )


def select(index: int, tree: Any) -> Any:
    """The tree as one replica of this process sees it: everywhere its own value."""

    def select_leaf(leaf: Any) -> Any:
        return leaf._values[index] if isinstance(leaf, DistributedValues) else leaf

    return map_leaves(select_leaf, tree)


def spread(tree: Any, count: int, call: str) -> Sequence[Any]:
    """The tree as each of `count` replicas gets it. Variables know the replica by themselves."""
    found = _spread(tree, count, call)
    return (tree,) * count if found is None else found


def _spread(tree: Any, count: int, call: str) -> Sequence[Any] | None:
    container = container_of(type(tree))
    if container is None:
        return _values_of(tree, count, call) if isinstance(tree, PerReplica | Mirrored) else None
    parts = container.parts(tree)
    columns = [_spread(part, count, call) for part in parts]
    if all(column is None for column in columns):
        return None
    filled = [
        repeat(part, count) if column is None else column
        for part, column in zip(parts, columns, strict=True)
    ]
    return [container.rebuild(tree, row) for row in zip(*filled, strict=True)]


def _values_of(value: DistributedValues, count: int, call: str) -> tuple[Any, ...]:
    check_count(value, count, call)
    return value._values


def check_count(value: DistributedValues, count: int, call: str) -> None:
    """Refuses a value of a strategy with another number of replicas."""
    if len(value._values) != count:
        raise InvalidArgumentError(
            f"{call}: the value has {len(value._values)} replicas but this strategy has {count}; "
            "pass a value returned by this strategy's run()"
        )


def local_results(tree: Any, count: int) -> tuple[Any, ...]:
    """The tree as each of `count` replicas has it; a bare value once."""
    for leaf in leaves(tree):
        if isinstance(leaf, DistributedValues):
            return tuple(select(index, tree) for index in range(len(leaf._values)))
    return (tree,) if container_of(type(tree)) is None else (tree,) * count


_registered: set[str] = set()


def register_pytrees() -> None:
    """Makes `PerReplica` and `Mirrored` nodes of the frameworks that are loaded."""
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
    """The specs of the values of one `PerReplica`.

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
    """A framework's tensor by its spec; what NumPy knows, as it is."""
    dtype = str(getattr(value, "dtype", ""))
    if not dtype.startswith("torch."):
        return value
    return TensorSpec(tuple(value.shape), dtype.removeprefix("torch."))
