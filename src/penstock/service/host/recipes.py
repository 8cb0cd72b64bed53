"""Recipes: what a worker does to a plan before it makes one stream of it, and saved states of it.

A stream must be the same on every worker and every time. So no stream sees what another one has
cached.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from penstock.engine.context import Context, Environment
from penstock.engine.contract import State, Stream
from penstock.engine.lower import open_plan
from penstock.engine.meters import Meters
from penstock.engine.trail import Trail
from penstock.plan.bounds import bound_plan
from penstock.plan.nodes import Cache, Node, Shard, Store, options_of
from penstock.plan.optimize import prepare
from penstock.plan.splits import piece
from penstock.service.protocol.messages import Work

MOST_STATE = 16 << 10
"""Bytes of a state that travels; larger ones stay where they are."""


@dataclass(frozen=True)
class Recipe:
    """The plan of one stream, ready to be opened. `random`: anywhere."""

    plan: Node
    context: Context

    @property
    def random(self) -> bool:
        return self.plan.blocked is None

    @property
    def longest(self) -> int | None:
        """How many elements there are, where anybody could begin behind the last of them."""
        return self.plan.cardinality if self.random and self.plan.cardinality >= 0 else None

    def open(self, state: State, stop: int | None = None, trail: Trail | None = None) -> Stream:
        """The stream from a state on (for random access a position, and up to `stop`).

        `trail` is told what the stream finds out.
        """
        plan = self.plan if stop is None else bound_plan(self.plan, stop)
        return open_plan(plan, state, replace(self.context, trail=trail))


def recipe_of(plan: Node, work: Work, environment: Environment) -> Recipe:
    """How to make the stream that `work` describes of a plan.

    With random access, the elements of one consumer are a plan of their own.
    """
    part = private(_piece(plan, work))
    ready = prepare(part)
    if ready.blocked is None and work.consumers > 1:
        ready = prepare(Shard(part, work.consumers, work.consumer))
    # Every copy of the whole is shuffled in an order of its own.
    copy = (work.stream,) if work.form == "whole" and work.stream > 0 else ()
    epoch, options = (*work.epoch, *copy), options_of(plan)
    # Nobody reads the meters of a worker, and every fetch of a random-access plan has new nodes.
    context = Context(environment, epoch, work.key, options, Meters(recording=False))
    return Recipe(ready, replace(context, numbered=work.form == "turns"))


def _piece(plan: Node, work: Work) -> Node:
    how = (work.stream, work.streams, work.policy, work.begin, work.inputs)
    return piece(plan, work.form, *how)


def private(node: Node) -> Node:
    """The plan with memory caches of its own."""
    if node.sealed:
        return node
    node = node.with_inputs(tuple(map(private, node.inputs)))
    return replace(node, store=Store()) if isinstance(node, Cache) else node


def encode_state(ordinal: int, state: State) -> bytes | None:
    """A state before element `ordinal`, as bytes; None if it holds elements, or is large."""
    if not _is_plain(state):
        return None
    encoded = msgspec.msgpack.encode([ordinal, state])
    return encoded if len(encoded) <= MOST_STATE else None


def decode_state(encoded: bytes) -> tuple[int, State]:
    """What `encode_state` was given."""
    ordinal, state = msgspec.msgpack.decode(encoded)
    return ordinal, state


def _is_plain(state: Any) -> bool:
    """Whether a state is made of numbers and texts alone. A tuple would come back as a list."""
    kind = type(state)
    if kind is dict:
        return all(type(name) is str and _is_plain(part) for name, part in state.items())
    if kind is list:
        return len(state) <= MOST_STATE and all(map(_is_plain, state))
    if kind is int:
        return bool(-(1 << 63) <= state < 1 << 64)
    return state is None or kind in (bool, float, str, bytes)
