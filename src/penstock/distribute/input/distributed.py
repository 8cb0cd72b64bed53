"""`DistributedDataset` and its iterator: in each step, one portion for every replica.

All strategy workers make the same number of steps. A worker whose data has ended delivers portions
without rows until every worker's data has ended. Workers compare the number of their steps once,
before the first step, if all know it; else they compare in each step whether they have data.

For each input, a thread reads ahead, cuts batches into portions and moves them to the devices. A
state counts the steps that the caller has received, not the steps that were prepared ahead.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from collections.abc import Iterator as PythonIterator
from typing import Any

import numpy as np

from penstock.data.dataset import ENVIRONMENT
from penstock.data.iterator import Iterator, PublicNames
from penstock.data.states import check_state, move_state, with_users_values
from penstock.delivery import Delivery
from penstock.delivery.delivery_stream import DELIVERY, DeliveryStream, run_ahead
from penstock.delivery.row_numbers import ROW_NUMBERS, deliver_by_row_numbers
from penstock.distribute import replica_context
from penstock.distribute.input.delivery_plan import DeliveryPlan
from penstock.distribute.input.portions import StepPlace
from penstock.distribute.replicas import Replicas
from penstock.element.chunk import Chunk
from penstock.element.columns import Column
from penstock.element.optional import Optional
from penstock.element.spec import TensorShape
from penstock.engine.context import Context
from penstock.engine.contract import Remote, State, Stream
from penstock.engine.inlets import ElementCounter, Place, discard
from penstock.engine.lower import open_plan
from penstock.engine.meters import Meter
from penstock.engine.profiles import Profile, merge_profiles
from penstock.engine.tracebacks import fold
from penstock.errors import (
    AbortedError,
    InvalidArgumentError,
    InvalidTypeError,
    OpError,
    OutOfRangeError,
)
from penstock.plan import show
from penstock.plan.nodes import INFINITE, IterationCounter, Node
from penstock.plan.resume import with_seeds
from penstock.plan.seeds import derive

_ENDED, _READY, _FAILED = 0, 1, 2


class DistributedDataset(PublicNames):
    """A dataset that delivers its elements to the replicas of a strategy; made by the strategy.

    >>> import penstock as tf
    >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.range(5).batch(4))
    >>> for value in dataset:
    ...     print(strategy.experimental_local_results(value))
    (array([0, 1]), array([2, 3]))
    (array([4]), array([], dtype=int64))
    >>> dataset.cardinality, type(dataset.element_spec).__name__
    (2, 'PerReplicaSpec')
    >>> dataset.reduce(0, lambda total, step: total + sum(len(part) for part in step.values))
    5
    >>> print(dataset.explain())
    auto_shard_policy DATA: AUTO: range does not read files, so the one worker keeps every element
    batches are cut by the batch rule: the data is sharded by element
    <BLANKLINE>
    this worker reads:
      batch(size=4)  [2 elements; random access]
        range(start=0, stop=5, step=1)  [5 elements; random access]
    """

    def __init__(self, strategy: Any, plan: DeliveryPlan) -> None:
        self._strategy = strategy
        self._plan = plan
        self._iterations = [IterationCounter() for _ in plan.inputs]

    def __iter__(self) -> DistributedIterator:
        replica_context.require_cross_replica(self._strategy, "iter(DistributedDataset)")
        steps = [
            StepIterator(self._plan, number, iterations)
            for number, iterations in enumerate(self._iterations)
        ]
        return DistributedIterator(self._strategy, self._plan, steps)

    @property
    def element_spec(self) -> Any:
        """The spec of each step: a structure of `PerReplicaSpec`."""
        return self._plan.element_spec

    @property
    def cardinality(self) -> int:
        """How many global batches there are; -1 for endless, -2 for unknown."""
        return self._plan.cardinality

    def __len__(self) -> int:
        if self.cardinality < 0:
            size = "infinite" if self.cardinality == INFINITE else "unknown"
            raise InvalidTypeError(f"len(DistributedDataset): the number of batches is {size}")
        return self.cardinality

    def __bool__(self) -> bool:
        return True

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """`reduce_func(state, step)` over all steps; returns the last state."""
        state = initial_state
        for step in self:
            state = reduce_func(state, step)
        return state

    def explain(self) -> str:
        """What this worker reads, and how it is cut: the policy, the rule and the reasons.

        With `InputOptions.balance`, also what that has gained in the steps so far.
        """
        trees = [line for plan in self._plan.inputs for line in show.tree(plan)]
        gains = [] if self._plan.balance is None else [str(self._plan.balance)]
        return "\n".join([*self._plan.reasons, *gains, "", "this worker reads:", *trees])

    def __reduce__(self) -> tuple[Any, ...]:
        raise InvalidTypeError(
            "DistributedDataset: cannot be pickled; pickle the dataset and distribute it again"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} element_spec={self.element_spec}>"


class DistributedDatasetsFromFunction(DistributedDataset):
    """Whole elements of datasets that a function made, one for each worker or replica."""


class DistributedIterator(PublicNames):
    """Iterates over a `DistributedDataset`; made by `iter(dataset)`.

    >>> import penstock as tf
    >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> dataset = tf.data.Dataset.range(8).batch(4)
    >>> iterator = iter(strategy.experimental_distribute_dataset(dataset))
    >>> [value.tolist() for value in next(iterator).values]
    [[0, 1], [2, 3]]
    >>> state = iterator.state_dict()
    >>> alone = tf.distribute.OneDeviceStrategy("CPU:0")
    >>> other = iter(alone.experimental_distribute_dataset(dataset))
    >>> other.load_state_dict(state)
    >>> next(other)
    array([4, 5, 6, 7])
    >>> iterator.epoch, iterator.position, iterator.profile().operators[0].name
    (0, 1, 'deliver')
    >>> [value.tolist() for value in iterator.get_next().values]
    [[4, 5], [6, 7]]
    >>> iterator.get_next_as_optional().has_value()
    False
    >>> iterator.close()
    """

    def __init__(self, strategy: Any, plan: DeliveryPlan, steps: list[StepIterator]) -> None:
        self._strategy = strategy
        self._plan = plan
        self._replicas: Replicas = plan.replicas
        self._steps = steps
        """One for each input of the plan."""
        self._make_value = plan.make_value
        self._lock = threading.Lock()
        """Guards the fields below, which only `_next_of_many` and `load_state_dict` use."""
        self._is_over = False
        self._agreed_steps: int | None = None
        """The number of steps of all workers, -1 if some worker does not know; None at first."""
        self._taken = 0
        self._latest: list[list[Any]] = []
        """The leaves of the latest step, for each input."""

    def __iter__(self) -> DistributedIterator:
        return self

    def __next__(self) -> Any:
        try:
            present, value = self._next("next")
        except OpError as error:
            raise fold(error, unless="PENSTOCK_TRACEBACK=full") from error.__cause__
        if self._drops(present):
            raise StopIteration
        return value

    def _drops(self, present: int) -> bool:
        """Whether a step is left out because some replica has no portion of the usual shape."""
        if present >= self._replicas.here or not self._plan.drops_incomplete:
            return False
        return not any(steps.is_surprised for steps in self._steps)

    def get_next(self) -> Any:
        """The next step: one value per replica; `OutOfRangeError` at the end."""
        try:
            present, value = self._next("get_next")
        except StopIteration:
            present = 0
        if present == 0 or self._drops(present):
            raise OutOfRangeError("DistributedIterator.get_next: End of sequence") from None
        return value

    def get_next_as_optional(self) -> Optional:
        """The next step as an `Optional`, empty at the end; an incomplete last step counts."""
        try:
            value = self._next("get_next_as_optional")[1]
        except StopIteration:
            return Optional.empty(lambda: self.element_spec, self._plan.present)
        return Optional(value, lambda: self.element_spec, self._plan.present)

    @property
    def element_spec(self) -> Any:
        return self._plan.element_spec

    def _next(self, call: str) -> tuple[int, Any]:
        """The number of portions with data in the next step, and its value."""
        replica_context.require_cross_replica(self._strategy, f"DistributedIterator.{call}")
        if self._replicas.collectives is None and len(self._steps) == 1:
            present, leaves = next(self._steps[0])
            return present, self._make_value(leaves)
        with self._lock:
            return self._next_of_many()

    def _next_of_many(self) -> tuple[int, Any]:
        """A step of several inputs, in this process or in several."""
        if self._is_over:
            raise StopIteration
        try:
            found = [next(steps, None) for steps in self._steps]
        except Exception:
            self._agree_on_step(_FAILED)
            raise
        if not self._agree_on_step(_READY if self._has_step(found) else _ENDED):
            self._is_over = True
            raise StopIteration
        self._taken += 1
        each = [step or (0, self._blank_step(i)) for i, step in enumerate(found)]
        self._latest = [leaves for _, leaves in each]
        present = sum(count for count, _ in each)
        leaves = [leaf for _, part in each for leaf in part]
        # A worker without data takes part all the same: for it the step is complete.
        counted = self._replicas.here if self._replicas.collectives is not None else present
        return counted, self._make_value(leaves)

    def _has_step(self, found: list[Any]) -> bool:
        """Whether enough inputs of this process have data for a step."""
        return all(found) if self._plan.options.last_batch == "drop" else any(found)

    def _blank_step(self, number: int) -> list[Any]:
        """The leaves for the replicas of an input that has no data left."""
        if self._plan.options.last_batch == "repeat" and self._latest:
            return self._latest[number]
        each = self._plan.replicas_per_input
        return self._plan.blank_leaves(number * each, each)

    def _agree_on_step(self, flag: int) -> bool:
        """Whether all workers make another step; every worker must call this equally often."""
        collectives = self._replicas.collectives
        if collectives is None or self._plan.is_endless:
            return flag == _READY
        # With "drop" the first worker without data ends the iteration, else the last one does.
        combine = min if self._plan.options.last_batch == "drop" else max
        if self._agreed_steps is None:
            counts = [int(one[0]) for one in collectives.gather(np.array([self._plan.steps]))]
            self._agreed_steps = combine(counts) if min(counts) >= 0 else -1
        if self._agreed_steps >= 0:
            return flag == _READY or self._taken < self._agreed_steps
        flags = [int(one[0]) for one in collectives.gather(np.array([flag]))]
        if _FAILED in flags and flag != _FAILED:
            raise AbortedError(
                f"DistributedIterator.next: worker {flags.index(_FAILED)} of {len(flags)} could "
                "not make its next element; see its own error"
            )
        return combine(flags) == _READY

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration is; small. It fits any number of replicas with these batches.

        With several workers, each worker saves and restores its own state.
        """
        if len(self._steps) == 1:
            return self._steps[0].state_dict()
        return {"replicas": [steps.state_dict() for steps in self._steps]}

    def load_state_dict(self, state: Any) -> None:
        """Continues from `state` with exactly the rest of the sequence of batches."""
        states = state.get("replicas") if isinstance(state, dict) else None
        states = [
            with_users_values(one) for one in (states if isinstance(states, list) else [state])
        ]
        if len(states) != len(self._steps):
            raise InvalidArgumentError(
                f"DistributedIterator.load_state_dict: the state has {len(states)} datasets, this "
                f"iterator has {len(self._steps)}; PER_REPLICA needs as many replicas as before"
            )
        for steps, one in zip(self._steps, states, strict=True):
            steps.check(one)
        for steps, one in zip(self._steps, states, strict=True):
            steps.load_state_dict(one)
        self._is_over, self._agreed_steps, self._taken = False, None, self._steps[0].restored_steps

    @property
    def position(self) -> int | None:
        """How many steps came before the next one, also before the state that was loaded."""
        found = [steps.position for steps in self._steps]
        known = [position for position in found if position is not None]
        # Inputs that have ended make no more steps, but other inputs and other workers may.
        return max(self._taken, *known) if len(known) == len(found) else None

    @property
    def epoch(self) -> int:
        """Which iteration over the dataset this is, from 0; see `Iterator.epoch`."""
        return self._steps[0].epoch

    def __length_hint__(self) -> int:
        """How many steps are left, if that is known: for `operator.length_hint`."""
        count, position = self._plan.cardinality, self.position
        return NotImplemented if count < 0 or position is None else max(count - position, 0)

    def profile(self) -> Profile:
        """The time and the elements of each operator of this process; see `Iterator.profile`."""
        return merge_profiles(steps.profile() for steps in self._steps)

    def close(self) -> None:
        """Ends the iteration and its threads; calling it again does nothing."""
        for steps in self._steps:
            steps.close()

    def __enter__(self) -> DistributedIterator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        raise InvalidTypeError(
            "DistributedIterator: cannot be pickled; save iterator.state_dict() and load it into "
            "iter(dataset)"
        )


# The steps of one input

_CALL = "DistributedIterator.load_state_dict"
_FIELDS = {"at", "row", "more", "step", "told", "odd"}
"""The keys of a saved `StepStream`; `told` holds `StepPlace.failures`, `odd` `is_surprised`."""

_COUNT = "count"
"""Another key, if the elements come in the order of the local dataset: how many elements of the
input are before the place `at`."""


class CountedInput(Stream):
    """An input that counts its elements; a failure is one, too. Its states have the count."""

    def __init__(self, source: Stream, count: int) -> None:
        self.inputs = (source,)
        self._source = ElementCounter(source, count)

    def pull_needed(self, needed: int, limit: int, rows: int = 0) -> Chunk:
        return self._source.pull(limit, needed, rows)

    @property
    def remote(self) -> Remote | None:
        return self.inputs[0].remote

    def _own_state(self) -> State:
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

    def __next__(self) -> tuple[int, list[Any]]:
        present, leaves = super().__next__()
        return present, self._delivery.receive(list(leaves))

    def _streams(self, context: Context) -> Stream:
        saved, skipped = _split_place(self._at)
        start = StepPlace.restore(saved)
        plan, portion, self._delivery = self._choose_delivery()
        self._metered = plan
        source = open_plan(plan, start.at, context)
        is_counted = self._local_structure is not None and (not saved or _COUNT in saved)
        if is_counted:
            source = CountedInput(source, saved.get(_COUNT, 0))
        portions = self._delivery_plan.open_portions(self._rule, portion, source, start)
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
