"""Steps: iterates over one input of a `DeliveryPlan`, step by step.

A thread reads the input ahead, cuts it into portions and moves them to the devices. A state counts
the steps that the caller has received, not the steps that were prepared ahead.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator as PythonIterator
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.data.dataset import ENVIRONMENT
from penstock.data.iterator import Iterator
from penstock.data.states import check_state, move_state
from penstock.delivery import Delivery
from penstock.delivery.delivery_stream import DELIVERY, DeliveryStream, run_ahead
from penstock.delivery.row_numbers import ROW_NUMBERS, deliver_by_row_numbers
from penstock.distribute.input.delivery_plan import DeliveryPlan
from penstock.distribute.input.portions import Position
from penstock.element.chunk import Chunk
from penstock.element.columns import Column
from penstock.element.spec import TensorShape
from penstock.engine.context import Context
from penstock.engine.contract import Claims, State, Stream
from penstock.engine.inlets import Counted, Place, discard
from penstock.engine.lower import open_plan
from penstock.engine.meters import Meter
from penstock.errors import InvalidArgumentError
from penstock.plan.nodes import IterationCounter, Node
from penstock.plan.resume import with_seeds
from penstock.plan.seeds import derive

_CALL = "DistributedIterator.load_state_dict"
_FIELDS = {"at", "row", "more", "step", "told", "odd"}
"""The keys of a saved `StepStream`; `told` holds `Position.failures`, `odd` `is_surprised`."""

_COUNT = "count"
"""Another key, if the elements come in the order of the local dataset: how many elements of the
input are before the place `at`."""


class CountedInput(Stream):
    """An input that counts its elements; a failure is one, too. Its states have the count."""

    def __init__(self, source: Stream, count: int) -> None:
        self.inputs = (source,)
        self._source = Counted(source, count)

    def pull(self, limit: int) -> Chunk:
        return self._source.pull(limit)

    def pull_needed(self, needed: int, limit: int, rows: int = 0) -> Chunk:
        return self._source.pull(limit, needed, rows)

    @property
    def claims(self) -> Claims | None:
        return self.inputs[0].claims

    def state(self) -> State:
        return self._source.count


def _take_count(saved: dict[str, Any]) -> dict[str, Any]:
    """A saved state with the place of the input itself, and the count of a `CountedInput`."""
    at, skipped = _split_place(saved["at"])
    place = Place(at["inputs"][0], skipped)
    return {**saved, "at": place.state, _COUNT: at["own"] + skipped}


class StepStream(DeliveryStream):
    """Chunks of steps on their way to the devices."""

    def __init__(
        self,
        source: Stream,
        delivery: Delivery,
        meter: Meter,
        *,
        shapes: Sequence[Any],
        is_surprised: bool,
        is_counted: bool,
    ) -> None:
        super().__init__(source, delivery, meter)
        self._shapes = shapes
        self._is_counted = is_counted
        self.is_surprised = is_surprised
        """Whether a leaf had another shape than all samples."""

    def _send(self, chunk: Chunk) -> Chunk:
        if self._shapes and not self.is_surprised:
            present, *leaves = chunk.columns
            there = leaves[: int(present[0]) * len(self._shapes)]
            self.is_surprised = not all(map(_has_shape, there, itertools.cycle(self._shapes)))
        return super()._send(chunk)

    def save(self) -> State:
        saved, skipped = _split_place(super().save())
        if self._is_counted:
            saved = _take_count(saved)
        return Place({**saved, "odd": self.is_surprised}, skipped).state


def _has_shape(column: Column, shape: TensorShape | None) -> bool:
    if shape is None:
        return True
    return isinstance(column, np.ndarray) and column.shape[1:] == shape.dims


class StepIterator(Iterator):
    """An `Iterator` whose elements are steps: pairs of `present` and the leaves of all portions.

    It replaces the two hooks of `Iterator` that open streams and make elements of a chunk. Its
    states also name the rule by which batches are cut.
    """

    def __init__(
        self, delivery_plan: DeliveryPlan, number: int, iterations: IterationCounter
    ) -> None:
        super().__init__(delivery_plan.inputs[number], ENVIRONMENT, iterations)
        self._delivery_plan = delivery_plan
        self._number = number
        self._key = derive(delivery_plan.key, self._iteration)
        self._rule = delivery_plan.rule.name

    def _streams(self, context: Context) -> Stream:
        saved, skipped = _split_place(self._at)
        position = Position.restore(saved)
        plan, portion, self._delivery = self._choose_delivery()
        self._metered = plan
        source = open_plan(plan, position.at, context)
        is_counted = self._local_structure is not None and (not saved or _COUNT in saved)
        if is_counted:
            source = CountedInput(source, saved.get(_COUNT, 0))
        portions = self._delivery_plan.open_portions(self._rule, portion, source, position)
        stream = self._delivered = StepStream(
            portions,
            self._delivery,
            context.meters.of_stage(DELIVERY),
            shapes=self._delivery_plan.sampled_shapes,
            is_surprised=saved.get("odd", False),
            is_counted=is_counted,
        )
        discard(stream, skipped)
        return run_ahead(stream, self._delivery_plan.options.ahead, context)

    def _choose_delivery(self) -> tuple[Node, Any, Delivery]:
        """The plan to read, the spec of its portions, and the delivery that moves them."""
        delivery = self._delivery_plan.open_delivery(self._number)
        if self._delivery_plan.allows_row_numbers:
            found = deliver_by_row_numbers(self._plan, delivery)
            if found is not None:
                return found[0], ROW_NUMBERS, found[1]
        return self._plan, self._delivery_plan.portion, delivery

    def _elements(self, chunk: Chunk) -> PythonIterator[Any]:
        present, *leaves = chunk.columns
        # A list iterator has a length hint, from which `Iterator` derives how many were taken.
        return iter(list(zip(present, zip(*leaves, strict=True), strict=True)))

    @property
    def is_surprised(self) -> bool:
        """Whether a shape differed from all samples, so that no shape is certain."""
        return self._delivered.is_surprised

    def receive(self, leaves: Sequence[Any]) -> list[Any]:
        """The leaves of a step, ready for use by the calling thread."""
        return self._delivery.receive(list(leaves))

    @property
    def restored_steps(self) -> int:
        """The number of steps before the place that this iterator was restored to."""
        saved, skipped = _split_place(self._at)
        return int(saved.get("step", 0)) + skipped

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "rule": self._rule}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        rule = self.check(state)
        state = self._move(state)
        at = state["at"] if state["rule"] == rule else _move_to_batch_border(state["at"])
        self.close()
        self._written = with_seeds(self._written, state["seeds"])
        self._rule = rule
        self._resume(state, at)

    def check(self, state: Any) -> str:
        """The rule to continue with; InvalidArgumentError unless the state fits this input."""
        if not isinstance(state, dict) or "rule" not in state:
            raise _state_error(f"not a state of a distributed iterator: {state!r:.80}")
        state = self._move(state)
        of_input = {**state, "at": _input_place(state.get("at"))}
        check_state(of_input, self._plan, self._written, _CALL)
        saved, own = state["rule"], self._delivery_plan.rule.name
        if saved not in self._delivery_plan.rules:
            raise _state_error(
                f"the state was saved by a dataset that is cut by the {saved} rule, this one is "
                f"cut by the {own} rule; distribute the dataset as it was distributed then"
            )
        return own if saved == "none" else saved

    def _move(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state for this input, if it was saved by the same one with or without a service."""
        at = state.get("at")
        if _input_place(at) == "?":
            return state
        saved, skipped = _split_place(at)
        count = saved.get(_COUNT) if saved else 0
        of_input = {**state, "at": saved.get("at"), "count": count}
        moved = move_state(of_input, self._plan, self._written)
        if moved is of_input:
            return state
        place = Place({**saved, "at": moved["at"]}, skipped).state if saved else None
        return {**moved, "count": state.get("count"), "at": place}


def _split_place(at: State) -> tuple[dict[str, Any], int]:
    """The saved state of the portions, and how many steps were taken since it was saved."""
    if at is None:
        return {}, 0
    return (at["from"], int(at["skip"])) if "skip" in at else (at, 0)


def _input_place(at: Any) -> Any:
    """Where the input is, for `check_state`; "?", which that refuses, for an unknown form."""
    if isinstance(at, dict) and set(at) == {"from", "skip"}:
        at = at["from"]
    if at is None:
        return None
    return at["at"] if isinstance(at, dict) and set(at) - {_COUNT} == _FIELDS else "?"


def _move_to_batch_border(at: State) -> State:
    """The same place for another rule, if batches were not cut: each step was one batch."""
    if at is None:
        return None
    saved, skipped = _split_place(at)
    moved = Place(saved["at"], skipped).state
    count = {_COUNT: saved[_COUNT] + skipped} if _COUNT in saved else {}
    step = saved["step"] + skipped
    return {**saved, **count, "at": moved, "row": 0, "more": 0, "step": step}


def _state_error(what: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{_CALL}: {what}")
