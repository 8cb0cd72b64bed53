import pickle
from pathlib import Path

import numpy as np

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
