import ast
from dataclasses import fields
from pathlib import Path

import pytest

import penstock
from penstock.plan import nodes
from penstock.plan.nodes import Batch, Node, Parallel, Unordered, node
from penstock.plan.traits import Trait

SOURCES = sorted(Path(penstock.__file__).parent.rglob("*.py"))
KINDS = [
    kind
    for kind in vars(nodes).values()
    if isinstance(kind, type) and issubclass(kind, Node) and kind is not Node
]
NAMES = {kind.__name__ for kind in KINDS}


def test_an_operator_that_declares_no_traits_cannot_be_defined():
    with pytest.raises(TypeError, match="Twice declares no traits; see penstock.plan.traits"):

        @node
        class Twice(Node):
            input: Node


def test_an_operator_does_not_inherit_the_traits_of_another():
    with pytest.raises(TypeError, match="SortedBatch declares no traits"):

        @node
        class SortedBatch(Batch):
            pass


@pytest.mark.parametrize("kind", KINDS)
def test_declarations_name_fields(kind: type[Node]):
    names = {field.name for field in fields(kind)}
    assert set(kind.free_fields) <= names
    if kind.seed_field is not None:
        assert {kind.seed_field, "drawn"} <= names
        assert {kind.seed_field, "drawn"} <= set(kind.free_fields)


@pytest.mark.parametrize("kind", KINDS)
def test_parallel_calls_and_drawn_seeds_are_free_in_every_operator_that_has_them(kind: type[Node]):
    names = {field.name for field in fields(kind)}
    assert names & {"parallel", "deterministic", "drawn"} <= set(kind.free_fields)
    assert ("drawn" in names) == (kind.seed_field is not None)


@pytest.mark.parametrize("kind", KINDS)
def test_traits_agree_with_each_other(kind: type[Node]):
    assert not (Trait.SAME_ON_FILES in kind.traits and Trait.COUNTS_ON_FILES in kind.traits)
    if Trait.DRAWS_ORDER in kind.traits:
        assert kind.seed_field is not None
    if Trait.ADVISORY in kind.traits:
        assert Trait.ELEMENTWISE | Trait.BY_POSITION | Trait.KEEPS_BATCH_SIZE in kind.traits
        assert Trait.ONE_TO_ONE in kind.traits


@pytest.mark.parametrize("kind", [kind for kind in KINDS if Trait.ONE_TO_ONE in kind.traits])
def test_an_operator_that_is_one_to_one_keeps_the_cardinality(kind: type[Node]):
    assert kind.cardinality is Node.cardinality
    assert sum(field.type == "Node" for field in fields(kind)) == 1


def test_every_operator_with_parallel_calls_is_in_the_union():
    having = {k for k in KINDS if {"parallel", "deterministic"} & {f.name for f in fields(k)}}
    assert having == {k for k in KINDS if issubclass(k, Parallel)}
    assert {k for k in having if k.loose is not Node.loose} == {
        k for k in KINDS if issubclass(k, Unordered)
    }


def test_no_module_keeps_a_list_of_operators():
    lists = [
        f"{path.name}:{statement.lineno}"
        for path in SOURCES
        if path.name != "nodes.py"
        for statement in ast.parse(path.read_text()).body
        if isinstance(statement, ast.Assign) and len(operators_in(statement.value)) > 1
    ]
    assert lists == []


def operators_in(expression: ast.expr) -> set[str]:
    found = set()
    for part in ast.walk(expression):
        if isinstance(part, ast.Name):
            found.add(part.id)
        elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
            found.add(part.attr if part.value.id == "nodes" else "")
    return found & NAMES
