"""Planning: what a worker reads of a dataset, how it is cut for its replicas, and why.

Everything is decided here, once, when a dataset is distributed; iterators only carry it out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from penstock.data.dataset import Dataset
from penstock.distribute import replica_context
from penstock.distribute.input import batches
from penstock.distribute.input.distributed import (
    Built,
    DistributedDataset,
    DistributedDatasetsFromFunction,
    Face,
    bare,
    wrapped,
)
from penstock.distribute.input.fills import Fill
from penstock.distribute.input.numbered import NUMBERS
from penstock.distribute.input.portions import EvenPortions, SizedPortions, WholePortions
from penstock.distribute.input.steps import Pipeline
from penstock.distribute.replicas import Replicas
from penstock.distribute.strategy_options import InputContext, InputOptions, InputReplicationMode
from penstock.distribute.values.per_replica import PerReplicaSpec
from penstock.element import nest
from penstock.element.spec import relax
from penstock.element.values import zeros
from penstock.engine.specs import is_certain, is_steady
from penstock.errors import (
    InvalidArgumentError,
    InvalidTypeError,
    NotADatasetError,
    UnimplementedError,
)
from penstock.plan.nodes import INFINITE, Node
from penstock.plan.options import AutoShardPolicy
from penstock.plan.resume import reseeded, seeds_of
from penstock.plan.seeds import draw
from penstock.plan.shard import shard_plan


def distribute_dataset(strategy: Any, dataset: Any, options: InputOptions | None) -> Any:
    """`Strategy.experimental_distribute_dataset`."""
    call = "Strategy.experimental_distribute_dataset"
    options = _checked(strategy, options, call)
    plan = _plan_of(dataset, call, "pass a penstock.data.Dataset")
    if options.experimental_replication_mode is InputReplicationMode.PER_REPLICA:
        raise UnimplementedError(
            f"{call}: PER_REPLICA needs a dataset for each replica; use "
            "distribute_datasets_from_function"
        )
    replicas: Replicas = strategy._replicas
    plan, key = _agreed(replicas, plan, call)
    spec = _spec_of(plan)
    sharding = shard_plan(plan, replicas.workers, replicas.worker)
    rule = batches.rule_for(plan, spec, replicas.total, sharding.policy)
    if options.last_batch != "short":
        rule = batches.filling(plan, spec, replicas.total, options.last_batch)
    dealt = sharding.policy is AutoShardPolicy.DATA
    read = plan if dealt and replicas.workers > 1 else sharding.plan
    part = _portion_spec(plan, spec, rule, replicas, options.last_batch)
    cuts = _cuts(rule, part, replicas, dealt, options.last_batch)
    story = (f"auto_shard_policy {sharding.policy.name}: {sharding.reason}", rule.told)
    counted = dealt and rule.name == "batch" and options.last_batch != "drop"
    steps = plan.cardinality if counted else -1
    face = _face(replicas, part, plan.cardinality, steps, options)
    built = Built(story, plan.cardinality, _leaves(part), _handles(replicas, options), key)
    padded = options.last_batch == "pad"
    numbers = None if padded else _cuts(rule, NUMBERS, replicas, dealt, options.last_batch)
    pipeline = Pipeline(read, rule.name, cuts, options.ahead, numbers, _doubtful(plan, part))
    return DistributedDataset(strategy, [pipeline], face, built)


def distribute_from_function(
    strategy: Any, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None
) -> Any:
    """`Strategy.distribute_datasets_from_function`."""
    call = "Strategy.distribute_datasets_from_function"
    options = _checked(strategy, options, call)
    if not callable(dataset_fn):
        raise InvalidTypeError(f"{call}: dataset_fn must be a function, got {dataset_fn!r}")
    _check_placement(options, call)
    replicas: Replicas = strategy._replicas
    each = options.experimental_replication_mode is InputReplicationMode.PER_REPLICA
    count = replicas.here if each else 1
    contexts = [
        InputContext(replicas.workers * count, replicas.worker * count + i, replicas.total)
        for i in range(count)
    ]
    plans = [
        _plan_of(dataset_fn(one), call, "dataset_fn must return a penstock.data.Dataset")
        for one in contexts
    ]
    spec = _common_spec(plans, call)
    if replicas.workers > 1 and plans[0].cardinality != INFINITE:
        spec = batches.without_rows(spec)
    here = replicas.here // count
    cuts = {"whole": _whole(here, spec)}
    length = plans[0].cardinality if not each else -1
    steps = -(-length // here) if length >= 0 else -1
    face = _face(replicas, spec, plans[0].cardinality, steps, options)
    built = Built(
        (f"from a function: every replica takes a whole element in turn, {len(plans)} dataset(s)",),
        plans[0].cardinality,
        _leaves(spec),
        _handles(replicas, options),
        draw(),
    )
    numbers = {"whole": _whole(here, NUMBERS)}
    pipelines = [
        Pipeline(plan, "whole", cuts, options.ahead, numbers, _doubtful(plan, spec))
        for plan in plans
    ]
    return DistributedDatasetsFromFunction(strategy, pipelines, face, built)


def _doubtful(plan: Node, part: Any) -> tuple[Any, ...]:
    """The shapes of a portion's leaves, if they are all known but only from samples."""
    if is_certain(plan) or not batches.is_static(part):
        return ()
    return tuple(getattr(leaf, "shape", None) for leaf in nest.flatten(part)[0])


def _spec_of(plan: Node) -> Any:
    """What elements look like; how many rows they have, only where samples are no accident."""
    spec = Dataset(plan).element_spec
    return spec if is_steady(plan) else batches.without_rows(spec)


def _common_spec(plans: list[Node], call: str) -> Any:
    spec = _spec_of(plans[0])
    for number, plan in enumerate(plans[1:], 1):
        other = _spec_of(plan)
        try:
            spec = relax(spec, other)
        except (TypeError, ValueError):
            raise InvalidArgumentError(
                f"{call}: dataset_fn returned a dataset of {spec} for replica 0 but of {other} for "
                f"replica {number}; all must have the same structure and dtypes"
            ) from None
    return spec


def _checked(strategy: Any, options: InputOptions | None, call: str) -> InputOptions:
    replica_context.require_cross_replica(strategy, call)
    if options is not None and not isinstance(options, InputOptions):
        raise InvalidTypeError(f"{call}: options must be InputOptions, got {options!r:.60}")
    return InputOptions() if options is None else options


def _check_placement(options: InputOptions, call: str) -> None:
    per_replica = options.experimental_replication_mode is InputReplicationMode.PER_REPLICA
    if options.experimental_place_dataset_on_device and (
        not per_replica or options.experimental_fetch_to_device
    ):
        raise InvalidArgumentError(
            f"{call}: experimental_place_dataset_on_device needs replication mode PER_REPLICA and "
            "experimental_fetch_to_device=False"
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


def _agreed(replicas: Replicas, plan: Node, call: str) -> tuple[Node, int]:
    """The plan with the seeds of the first worker, and a key that all workers share.

    Workers that shuffle differently would read some elements twice and others never.
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
    return reseeded(plan, seeds), key


def _portion_spec(
    plan: Node, spec: Any, rule: batches.Rule, replicas: Replicas, last_batch: str
) -> Any:
    if last_batch != "short":
        return batches.filled_spec(spec, -(-_size(rule) // replicas.total), last_batch)
    if replicas.total == 1:
        return spec
    forget = replicas.workers > 1 and plan.cardinality != INFINITE
    return batches.portion_spec(spec, replicas.total, forget)


def _cuts(
    rule: batches.Rule, part: Any, replicas: Replicas, dealt: bool, last_batch: str
) -> dict[str, Callable[..., Any]]:
    """How the plan's stream is cut: by the dataset's own rule, and by those of states."""
    workers, here, worker = replicas.workers, replicas.here, replicas.worker
    turns = batches.batch_turns(workers, here, worker, dealt)
    if last_batch != "short":
        each = -(-_size(rule) // replicas.total)
        filled = _even(replicas.total, turns, Fill(last_batch, _size(rule), each * replicas.total))
        return {"batch": filled, "none": filled}
    whole = _whole(1, part) if replicas.total == 1 else _even(replicas.total, turns, None)
    cuts = {"batch": whole, "none": whole}
    if rule.size is not None:
        cycle = batches.stream_sizes(rule.size, workers, here, worker)
        cuts["stream"] = _sized(cycle, part)
    return cuts


def _size(rule: batches.Rule) -> int:
    assert rule.size is not None
    return rule.size


def _whole(replicas: int, part: Any) -> Callable[..., Any]:
    blank = partial(batches.blank, part)
    return lambda source, position: WholePortions(source, replicas, blank, position)


def _even(total: int, turns: Any, fill: Fill | None) -> Callable[..., Any]:
    return lambda source, position: EvenPortions(source, total, turns, fill, position)


def _sized(cycle: tuple[tuple[int, ...], ...], part: Any) -> Callable[..., Any]:
    blank, tree = partial(batches.blank, part), nest.flatten(part)[1]
    return lambda source, position: SizedPortions(source, cycle, blank, tree, position)


def _leaves(spec: Any) -> int:
    return len(nest.flatten(spec)[0])


def _handles(replicas: Replicas, options: InputOptions) -> tuple[Any, ...]:
    """Where the values of each replica of this process go."""
    if options.experimental_fetch_to_device:
        return tuple(device.handle for device in replicas.devices)
    return (replicas.backend.handles("CPU")[0],) * replicas.here


def _face(
    replicas: Replicas, part: Any, cardinality: int, steps: int, options: InputOptions
) -> Face:
    alone = replicas.total == 1
    leaves, tree = nest.flatten(part)
    put, handles = replicas.backend.put, _handles(replicas, options)
    filled = options.last_batch != "short"

    def blank(first: int, count: int) -> list[Any]:
        one = [zeros(leaf, 0) for leaf in leaves] if filled else batches.blank(part)
        return [put(leaf, handle) for handle in handles[first : first + count] for leaf in one]

    static = batches.is_static(part) and replicas.workers == 1
    return Face(
        spec=part if alone else nest.map_structure(partial(_repeated, replicas.here), part),
        value=bare(tree) if alone else wrapped(tree),
        blank=blank,
        steps=steps,
        endless=cardinality == INFINITE,
        drops=static or cardinality == INFINITE,
        last_batch=options.last_batch,
    )


def _repeated(count: int, leaf: Any) -> PerReplicaSpec:
    return PerReplicaSpec(*[leaf] * count)
