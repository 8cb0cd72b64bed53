"""What a saved state records of its plan: the structure, to check that they fit, and the seeds."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import fields, replace

from penstock.element.dtypes import DType
from penstock.plan.cuts import has_one_reader
from penstock.plan.nodes import (
    NO_OPTIONS,
    Batch,
    Cache,
    Distribute,
    Enumerate,
    Map,
    Mix,
    Node,
    Prefetch,
    Records,
    Shard,
    Shuffle,
    Skip,
    Slices,
    Snapshot,
    TableRows,
    Take,
    WithOptions,
    options_of,
    walk_plan,
)
from penstock.plan.optimize import prepare
from penstock.plan.traits import Trait


def structure(node: Node) -> str:
    """A text that is equal for plans whose saved states are interchangeable.

    Prefetching, parallel calls, seeds and folders do not count, nor do the weights of a `mix`,
    unless a service computes it: only this process knows how far its states are behind. Functions
    and values in memory do not count, either: comparing them would take too long.
    """
    texts = list(_operator_texts(node))
    return f"{texts[0]}:{hashlib.sha256(','.join(texts).encode()).hexdigest()[:12]}"


def local_structure(node: Node) -> str | None:
    """The structure of the plan without services; None if its elements come in another order."""
    local = _without_services(node)
    if local is None or options_of(node).deterministic is False:
        return None
    prepared = prepare(local)
    # A structure has no weights, on which the order of a `mix` depends.
    has_order = not any(one.loose or isinstance(one, Mix) for one in walk_plan(prepared))
    return structure(prepared) if has_order else None


def _without_services(node: Node) -> Node | None:
    """The plan with every operator in this process; None if other readers share its elements."""
    if isinstance(node, Distribute):
        if node.input is None or not has_one_reader(node, NO_OPTIONS):
            return None
        return _without_services(node.input)
    inputs = [_without_services(part) for part in node.inputs]
    found = tuple(part for part in inputs if part is not None)
    if len(found) < len(inputs):
        return None
    local = node.with_inputs(found)
    if isinstance(node, Shuffle) and is_served(node) and local.blocked is None:
        return None  # With random access, another order is drawn.
    return local


def is_served(node: Node) -> bool:
    """Whether a service computes a part of the plan."""
    return any(isinstance(one, Distribute) for one in walk_plan(node))


def takes_positions(node: Node) -> bool:
    """Whether a plan can be opened at a position, also where a service computes it."""
    match node:
        case Distribute(input=Node() as source):
            return source.blocked is None
        case Batch() | Enumerate() | Map() | Prefetch() | Skip() | Take() | WithOptions():
            return takes_positions(node.input)
    return node.blocked is None


_LONGEST_TEXT = 80


def operators(node: Node) -> list[str]:
    """What `structure` depends on as texts for people, one for each operator, the first first."""
    texts = [text for part in node.inputs for text in operators(part)]
    if Trait.ADVISORY in node.traits:
        return texts
    settings = (text for text in _settings(node) if not text.endswith(("=None", "=False")))
    text = f"{node.label}({', '.join(settings)})"
    return [*texts, text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."]


def _operator_texts(node: Node, served: bool = False) -> Iterator[str]:
    if Trait.ADVISORY not in node.traits:
        yield node.label
        yield ",".join(_settings(node))
    if isinstance(node, Mix) and served:
        yield str(node.weights)
    for part in node.inputs:
        yield from _operator_texts(part, served or node.sealed)


def _settings(node: Node) -> Iterator[str]:
    """The settings that decide which elements there are: counts and sizes, not functions."""
    if not node.inputs:
        yield f"elements={node.cardinality}"
    if isinstance(node, Slices):
        yield str(node.data.spec)
    if isinstance(node, Records):
        yield from _file_names(node.input)
    if isinstance(node, TableRows):
        yield str(node.spec)
        yield from (os.path.basename(file.path) for file in node.files)
    for field in fields(node):
        value = getattr(node, field.name)
        plain = isinstance(value, int | str | DType) or value is None
        if plain and field.name not in node.free_fields:
            yield f"{field.name}={value}"


def _file_names(node: Node) -> Iterator[str]:
    """The names of the files that are known, without their folders: those may be moved."""
    lists = [one.data.chunk for one in walk_plan(node) if isinstance(one, Slices)]
    names = (name for chunk in lists for column in chunk.columns for name in column)
    return (os.path.basename(os.fsdecode(n)) for n in names if isinstance(n, str | bytes))


def _seeds(node: Node) -> Iterator[tuple[int, bool]]:
    """The seeds in a plan, inputs first, and whether each was drawn."""
    for part in node.inputs:
        yield from _seeds(part)
    own = None if node.seed_field is None else getattr(node, node.seed_field)
    if own is not None:
        yield own, node.has_drawn_seed


def seeds_of(node: Node) -> list[int]:
    """The seeds in a plan, inputs first."""
    return [seed for seed, _ in _seeds(node)]


def chosen_seeds(node: Node) -> list[int | None]:
    """The seeds that the user chose, in the order of `seeds_of`; None for each other seed."""
    return [None if drawn else seed for seed, drawn in _seeds(node)]


def draws_order(node: Node) -> bool:
    """Whether the order of the elements depends on a seed that was drawn in this process.

    It does not if all processes get the elements from one place: a service, or the files of a
    cache or a snapshot.
    """
    if Trait.DRAWS_ORDER in node.traits and node.has_drawn_seed:
        return True
    in_files = isinstance(node, Snapshot) or (isinstance(node, Cache) and node.filename)
    if node.sealed or in_files:
        return False
    return any(map(draws_order, node.inputs))


def draws_inside(node: Node) -> bool:
    """Whether a function before a `shard` returns datasets, which may draw their own order.

    Together the shards are the whole dataset only if all processes draw the same order.
    """
    return any(Trait.MAKES_DATASETS in one.traits for one in _before_shards(node))


def shards_epochs(node: Node) -> bool:
    """Whether a `shard` divides elements whose order is another one in each epoch.

    Together the shards are the whole dataset only if all processes count the same epoch.
    """
    return any(Trait.DRAWS_ORDER in one.traits and one.by_epoch for one in _before_shards(node))


def _before_shards(node: Node) -> Iterator[Node]:
    """The operators before each `shard`, besides those of services."""
    for one in walk_plan(node, into_services=False):
        if isinstance(one, Shard) and one.shards > 1:
            yield from walk_plan(one.input, into_services=False)


def with_seeds(node: Node, seeds: list[int]) -> Node:
    """The plan with other seeds, in the order of `seeds_of`."""
    remaining = iter(seeds)

    def change(node: Node) -> Node:
        node = node.with_inputs(tuple(map(change, node.inputs)))
        name = node.seed_field
        old = None if name is None else getattr(node, name)
        seed = old if old is None else next(remaining, old)
        return node if seed == old else replace(node, **{str(name): seed})

    return change(node)
