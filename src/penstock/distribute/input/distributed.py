"""`DistributedIterator`: step by step, what every replica of this process gets.

Workers agree on the end: a worker whose data has run out goes on with portions without rows until
all have. They agree once, before the first step, where every worker knows how many it has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from penstock.distribute import replica_context
from penstock.distribute.input.steps import Pipeline, Steps
from penstock.distribute.replicas import Replicas
from penstock.distribute.values.per_replica import PerReplica
from penstock.element import nest
from penstock.element.optional import Optional
from penstock.errors import AbortedError, InvalidArgumentError, InvalidTypeError, OutOfRangeError
from penstock.plan import show
from penstock.plan.nodes import Repetitions
from penstock.plan.seeds import derive

_ENDED, _READY, _FAILED = 0, 1, 2


@dataclass(frozen=True)
class Face:
    """What a dataset's steps look like from outside; the same for all of its iterators.

    `value` makes a step's value of its leaves (replica by replica), `blank` the leaves of the
    portions of some replicas (the first, how many) without data. `steps` is how many there are, -1
    if unknown; `drops` says that incomplete ones are left out.
    """

    spec: Any
    value: Callable[[Sequence[Any]], Any]
    blank: Callable[[int, int], list[Any]]
    steps: int
    endless: bool
    drops: bool
    last_batch: str


def wrapped(tree: nest.Tree) -> Callable[[Sequence[Any]], Any]:
    """Makes a structure of `PerReplica` of the leaves of all replicas."""
    count = tree.num_leaves
    if tree.is_leaf():
        return PerReplica
    if tree.type is tuple and tree.num_nodes == count + 1:
        return lambda leaves: tuple([PerReplica(leaves[i::count]) for i in range(count)])
    return lambda leaves: nest.unflatten(tree, [PerReplica(leaves[i::count]) for i in range(count)])


def bare(tree: nest.Tree) -> Callable[[Sequence[Any]], Any]:
    """The value of the only replica, as it is."""
    return lambda leaves: nest.unflatten(tree, leaves)


class DistributedIterator:
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
    """

    def __init__(self, strategy: Any, replicas: Replicas, steps: list[Steps], face: Face) -> None:
        self._strategy = strategy
        self._replicas = replicas
        self._steps = steps
        self._face = face
        self._over = False
        self._agreed: int | None = None
        self._taken = 0
        self._latest: list[list[Any]] = []
        self._lock = threading.Lock()

    def __iter__(self) -> DistributedIterator:
        return self

    def __next__(self) -> Any:
        present, value = self._next("next")
        if self._drops(present):
            raise StopIteration
        return value

    def _drops(self, present: int) -> bool:
        """Whether a step is left out because not all replicas have a portion of one shape."""
        if present >= self._replicas.here or not self._face.drops:
            return False
        return not any(steps.surprised for steps in self._steps)

    def get_next(self) -> Any:
        """What every replica gets in the next step; `OutOfRangeError` at the end."""
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
            return Optional.empty(lambda: self.element_spec)
        return Optional(value, lambda: self.element_spec)

    @property
    def element_spec(self) -> Any:
        return self._face.spec

    def _next(self, call: str) -> tuple[int, Any]:
        replica_context.require_cross_replica(self._strategy, f"DistributedIterator.{call}")
        if self._replicas.collectives is None and len(self._steps) == 1:
            present, leaves = next(self._steps[0])
            return present, self._face.value(self._steps[0].receive(leaves))
        with self._lock:
            return self._next_of_many()

    def _next_of_many(self) -> tuple[int, Any]:
        """A step of several pipelines, here or in other processes."""
        if self._over:
            raise StopIteration
        try:
            found = [_step(steps) for steps in self._steps]
        except Exception:
            self._agree(_FAILED)
            raise
        here = any(found) and not (self._face.last_batch == "drop" and not all(found))
        if not self._agree(_READY if here else _ENDED):
            self._over = True
            raise StopIteration
        self._taken += 1
        each = [step or (0, self._stand_in(i)) for i, step in enumerate(found)]
        self._latest = [leaves for _, leaves in each]
        present = sum(count for count, _ in each)
        leaves = [leaf for _, part in each for leaf in part]
        # A worker without data takes part all the same: for it the step is complete.
        counted = self._replicas.here if self._replicas.collectives is not None else present
        return counted, self._face.value(leaves)

    def _stand_in(self, pipeline: int) -> list[Any]:
        """What the replicas of a pipeline without data get."""
        if self._face.last_batch == "repeat" and self._latest:
            return self._latest[pipeline]
        each = self._replicas.here // len(self._steps)
        return self._face.blank(pipeline * each, each)

    def _agree(self, flag: int) -> bool:
        """Whether there is a step, for all workers."""
        collectives = self._replicas.collectives
        if collectives is None or self._face.endless:
            return flag == _READY
        if self._agreed is None:
            counts = collectives.gather(np.array([self._face.steps]))
            known = [int(count[0]) for count in counts]
            dropped = min if self._face.last_batch == "drop" else max
            self._agreed = dropped(known) if min(known) >= 0 else -1
        if self._agreed >= 0:
            return flag == _READY or self._taken < self._agreed
        flags = [int(one[0]) for one in collectives.gather(np.array([flag]))]
        if _FAILED in flags and flag != _FAILED:
            raise AbortedError(
                f"DistributedIterator.next: worker {flags.index(_FAILED)} of {len(flags)} could "
                "not make its next element; see its own error"
            )
        return (min if self._face.last_batch == "drop" else max)(flags) == _READY

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration is; small. It fits any number of replicas with these batches.

        With several workers each saves, and is given back, its own.
        """
        if len(self._steps) == 1:
            return self._steps[0].state_dict()
        return {"replicas": [steps.state_dict() for steps in self._steps]}

    def load_state_dict(self, state: Any) -> None:
        """Goes on from `state`, exactly: the same rest of the sequence of batches."""
        states = state.get("replicas") if isinstance(state, dict) else None
        states = states if isinstance(states, list) else [state]
        if len(states) != len(self._steps):
            raise InvalidArgumentError(
                f"DistributedIterator.load_state_dict: the state has {len(states)} datasets, this "
                f"iterator has {len(self._steps)}; PER_REPLICA needs as many replicas as before"
            )
        for steps, one in zip(self._steps, states, strict=True):
            steps.check(one)
        for steps, one in zip(self._steps, states, strict=True):
            steps.load_state_dict(one)
        self._over, self._agreed, self._taken = False, None, self._steps[0].taken

    def close(self) -> None:
        """Ends the iteration and its threads; twice is fine."""
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


def _step(steps: Steps) -> tuple[int, list[Any]] | None:
    try:
        present, leaves = next(steps)
    except StopIteration:
        return None
    return present, list(steps.receive(leaves))


class DistributedDataset:
    """A dataset whose elements stand on the replicas of a strategy; made by the strategy.

    >>> import penstock as tf
    >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.range(5).batch(4))
    >>> for value in dataset:
    ...     print(strategy.experimental_local_results(value))
    (array([0, 1]), array([2, 3]))
    (array([4]), array([], dtype=int64))
    """

    def __init__(self, strategy: Any, pipelines: list[Pipeline], face: Face, built: Built) -> None:
        self._strategy = strategy
        self._replicas: Replicas = strategy._replicas
        self._pipelines = pipelines
        self._face = face
        self._built = built
        self._iterations = [Repetitions() for _ in pipelines]

    def __iter__(self) -> DistributedIterator:
        replica_context.require_cross_replica(self._strategy, "iter(DistributedDataset)")
        key = partial(derive, self._built.key)
        each = self._replicas.here // len(self._pipelines)
        pairs = zip(self._pipelines, self._iterations, strict=True)
        steps = [
            Steps(pipeline, iterations, key, partial(self._delivery, i * each, each))
            for i, (pipeline, iterations) in enumerate(pairs)
        ]
        return DistributedIterator(self._strategy, self._replicas, steps, self._face)

    def _delivery(self, first: int, count: int) -> Any:
        handles = self._built.handles[first : first + count]
        owners = [-1, *(i for i in range(count) for _ in range(self._built.leaves))]
        return self._replicas.backend.delivery(handles, owners, self._pipelines[0].ahead)

    @property
    def element_spec(self) -> Any:
        """What stands on the replicas in each step: a structure of `PerReplicaSpec`."""
        return self._face.spec

    @property
    def cardinality(self) -> int:
        """How many global batches there are; -1 for endless, -2 for unknown."""
        return self._built.cardinality

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """`reduce_func(state, step)` over all steps; gives the last state."""
        state = initial_state
        for step in self:
            state = reduce_func(state, step)
        return state

    def explain(self) -> str:
        """What this worker reads, and how it is cut: the policy, the rule and the reasons."""
        return "\n".join([*self._built.story, "", "this worker reads:", *self._trees()])

    def _trees(self) -> list[str]:
        return [line for pipeline in self._pipelines for line in show.tree(pipeline.plan)]

    def __reduce__(self) -> tuple[Any, ...]:
        raise InvalidTypeError(
            "DistributedDataset: cannot be pickled; pickle the dataset and distribute it again"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} element_spec={self.element_spec}>"


class DistributedDatasetsFromFunction(DistributedDataset):
    """Whole elements of datasets that a function made, one for each worker or replica."""


@dataclass(frozen=True)
class Built:
    """What was decided when a dataset was distributed."""

    story: tuple[str, ...]
    cardinality: int
    leaves: int
    handles: tuple[Any, ...]
    key: int
