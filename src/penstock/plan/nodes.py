"""The catalogue of operators: what each one *is*. Other modules define what is done to them.

A node is an immutable value: its fields, its inputs, its traits, how its spec follows from theirs,
how many elements it has, and what (if anything) keeps it from random access. A node never computes
an element.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

import numpy as np

from penstock.element import nest
from penstock.element.chunk import Chunk, spec_of_leaves
from penstock.element.dtypes import DType
from penstock.element.dtypes import int64 as int64_dtype
from penstock.element.dtypes import string as string_dtype
from penstock.element.ragged import Ragged
from penstock.element.spec import (
    DatasetSpec,
    RaggedTensorSpec,
    TensorShape,
    TensorSpec,
    relax_all,
)
from penstock.element.values import spec_of_leaf
from penstock.errors import FailedPreconditionError, InvalidTypeError
from penstock.plan.functions import Function
from penstock.plan.options import Options, ShardingPolicy
from penstock.plan.packed import Values, dtypes_of, packed_spec, values_for
from penstock.plan.traits import Trait

INFINITE = -1
UNKNOWN = -2

Kind = TypeVar("Kind")

_SAME_ELEMENTS = Trait.BY_POSITION | Trait.SAMPLED_BY_INPUT | Trait.KEEPS_BATCH_SIZE
"""It hands on elements of its input as they are, and picks them by their positions."""

_ON_ANY_FILES = Trait.SAME_ON_FILES | Trait.SHARD_PASSES
"""A worker may apply it to any shard of the files."""

_NO_CHANGE = Trait.ADVISORY | Trait.ELEMENTWISE | Trait.ONE_TO_ONE | _SAME_ELEMENTS | _ON_ANY_FILES
"""It hands on its input unchanged."""

OPAQUE: Any = object()
"""The spec of an operator whose function must be called to find its spec."""


class FoundSpec(NamedTuple):
    """The spec of a node, as `keep_spec` got it."""

    spec: Any
    sampled: bool
    """Whether functions were called on samples to find it, so that some elements may not fit it."""


@dataclass_transform(frozen_default=True, eq_default=False)
def node(kind: type[Kind]) -> type[Kind]:
    """Makes a class of an operator a dataclass.

    `Node` defines what a frozen dataclass would compile for each class: that takes a tenth of
    `import penstock`.
    """
    return dataclass(init=False, eq=False, repr=False)(kind)


@node
class Node:
    """An operator. Fields that are nodes (or tuples of nodes) are its inputs.

    A class may derive from another operator only if code that matches that operator is right for
    it, too: a `FlatMap` is an `Interleave`, a `PaddedBatch` is a `Batch`. Its traits may differ.
    """

    __leaf__ = True

    traits: ClassVar[Trait]
    """What other modules may assume of the operator. Every class declares its own."""

    free_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that may differ between the plan that saved a state and the plan that loads it."""

    seed_field: ClassVar[str | None] = None
    """The field that contains a seed, if there is one. Such a node also has the field `drawn`."""

    reason: ClassVar[str | None] = None
    """Why an operator of this class never has random access; None if it can have it."""

    opaque: ClassVar[bool] = False
    """Whether a function decides the spec, unless the user states it."""

    spec_field: ClassVar[str | None] = None
    """The field that contains the spec, if the user or a file states it."""

    sealed: ClassVar[bool] = False
    """Whether a service runs its input: that has its own options and is not rewritten here."""

    method: ClassVar[str | None] = None
    """The name of the user's call; None if it is the name of the class."""

    def __init_subclass__(cls) -> None:
        if "traits" not in vars(cls):
            raise TypeError(f"{cls.__name__} declares no traits; see penstock.plan.traits.Trait")

    if not TYPE_CHECKING:  # Else the arguments of all nodes would be unchecked.

        def __init__(self, *values: Any, **named: Any) -> None:
            fields, own = _fields_of(type(self)), self.__dict__
            own.update(fields.template)
            own.update(zip(fields.names, values, strict=False))
            own.update(named)
            fields.check(values, named, own)
            fields.complete(own)

        def __setattr__(self, name: str, value: Any) -> None:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

        def __delattr__(self, name: str) -> None:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other):
            return False
        names = (field.name for field in dataclasses.fields(self))
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((type(self).__name__, self.inputs, self.functions))

    def __repr__(self) -> str:
        shown = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self))
        return f"{type(self).__name__}({', '.join(shown)})"

    @cached_property
    def inputs(self) -> tuple[Node, ...]:
        found: list[Node] = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Node):
                found.append(value)
            elif isinstance(value, tuple):
                found.extend(item for item in value if isinstance(item, Node))
        return tuple(found)

    def with_inputs(self, inputs: tuple[Node, ...]) -> Node:
        """The operator over other inputs; the node itself if they are the same objects."""
        if all(new is old for new, old in zip(inputs, self.inputs, strict=True)):
            return self
        left, changes = list(inputs), {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Node):
                changes[field.name] = left.pop(0)
            elif isinstance(value, tuple) and any(isinstance(item, Node) for item in value):
                changes[field.name] = tuple(left.pop(0) for _ in value)  # type: ignore[assignment]
        return dataclasses.replace(self, **changes)

    def spec_from(self, *inputs: Any) -> Any:
        """The spec, given the specs of the inputs; `OPAQUE` if a function decides it."""
        if self.declared_spec is not None:
            return self.declared_spec
        return OPAQUE if self.opaque else inputs[0]

    def spec_from_samples(self, *inputs: Any) -> Any:
        """The spec, given specs that were found on samples: equal shapes may be chance."""
        return self.spec_from(*inputs)

    @property
    def declared_spec(self) -> Any:
        """The spec, if the user or a file states it; then it does not depend on the inputs."""
        return None if self.spec_field is None else getattr(self, self.spec_field)

    @property
    def found_spec(self) -> FoundSpec | None:
        """The spec that was last passed to `keep_spec`, if any."""
        return self.__dict__.get("_found_spec")

    def keep_spec(self, spec: Any, *, sampled: bool = False) -> None:
        """Caches the spec, for this process and for every process that the plan is sent to.

        It is the only place where a node changes; equality and hash do not depend on it.
        """
        self.__dict__["_found_spec"] = FoundSpec(spec, sampled)

    @cached_property
    def cardinality(self) -> int:
        """The number of elements, INFINITE or UNKNOWN."""
        count = self.inputs[0].cardinality
        return count if count < 0 else self.count_from(count)

    def count_from(self, count: int) -> int:
        """The number of elements, or UNKNOWN, if the input has `count` elements."""
        return count

    @property
    def obstacle(self) -> str | None:
        """Why this operator itself has no random access; None if that depends on its inputs."""
        return self.reason

    @cached_property
    def blocked(self) -> str | None:
        """Why the plan up to this operator has no random access; None if it has it."""
        if self.obstacle is not None:
            return f"{self.label}: {self.obstacle}"
        return next((node.blocked for node in self.inputs if node.blocked), None)

    def __getstate__(self) -> dict[str, Any]:
        """The fields and the found spec; other cached values are computed again."""
        kept = {"_found_spec": self.found_spec} if self.found_spec is not None else {}
        return self.changed_fields() | kept

    def __setstate__(self, state: dict[str, Any]) -> None:
        kind: Any = type(self)
        fields, own = _fields_of(kind), self.__dict__
        own.update(fields.template)
        own.update(state)
        if unknown := sorted(state.keys() - fields.template.keys() - {"_found_spec"}):
            raise FailedPreconditionError(
                f"Dataset.{self.label}: the plan sets {', '.join(unknown)}, which this version of "
                "penstock does not know; upgrade penstock in this process"
            )
        fields.complete(own)

    def changed_fields(self) -> dict[str, Any]:
        """The fields whose values are not the constant defaults.

        Only these are sent: a process with an older penstock, which lacks a new field, can run
        every plan that leaves the field at its default.
        """
        kind: Any = type(self)
        template, own = _fields_of(kind).template, self.__dict__
        return {name: own[name] for name in template if own[name] is not template[name]}

    @property
    def functions(self) -> tuple[Function, ...]:
        """The user's functions that this operator calls, without those of its inputs."""
        kind: Any = type(self)
        values = map(self.__dict__.get, _fields_of(kind).names)
        return tuple(value for value in values if isinstance(value, Function))

    @cached_property
    def pure(self) -> bool:
        """Whether the plan calls no user's function."""
        return not self.functions and all(node.pure for node in self.inputs)

    @cached_property
    def by_epoch(self) -> bool:
        """Whether elements or their order may differ between epochs."""
        return any(node.by_epoch for node in self.inputs)

    @property
    def has_drawn_seed(self) -> bool:
        """Whether its seed was drawn, because the user gave none."""
        return self.seed_field is not None and bool(getattr(self, "drawn"))  # noqa: B009

    @property
    def loose(self) -> bool:
        """Whether elements may come in the order in which they are ready."""
        return False

    @property
    def sharded_elsewhere(self) -> bool:
        """Whether each worker of a strategy gets its own elements from this operator already."""
        return False

    @property
    def label(self) -> str:
        """The name of the user's call, for messages and `explain()`."""
        return self.method or _snake(type(self).__name__)


class _Fields(NamedTuple):
    """The fields of a class of nodes."""

    names: tuple[str, ...]
    template: dict[str, Any]
    """All fields in their order, with their constant defaults."""
    without_constant: tuple[dataclasses.Field[Any], ...]

    def check(self, values: tuple[Any, ...], named: dict[str, Any], own: dict[str, Any]) -> None:
        """Raises TypeError if a field has two values, or a value has no field."""
        count = len(values)
        if count > len(self.names) or not named.keys().isdisjoint(self.names[:count]):
            raise TypeError(f"too many arguments: {count} in order and {sorted(named)}")
        if len(own) > len(self.names):
            raise TypeError(f"there are no fields {sorted(named.keys() - self.template.keys())}")

    def complete(self, own: dict[str, Any]) -> None:
        """Makes the defaults that are no constants; raises TypeError if a value is missing."""
        for field in self.without_constant:
            if own[field.name] is dataclasses.MISSING:
                own[field.name] = _default(field)


@cache
def _fields_of(kind: type[Node]) -> _Fields:
    fields = dataclasses.fields(kind)
    return _Fields(
        tuple(field.name for field in fields),
        {field.name: field.default for field in fields},
        tuple(field for field in fields if field.default is dataclasses.MISSING),
    )


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is dataclasses.MISSING:
        raise TypeError(f"an argument {field.name!r} is missing")
    return field.default_factory()


@cache
def _snake(name: str) -> str:
    return "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")


# Sources


class Data:
    """Rows in memory, as a chunk; compared by value."""

    __leaf__ = True

    joined: Any = None
    """What `joined_data.join_strings` made of it; False if it has few strings."""

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk

    def __len__(self) -> int:
        return len(self.chunk)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Data) or self.chunk.tree != other.chunk.tree:
            return False
        return all(map(_same_column, self.chunk.columns, other.chunk.columns))

    def __hash__(self) -> int:
        return hash((self.chunk.tree, len(self.chunk)))

    def __getstate__(self) -> dict[str, Chunk]:
        return {"chunk": self.chunk}

    def __setstate__(self, state: dict[str, Chunk]) -> None:
        """Makes the arrays read-only again: a pickle does not preserve that."""
        self.chunk = state["chunk"].as_read_only()

    def __repr__(self) -> str:
        return f"{len(self)} rows"

    def first(self) -> Any:
        """The first row, as an element."""
        return self.chunk.rows(0, 1).elements()[0]

    @property
    def spec(self) -> Any:
        leaves = [row_spec(column) for column in self.chunk.columns]
        return nest.unflatten(self.chunk.tree, leaves)


def _same_column(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is not type(b) or len(a) != len(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def row_spec(column: Any) -> Any:
    """The spec of the rows of a column."""
    if isinstance(column, np.ndarray | Ragged):
        return spec_of_leaf(column).unbatch()
    return spec_of_leaves(column)


@node
class Slices(Node):
    """The rows of data in memory."""

    data: Data

    traits = Trait.NONE

    def spec_from(self, *inputs: Any) -> Any:
        return self.data.spec

    @cached_property
    def cardinality(self) -> int:
        return len(self.data)

    method = "from_tensor_slices"


@node
class Tensors(Slices):
    """One element in memory."""

    traits = Trait.NONE

    method = "from_tensors"


@node
class FileNames(Slices):
    """The names of the files that matched a pattern."""

    traits = Trait.NONE

    method = "list_files"


@node
class Range(Node):
    """Numbers in equal steps."""

    start: int
    stop: int
    step: int
    dtype: DType

    traits = Trait.NONE

    def spec_from(self, *inputs: Any) -> Any:
        return TensorSpec((), self.dtype)

    @cached_property
    def cardinality(self) -> int:
        return len(range(self.start, self.stop, self.step))


@node
class Counter(Node):
    """Numbers in equal steps, without end."""

    start: Any
    step: Any
    dtype: DType

    traits = Trait.NONE

    def spec_from(self, *inputs: Any) -> Any:
        return TensorSpec((), self.dtype)

    cardinality = INFINITE


@node
class Random(Node):
    """Random numbers in [0, 2**32), each a function of (seed, epoch, index).

    Here and in other nodes, `drawn` is set if the user chose no seed and `seed` was drawn.
    """

    seed: int
    rerandomize: bool = False
    drawn: bool = False

    traits = Trait.DRAWS_ORDER
    seed_field = "seed"
    free_fields = ("drawn", "seed")

    def spec_from(self, *inputs: Any) -> Any:
        return TensorSpec((), int64_dtype)

    cardinality = INFINITE

    @cached_property
    def by_epoch(self) -> bool:
        return self.rerandomize


@node
class Choices(Node):
    """Random indices of datasets, drawn by weight, for `sample_from_datasets`."""

    weights: tuple[float, ...]
    seed: int
    rerandomize: bool = False
    drawn: bool = False

    traits = Trait.DRAWS_ORDER
    seed_field = "seed"
    free_fields = ("drawn", "seed")

    def spec_from(self, *inputs: Any) -> Any:
        return TensorSpec((), int64_dtype)

    cardinality = INFINITE

    @cached_property
    def by_epoch(self) -> bool:
        return self.rerandomize


@node
class Generator(Node):
    """The elements of a Python generator, which every iteration calls again."""

    function: Function
    arguments: tuple[Any, ...]
    signature: Any

    traits = Trait.NONE
    spec_field = "signature"

    cardinality = UNKNOWN
    reason = "a generator can only be run from its start"

    method = "from_generator"


FILE_DATASETS = {
    "text": "TextLineDataset",
    "tfrecord": "TFRecordDataset",
    "fixed": "FixedLengthRecordDataset",
    "csv": "CsvDataset",
    "json_lines": "from_json_lines",
    "tar": "from_tar",
}
"""The class of datasets that reads each format."""


@node
class Records(Node):
    """The records of the files that the input names, one file after the other."""

    input: Node
    format: str
    options: tuple[tuple[str, Any], ...] = ()

    traits = Trait.ELEMENTWISE | Trait.READS_FILES

    def spec_from(self, *inputs: Any) -> Any:
        """A string; for CSV, the columns of a row; for JSON and tar, a dict."""
        if self.format in ("csv", "json_lines", "tar"):
            return dict(self.options)["spec"]
        return TensorSpec((), string_dtype)

    cardinality = UNKNOWN
    reason = "the number of records in a file is not known before it is read"

    @property
    def obstacle(self) -> str | None:
        """The reason, and what gives random access to the formats that may have an index."""
        has_index = self.format in ("tar", "tfrecord")
        return f"{self.reason}; index=True counts them" if has_index else self.reason

    @property
    def label(self) -> str:
        return FILE_DATASETS[self.format]


@node
class Saved(Node):
    """The elements that `save` or `snapshot` wrote, one shard after the other."""

    path: str
    shards: tuple[str, ...]
    spec: Any
    count: int
    compression: str | None = None

    traits = Trait.READS_FILES
    free_fields = ("compression", "path")
    spec_field = "spec"

    @cached_property
    def cardinality(self) -> int:
        return self.count

    reason = "saved elements are read from the start"

    method = "load"


def call_of(source: str) -> str:
    """How errors name a call: `Dataset.from_tar`, but `TFRecordDataset`."""
    return source if source[0].isupper() else f"Dataset.{source}"


class TableFile(NamedTuple):
    """A file of rows, as it was when the dataset was made."""

    path: str
    size: int
    """In bytes; -1 if the format has versions, of which the file reader opens this one again."""
    modified: str
    """When it was changed last, and which machine's clock says so; empty if that is not known."""
    footer: int
    """A checksum of what the file says about its blocks."""
    blocks: tuple[int, ...]
    """The number of rows in each block that can be read alone."""

    def __repr__(self) -> str:
        return repr(self.path)


@node
class TableRows(Node):
    """The rows of tables: of files, or of one table in memory.

    A table in memory is `data`, the bytes of its blocks, and one file without a path.
    """

    source: str
    """The name of the user's call."""
    format: str
    files: tuple[TableFile, ...]
    columns: tuple[str, ...]
    """The columns that are read; none for rows that are bare arrays."""
    spec: Any
    fill: tuple[tuple[str, Any], ...] = ()
    """What takes the place of a missing value, by column."""
    data: Data | None = None
    options: tuple[tuple[str, Any], ...] = ()
    """More arguments for the file reader of the format."""

    traits = Trait.READS_FILES
    free_fields = ("source",)
    spec_field = "spec"

    @property
    def call(self) -> str:
        """The user's call, as errors name it."""
        return call_of(self.source)

    @cached_property
    def cardinality(self) -> int:
        return sum(sum(file.blocks) for file in self.files)

    @property
    def label(self) -> str:
        return self.source


@node
class Select(Node):
    """The elements of `input` at the positions that are the elements of `positions`."""

    input: Node
    positions: Node

    traits = Trait.NONE

    @cached_property
    def cardinality(self) -> int:
        return self.positions.cardinality


# Elementwise


@node
class Map(Node):
    """A function applied to every element."""

    input: Node
    function: Function
    parallel: int | None = None
    deterministic: bool | None = None
    vectorized: bool = False
    random: int | None = None
    signature: Any = None
    drawn: bool = False

    traits = Trait.ELEMENTWISE | Trait.ONE_TO_ONE | _ON_ANY_FILES
    seed_field = "random"
    free_fields = ("deterministic", "drawn", "parallel", "random")
    opaque = True
    spec_field = "signature"

    @cached_property
    def by_epoch(self) -> bool:
        return self.random is not None or self.input.by_epoch

    @property
    def obstacle(self) -> str | None:
        return "with deterministic=False elements come as they are ready" if self.loose else None

    @property
    def loose(self) -> bool:
        return self.parallel is not None and self.deterministic is False


@node
class Filter(Node):
    """The elements for which a predicate is true."""

    input: Node
    function: Function

    traits = Trait.ELEMENTWISE | Trait.SAMPLED_BY_INPUT | Trait.KEEPS_BATCH_SIZE | _ON_ANY_FILES

    cardinality = UNKNOWN
    reason = "how many elements pass is not known before all are tried"


@node
class TakeWhile(Node):
    """The elements before the first one for which a predicate is false."""

    input: Node
    function: Function

    traits = Trait.SAMPLED_BY_INPUT

    cardinality = UNKNOWN
    reason = "how many elements pass is not known before all are tried"


@node
class Interleave(Node):
    """`block` elements at a time of each of `cycle` datasets that a function returns."""

    input: Node
    function: Function
    cycle: int
    block: int
    parallel: int | None = None
    deterministic: bool | None = None

    traits = Trait.ELEMENTWISE | Trait.SAME_ON_FILES | Trait.MAKES_DATASETS
    free_fields = ("deterministic", "parallel")
    opaque = True

    @cached_property
    def cardinality(self) -> int:
        endless = self.parallel is not None and self.input.cardinality == INFINITE
        return INFINITE if endless else UNKNOWN

    by_epoch = True
    """The datasets that the function returns may be shuffled."""

    reason = "the lengths of the inner datasets are not known in advance"

    @property
    def takes_turns(self) -> bool:
        """Whether elements of several inner datasets alternate."""
        return self.cycle > 1

    @property
    def loose(self) -> bool:
        return self.parallel is not None and self.deterministic is False and self.takes_turns


@node
class FlatMap(Interleave):
    """The elements of datasets that a function returns, one dataset after the other."""

    cycle: int = 1
    block: int = 1

    traits = Trait.ELEMENTWISE | Trait.SAME_ON_FILES | Trait.MAKES_DATASETS


@node
class Inputs(FlatMap):
    """Inputs `first` to `first + count` of an `interleave` that takes turns, one after the other.

    A worker computes them. Their elements carry their positions, so that the client can merge them.
    """

    first: int = 0
    count: int = 1

    traits = Trait.ELEMENTWISE | Trait.MAKES_DATASETS

    method = "interleave"


@node
class Scan(Node):
    """A function of (state, element) that returns (state, element), applied in order."""

    input: Node
    initial: Data
    function: Function

    traits = Trait.NONE
    opaque = True

    reason = "every element depends on the ones before it"


@node
class IgnoreErrors(Node):
    """The elements whose computation raised no error; of a file, the records that can be read."""

    input: Node
    log_warning: bool = False
    reader: str = ""
    """The call of the user, if this is a file reader with `on_error="skip"`."""

    traits = Trait.ELEMENTWISE
    free_fields = ("log_warning", "reader")

    cardinality = UNKNOWN
    reason = "which elements fail is not known before all are tried"


# Batching


@node
class Batch(Node):
    """Groups of `size` consecutive elements, stacked."""

    input: Node
    size: int
    drop_remainder: bool = False
    parallel: int | None = None
    deterministic: bool | None = None

    traits = Trait.BY_POSITION | Trait.SAME_ON_FILES
    free_fields = ("deterministic", "parallel")

    @property
    def rows(self) -> int | None:
        return self.size if self.drop_remainder else None

    def spec_from(self, *inputs: Any) -> Any:
        return nest.map_structure(lambda leaf: leaf.batch(self.rows), inputs[0])

    def count_from(self, count: int) -> int:
        return count // self.size if self.drop_remainder else -(-count // self.size)


Unordered = Map | Interleave
"""Operators that hand out elements as they are ready, if `deterministic` is False."""

Parallel = Unordered | Batch
"""Operators that take `parallel` and `deterministic`. Batching keeps the order in any case."""


@node
class PaddedBatch(Batch):
    """Groups of `size` consecutive elements, padded to a common shape and stacked.

    `shapes` and `values` are flat, one per leaf; without them the elements decide.
    """

    shapes: tuple[TensorShape, ...] | None = None
    values: tuple[Any, ...] | None = None

    traits = Trait.SAME_ON_FILES

    def spec_from(self, *inputs: Any) -> Any:
        leaves, tree = nest.flatten(inputs[0])
        for leaf in leaves:
            if not isinstance(leaf, TensorSpec | RaggedTensorSpec):
                raise unpaddable("Dataset.padded_batch", leaf, isinstance(leaf, DatasetSpec))
        shapes = self.shapes or [leaf.shape for leaf in leaves]
        padded = [
            TensorSpec(shape.prepend(self.rows), leaf.dtype)
            for leaf, shape in zip(leaves, shapes, strict=True)
        ]
        return nest.unflatten(tree, padded)

    def spec_from_samples(self, *inputs: Any) -> Any:
        """The samples may have the same length by chance."""
        return self.spec_from(_forget_first_dimension(inputs[0]))


def unpaddable(where: str, found: Any, is_dataset: bool) -> InvalidTypeError:
    """The error for a leaf, or the spec of one, that is no array and so cannot be padded."""
    hint = "flat_map them first" if is_dataset else "use ragged_batch"
    return InvalidTypeError(f"{where}: elements must be arrays, got {found}; {hint}")


@node
class RaggedBatch(Batch):
    """Groups of `size` consecutive elements, stacked; leaves of unknown shape become `Ragged`."""

    row_splits: DType = int64_dtype

    traits = Trait.SAME_ON_FILES

    def spec_from(self, *inputs: Any) -> Any:
        return nest.map_structure(self._batch_leaf, inputs[0])

    def _batch_leaf(self, leaf: Any) -> Any:
        if not isinstance(leaf, TensorSpec) or leaf.shape.known:
            return leaf.batch(self.rows)
        dims = leaf.shape.dims or (None,)
        rank = max(i for i, d in enumerate(dims) if d is None) + 1
        return RaggedTensorSpec((self.rows, *dims), leaf.dtype, rank, self.row_splits)

    def spec_from_samples(self, *inputs: Any) -> Any:
        """The samples may have the same length by chance."""
        return self.spec_from(_forget_first_dimension(inputs[0]))


def _forget_first_dimension(spec: Any) -> Any:
    """Makes the first dimension of each leaf unknown, if all its dimensions are known."""

    def forget(leaf: Any) -> Any:
        dims = leaf.shape.dims if isinstance(leaf, TensorSpec) else None
        if not dims or None in dims:
            return leaf
        return TensorSpec((None, *dims[1:]), leaf.dtype)

    return nest.map_structure(forget, spec)


@node
class Unbatch(Node):
    """The rows of every element."""

    input: Node
    rows: int | None = None
    even: bool = False
    """Whether every element has `rows` rows, so that a row can be found by its index."""

    traits = Trait.ELEMENTWISE | Trait.SAME_ON_FILES

    def spec_from(self, *inputs: Any) -> Any:
        return nest.map_structure(lambda leaf: leaf.unbatch(), inputs[0])

    def count_from(self, count: int) -> int:
        return count * self.rows if self.rows else UNKNOWN

    @property
    def obstacle(self) -> str | None:
        return None if self.even else "the number of rows of an element is not known in advance"


@node
class Rebatch(Node):
    """The rows of its input (an `Unbatch`), batched by a cycle of sizes."""

    input: Node
    sizes: tuple[int, ...]
    drop_remainder: bool = False
    static: bool = False

    traits = Trait.SAME_ON_FILES

    def spec_from(self, *inputs: Any) -> Any:
        one_size = len(set(self.sizes)) == 1 and (self.drop_remainder or self.static)
        rows = self.sizes[0] if one_size else None
        return nest.map_structure(lambda leaf: leaf.batch(rows), inputs[0])

    cardinality = UNKNOWN
    reason = "the number of rows of an element is not known in advance"


@node
class Pack(Node):
    """Rows of `length` tokens, each made of several elements, which are sequences of tokens."""

    input: Node
    length: int
    strategy: str
    separator: Values = None
    padding: Values = 0
    open_rows: int = 1
    too_long: str = "error"

    traits = Trait.SAME_ON_FILES

    @property
    def drops(self) -> bool:
        """Whether tokens behind the first `length` of an element are dropped."""
        return self.too_long == "truncate"

    def spec_from(self, *inputs: Any) -> Any:
        dtypes = dtypes_of(inputs[0])
        values_for("padding", self.padding, dtypes, 0)
        if self.separator is not None:
            values_for("separator", self.separator, dtypes, None)
        return packed_spec(inputs[0], self.length)

    def count_from(self, count: int) -> int:
        return UNKNOWN

    reason = "how many sequences fit into a row is not known in advance"


@node
class Window(Node):
    """Datasets of consecutive elements."""

    input: Node
    size: int
    shift: int
    stride: int = 1
    drop_remainder: bool = False

    traits = Trait.COUNTS_ON_FILES

    def spec_from(self, *inputs: Any) -> Any:
        return nest.map_structure(DatasetSpec, inputs[0])

    def count_from(self, count: int) -> int:
        span = (self.size - 1) * self.stride + 1
        if self.drop_remainder:
            return max(0, (count - span) // self.shift + 1) if count >= span else 0
        return -(-count // self.shift)

    reason = "a window holds the elements that it was made of"


@node
class GroupByWindow(Node):
    """Windows of elements with equal keys, each reduced to a dataset by a function."""

    input: Node
    key: Function
    reduce: Function
    size: int | Function
    keys: tuple[int, ...] = ()
    """All possible keys, if they are known: batches of each may have their own shape."""

    traits = Trait.MAKES_DATASETS
    opaque = True

    def count_from(self, count: int) -> int:
        return UNKNOWN

    by_epoch = True
    """The datasets that the function returns may be shuffled."""

    reason = "which elements belong together is not known in advance"


@node
class GroupByReducer(Node):
    """One element for each key: what functions made of the elements with this key, in order."""

    input: Node
    key: Function
    init: Function
    reduce: Function
    finalize: Function

    traits = Trait.NONE
    opaque = True

    cardinality = UNKNOWN
    reason = "every element depends on all elements with its key"


# Ordering


@node
class Shuffle(Node):
    """The elements in random order, within a window of `buffer`."""

    input: Node
    buffer: int
    seed: int
    reshuffle: bool = True
    drawn: bool = False

    traits = _SAME_ELEMENTS | _ON_ANY_FILES | Trait.DRAWS_ORDER
    seed_field = "seed"
    free_fields = ("drawn", "seed")

    @cached_property
    def by_epoch(self) -> bool:
        return self.reshuffle or self.input.by_epoch


@node
class ShuffleBlocks(Shuffle):
    """The blocks of a source in random order, and their elements within a window of `blocks`."""

    blocks: int = 1

    traits = _SAME_ELEMENTS | _ON_ANY_FILES | Trait.DRAWS_ORDER
    method = "shuffle"


@node
class Repeat(Node):
    """The elements, `count` times in a row, or without end (INFINITE)."""

    input: Node
    count: int = INFINITE

    traits = _SAME_ELEMENTS | _ON_ANY_FILES

    @cached_property
    def cardinality(self) -> int:
        inner = self.input.cardinality
        if inner == 0 or self.count == 0:
            return 0
        if self.count == INFINITE or inner == INFINITE:
            return INFINITE
        return inner * self.count if inner >= 0 else UNKNOWN


# Counting


@node
class Take(Node):
    """The first `count` elements."""

    input: Node
    count: int

    traits = _SAME_ELEMENTS | Trait.COUNTS_ON_FILES

    @cached_property
    def cardinality(self) -> int:
        inner = self.input.cardinality
        if inner == INFINITE or self.count == 0:
            return self.count
        return min(inner, self.count)


@node
class Skip(Node):
    """All but the first `count` elements."""

    input: Node
    count: int

    traits = _SAME_ELEMENTS | Trait.COUNTS_ON_FILES

    def count_from(self, count: int) -> int:
        return max(0, count - self.count)


@node
class Shard(Node):
    """Every `shards`-th element, from `index` on; if both are -1, a strategy will set them."""

    input: Node
    shards: int
    index: int

    traits = _SAME_ELEMENTS | Trait.COUNTS_ON_FILES

    @cached_property
    def cardinality(self) -> int:
        return UNKNOWN if self.shards < 1 else super().cardinality

    def count_from(self, count: int) -> int:
        return len(range(self.index, count, self.shards))

    @property
    def obstacle(self) -> str | None:
        return "a strategy has yet to say which elements these are" if self.shards < 1 else None


@node
class Enumerate(Node):
    """Pairs of (index, element)."""

    input: Node
    start: int = 0

    traits = Trait.NONE

    def spec_from(self, *inputs: Any) -> Any:
        return (TensorSpec((), int64_dtype), inputs[0])


@node
class Unique(Node):
    """The elements without later duplicates."""

    input: Node

    traits = Trait.NONE

    cardinality = UNKNOWN
    reason = "whether a value was there before depends on all before it"


@node
class AssertCardinality(Node):
    """The elements, with an error if there are not exactly `count`."""

    input: Node
    count: int

    traits = Trait.BY_POSITION | Trait.KEEPS_BATCH_SIZE | Trait.SAME_ON_FILES

    @cached_property
    def cardinality(self) -> int:
        return self.count

    @property
    def obstacle(self) -> str | None:
        fits = self.input.cardinality == self.count
        return None if fits else "the number of elements is checked by counting them"


# Merging


@node
class Zip(Node):
    """Elements that combine one element of each input, in the structure `tree`."""

    parts: tuple[Node, ...]
    tree: Any

    traits = Trait.COUNTS_ON_FILES

    def spec_from(self, *inputs: Any) -> Any:
        return nest.unflatten(self.tree, inputs)

    @cached_property
    def cardinality(self) -> int:
        counts = [node.cardinality for node in self.parts]
        if 0 in counts:
            return 0
        if UNKNOWN in counts:
            return UNKNOWN
        return min((count for count in counts if count >= 0), default=INFINITE)


@node
class Concatenate(Node):
    """The elements of `first`, then the elements of `second`."""

    first: Node
    second: Node

    traits = Trait.SAMPLED_BY_INPUT | Trait.SAME_ON_FILES

    def spec_from(self, *inputs: Any) -> Any:
        return relax_all(inputs, "Dataset.concatenate")

    @cached_property
    def cardinality(self) -> int:
        counts = (self.first.cardinality, self.second.cardinality)
        if INFINITE in counts:
            return INFINITE
        return UNKNOWN if UNKNOWN in counts else sum(counts)

    @cached_property
    def row(self) -> int:
        """How many concatenations there are in a row, each the `first` of the next."""
        return 1 + (self.first.row if isinstance(self.first, Concatenate) else 0)

    @property
    def obstacle(self) -> str | None:
        known = self.first.cardinality != UNKNOWN
        return None if known else "the length of the first dataset is not known"


LONGEST_ROW = 128
"""The most concatenations in a row, each the `first` of the next. Python's stack has 1000 frames,
of which a walk by recursion needs up to four for each operator."""


def concatenate(first: Node, second: Node) -> Concatenate:
    """The elements of `first`, then those of `second`.

    Behind a row of `LONGEST_ROW` concatenations, further datasets are added to its last one: the
    plan of thousands of datasets has little more than `LONGEST_ROW` levels.

    >>> plan = Range(0, 2, 1, int64_dtype)
    >>> for _ in range(1000):
    ...     plan = concatenate(plan, Range(0, 2, 1, int64_dtype))
    >>> plan.cardinality, plan.row
    (2002, 128)
    """
    if isinstance(first, Concatenate) and first.row >= LONGEST_ROW:
        return Concatenate(first.first, concatenate(first.second, second))
    return Concatenate(first, second)


@node
class Choose(Node):
    """Elements of `parts`, each taken from the dataset whose index `choice` gives."""

    choice: Node
    parts: tuple[Node, ...]
    stop_on_empty: bool = True

    traits = Trait.NONE

    def spec_from(self, *inputs: Any) -> Any:
        return relax_all(inputs[1:], "Dataset.choose_from_datasets")

    @cached_property
    def cardinality(self) -> int:
        endless = [part.cardinality == INFINITE for part in self.parts]
        never_ends = all(endless) or (any(endless) and not self.stop_on_empty)
        return INFINITE if never_ends and self.choice.cardinality == INFINITE else UNKNOWN

    reason = "which dataset an element comes from depends on the choices before it"


@node
class Mix(Node):
    """Elements of `parts` in the proportions of `weights`, exact at every prefix."""

    parts: tuple[Node, ...]
    names: tuple[str, ...]
    weights: tuple[float, ...]
    on_end: tuple[str, ...]
    """For each part: "stop", "repeat" or "drop"."""

    traits = Trait.SAMPLED_BY_INPUT | Trait.COUNTS_ON_FILES
    free_fields = ("weights",)

    def spec_from(self, *inputs: Any) -> Any:
        return relax_all(inputs, "Dataset.mix")

    @cached_property
    def cardinality(self) -> int:
        drawn = [
            (Repeat(part).cardinality if on_end == "repeat" else part.cardinality, on_end)
            for part, weight, on_end in zip(self.parts, self.weights, self.on_end, strict=True)
            if weight
        ]
        stops = any(on_end == "stop" and count != INFINITE for count, on_end in drawn)
        endless = any(count == INFINITE for count, _ in drawn)
        return INFINITE if endless and not stops else UNKNOWN

    reason = "which dataset an element comes from depends on how many were drawn before it"


# Buffering


@node
class Prefetch(Node):
    """The elements, computed in the background, up to `size` ahead."""

    input: Node
    size: int

    traits = _NO_CHANGE


class Store:
    """The memory of one cache; equal to itself only, and empty in every other process."""

    __leaf__ = True

    def __init__(self) -> None:
        self.chunks: list[Chunk] | None = None
        self.recording: list[Chunk] = []
        """What the pass that began last has recorded so far."""
        self.moved: list[Chunk] = []
        """The first elements, as another process has recorded them: a pass that resumes behind or
        among them fills the cache, too."""
        self.partial_passes = 0
        """The number of passes that ended before they filled the cache."""
        self._lock = threading.Lock()
        """Guards `chunks` and `moved`: only one of several concurrent passes fills the cache."""

    def fill(self, chunks: list[Chunk]) -> bool:
        """Stores the elements of a pass; returns False if the cache was filled already."""
        with self._lock:
            if self.chunks is not None:
                return False
            self.chunks, self.moved = chunks, []
            return True

    def list_chunks(self) -> tuple[list[Chunk], bool]:
        """The elements, and whether these are all; if not, those that a pass has recorded."""
        full = self.chunks
        return [*(self.recording if full is None else full)], full is not None

    def add(self, start: int, chunk: Chunk | None, is_full: bool) -> bool:
        """Adds what another process has from element `start` on; with the last of it, it `is_full`.

        Returns False if elements before `start` are missing.
        """
        with self._lock:
            held = sum(map(len, self.moved))
            if self.chunks is not None or start > held:
                return self.chunks is not None
            if chunk is not None and start + len(chunk) > held:
                self.moved.append(chunk.rows(held - start, len(chunk)))
            if is_full:
                self.chunks, self.moved = self.moved, []
            return True

    def begin_behind(self, count: int) -> list[Chunk] | None:
        """The first `count` elements, if another process has handed them over.

        Else no pass can fill the cache with what it has handed over, and that is dropped.
        """
        with self._lock:
            found: list[Chunk] = []
            for chunk in self.moved:
                if count > 0:
                    found.append(chunk.rows(0, count))
                    count -= len(found[-1])
            if count or not self.moved:
                self.moved = []
                return None
            return found

    def drop_moved(self) -> None:
        """Drops what another process has handed over, unless the cache is full."""
        with self._lock:
            self.moved = []

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, ()


@node
class Cache(Node):
    """The elements, stored in memory or in a file by the first complete pass."""

    input: Node
    filename: str
    store: Store

    traits = Trait.SAMPLED_BY_INPUT | Trait.KEEPS_BATCH_SIZE | Trait.SAME_ON_FILES
    free_fields = ("filename",)

    reason = "a cache is filled by one pass from the start to the end"


@node
class Snapshot(Node):
    """The elements, stored in a folder by the first complete pass."""

    input: Node
    path: str
    compression: str | None = None
    reader: Function | None = None
    shard: Function | None = None

    traits = Trait.SAME_ON_FILES
    free_fields = ("compression", "path")

    reason = "a snapshot is filled by one pass from the start to the end"


@node
class WithOptions(Node):
    """The elements, with options for the whole plan."""

    input: Node
    options: Options

    traits = _NO_CHANGE


def walk_plan(node: Node, *, into_services: bool = True) -> Iterator[Node]:
    """The operators of a plan, each before its inputs; those of services only `into_services`."""
    stack = [node]
    while stack:
        one = stack.pop()
        yield one
        if into_services or not one.sealed:
            stack += reversed(one.inputs)


def rewrite(node: Node, change: Callable[[Node], Node]) -> Node:
    """The plan with `change` applied to every operator, inputs first.

    What a service computes stays as it is.
    """
    if node.sealed:
        return node
    return change(node.with_inputs(tuple(rewrite(part, change) for part in node.inputs)))


def options_of(node: Node) -> Options:
    """The options of a plan, merged; later settings override earlier ones.

    If a service computes a part of a plan, the options of that part apply only there.
    """
    merged = NO_OPTIONS
    for part in node.inputs if node.sealed else (node,):
        for options in _options_in(part):
            merged = merged.merge(options)
    return merged


NO_OPTIONS = Options().make_frozen()


def with_options_of(plan: Node, part: Node) -> Node:
    """A part of a plan, with all options of the plan, wherever they were set."""
    options = options_of(plan)
    return part if options == NO_OPTIONS else WithOptions(part, options.make_frozen())


def _options_in(node: Node) -> Iterator[Options]:
    for part in () if node.sealed else node.inputs:
        yield from _options_in(part)
    if isinstance(node, WithOptions):
        yield node.options


# Service


@node
class Tail(Node):
    """The elements from `start` on of a plan with random access, with their numbers in that plan.

    Random numbers depend on an element's number, so a piece of a plan gets those of the plan.
    """

    input: Node
    start: int

    traits = Trait.NONE

    def count_from(self, count: int) -> int:
        return max(0, count - self.start)


@node
class OneRepetition(Node):
    """Repetition `number` of a repeated plan, without the other repetitions."""

    input: Node
    number: int

    traits = Trait.NONE


@node
class Branch(Node):
    """Branch `number` of a plan. Each branch draws its own random numbers.

    Without a number it is the branch whose elements have the numbers that they have in its input.
    It has no random access, as the whole plan has none: operators behind it count in the same way.
    """

    input: Node
    number: int | None

    traits = Trait.ELEMENTWISE | Trait.ONE_TO_ONE

    reason = "it is one of several branches"


class IterationCounter:
    """Counts the iterations of one dataset that begin in this process.

    Equal to itself only, and at 0 in every other process.
    """

    __leaf__ = True

    def __init__(self) -> None:
        self._next = 0
        self._lock = threading.Lock()
        """Guards `_next`: several threads may begin iterations."""

    def begin(self) -> int:
        """Returns the number of a new iteration."""
        with self._lock:
            self._next += 1
            return self._next - 1

    def resume(self, number: int) -> None:
        """Continues iteration `number` in this process: new ones get higher numbers."""
        with self._lock:
            self._next = max(self._next, number + 1)

    def __reduce__(self) -> tuple[Any, ...]:
        return IterationCounter, ()


_ENDLESS_MODES = (ShardingPolicy.OFF, ShardingPolicy.DYNAMIC, ShardingPolicy.DATA)
"""The modes in which an endless dataset stays endless.

The other modes divide a source: in `range(10).batch(10, drop_remainder=True).repeat()`, the part of
each worker may be too short for one batch.
"""


@node
class Distribute(Node):
    """The elements, computed by the workers of a service.

    Without `input`, only the dispatcher has the dataset, as `dataset_id`; then `element` is its
    spec and `known` its cardinality, if that holds for readers that share it with no other reader.
    """

    input: Node | None
    service: str
    mode: int
    job_name: str | None = None
    consumer_index: int | None = None
    num_consumers: int | None = None
    max_outstanding: int | None = None
    transfer: str | None = None
    compression: str | None = None
    trainer: str | None = None
    target: str = "AUTO"
    dataset_id: str | None = None
    element: Any = None
    known: int = UNKNOWN
    iterations: IterationCounter = dataclasses.field(default_factory=IterationCounter)

    traits = Trait.NONE
    free_fields = (
        "compression",
        "consumer_index",
        "dataset_id",
        "job_name",
        "max_outstanding",
        "service",
        "target",
        "trainer",
        "transfer",
    )

    def spec_from(self, *inputs: Any) -> Any:
        return inputs[0] if inputs else self.element

    @cached_property
    def cardinality(self) -> int:
        """That of the input, if this reader gets exactly its elements under all options."""
        count = self.known if self.input is None else self.input.cardinality
        if count == INFINITE:
            return INFINITE if self.mode in _ENDLESS_MODES else UNKNOWN
        is_alone = self.mode == ShardingPolicy.DYNAMIC and self.job_name is None
        is_divided = self.input is None or self.input.blocked is None
        return count if count == 0 or (is_alone and is_divided) else UNKNOWN

    reason = "the service decides which worker computes which elements"
    sealed = True

    loose = True

    @property
    def sharded_elsewhere(self) -> bool:
        """The readers of a named job share its elements."""
        return self.job_name is not None


def is_shared(node: Node) -> bool:
    """Whether the reader of this plan shares elements with other readers of a named job."""
    return any(
        isinstance(one, Distribute) and one.job_name is not None and not one.num_consumers
        for one in walk_plan(node, into_services=False)
    )


def known_spec(node: Node) -> Any:
    """The spec, if it holds for every element because no function was called for it; else None.

    Code must not decide anything by a spec that was found on samples.
    """
    if node.found_spec is not None:
        return None if node.found_spec.sampled else node.found_spec.spec
    inputs = [known_spec(part) for part in node.inputs]
    if node.declared_spec is None and any(spec is None for spec in inputs):
        return None
    spec = node.spec_from(*inputs)
    if spec is OPAQUE:
        return None
    node.keep_spec(spec)
    return spec


def known_rows(node: Node) -> int | None:
    """How many rows every element has because of a `batch`, also if `known_spec` knows nothing."""
    if isinstance(node, Batch):
        return node.rows
    if node.traits & (Trait.SAMPLED_BY_INPUT | Trait.ADVISORY) and len(node.inputs) == 1:
        return known_rows(node.inputs[0])
    return None
