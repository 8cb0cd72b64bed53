"""Shards of a plan: consecutive parts of its elements, each of which any process computes alone.

All shards one after the other are the elements of the plan, in its order.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.data.dataset import ENVIRONMENT
from penstock.element.chunk import Chunk
from penstock.engine.context import Context
from penstock.engine.lower import chunks_of
from penstock.errors import InvalidArgumentError
from penstock.plan import codec, nodes
from penstock.plan.nodes import INFINITE, Node, options_of
from penstock.plan.shape import ENDLESS, Form, Shape
from penstock.plan.splits import piece, shape_of


@dataclass(frozen=True)
class ShardContent:
    """The content of one shard: a range of the elements, or of the pieces, of a plan."""

    kind: Form
    start: int
    stop: int
    streams: int

    def plans(self, plan: Node) -> Iterator[Node]:
        """The plans whose elements the shard holds, in order."""
        if self.kind == Form.SPLIT:
            for stream in range(self.start, self.stop):
                yield piece(plan, Form.SPLIT, stream, self.streams)
        elif self.kind == Form.RANDOM:
            whole = piece(plan, Form.RANDOM, 0, 1)
            yield nodes.Take(nodes.Skip(whole, self.start), self.stop - self.start)
        else:
            yield piece(plan, Form.SINGLE, 0, 1)


def divide_plan(call: str, plan: Node, most: int) -> tuple[ShardContent, ...]:
    """At most `most` shards of about the same size; raises if the plan has no end."""
    shape: Shape = shape_of(plan)
    if plan.cardinality == INFINITE or shape.streams == ENDLESS:
        raise InvalidArgumentError(
            f"{call}: the dataset has no end, so this would never end; take() some of it"
        )
    total = shape.length if shape.kind == Form.RANDOM else shape.streams
    shards = min(total, most)
    ends = [total * number // shards for number in range(shards + 1)] if shards else []
    return tuple(
        ShardContent(shape.kind, start=start, stop=stop, streams=shape.streams)
        for start, stop in itertools.pairwise(ends)
    )


def read_shard(plan: bytes, content: ShardContent, key: int) -> Iterator[Chunk]:
    """The elements of a shard of an encoded plan; `key` is the same for all shards."""
    for part in content.plans(_decode_plan(plan)):
        context = Context(ENVIRONMENT, epoch=(0,), key=key, options=options_of(part))
        yield from chunks_of(part, context)


_decode_plan = functools.lru_cache(maxsize=4)(codec.decode)
