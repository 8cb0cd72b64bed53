"""Planning: decides what a strategy worker reads of a dataset and how it is cut for its replicas.

Everything is decided here, once, when a dataset is distributed; the result is a `DeliveryPlan`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.data.dataset import Dataset
from penstock.distribute import replica_context
from penstock.distribute.input import portion_rules
from penstock.distribute.input.delivery_plan import DeliveryPlan
from penstock.distribute.input.distributed import (
    DistributedDataset,
    DistributedDatasetsFromFunction,
)
from penstock.distribute.replicas import Replicas
from penstock.distribute.strategy_options import InputContext, InputOptions, InputReplicationMode
from penstock.element.spec import relax
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


def distribute_dataset(strategy: Any, dataset: Any, options: InputOptions | None) -> Any:
    """`Strategy.experimental_distribute_dataset`."""
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
    return DistributedDataset(strategy, replace(delivery, present=dataset._present))


def distribute_from_function(
    strategy: Any, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None
) -> Any:
    """`Strategy.distribute_datasets_from_function`."""
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
    present = datasets[0]._present
    return DistributedDatasetsFromFunction(strategy, replace(delivery, present=present))


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
    return DeliveryPlan(
        replicas=replicas,
        options=options,
        inputs=(plan if shares_batches and replicas.workers > 1 else sharding.plan,),
        rule=rule,
        portion=_portion_spec(replicas, options, plan, spec, rule),
        is_sampled=not is_certain(plan),
        shares_batches=shares_batches,
        cardinality=plan.cardinality,
        steps=plan.cardinality if _makes_one_step_per_batch(rule, shares_batches, options) else -1,
        reasons=(f"auto_shard_policy {sharding.policy.name}: {sharding.reason}", rule.explanation),
        key=key,
    )


def _makes_one_step_per_batch(
    rule: portion_rules.Rule, shares_batches: bool, options: InputOptions
) -> bool:
    return shares_batches and rule.name == "batch" and options.last_batch != "drop"


def _plan_whole_elements(
    replicas: Replicas, options: InputOptions, plans: list[Node], call: str
) -> DeliveryPlan:
    """The delivery of datasets whose elements the replicas take whole, in turn."""
    cardinality = plans[0].cardinality
    spec = _common_spec(plans, call)
    if replicas.workers > 1 and cardinality != INFINITE:
        spec = portion_rules.without_rows(spec)
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
        steps=_count_steps_of_whole_elements(replicas, options, cardinality),
        reasons=(f"from a function: {reason}",),
        key=draw(),
    )


def _count_steps_of_whole_elements(
    replicas: Replicas, options: InputOptions, cardinality: int
) -> int:
    """The number of steps, known only if all replicas of a worker share one dataset."""
    if _has_input_per_replica(options) or cardinality < 0:
        return -1
    return -(-cardinality // replicas.here)


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
