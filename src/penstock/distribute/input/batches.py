"""How batches become portions: the two rules, which of them applies, and what a portion looks like.

The *stream rule* takes the rows of all batches as one sequence and cuts it again and again by one
vector of sizes. The *batch rule* cuts each batch on its own into equal portions. TensorFlow applies
the first where it can tell the size of the batches and does not deal them out to workers as data;
so do we, row by row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.element import nest
from penstock.element.dtypes import bool as bool_dtype
from penstock.element.spec import (
    NoneTensorSpec,
    RaggedTensorSpec,
    TensorShape,
    TensorSpec,
    TypeSpec,
)
from penstock.element.values import zeros
from penstock.errors import InvalidArgumentError, UnbatchedError
from penstock.plan import nodes
from penstock.plan.nodes import Node
from penstock.plan.options import AutoShardPolicy
from penstock.plan.traits import Trait


@dataclass(frozen=True)
class Rule:
    """What is done with batches: "none", "stream" or "batch"; `size` is theirs, if it is known."""

    name: str
    size: int | None
    reason: str

    @property
    def explanation(self) -> str:
        """For `explain()`."""
        if self.name == "none":
            return f"batches are not cut: {self.reason}"
        return f"batches are cut by the {self.name} rule: {self.reason}"


def choose_rule(plan: Node, spec: Any, replicas: int, policy: AutoShardPolicy) -> Rule:
    """The rule for a dataset that is delivered to so many replicas, sharded by `policy`."""
    size = batch_size(plan, spec)
    if replicas == 1:
        return Rule("none", size, "there is one replica, which gets every batch as it is")
    _check_batched(spec)
    if size is None:
        return Rule(
            "batch",
            None,
            f"the batch size cannot be told behind {_find_hiding_operator(plan).label}",
        )
    if policy is AutoShardPolicy.DATA:
        return Rule("batch", size, "the data is sharded by element")
    if any(isinstance(leaf, NoneTensorSpec) for leaf in nest.flatten(spec)[0]):
        return Rule("batch", size, "None has no rows that could be regrouped")
    return Rule("stream", size, f"batches have {size} rows and the data is not sharded by element")


def choose_filling_rule(plan: Node, spec: Any, replicas: int, mode: str) -> Rule:
    """The rule where every portion is to have one shape, by `InputOptions.last_batch`."""
    call = f"InputOptions(last_batch={mode!r})"
    size = probable_batch_size(plan, spec)
    _check_batched(spec)
    if size is None:
        raise InvalidArgumentError(
            f"{call}: the batch size cannot be told behind "
            f"{_find_hiding_operator(plan).label}; call "
            "batch(global_batch_size) as the last step"
        )
    if mode == "drop" and size % replicas:
        raise InvalidArgumentError(
            f"{call}: batches of {size} cannot be cut into {replicas} equal portions; use a "
            f'multiple of {replicas}, or last_batch="pad"'
        )
    reason = f"last_batch={mode!r}, so every portion has {-(-size // replicas)} rows"
    return Rule("batch", size, reason)


def filled_spec(spec: Any, rows: int, mode: str) -> Any:
    """The spec of a portion that always has `rows` rows; padded, it comes with its mask."""
    part = nest.map_structure(lambda leaf: with_rows(leaf, rows), spec)
    return (part, TensorSpec([rows], bool_dtype)) if mode == "pad" else part


def batch_size(plan: Node, spec: Any) -> int | None:
    """How many rows a full batch has: by its spec, else by the operator that made it."""
    leaves = nest.flatten(spec)[0]
    rows = [leaf.rows for leaf in leaves if not isinstance(leaf, NoneTensorSpec)]
    if rows and None not in rows:
        return rows[0] if len(set(rows)) == 1 else None
    return _batch_size_made_by(plan)


def _batch_size_made_by(plan: Node) -> int | None:
    if isinstance(plan, nodes.Batch):
        return plan.size if plan.parallel is None else None
    if isinstance(plan, nodes.Concatenate | nodes.Zip):
        sizes = {_batch_size_made_by(part) for part in plan.inputs}
        return sizes.pop() if len(sizes) == 1 else None
    if Trait.KEEPS_BATCH_SIZE in plan.traits:
        return _batch_size_made_by(plan.inputs[0])
    return None


def probable_batch_size(plan: Node, spec: Any) -> int | None:
    """The same, looking through functions, which seldom change the number of rows."""
    size = batch_size(plan, spec)
    while size is None:
        if isinstance(plan, nodes.Batch):
            return plan.size
        calls = isinstance(plan, nodes.Map | nodes.TakeWhile)
        if not calls and Trait.KEEPS_BATCH_SIZE not in plan.traits:
            return None
        plan = plan.inputs[0]
        size = _batch_size_made_by(plan)
    return size


def _find_hiding_operator(plan: Node) -> Node:
    """The operator that hides the batch size."""
    while Trait.KEEPS_BATCH_SIZE in plan.traits:
        plan = plan.inputs[0]
    return plan


def _check_batched(spec: Any) -> None:
    for leaf in nest.flatten(spec)[0]:
        if isinstance(leaf, TensorSpec) and leaf.shape.rank == 0:
            raise UnbatchedError(
                "experimental_distribute_dataset: elements must be batches, to be cut into one "
                f"portion for each replica, but this one has a single value in {spec}; call "
                "batch(global_batch_size) as the last step, or map away what is not batched"
            )


def stream_sizes(batch: int, workers: int, here: int, worker: int) -> tuple[tuple[int, ...], ...]:
    """The stream rule's sizes for one worker: a cycle of steps, each with a size per replica.

    >>> stream_sizes(8, 1, 3, 0)
    ((3, 3, 2),)
    >>> stream_sizes(5, 2, 1, 1)
    ((2,), (3,))
    """
    total = workers * here
    least, more = divmod(batch, total)
    sizes = [least + (i < more) for i in range(total)]
    turned = sizes[here * worker :] + sizes[: here * worker]
    cycle = [tuple(turned[i : i + here]) for i in range(0, total, here)]
    return (cycle[0],) if len(set(cycle)) == 1 else tuple(cycle)


def batch_turns(workers: int, here: int, worker: int, dealt: bool) -> tuple[tuple[int, ...], ...]:
    """The batch rule's portions for one worker. Dealt out, a batch is one step of all workers;
    else each worker has batches of its own, and each of them makes as many steps as workers.

    >>> batch_turns(2, 2, 1, dealt=True), batch_turns(2, 1, 1, dealt=False)
    (((1, 3),), ((0,), (1,)))
    """
    if dealt:
        return (tuple(range(worker, workers * here, workers)),)
    return tuple(tuple(range(i * here, (i + 1) * here)) for i in range(workers))


def portion_spec(spec: Any, replicas: int, forget: bool) -> Any:
    """The spec of one replica's portion; `forget` its rows where data may run out."""

    def portion(leaf: TypeSpec) -> TypeSpec:
        rows = leaf.rows
        even = rows is not None and rows % replicas == 0 and not forget
        return with_rows(leaf, rows // replicas if even and rows is not None else None)

    return nest.map_structure(portion, spec)


def without_rows(spec: Any) -> Any:
    """The spec of batches that may be of any length."""
    return nest.map_structure(lambda leaf: with_rows(leaf, None), spec)


def with_rows(leaf: TypeSpec, rows: int | None) -> TypeSpec:
    """The spec with another leading dimension; specs without one stay as they are."""
    if isinstance(leaf, TensorSpec):
        if not leaf.shape.rank:
            return leaf
        return TensorSpec(leaf.shape.rest().prepend(rows), leaf.dtype, leaf.name)
    if isinstance(leaf, RaggedTensorSpec):
        shape = TensorShape(leaf.shape).rest().prepend(rows)
        return RaggedTensorSpec(shape, leaf.dtype, leaf.ragged_rank, leaf.row_splits_dtype)
    return leaf


def is_static(spec: Any) -> bool:
    """Whether no dimension of a spec is unknown."""
    leaves = nest.flatten(spec)[0]
    tensors = [leaf for leaf in leaves if not isinstance(leaf, NoneTensorSpec)]
    return all(isinstance(leaf, TensorSpec) and leaf.shape.known for leaf in tensors)


def blank_leaves(spec: Any) -> list[Any]:
    """The leaves of a portion without data: no rows; a single value is zero or empty."""
    return [_blank_leaf(leaf) for leaf in nest.flatten(spec)[0]]


def _blank_leaf(leaf: TypeSpec) -> Any:
    if isinstance(leaf, TensorSpec) and leaf.shape.rank is None:
        return zeros(TensorSpec([None], leaf.dtype), 0)
    if isinstance(leaf, TensorSpec) and leaf.shape.known:
        leaf = with_rows(leaf, None)
    return zeros(leaf, 0)
