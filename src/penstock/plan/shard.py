"""Autosharding: the shard of a plan that each of several workers reads.

Every worker rewrites the same plan, with the same seeds, for itself. A `Shard` may be inserted only
where all workers see the same elements in the same order: each element must be read by one worker.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, assert_never

from penstock.element import nest
from penstock.element.values import as_element, zeros
from penstock.errors import InvalidArgumentError, NotFoundError
from penstock.plan import nodes
from penstock.plan.functions import Function
from penstock.plan.nodes import INFINITE, UNKNOWN, Node, Store, options_of, walk_plan
from penstock.plan.options import AutoShardPolicy, Options, ShardingPolicy
from penstock.plan.seeds import derive, seed_scope
from penstock.plan.traits import Trait

_FORMATS = ("text", "tfrecord", "fixed", "json_lines", "tar")
"""JSON lines, tar, and the formats that TensorFlow shards by file; all other formats are sharded by
element."""


@dataclass(frozen=True)
class Sharding:
    """The plan of one worker, the policy that was applied (never AUTO), and the reason."""

    plan: Node
    policy: AutoShardPolicy
    reason: str


def shard_plan(plan: Node, workers: int, index: int) -> Sharding:
    """The shard of `plan` that worker `index` of `workers` reads, by the policy in its options.

    AUTO divides the files if every element is then still read once, by one worker (a batch with
    `drop_remainder` drops a remainder on each worker); if not, it divides the elements. FILE also
    divides the files if operators then count on each worker: `take(2)` gives two elements on each.
    The number that `assert_cardinality` states is not checked where files are divided: it is that
    of all workers together.
    AUTO divides the rows of tables, so that all workers have as many; FILE divides their files.
    """
    shard = _WorkerShard.make(workers, index)
    policy = options_of(plan).experimental_distribute.auto_shard_policy
    match policy:
        case AutoShardPolicy.OFF:
            return Sharding(plan, policy, "OFF: every worker reads the whole dataset")
        case AutoShardPolicy.HINT:
            return _by_hint(plan, shard)
        case _ if (node := _sharded_elsewhere(plan)) is not None:
            reason = f"{policy.name}: {node.label} gives each worker its own elements already"
            return Sharding(plan, AutoShardPolicy.OFF, reason)
        case AutoShardPolicy.DATA:
            return _by_data(plan, shard, "DATA: ")
        case AutoShardPolicy.FILE:
            return _by_file(plan, shard)
        case AutoShardPolicy.AUTO:
            return _by_file_or_data(plan, shard)
        case _:
            assert_never(policy)


def service_shard(plan: Node, policy: ShardingPolicy, workers: int, index: int) -> Node:
    """The shard of `plan` that worker `index` of a service reads, by a static policy."""
    shard = _WorkerShard.make(workers, index)
    match policy:
        case ShardingPolicy.HINT:
            return in_order(_by_hint(plan, shard).plan)
        case ShardingPolicy.OFF | ShardingPolicy.DYNAMIC:
            return in_order(plan)
        case _ if _sharded_elsewhere(plan) is not None:
            return in_order(plan)
        case ShardingPolicy.DATA:
            return in_order(_by_data(plan, shard, "").plan)
        case ShardingPolicy.FILE:
            return in_order(_by_file(plan, shard, "ShardingPolicy", "FILE_OR_DATA").plan)
        case ShardingPolicy.FILE_OR_DATA:
            return in_order(_by_file_or_data(plan, shard).plan)
        case _:
            assert_never(policy)


def shard_sources(plan: Node, workers: int, index: int) -> Node:
    """The whole plan over one worker's shard of its sources: operators count on each worker."""
    return in_order(_shard_sources(plan, _WorkerShard.make(workers, index)))


def _shard_sources(node: Node, shard: _WorkerShard) -> Node:
    match node:
        case nodes.Saved(shards=shards):
            return _with_files(node, shards[shard.index :: shard.workers])
        case nodes.Choose(choice, parts):
            own_inputs = (_shard_sources(part, shard) for part in parts)
            return shard.above(node, (choice, *own_inputs))
        case _ if node.sharded_elsewhere:
            return node
        case _ if node.inputs and not node.sealed:
            return shard.above(node, tuple(_shard_sources(part, shard) for part in node.inputs))
    return shard.of(node)


@dataclass(frozen=True)
class _WorkerShard:
    """One worker's shard of elements that all workers see in the same order."""

    workers: int
    index: int

    @classmethod
    def make(cls, workers: int, index: int) -> _WorkerShard:
        if workers < 1:
            raise InvalidArgumentError(f"shard_plan: workers must be at least 1, got {workers}")
        if not 0 <= index < workers:
            raise InvalidArgumentError(
                f"shard_plan: index must be from 0 to {workers - 1} for {workers} worker(s), "
                f"got {index}"
            )
        return cls(workers, index)

    def of(self, node: Node) -> Node:
        """This worker's elements of `node`."""
        return nodes.Shard(in_order(node), self.workers, self.index) if self.workers > 1 else node

    def above(self, node: Node, inputs: tuple[Node, ...]) -> Node:
        """`node` over this worker's inputs, with its own cache and its own random numbers."""
        match own := node.with_inputs(inputs):
            case _ if own is node:
                return node
            case nodes.Cache(_, filename):
                suffix = f"_{self.index}_of_{self.workers}" if filename else ""
                return replace(own, filename=filename + suffix, store=Store())
            case nodes.Map(random=int(seed)):
                return replace(own, random=derive(seed, self.index) >> 1)
        return own

    @property
    def keeps(self) -> str:
        """How elements are divided, for `Sharding.reason`."""
        if self.workers == 1:
            return "the one worker keeps every element"
        return f"each worker makes all elements and keeps one in {self.workers}"

    @property
    def reads(self) -> str:
        """How files are divided, for `Sharding.reason`."""
        if self.workers == 1:
            return "the one worker reads them all"
        return "each worker reads its own files"


def in_order(node: Node) -> Node:
    """The plan with `deterministic=True` for all parallel calls.

    Workers that count elements must see them in the same order.
    """
    if node.sealed:
        return _request_order(node)
    node = node.with_inputs(tuple(map(in_order, node.inputs)))
    if not isinstance(node, nodes.Parallel) or node.parallel is None:
        return node
    return node if node.deterministic is True else replace(node, deterministic=True)


def _request_order(node: Node) -> Node:
    """Asks a service to keep the order. The readers of a named job share it, so there is none."""
    if node.sharded_elsewhere:
        return node
    ordered = Options(deterministic=True).make_frozen()
    return node.with_inputs(tuple(nodes.WithOptions(part, ordered) for part in node.inputs))


def _sharded_elsewhere(node: Node) -> Node | None:
    return next((one for one in walk_plan(node) if one.sharded_elsewhere), None)


def _by_hint(plan: Node, shard: _WorkerShard) -> Sharding:
    if any(map(_is_hint, walk_plan(plan))):
        reason = "HINT: shard(SHARD_HINT, SHARD_HINT) gives each worker its part"
    else:
        reason = "HINT: there is no shard(SHARD_HINT, SHARD_HINT), so every worker reads it all"
    return Sharding(_fill_hints(plan, shard), AutoShardPolicy.HINT, reason)


def _is_hint(node: Node) -> bool:
    return isinstance(node, nodes.Shard) and node.shards < 1


def _fill_hints(node: Node, shard: _WorkerShard) -> Node:
    """Replaces every `shard(SHARD_HINT, SHARD_HINT)` by this worker's shard."""
    inputs = tuple(_fill_hints(part, shard) for part in node.inputs)
    return shard.of(inputs[0]) if _is_hint(node) else shard.above(node, inputs)


def _by_data(plan: Node, shard: _WorkerShard, why: str) -> Sharding:
    return Sharding(_at_end(plan, shard), AutoShardPolicy.DATA, why + shard.keeps)


def _at_end(node: Node, shard: _WorkerShard) -> Node:
    """Shards the end of a plan, but before a prefetch: no worker prefetches for another."""
    if Trait.ADVISORY in node.traits:
        return node.with_inputs((_at_end(node.inputs[0], shard),))
    return shard.of(node)


def _by_file(
    plan: Node, shard: _WorkerShard, policies: str = "AutoShardPolicy", other: str = "AUTO"
) -> Sharding:
    files = _Files(shard)
    divided = files.divide(plan)
    if files.unfit and shard.workers > 1:
        raise NotFoundError(
            f"{policies}.FILE: {files.unfit}; use {policies}.{other} or DATA, "
            "which can divide the elements"
        )
    if files.few:
        raise InvalidArgumentError(
            f"{policies}.FILE: {files.few}; write more files, or use {policies}.{other} "
            "or DATA, which can divide the elements"
        )
    return Sharding(divided, AutoShardPolicy.FILE, f"FILE: {shard.reads}")


def _by_file_or_data(plan: Node, shard: _WorkerShard) -> Sharding:
    files = _Files(shard)
    divided = files.divide(plan)
    counted = files.counted if shard.workers > 1 else None
    if against := files.unfit or files.by_rows or counted or files.few:
        return _by_data(plan, shard, f"AUTO: {against}, so ")
    reason = f"AUTO: every source reads files, so {shard.reads}"
    return Sharding(divided, AutoShardPolicy.FILE, reason)


class _Files:
    """Walks from the end of a plan to its file readers; collects reasons against dividing files."""

    def __init__(self, shard: _WorkerShard) -> None:
        self._shard = shard
        self.unfit: str | None = None
        """Which operator cannot run over some of the files."""
        self.by_rows: str | None = None
        """Which file reader has rows that can be divided, in equal numbers."""
        self.counted: str | None = None
        """Which operator would give other elements."""
        self.few: str | None = None
        """Which file reader has fewer files than there are workers."""

    def divide(self, node: Node) -> Node:
        """The plan over this worker's files; not to be used if `unfit` is set."""
        if is_file_reader(node):
            return self._shard.above(node, (self._divide_names(node.label, node.inputs[0]),))
        if (files := _files_of(node)) is not None:
            self.by_rows = self.by_rows or f"{node.label} can be divided by elements"
            self._note_few(node.label, len(files))
            return _with_files(node, files[self._shard.index :: self._shard.workers])
        stated = node.count if isinstance(node, nodes.AssertCardinality) else INFINITE
        if stated != INFINITE and self._shard.workers > 1:
            return self.divide(node.inputs[0])  # The number is not that of each worker.
        if Trait.COUNTS_ON_FILES in node.traits:
            words = "depends on the place of an element among all of them"
            self.counted = self.counted or f"{node.label} {words}"
        elif Trait.SAME_ON_FILES not in node.traits:
            self.unfit = self.unfit or f"{node.label} {_why_unfit(node)}"
            return node
        return self._shard.above(node, tuple(map(self.divide, node.inputs)))

    def _divide_names(self, label: str, node: Node) -> Node:
        """This worker's shard of the file names, taken before a shuffle.

        So a worker reads the same files in every epoch.
        """
        random = isinstance(node, nodes.Map) and node.random is not None
        has_shuffle = any(isinstance(one, nodes.Shuffle) for one in walk_plan(node))
        if Trait.SHARD_PASSES in node.traits and not random and has_shuffle:
            return node.with_inputs((self._divide_names(label, node.inputs[0]),))
        self._note_few(label, node.cardinality)
        return self._shard.of(node)

    def _note_few(self, label: str, count: int) -> None:
        workers = self._shard.workers
        if 0 < count < workers:
            files = "1 file" if count == 1 else f"{count} files"
            self.few = self.few or f"{label} reads {files}, fewer than the {workers} workers"


def _files_of(node: Node) -> tuple[Any, ...] | None:
    """The files that a source of rows or saved elements reads; None if it has no list of them."""
    match node:
        case nodes.TableRows(files=files, format=format, data=None) if format != "lance":
            return files
        case nodes.Saved(shards=shards):
            return shards
    return None


def _with_files(node: Node, files: tuple[Any, ...]) -> Node:
    """The same source over some of its files."""
    if isinstance(node, nodes.TableRows):
        return replace(node, files=files)
    assert isinstance(node, nodes.Saved)
    return replace(node, shards=files, count=node.count if files == node.shards else UNKNOWN)


def _why_unfit(node: Node) -> str:
    if Trait.READS_FILES in node.traits:
        return "is not divided by files"
    return "needs the elements of all files in one place" if node.inputs else "does not read files"


def is_file_reader(node: Node) -> bool:
    """Whether this operator reads the files that its input names; False if that is not known.

    The functions of an `interleave`, and of what makes its input, are called once, on a first
    element. Nothing else in `plan` calls a user's function, and no file is opened.
    """
    match node:
        case nodes.Records(format=format):
            return format in _FORMATS
        case nodes.Interleave(source, function):
            try:
                with seed_scope(0):
                    made = _call(function, _sample(source))
            except Exception:  # Iterating over the dataset raises it again, with its context.
                return False
            plan = getattr(made, "__plan__", None)
            return plan is not None and any(map(is_file_reader, walk_plan(plan)))
    return False


def _call(function: Function, element: Any) -> Any:
    return function.call(*element) if type(element) is tuple else function.call(element)


def _sample(node: Node) -> Any:
    """The first element, or one like it; LookupError if finding it would need iteration."""
    match node:
        case nodes.Slices(data) if len(data) > 0:
            return data.first()
        case nodes.Slices(data):
            return nest.map_structure(zeros, data.spec)
        case nodes.Range(start, dtype=dtype):
            return dtype.as_numpy_dtype(start)
        case nodes.Map(source, function):
            return as_element(_call(function, _sample(source)))
        case nodes.Interleave(source, function):
            return _sample(_call(function, _sample(source)).__plan__)
        case nodes.Zip(parts, tree):
            return nest.unflatten(tree, [_sample(part) for part in parts])
        case _ if Trait.SAMPLED_BY_INPUT in node.traits:
            return _sample(node.inputs[0])
    raise LookupError(f"{node.label} has no sample")
