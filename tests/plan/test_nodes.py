import dataclasses
import pickle
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.data import Dataset
from penstock.element.spec import TensorSpec
from penstock.plan import nodes as n
from penstock.plan.functions import Function

SPEC = TensorSpec((), "int64")


def numbers() -> n.Node:
    return n.Range(0, 4, 1, n.int64_dtype)


def test_a_kept_spec_changes_neither_equality_nor_hash():
    kept, fresh = numbers(), numbers()
    kept.keep_spec(SPEC, sampled=True)
    assert kept == fresh
    assert hash(kept) == hash(fresh)


def test_a_kept_spec_travels_with_the_node_and_cached_answers_do_not():
    plan = n.Take(numbers(), 2)
    plan.keep_spec(SPEC, sampled=True)
    assert plan.cardinality == 2
    again = pickle.loads(pickle.dumps(plan))
    assert again.found_spec == (SPEC, True)
    assert "cardinality" not in vars(again)


def test_a_node_made_from_another_finds_its_own_spec():
    plan = n.Take(numbers(), 2)
    plan.keep_spec(SPEC)
    assert plan.with_inputs((numbers(),)).found_spec is None
    assert plan.with_inputs(plan.inputs) is plan


def test_a_spec_that_the_user_declares_does_not_depend_on_inputs():
    mapped = n.Map(numbers(), Function(abs), signature=SPEC)
    generated = Dataset.from_generator(lambda: iter([np.int64(1)]), output_signature=SPEC)
    assert [mapped.declared_spec, generated.__plan__.declared_spec] == [SPEC, SPEC]
    assert numbers().declared_spec is None


def test_only_the_node_itself_stores_its_spec():
    sources = Path(penstock.__file__).parent.rglob("*.py")
    assert [path.name for path in sources if "_found_spec" in path.read_text()] == ["nodes.py"]


def test_a_node_takes_its_fields_in_order_and_by_name():
    made = n.Take(numbers(), count=3)
    assert (made.input, made.count) == (n.Range(0, 4, step=1, dtype=n.int64_dtype), 3)
    assert dataclasses.replace(made, count=4) == n.Take(made.input, 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda source: n.Take(source), "an argument 'count' is missing"),
        (lambda source: n.Take(source, 1, 2), "too many arguments: 3 in order"),
        (lambda source: n.Take(source, input=source), r"too many arguments: 1 .* \['input'\]"),
        (lambda source: n.Take(source, 1, size=2), r"there are no fields \['size'\]"),
    ],
)
def test_other_arguments_of_nodes_are_refused(make, message):
    with pytest.raises(TypeError, match=message):
        make(numbers())


def test_fields_of_nodes_cannot_change():
    made = numbers()
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'stop'"):
        made.stop = 3
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'stop'"):
        del made.stop
