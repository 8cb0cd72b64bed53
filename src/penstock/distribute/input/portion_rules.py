"""How batches become portions: which rule cuts them, what fills them, and the specs of portions.

The *stream rule* takes the rows of all batches as one sequence and cuts it again and again by one
vector of sizes. The *batch rule* cuts each batch on its own into equal portions. TensorFlow applies
the stream rule if the batch size is known and the dataset is not sharded by DATA; so does penstock,
row by row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.element import columns, nest
from penstock.element.chunk import Chunk
from penstock.element.columns import Array, Column
from penstock.element.dtypes import bool as bool_dtype
from penstock.element.ragged import Ragged
from penstock.element.spec import (
    NoneTensorSpec,
    RaggedTensorSpec,
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
    """How batches are cut: "none", "stream", "batch" or "whole"; `size` is None if not known."""

    name: str
    size: int | None
    reason: str

    @property
    def explanation(self) -> str:
        """The sentence that `explain()` prints."""
        if self.name == "none":
            return f"batches are not cut: {self.reason}"
        return f"batches are cut by the {self.name} rule: {self.reason}"


def choose_rule(plan: Node, spec: Any, replicas: int, policy: AutoShardPolicy) -> Rule:
    """The rule for a dataset that is sharded by `policy` and delivered to `replicas` replicas."""
    size = batch_size(plan, spec)
    if replicas == 1:
        return Rule("none", size, "there is one replica, which gets every batch as it is")
    _check_batched(spec)
    if size is None:
        hiding = _find_hiding_operator(plan).label
        return Rule("batch", None, f"the batch size is not known behind {hiding}")
    if policy is AutoShardPolicy.DATA:
        return Rule("batch", size, "the data is sharded by element")
    if any(isinstance(leaf, NoneTensorSpec) for leaf in nest.flatten(spec)[0]):
        return Rule("batch", size, "None has no rows that could be regrouped")
    return Rule("stream", size, f"batches have {size} rows and the data is not sharded by element")


def choose_balancing_rule(rule: Rule) -> Rule:
    """The rule for `InputOptions.balance`, which deals out each batch on its own."""
    if rule.name != "stream":
        return rule
    return Rule("batch", rule.size, "balance deals out the rows of each batch")


def choose_filling_rule(plan: Node, spec: Any, replicas: int, mode: str) -> Rule:
    """The rule for `InputOptions.last_batch`, if that makes all portions the same shape."""
    call = f"InputOptions(last_batch={mode!r})"
    size = probable_batch_size(plan, spec)
    _check_batched(spec)
    if size is None:
        raise InvalidArgumentError(
            f"{call}: the batch size is not known behind {_find_hiding_operator(plan).label}; "
            "call batch(global_batch_size) as the last step"
        )
    if mode == "drop" and size % replicas:
        raise InvalidArgumentError(
            f"{call}: batches of {size} cannot be cut into {replicas} equal portions; use a "
            f'multiple of {replicas}, or last_batch="pad"'
        )
    reason = f"last_batch={mode!r}, so every portion has {-(-size // replicas)} rows"
    return Rule("batch", size, reason)


def filled_spec(spec: Any, rows: int, mode: str) -> Any:
    """The spec of a portion that always has `rows` rows; with a mask if it is padded."""
    part = nest.map_structure(lambda leaf: with_rows(leaf, rows), spec)
    return (part, TensorSpec([rows], bool_dtype)) if mode == "pad" else part


def batch_size(plan: Node, spec: Any) -> int | None:
    """The number of rows of a full batch, from its spec or from the operator that made it."""
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
    """The batch size, assuming that functions of `map` keep the number of rows."""
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
    """The last operator behind which the batch size is not known."""
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
    """The sizes of the stream rule for one worker: a cycle of steps, with a size per replica.

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


def batch_turns(
    workers: int, here: int, worker: int, shares_batches: bool
) -> tuple[tuple[int, ...], ...]:
    """The portions that the batch rule gives to one worker, for each step that a batch makes.

    If workers share batches, a batch makes one step for all of them. Otherwise each worker has
    batches of its own, and a batch makes as many steps as there are workers.

    >>> batch_turns(2, 2, 1, shares_batches=True), batch_turns(2, 1, 1, shares_batches=False)
    (((1, 3),), ((0,), (1,)))
    """
    if shares_batches:
        return (tuple(range(worker, workers * here, workers)),)
    return tuple(tuple(range(i * here, (i + 1) * here)) for i in range(workers))


def portion_spec(spec: Any, replicas: int, may_run_out: bool) -> Any:
    """The spec of one replica's portion; without a number of rows if data `may_run_out`."""

    def portion(leaf: TypeSpec) -> TypeSpec:
        rows = leaf.rows
        even = rows is not None and rows % replicas == 0 and not may_run_out
        return with_rows(leaf, rows // replicas if even and rows is not None else None)

    return nest.map_structure(portion, spec)


def without_rows(spec: Any) -> Any:
    """The spec with an unknown number of rows."""
    return nest.map_structure(lambda leaf: with_rows(leaf, None), spec)


def with_rows(leaf: TypeSpec, rows: int | None) -> TypeSpec:
    """The spec with another leading dimension; specs without one are returned unchanged."""
    if isinstance(leaf, TensorSpec | RaggedTensorSpec) and leaf.shape.rank:
        return replace(leaf, shape=leaf.shape.rest().prepend(rows))
    return leaf


def is_static(spec: Any) -> bool:
    """Whether no dimension of a spec is unknown."""
    leaves = nest.flatten(spec)[0]
    tensors = [leaf for leaf in leaves if not isinstance(leaf, NoneTensorSpec)]
    return all(isinstance(leaf, TensorSpec) and leaf.shape.known for leaf in tensors)


def has_static_rows(spec: Any) -> bool:
    """Whether no dimension is unknown, except those inside of ragged rows."""
    return all(
        leaf.rows is not None if isinstance(leaf, RaggedTensorSpec) else is_static(leaf)
        for leaf in nest.flatten(spec)[0]
    )


def blank_leaves(spec: Any) -> list[Any]:
    """The leaves of a portion without data: no rows; single values are zero or empty."""
    return [_blank_leaf(leaf) for leaf in nest.flatten(spec)[0]]


def _blank_leaf(leaf: TypeSpec) -> Any:
    if isinstance(leaf, TensorSpec) and leaf.shape.rank is None:
        return zeros(TensorSpec([None], leaf.dtype), 0)
    if isinstance(leaf, TensorSpec) and leaf.shape.known:
        leaf = with_rows(leaf, None)
    return zeros(leaf, 0)


@dataclass(frozen=True)
class Fill:
    """Extends batches of up to `batch` rows to `rows`, by `mode`: "drop", "pad" or "repeat"."""

    mode: str
    batch: int
    rows: int

    def apply(self, chunk: Chunk) -> Chunk | None:
        """The filled batches; None if all of them are dropped."""
        sizes = self._count_rows(chunk)
        if self.mode == "drop":
            full = np.flatnonzero(sizes == self.batch)
            if len(full) == len(chunk):
                return chunk
            return chunk.take(full) if len(full) else None
        made = [self._fill_column(column) for column in chunk.columns]
        if self.mode == "repeat":
            return Chunk(chunk.tree, made, len(chunk))
        mask = np.arange(self.rows) < sizes[:, None]
        tree = nest.graft(nest.PAIR, (chunk.tree, nest.LEAF))
        return Chunk(tree, [*made, mask], len(chunk))

    def apply_to_costs(self, costs: Array) -> Array:
        """The costs of the rows of a filled batch; rows of zeros cost nothing."""
        if self.mode == "repeat":
            return costs[np.arange(self.rows) % max(len(costs), 1)]
        more = self.rows - len(costs) if self.mode == "pad" else 0
        return np.concatenate([costs, np.zeros(more)])

    def _count_rows(self, chunk: Chunk) -> Any:
        counts = [
            [len(leaf) for leaf in column] for column in chunk.columns if column[0] is not None
        ]
        sizes = np.array(counts[0])
        if any(count != counts[0] for count in counts) or sizes.max() > self.batch:
            raise InvalidArgumentError(
                f"InputOptions(last_batch={self.mode!r}): batches of {self.batch} rows are "
                f"expected, but the components of an element have {sorted({c[0] for c in counts})}"
                " rows; let no operator behind batch change the number of rows"
            )
        return sizes

    def _fill_column(self, column: Column) -> Column:
        if type(column) is np.ndarray and column.ndim > 1 and column.shape[1] == self.rows:
            return column
        return columns.make([self._fill_leaf(leaf) for leaf in column])

    def _fill_leaf(self, leaf: Any) -> Any:
        if leaf is None or len(leaf) == self.rows:
            return leaf
        if self.mode == "repeat":
            return columns.take(leaf, np.arange(self.rows) % max(len(leaf), 1))
        if isinstance(leaf, Ragged):
            more = np.full(self.rows - len(leaf), leaf.row_splits[-1])
            return Ragged(leaf.values, np.concatenate([leaf.row_splits, more]))
        longer = np.zeros((self.rows, *leaf.shape[1:]), leaf.dtype)
        if leaf.dtype.hasobject:
            longer.fill(b"")
        longer[: len(leaf)] = leaf
        return longer
