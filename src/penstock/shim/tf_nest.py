"""`nest`: functions on structures; here lists are containers, and dicts go by their sorted keys.

With `expand_composites`, the values of a `PerReplica` (or `Mirrored`) are leaves of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.distribute.values.per_replica import Mirrored, PerReplica
from penstock.distribute.values.trees import Container, container_of
from penstock.element.values import short_repr
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.missing_names import missing, refuse_names

__all__ = ["assert_same_structure", "flatten", "is_nested", "map_structure", "pack_sequence_as"]

_VALUES = Container(
    lambda value: value.values,
    lambda first, other: other.values if len(first.values) == len(other.values) else None,
    lambda first, parts: type(first)(parts),
)


def is_nested(structure: Any) -> bool:
    """Whether it has parts.

    >>> is_nested([1]), is_nested(1)
    (True, False)
    """
    return container_of(type(structure)) is not None


def flatten(structure: Any, expand_composites: bool = False) -> list[Any]:
    """The leaves, in order.

    >>> flatten({"b": [1, (2,)], "a": 3})
    [3, 1, 2]
    """
    container = _container(structure, expand_composites)
    if container is None:
        return [structure]
    parts = container.children(structure)
    order = _order(structure, len(parts))
    return [leaf for place in order for leaf in flatten(parts[place], expand_composites)]


def pack_sequence_as(
    structure: Any, flat_sequence: Sequence[Any], expand_composites: bool = False
) -> Any:
    """A structure like the given one, of other leaves.

    >>> pack_sequence_as({"b": 0, "a": (0, 0)}, [1, 2, 3])
    {'b': 3, 'a': (1, 2)}
    """
    count = len(flatten(structure, expand_composites))
    if len(flat_sequence) != count:
        raise InvalidArgumentError(
            f"nest.pack_sequence_as: the structure has {count} leaves, got {len(flat_sequence)}"
        )
    leaves = iter(flat_sequence)
    return _pack(structure, lambda: next(leaves), expand_composites)


def _pack(structure: Any, take: Callable[[], Any], expand: bool) -> Any:
    container = _container(structure, expand)
    if container is None:
        return take()
    parts = list(container.children(structure))
    for place in _order(structure, len(parts)):
        parts[place] = _pack(parts[place], take, expand)
    return container.rebuild(structure, parts)


def map_structure(
    func: Callable[..., Any], *structure: Any, expand_composites: bool = False
) -> Any:
    """`func` of the leaves at the same position of each structure.

    >>> map_structure(lambda a, b: a + b, [1, {"x": 2}], [10, {"x": 20}])
    [11, {'x': 22}]
    """
    if not callable(func):
        raise InvalidTypeError(f"nest.map_structure: needs a function to call, got {func!r}")
    if not structure:
        raise InvalidArgumentError("nest.map_structure: needs at least one structure")
    for other in structure[1:]:
        assert_same_structure(structure[0], other, expand_composites=expand_composites)
    rows = zip(*(flatten(one, expand_composites) for one in structure), strict=True)
    return pack_sequence_as(structure[0], [func(*row) for row in rows], expand_composites)


def assert_same_structure(
    nest1: Any, nest2: Any, check_types: bool = True, expand_composites: bool = False
) -> None:
    """Raises ValueError where the parts differ, TypeError where only their types do."""
    container = _container(nest1, expand_composites)
    if (container is None) is not (_container(nest2, expand_composites) is None):
        raise _different(nest1, nest2)
    if container is None:
        return
    if type(nest1) is not type(nest2) and (check_types or isinstance(nest1, dict)):
        raise InvalidTypeError(
            f"nest: {short_repr(nest1)} is a {type(nest1).__name__}, "
            f"but {short_repr(nest2)} a {type(nest2).__name__}"
        )
    others = container.children_like(nest1, nest2)
    if others is None:
        raise _different(nest1, nest2)
    for one, other in zip(container.children(nest1), others, strict=True):
        assert_same_structure(one, other, check_types, expand_composites)


def _different(first: Any, second: Any) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"nest: {short_repr(first)} and {short_repr(second)} do not have the same structure"
    )


def _container(structure: Any, expand: bool) -> Container | None:
    if expand and isinstance(structure, PerReplica | Mirrored):
        return _VALUES
    return container_of(type(structure))


def _order(structure: Any, count: int) -> Sequence[int]:
    """The order of the parts: that of the keys, if they are a dict's."""
    if not isinstance(structure, dict):
        return range(count)
    keys = list(structure)
    return sorted(range(count), key=lambda place: keys[place])


if not TYPE_CHECKING:  # A type checker would take any name.
    __getattr__ = refuse_names("nest", __all__, missing)
