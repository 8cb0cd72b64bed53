import subprocess
import sys
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest

from penstock.element import nest
from penstock.element.spec import TensorSpec

Point = namedtuple("Point", "x y")


@dataclass
class Pair:
    first: int
    second: object


@dataclass
class LabelledValue:
    """A structure with its own methods; its `__tf_unflatten__` is a method of the instance."""

    label: str
    value: object

    def __tf_flatten__(self):
        return (self.label,), (self.value,)

    def __tf_unflatten__(self, metadata, components):
        return type(self)(metadata[0], components[0])


STRUCTURES = {
    "leaf": 1,
    "tuple": (1, (2, ())),
    "dict": {"b": 1, "a": (2, 3)},
    "ordered dict": OrderedDict(b=1, a=2),
    "named tuple": Point(1, {"z": 2}),
    "dataclass": Pair(1, (2, 3)),
    "own methods": LabelledValue("label", (1, 2)),
    "none": (None, 1),
    "list": ([1, [2]], 3),
}


@pytest.mark.parametrize("value", STRUCTURES.values(), ids=STRUCTURES)
def test_unflatten_reverses_flatten(value):
    leaves, tree = nest.flatten(value)
    again = nest.unflatten(tree, leaves)
    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize(
    "wrap", [lambda x: x, lambda x: (0, x), lambda x: Point(x, None), lambda x: Pair(0, {"k": x})]
)
def test_keys_can_be_sorted_at_any_depth(wrap):
    one, other = wrap({"b": 1, "a": {"d": 2, "c": 3}}), wrap({"a": {"c": 3, "d": 2}, "b": 1})
    assert nest.sort_keys(one) == one
    assert repr(nest.sort_keys(one)) == repr(nest.sort_keys(other)) == repr(other)


def test_what_is_no_dict_keeps_its_order():
    value = (OrderedDict(b=1, a=2), [{"b": 1, "a": 2}], (), None)
    assert repr(nest.sort_keys(value)) == repr(value)


def test_lists_and_none_are_leaves():
    assert nest.flatten(([1, 2], None))[0] == [[1, 2], None]


def test_specs_are_leaves_although_they_are_dataclasses():
    spec = TensorSpec((), "int64")
    assert nest.flatten((spec, 1))[0] == [spec, 1]


def test_dicts_keep_the_order_of_their_items_and_leaves_are_sorted_by_key():
    leaves, tree = nest.flatten({"b": 1, "a": 2})
    assert leaves == [2, 1]
    assert list(nest.unflatten(tree, leaves)) == ["b", "a"]
    assert nest.keys_of(("b", "a")) == (["a", "b"], tree)


def test_map_structure_takes_whole_parts_of_further_values():
    found = nest.map_structure(lambda x, part: (x, part), (1, 2), ("a", ["b", "c"]))
    assert found == ((1, "a"), (2, ["b", "c"]))


def test_values_of_another_structure_are_refused():
    with pytest.raises(ValueError, match="arity"):
        nest.flatten_up_to(nest.PAIR, (1, 2, 3))


def test_grafted_structures_are_those_of_the_nested_value():
    outer, (left, right) = nest.PAIR, (nest.flatten({"a": 0})[1], nest.LEAF)
    assert nest.graft(outer, (left, right)) == nest.flatten(({"a": 0}, 0))[1]
    assert nest.tuple_of(2) == nest.PAIR


def test_structures_have_a_text_and_leaves_have_none():
    assert nest.text_of(nest.LEAF) == ""
    assert nest.text_of(nest.PAIR) == nest.text_of(nest.flatten((5, 6))[1]) != ""


FLATTENS_TO_THE_END = """
import threading
from penstock.element import nest

turning = threading.Barrier(4)

def flatten_for_ever():
    turning.wait()
    while True:
        nest.flatten({"a": 1, "b": (2, [3])})

for _ in range(3):
    threading.Thread(target=flatten_for_ever, daemon=True).start()
turning.wait()
for _ in range(1000):
    nest.flatten((1, 2))
raise ValueError("the end")
"""


def test_a_program_ends_while_daemon_threads_flatten() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FLATTENS_TO_THE_END], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1, ended.stderr
    assert ended.stderr.endswith("ValueError: the end\n")


def test_equal_structures_keep_the_order_of_their_own_keys() -> None:
    for keys in ("ba", "ab", "cab"):
        tree = nest.flatten(dict.fromkeys(keys, 0))[1]
        grafted = nest.graft(tree, (nest.LEAF,) * len(keys))
        assert list(nest.unflatten(grafted, range(len(keys)))) == list(keys)
