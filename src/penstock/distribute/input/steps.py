"""Steps: the iterator of one input pipeline, which gives what its replicas get in each step.

The pipeline is opened, cut into portions, moved to the devices and pulled ahead by a thread; what
the user has been given counts in a state, never what was made ahead.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Iterator as PythonIterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.data.dataset import ENVIRONMENT
from penstock.data.iterator import Iterator
from penstock.data.states import check_state
from penstock.distribute.backends import Delivery
from penstock.distribute.input.numbered import numbered
from penstock.distribute.input.portions import PortionsStream, Position
from penstock.element.chunk import Chunk
from penstock.element.columns import Column
from penstock.element.spec import TensorShape
from penstock.engine.context import Context
from penstock.engine.lower import open_plan
from penstock.engine.prefetch import PrefetchStream
from penstock.engine.stream import Place, State, Stream, discard
from penstock.engine.tuning import Budget, Depth
from penstock.errors import InvalidArgumentError
from penstock.plan.nodes import Node, Repetitions
from penstock.plan.resume import reseeded, seeds_of

Cuts = Mapping[str, Callable[[Stream, Position], PortionsStream]]
"""How the elements of a plan are cut into portions, by the names of the rules."""


@dataclass(frozen=True)
class Pipeline:
    """A plan, how it is cut, and how far ahead of its use.

    `rule` is how it is cut from the start; an iterator that goes on from a state may have to go on
    cutting as that one did, so `cuts` may know other rules. `numbers` are the same for batches of
    row numbers; None if rows cannot travel as numbers. `shapes` are those of a portion's leaves, if
    samples say that they are always the same.
    """

    plan: Node
    rule: str
    cuts: Cuts
    ahead: int
    numbers: Cuts | None = None
    shapes: tuple[TensorShape | None, ...] = ()


class DeliveryStream(Stream):
    """Chunks of steps on their way to the devices."""

    def __init__(self, source: Stream, delivery: Delivery, shapes: Sequence[Any] = ()) -> None:
        self.inputs = (source,)
        self._source = source
        self._delivery = delivery
        self._shapes = shapes
        self.surprised = False
        """Whether a leaf had another shape than all samples."""

    def pull(self, limit: int) -> Chunk:
        chunk = self._source.pull(limit)
        if self._shapes and not self.surprised:
            present, *leaves = chunk.columns
            there = leaves[: int(present[0]) * len(self._shapes)]
            self.surprised = not all(map(_has_shape, there, itertools.cycle(self._shapes)))
        return self._delivery.send(chunk)

    def save(self) -> State:
        return {**self._source.save(), "odd": self.surprised}

    def close(self) -> None:
        super().close()
        self._delivery.close()


def _has_shape(column: Column, shape: TensorShape | None) -> bool:
    if shape is None:
        return True
    return isinstance(column, np.ndarray) and column.shape[1:] == shape.dims


class Steps(Iterator):
    """Iterates over the steps of a pipeline: pairs of `present` and the leaves of all portions."""

    def __init__(
        self,
        pipeline: Pipeline,
        iterations: Repetitions,
        key: Callable[[int], int],
        delivery: Callable[[], Delivery],
    ) -> None:
        super().__init__(pipeline.plan, ENVIRONMENT, iterations)
        self._key = key(self._iteration)
        self._pipeline = pipeline
        self._rule = pipeline.rule
        self._deliver = delivery

    def _streams(self, context: Context) -> Stream:
        mark, skipped = _parts(self._at)
        odd = mark.get("odd", False)
        position = Position(**{name: mark[name] for name in mark if name != "odd"})
        plan, cuts, delivery = self._route()
        self._delivery = delivery
        source = open_plan(plan, position.at, context)
        portions = cuts[self._rule](source, position)
        stream = self._sent = DeliveryStream(portions, delivery, self._pipeline.shapes)
        stream.surprised = odd
        discard(stream, skipped)
        if not self._pipeline.ahead or context.inline:
            return stream
        return PrefetchStream(stream, Depth(self._pipeline.ahead, Budget.of(context.options)))

    def _route(self) -> tuple[Node, Cuts, Delivery]:
        """What is read, how it is cut, and who moves it: rows, or their numbers if that is less."""
        delivery, by_number = self._deliver(), self._pipeline.numbers
        late = numbered(self._plan) if by_number is not None else None
        fetching = delivery.of_rows(late.rows) if late is not None else None
        if late is None or fetching is None or by_number is None:
            return self._plan, self._pipeline.cuts, delivery
        delivery.close()
        return late.plan, by_number, fetching

    def _elements(self, chunk: Chunk) -> PythonIterator[Any]:
        present, *leaves = chunk.columns
        # A list: how much of it was taken tells where the iteration is.
        return iter(list(zip(present, zip(*leaves, strict=True), strict=True)))

    @property
    def surprised(self) -> bool:
        """Whether shapes were not what samples had shown, so that none of them is certain."""
        return self._sent.surprised

    def receive(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """Leaves of a step, fit for use by the calling thread."""
        return self._delivery.receive(list(leaves))

    @property
    def taken(self) -> int:
        """How many steps lie before where the iteration was begun."""
        mark, skipped = _parts(self._at)
        return int(mark.get("step", 0)) + skipped

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "rule": self._rule}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        rule = self.check(state)
        self.close()
        self._written = reseeded(self._written, state["seeds"])
        self._rule = rule
        self._go_on(state, state["at"] if state["rule"] == rule else _at_a_border(state["at"]))

    def check(self, state: Any) -> str:
        """The rule to go on with; InvalidArgumentError unless the state fits this pipeline."""
        if not isinstance(state, dict) or "rule" not in state:
            raise _wrong(f"not a state of a distributed iterator: {state!r:.80}")
        at = state.get("at")
        mark = at["from"] if isinstance(at, dict) and set(at) == {"from", "skip"} else at
        known = mark is None or (isinstance(mark, dict) and set(mark) == _FIELDS)
        where = mark["at"] if mark is not None and known else None if known else "?"
        plain = {**state, "at": where}
        check_state(plain, self._plan, len(seeds_of(self._written)), _CALL)
        saved = state["rule"]
        if saved in self._pipeline.cuts:
            return self._pipeline.rule if saved == "none" else saved
        raise _wrong(
            f"the state was saved by a dataset that is cut by the {saved} rule, this one is cut by "
            f"the {self._pipeline.rule} rule; distribute the dataset as it was distributed then"
        )


_CALL = "DistributedIterator.load_state_dict"
_FIELDS = {"at", "row", "more", "step", "told", "odd"}


def _parts(at: State) -> tuple[dict[str, Any], int]:
    """The state of the portions, and how many steps were taken since."""
    if at is None:
        return {}, 0
    return (at["from"], int(at["skip"])) if "skip" in at else (at, 0)


def _at_a_border(at: State) -> State:
    """The same place, of batches that were handed on whole: every step was one element."""
    if at is None:
        return None
    mark, skipped = _parts(at)
    moved = Place(mark["at"], skipped).state
    return {**mark, "at": moved, "row": 0, "more": 0, "step": mark["step"] + skipped}


def _wrong(what: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{_CALL}: {what}")
