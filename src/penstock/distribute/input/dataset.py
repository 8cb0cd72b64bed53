"""`DistributedDataset`: a dataset, shared out among workers and cut into portions for replicas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock.distribute import context
from penstock.distribute.input.iterator import DistributedIterator, Face
from penstock.distribute.input.steps import Pipeline, Steps
from penstock.distribute.replicas import Replicas
from penstock.errors import InvalidTypeError
from penstock.plan import show
from penstock.plan.nodes import Repetitions
from penstock.plan.seeds import derive


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
        context.require_cross_replica(self._strategy, "iter(DistributedDataset)")
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
