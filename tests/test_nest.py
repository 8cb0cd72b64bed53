"""`penstock.nest`: functions on structures, for ported code."""

from collections import namedtuple
from typing import Any

import attrs
import pytest

from penstock import nest
from penstock.distribute import Mirrored, PerReplica
from penstock.errors import InvalidArgumentError, InvalidTypeError

Pair = namedtuple("Pair", "x y")


def test_flatten_and_pack() -> None:
    structure = {"b": [1, (2, None)], "a": Pair(3, {"z": 4, "y": 5})}
    flat = nest.flatten(structure)
    assert flat == [3, 5, 4, 1, 2, None]
    assert nest.pack_sequence_as(structure, flat) == structure
    assert nest.flatten(7) == [7]
    assert nest.pack_sequence_as(0, [7]) == 7


def test_is_nested() -> None:
    assert nest.is_nested({})
    assert not nest.is_nested("text")
    assert not nest.is_nested(PerReplica((1, 2)))


def test_map_structure() -> None:
    assert nest.map_structure(lambda a, b: a - b, {"x": [5]}, {"x": [3]}) == {"x": [2]}
    assert nest.map_structure(str, 1) == "1"


@attrs.define
class Point:
    x: Any
    y: Any


class Masked:
    """Its mask is metadata: it is no leaf."""

    def __init__(self, mask: bool, value: Any) -> None:
        self.mask, self.value = mask, value

    def __tf_flatten__(self) -> tuple[tuple[bool], tuple[Any]]:
        return (self.mask,), (self.value,)

    @classmethod
    def __tf_unflatten__(cls, metadata: tuple[bool], components: tuple[Any]) -> "Masked":
        return cls(*metadata, *components)


def test_attrs_classes_are_structures() -> None:
    point = Point(1, [2, 3])
    assert nest.is_nested(point)
    assert nest.flatten(point) == [1, 2, 3]
    assert nest.map_structure(lambda a, b: a + b, point, point) == Point(2, [4, 6])
    with pytest.raises(InvalidArgumentError, match="do not have the same structure"):
        nest.assert_same_structure(point, Point(1, 2))


def test_classes_that_flatten_themselves_keep_their_metadata() -> None:
    masked = Masked(True, [2, 3])
    assert nest.is_nested(masked)
    assert nest.flatten(masked) == [2, 3]
    doubled = nest.map_structure(lambda x: x * 2, masked)
    assert (doubled.mask, doubled.value) == (True, [4, 6])
    nest.assert_same_structure(masked, Masked(False, [4, 5]))


def test_values_of_replicas_are_leaves_unless_expanded() -> None:
    value = PerReplica((1, 2))
    assert nest.flatten({"a": value}) == [value]
    assert nest.flatten({"a": value, "m": Mirrored((3, 3))}, expand_composites=True) == [1, 2, 3, 3]
    mapped = nest.map_structure(lambda x: x * 10, value, expand_composites=True)
    assert isinstance(mapped, PerReplica)
    assert mapped.values == (10, 20)


def test_same_structure() -> None:
    nest.assert_same_structure({"a": [1, None]}, {"a": [2, 3]})
    nest.assert_same_structure([1], (1,), check_types=False)


@pytest.mark.parametrize(
    ("first", "second", "error", "message"),
    [
        ([1], [1, 2], InvalidArgumentError, r"nest: \[1\] and \[1, 2\] do not have the same"),
        ({"a": 1}, {"b": 1}, InvalidArgumentError, "do not have the same structure"),
        ([1], 1, InvalidArgumentError, r"nest: \[1\] and 1 do not have the same structure"),
        ([1], (1,), InvalidTypeError, r"nest: \[1\] is a list, but \(1,\) a tuple"),
        ([list(range(99))], [1], InvalidArgumentError, r"15, 16\.\.\. and 1 do not have the"),
    ],
)
def test_other_structures_are_refused(first: Any, second: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        nest.assert_same_structure(first, second)
    with pytest.raises(error, match=message):
        nest.map_structure(lambda a, b: a, first, second)


def test_arguments_are_checked() -> None:
    with pytest.raises(InvalidTypeError, match="nest.map_structure: needs a function to call"):
        nest.map_structure(3, [1])  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="nest.map_structure: needs at least one struct"):
        nest.map_structure(str)
    message = "nest.pack_sequence_as: the structure has 2 leaves, got 1"
    with pytest.raises(InvalidArgumentError, match=message):
        nest.pack_sequence_as([1, 2], [1])
