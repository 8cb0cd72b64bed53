"""What of a plan belongs into a saved state: its structure, to be recognised, and its seeds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import fields, replace

from penstock.element.dtypes import DType
from penstock.plan.nodes import Cache, Node, Shard, Snapshot
from penstock.plan.traits import Trait


def structure(node: Node) -> str:
    """The same for plans whose states fit each other: prefetching and parallel calls leave none."""
    names = list(_names(node))
    return f"{names[0]}:{hashlib.sha256(','.join(names).encode()).hexdigest()[:12]}"


def _names(node: Node) -> Iterator[str]:
    if Trait.ADVISORY not in node.traits:
        yield node.label
        yield ",".join(_settings(node))
    for part in node.inputs:
        yield from _names(part)


def _settings(node: Node) -> Iterator[str]:
    """What decides how many elements there are and which: counts and sizes, not functions."""
    if not node.inputs:
        yield f"elements={node.cardinality}"
    for field in fields(node):
        value = getattr(node, field.name)
        plain = isinstance(value, int | str | DType) or value is None
        if plain and field.name not in node.free_fields:
            yield f"{field.name}={value}"


def seeds_of(node: Node) -> list[int]:
    """The seeds in a plan, inputs first."""
    found = [seed for part in node.inputs for seed in seeds_of(part)]
    seed = None if node.seed_field is None else getattr(node, node.seed_field)
    return found if seed is None else [*found, seed]


def draws_order(node: Node) -> bool:
    """Whether the order of the elements follows from a seed that was drawn in this process.

    What a service makes, and what is read from files once they are filled, is the same for all.
    """
    if Trait.DRAWS_ORDER in node.traits and node.has_drawn_seed:
        return True
    shared = (
        node.sealed or isinstance(node, Snapshot) or (isinstance(node, Cache) and node.filename)
    )
    return not shared and any(map(draws_order, node.inputs))


def draws_inside(node: Node) -> bool:
    """Whether functions below a `shard` make datasets, which may draw their order.

    The shards belong together only if all who read one draw alike.
    """
    if isinstance(node, Shard) and node.shards > 1:
        return _makes_datasets(node.input)
    return not node.sealed and any(map(draws_inside, node.inputs))


def _makes_datasets(node: Node) -> bool:
    own = Trait.MAKES_DATASETS in node.traits
    return own or (not node.sealed and any(map(_makes_datasets, node.inputs)))


def reseeded(node: Node, seeds: list[int]) -> Node:
    """The plan with other seeds, in the order of `seeds_of`."""
    return _reseeded(node, list(seeds))


def _reseeded(node: Node, waiting: list[int]) -> Node:
    node = node.with_inputs(tuple(_reseeded(part, waiting) for part in node.inputs))
    name = node.seed_field
    if name is None or getattr(node, name) is None or not waiting:
        return node
    seed = waiting.pop(0)
    return node if getattr(node, name) == seed else replace(node, **{name: seed})
