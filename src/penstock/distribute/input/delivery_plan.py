"""`DeliveryPlan`: how one dataset reaches the replicas of this process.

`planning` makes one when a dataset is distributed. Iterators carry it out and decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from penstock.delivery import Delivery
from penstock.distribute.input import portion_rules
from penstock.distribute.input.balancing import Balance
from penstock.distribute.input.portions import (
    EvenPortions,
    PortionsStream,
    Position,
    SizedPortions,
    WholePortions,
)
from penstock.distribute.replicas import Replicas
from penstock.distribute.strategy_options import InputOptions
from penstock.distribute.values.per_replica import PerReplica, PerReplicaSpec
from penstock.element import nest
from penstock.element.spec import TensorShape
from penstock.element.values import zeros
from penstock.engine.contract import Stream
from penstock.plan.nodes import INFINITE, Node

Leaves = Sequence[Any]


@dataclass(frozen=True)
class DeliveryPlan:
    """What this process reads, how batches are cut, and what each replica receives in a step."""

    replicas: Replicas
    options: InputOptions
    inputs: tuple[Node, ...]
    """The plans that this process reads: one for all of its replicas, or one for each replica."""
    rule: portion_rules.Rule
    """How batches are cut, unless a state was saved under another of `rules`."""
    portion: Any
    """The spec of what one replica receives."""
    is_sampled: bool
    """Whether the shapes in `portion` are known from samples only."""
    shares_batches: bool
    """Whether every worker takes its portions from the same batches (sharding by DATA)."""
    cardinality: int
    """The number of global batches."""
    steps: int
    """The number of steps in this process; -1 if it is not known beforehand."""
    reasons: tuple[str, ...]
    """Why the dataset is sharded and cut in this way, for `explain()`."""
    key: int
    """The random number that iterations derive theirs from; the same in every worker."""
    present: Callable[[Any], Any] | None = None
    """What makes users' values of the NumPy values of a step, if these are not handed out."""

    @property
    def replicas_per_input(self) -> int:
        return self.replicas.here // len(self.inputs)

    @property
    def is_endless(self) -> bool:
        return self.cardinality == INFINITE

    @cached_property
    def balance(self) -> Balance | None:
        """What deals out the rows of each batch, if there are replicas to balance."""
        cost = self.options.balance
        return None if cost is None or self.replicas.total == 1 else Balance(cost)

    @cached_property
    def drops_incomplete(self) -> bool:
        """Whether a step is left out if some replica has no portion of the expected shape."""
        if self.is_endless or self.replicas.workers > 1:
            return self.is_endless
        # Of ragged values TensorFlow looks at the number of rows only. Samples do not fix that.
        if not self.is_sampled and portion_rules.has_static_rows(self.portion):
            return True
        return portion_rules.is_static(self.portion)

    @cached_property
    def sampled_shapes(self) -> tuple[TensorShape | None, ...]:
        """The shapes of a portion's leaves, if all are known but only from samples; else none."""
        if not self.is_sampled or not portion_rules.is_static(self.portion):
            return ()
        return tuple(getattr(leaf, "shape", None) for leaf in nest.flatten(self.portion)[0])

    @cached_property
    def element_spec(self) -> Any:
        """The spec of what `next()` of the distributed iterator returns."""
        if self.replicas.total == 1:
            return self.portion
        here = self.replicas.here
        return nest.map_structure(lambda leaf: PerReplicaSpec(*[leaf] * here), self.portion)

    @cached_property
    def make_value(self) -> Callable[[Leaves], Any]:
        """Makes a step's value from its leaves, which are ordered by replica."""
        tree = nest.flatten(self.portion)[1]
        make: Callable[[Leaves], Any] = (
            partial(nest.unflatten, tree) if self.replicas.total == 1 else _wrap_leaves(tree)
        )
        if (present := self.present) is None or self.replicas.backend.name != "numpy":
            return make
        return lambda leaves: make([present(leaf) for leaf in leaves])

    def blank_leaves(self, first: int, count: int) -> list[Any]:
        """The leaves of portions without data, for `count` replicas from replica `first` on."""
        leaves = nest.flatten(self.portion)[0]
        is_filled = self.options.last_batch != "short"
        one = (
            [zeros(leaf, 0) for leaf in leaves]
            if is_filled
            else portion_rules.blank_leaves(self.portion)
        )
        handles = self._handles()[first : first + count]
        return [self.replicas.backend.put(leaf, handle) for handle in handles for leaf in one]

    def open_delivery(self, number: int) -> Delivery:
        """The delivery to the devices of the replicas that read input `number`."""
        each = self.replicas_per_input
        handles = self._handles()[number * each : (number + 1) * each]
        leaves = len(nest.flatten(self.portion)[0])
        # The first column of a step counts the portions, and stays on the host.
        owners = [-1, *(replica for replica in range(each) for _ in range(leaves))]
        return self.replicas.backend.delivery(handles, owners, self.options.ahead)

    def _handles(self) -> tuple[Any, ...]:
        """The device of each replica of this process, or the host if nothing is fetched to it."""
        if self.options.experimental_fetch_to_device:
            return tuple(device.handle for device in self.replicas.devices)
        return (self.replicas.backend.handles("CPU")[0],) * self.replicas.here

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules under which a state may have been saved that this plan can restore."""
        if self.rule.name == "whole":
            return ("whole",)
        if self.rule.size is None or self.options.last_batch != "short" or self.balance:
            return ("batch", "none")
        return ("batch", "none", "stream")

    @property
    def allows_row_numbers(self) -> bool:
        """Whether rows may be replaced by their numbers until the backend fetches them."""
        return self.options.last_batch != "pad" and self.balance is None

    def open_portions(
        self, rule: str, portion: Any, source: Stream, position: Position
    ) -> PortionsStream:
        """Opens the stream that cuts the elements of `source` into portions with that spec."""
        replicas, blank = self.replicas, partial(portion_rules.blank_leaves, portion)
        if rule == "whole":
            each = self.replicas_per_input
            return WholePortions(source, replicas=each, blank=blank, position=position)
        if rule == "stream":
            tree = nest.flatten(portion)[1]
            cycle = self._stream_sizes()
            return SizedPortions(source, cycle=cycle, blank=blank, tree=tree, position=position)
        if self._fill() is None and replicas.total == 1:
            return WholePortions(source, replicas=1, blank=blank, position=position)
        return EvenPortions(
            source,
            total=replicas.total,
            turns=self._batch_turns(),
            fill=self._fill(),
            balance=self.balance,
            position=position,
        )

    def _stream_sizes(self) -> tuple[tuple[int, ...], ...]:
        replicas, size = self.replicas, self.rule.size
        assert size is not None
        return portion_rules.stream_sizes(
            size, workers=replicas.workers, here=replicas.here, worker=replicas.worker
        )

    def _batch_turns(self) -> tuple[tuple[int, ...], ...]:
        return portion_rules.batch_turns(
            workers=self.replicas.workers,
            here=self.replicas.here,
            worker=self.replicas.worker,
            shares_batches=self.shares_batches,
        )

    def _fill(self) -> portion_rules.Fill | None:
        if self.options.last_batch == "short":
            return None
        total, size = self.replicas.total, self.rule.size
        assert size is not None
        rows = -(-size // total) * total
        return portion_rules.Fill(mode=self.options.last_batch, batch=size, rows=rows)


def _wrap_leaves(tree: nest.Tree) -> Callable[[Leaves], Any]:
    """A function that makes a structure of `PerReplica` from the leaves of all replicas."""
    count = tree.num_leaves
    if tree.is_leaf():
        return PerReplica
    if tree.type is tuple and tree.num_nodes == count + 1:
        return lambda leaves: tuple([PerReplica(leaves[i::count]) for i in range(count)])
    return lambda leaves: nest.unflatten(tree, [PerReplica(leaves[i::count]) for i in range(count)])
