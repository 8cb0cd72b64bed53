"""`DeliveryPlan`: how one dataset reaches the replicas of this process.

Everything is decided here, once, when a dataset is distributed: what this strategy worker reads,
and how that is cut for its replicas. Iterators carry out the plan and decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from penstock.data.dataset import Dataset
from penstock.delivery import Delivery
from penstock.distribute import replica_context
from penstock.distribute.input import portion_rules
from penstock.distribute.input.balancing import Balance
from penstock.distribute.input.portions import (
    EvenPortions,
    PortionsStream,
    SizedPortions,
    StepPlace,
    WholePortions,
)
from penstock.distribute.replicas import Replicas
from penstock.distribute.strategy_options import InputContext, InputOptions, InputReplicationMode
from penstock.distribute.values.per_replica import PerReplica, PerReplicaSpec
from penstock.element import nest
from penstock.element.spec import TensorShape, relax
from penstock.element.values import zeros
from penstock.engine.contract import Stream
from penstock.engine.specs import is_certain, is_steady
from penstock.errors import (
    InvalidArgumentError,
    InvalidTypeError,
    NotADatasetError,
    UnimplementedError,
)
from penstock.plan.nodes import INFINITE, Node
from penstock.plan.options import AutoShardPolicy
from penstock.plan.resume import seeds_of, with_seeds
from penstock.plan.seeds import draw
from penstock.plan.shard import shard_plan

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
    """Converts the NumPy values of a step to what the caller gets; None if it gets them as such."""

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
        self, rule: str, portion: Any, source: Stream, start: StepPlace
    ) -> PortionsStream:
        """Opens the stream that cuts the elements of `source` into portions with that spec."""
        replicas, blank = self.replicas, partial(portion_rules.blank_leaves, portion)
        group = {"workers": replicas.workers, "here": replicas.here, "worker": replicas.worker}
        if rule == "whole":
            each = self.replicas_per_input
            return WholePortions(source, replicas=each, blank=blank, start=start)
        if rule == "stream":
            assert self.rule.size is not None
            cycle = portion_rules.stream_sizes(self.rule.size, **group)
            return SizedPortions(source, cycle=cycle, blank=blank, start=start)
        if self._fill() is None and replicas.total == 1:
            return WholePortions(source, replicas=1, blank=blank, start=start)
        return EvenPortions(
            source,
            total=replicas.total,
            turns=portion_rules.batch_turns(**group, shares_batches=self.shares_batches),
            fill=self._fill(),
            balance=self.balance,
            start=start,
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


# Planning


def plan_dataset(strategy: Any, dataset: Any, options: InputOptions | None) -> DeliveryPlan:
    """The plan for `Strategy.experimental_distribute_dataset`."""
    call = "Strategy.experimental_distribute_dataset"
    options = _check_options(strategy, options, call)
    plan = _plan_of(dataset, call, "pass a penstock.data.Dataset")
    if _has_input_per_replica(options):
        raise UnimplementedError(
            f"{call}: PER_REPLICA needs a dataset for each replica; use "
            "distribute_datasets_from_function"
        )
    plan, key = _agree_on_seeds(strategy._replicas, plan, call)
    delivery = _plan_batches(strategy._replicas, options, plan, key)
    return replace(delivery, present=dataset._present)


def plan_from_function(
    strategy: Any, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None
) -> DeliveryPlan:
    """The plan for `Strategy.distribute_datasets_from_function`."""
    call = "Strategy.distribute_datasets_from_function"
    options = _check_options(strategy, options, call)
    if not callable(dataset_fn):
        raise InvalidTypeError(f"{call}: dataset_fn must be a function, got {dataset_fn!r}")
    _check_placement(options, call)
    datasets = [dataset_fn(one) for one in _input_contexts(strategy._replicas, options)]
    plans = [
        _plan_of(one, call, "dataset_fn must return a penstock.data.Dataset") for one in datasets
    ]
    delivery = _plan_whole_elements(strategy._replicas, options, plans, call)
    return replace(delivery, present=datasets[0]._present)


def _plan_batches(replicas: Replicas, options: InputOptions, plan: Node, key: int) -> DeliveryPlan:
    """The delivery of one dataset of global batches, which are cut into a portion per replica."""
    spec = _element_spec(plan)
    sharding = shard_plan(plan, replicas.workers, replicas.worker)
    shares_batches = sharding.policy is AutoShardPolicy.DATA
    if options.last_batch == "short":
        rule = portion_rules.choose_rule(plan, spec, replicas.total, sharding.policy)
    else:
        rule = portion_rules.choose_filling_rule(plan, spec, replicas.total, options.last_batch)
    if options.balance is not None:
        rule = portion_rules.choose_balancing_rule(rule)
    one_step_per_batch = shares_batches and rule.name == "batch" and options.last_batch != "drop"
    return DeliveryPlan(
        replicas=replicas,
        options=options,
        inputs=(plan if shares_batches and replicas.workers > 1 else sharding.plan,),
        rule=rule,
        portion=_portion_spec(replicas, options, plan, spec, rule),
        is_sampled=not is_certain(plan),
        shares_batches=shares_batches,
        cardinality=plan.cardinality,
        steps=plan.cardinality if one_step_per_batch else -1,
        reasons=(f"auto_shard_policy {sharding.policy.name}: {sharding.reason}", rule.explanation),
        key=key,
    )


def _plan_whole_elements(
    replicas: Replicas, options: InputOptions, plans: list[Node], call: str
) -> DeliveryPlan:
    """The delivery of datasets whose elements the replicas take whole, in turn."""
    cardinality = plans[0].cardinality
    spec = _common_spec(plans, call)
    if replicas.workers > 1 and cardinality != INFINITE:
        spec = portion_rules.without_rows(spec)
    # Replicas with a dataset of their own each may end at different steps.
    is_counted = not _has_input_per_replica(options) and cardinality >= 0
    reason = f"every replica takes a whole element in turn, {len(plans)} dataset(s)"
    return DeliveryPlan(
        replicas=replicas,
        options=options,
        inputs=tuple(plans),
        rule=portion_rules.Rule("whole", None, reason),
        portion=spec,
        is_sampled=not all(map(is_certain, plans)),
        shares_batches=False,
        cardinality=cardinality,
        steps=-(-cardinality // replicas.here) if is_counted else -1,
        reasons=(f"from a function: {reason}",),
        key=draw(),
    )


def _has_input_per_replica(options: InputOptions) -> bool:
    return options.experimental_replication_mode is InputReplicationMode.PER_REPLICA


def _input_contexts(replicas: Replicas, options: InputOptions) -> list[InputContext]:
    """What dataset_fn is called with: one context per worker, or one per replica."""
    count = replicas.here if _has_input_per_replica(options) else 1
    first = replicas.worker * count
    return [InputContext(replicas.workers * count, first + i, replicas.total) for i in range(count)]


def _portion_spec(
    replicas: Replicas, options: InputOptions, plan: Node, spec: Any, rule: portion_rules.Rule
) -> Any:
    if options.last_batch != "short":
        assert rule.size is not None
        return portion_rules.filled_spec(spec, -(-rule.size // replicas.total), options.last_batch)
    if replicas.total == 1:
        return spec
    may_run_out = replicas.workers > 1 and plan.cardinality != INFINITE
    return portion_rules.portion_spec(spec, replicas.total, may_run_out)


def _element_spec(plan: Node) -> Any:
    """The spec of elements; with the number of rows only if every element has that many."""
    spec = Dataset(plan).element_spec
    return spec if is_steady(plan) else portion_rules.without_rows(spec)


def _common_spec(plans: list[Node], call: str) -> Any:
    spec = _element_spec(plans[0])
    for number, plan in enumerate(plans[1:], 1):
        other = _element_spec(plan)
        try:
            spec = relax(spec, other)
        except (TypeError, ValueError):
            raise InvalidArgumentError(
                f"{call}: dataset_fn returned a dataset of {spec} for replica 0 but of {other} for "
                f"replica {number}; all must have the same structure and dtypes"
            ) from None
    return spec


def _check_options(strategy: Any, options: InputOptions | None, call: str) -> InputOptions:
    replica_context.require_cross_replica(strategy, call)
    if options is not None and not isinstance(options, InputOptions):
        raise InvalidTypeError(f"{call}: options must be InputOptions, got {options!r:.60}")
    return InputOptions() if options is None else options


def _check_placement(options: InputOptions, call: str) -> None:
    if options.experimental_place_dataset_on_device and (
        not _has_input_per_replica(options) or options.experimental_fetch_to_device
    ):
        raise InvalidArgumentError(
            f"{call}: experimental_place_dataset_on_device needs replication mode PER_REPLICA and "
            "experimental_fetch_to_device=False"
        )
    if options.balance is not None:
        raise InvalidArgumentError(
            f"{call}: balance is for batches that are cut; here every replica gets whole elements"
        )
    if options.last_batch != "short":
        raise InvalidArgumentError(
            f"{call}: last_batch={options.last_batch!r} is for batches that are cut; here every "
            "replica gets whole elements, so let dataset_fn batch with drop_remainder=True"
        )


def _plan_of(dataset: Any, call: str, remedy: str) -> Node:
    if not isinstance(dataset, Dataset):
        raise NotADatasetError(f"{call}: {dataset!r:.60} is not a dataset; {remedy}")
    return dataset.__plan__


def _agree_on_seeds(replicas: Replicas, plan: Node, call: str) -> tuple[Node, int]:
    """The plan with the seeds of worker 0, and a key that all workers share.

    Workers with different shuffles would read some elements twice and skip some.
    """
    seeds, key = seeds_of(plan), draw()
    if replicas.collectives is None:
        return plan, key
    mine = np.array([key, *seeds], np.uint64)
    everyone = replicas.collectives.gather(mine)
    if any(len(other) != len(mine) for other in everyone):
        raise InvalidArgumentError(
            f"{call}: the workers distribute different datasets; build the same one in every "
            "process"
        )
    key, *seeds = (int(value) for value in everyone[0])
    return with_seeds(plan, seeds), key
