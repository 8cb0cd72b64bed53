"""Free functions of `tf.data.experimental`: transformations for `Dataset.apply`, and some results.

Most of them repeat a method of `Dataset`, for code that was written before the method existed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec

import numpy as np

from penstock.data import arguments as check
from penstock.data.dataset import Dataset
from penstock.data.tracing import reducer_functions
from penstock.element import nest
from penstock.element.chunk import Chunk
from penstock.element.optional import Optional
from penstock.element.spec import TensorSpec
from penstock.element.values import zeros
from penstock.engine.context import DebugMode
from penstock.errors import (
    InvalidArgumentError,
    NotAConfigError,
    NotADatasetError,
    OutOfRangeError,
    UnfitTypeError,
)
from penstock.plan.nodes import AssertCardinality, Data, GroupByReducer, Slices

__all__ = [
    "assert_cardinality",
    "at",
    "bucket_by_sequence_length",
    "cardinality",
    "choose_from_datasets",
    "Counter",
    "dense_to_ragged_batch",
    "enable_debug_mode",
    "enumerate_dataset",
    "from_list",
    "get_next_as_optional",
    "get_single_element",
    "get_structure",
    "group_by_reducer",
    "group_by_window",
    "ignore_errors",
    "load",
    "map_and_batch",
    "pad_to_cardinality",
    "parallel_interleave",
    "RandomDataset",
    "Reducer",
    "rejection_resample",
    "sample_from_datasets",
    "save",
    "scan",
    "shuffle_and_repeat",
    "snapshot",
    "take_while",
    "unbatch",
    "unique",
]

Transformation = Callable[[Dataset], Dataset]


def cardinality(dataset: Dataset) -> np.int64:
    """How many elements: `Dataset.cardinality`.

    >>> int(cardinality(Dataset.range(3)))
    3
    """
    return dataset.cardinality()


def assert_cardinality(expected_cardinality: int) -> Transformation:
    """States the number of elements; iterating raises if there are more or less.

    >>> ds = Dataset.range(9).filter(lambda x: x > 4)
    >>> len(ds.apply(assert_cardinality(4)))
    4
    """
    count = check.integer("assert_cardinality", "expected_cardinality", expected_cardinality)
    return lambda dataset: Dataset(
        AssertCardinality(check.plan_of("assert_cardinality", "dataset", dataset), count)
    )


def pad_to_cardinality(cardinality: int, mask_key: str = "valid") -> Transformation:
    """Adds elements of zeros until there are `cardinality`, and a mask that marks the real ones.

    Args:
        cardinality: The number of elements of the result.
        mask_key: The key of the mask; elements must be dicts.

    >>> ds = Dataset.from_tensor_slices({"a": [1, 2]}).apply(pad_to_cardinality(3))
    >>> [(int(x["a"]), bool(x["valid"])) for x in ds]
    [(1, True), (2, True), (0, False)]
    """
    where = "pad_to_cardinality"
    wanted = check.integer(where, "cardinality", cardinality)

    def apply(dataset: Dataset) -> Dataset:
        count = int(dataset.cardinality())
        if count < 0:
            raise InvalidArgumentError(
                f"{where}: the number of elements must be known, got {count}"
            )
        if count > wanted:
            raise InvalidArgumentError(f"{where}: there are {count} elements already, not {wanted}")
        spec = dataset.element_spec
        if not isinstance(spec, Mapping):
            raise InvalidArgumentError(f"{where}: elements must be dicts, got {spec}")
        masked = dataset.map(
            lambda element: element | {mask_key: np.True_},
            output_signature=dict(spec) | {mask_key: TensorSpec((), np.bool_)},
        )
        nothing = nest.map_structure(zeros, spec) | {mask_key: np.False_}
        return masked.concatenate(Dataset.from_tensors(nothing).repeat(wanted - count))

    return apply


def at(dataset: Dataset, index: int) -> Any:
    """The element at an index, for datasets with random access.

    >>> print(at(Dataset.range(5).batch(2), 1))
    [2 3]
    """
    check.plan_of("at", "dataset", dataset)
    number = check.integer("at", "index", index)
    if number < 0:
        raise OutOfRangeError(f"at: index must be at least 0, got {number}")
    return dataset[number]


def get_single_element(dataset: Dataset) -> Any:
    """The element of a dataset that has exactly one.

    >>> print(get_single_element(Dataset.from_tensors(7)))
    7
    """
    return dataset.get_single_element()


def enable_debug_mode() -> None:
    """Runs prefetch and parallel calls in the caller's thread, so that breakpoints stop there.

    It applies to all iterators of this process that are opened afterwards, and stays on. For one
    dataset, set `Options.executor` to "inline".

    >>> from penstock.data import Options
    >>> ds = Dataset.range(3).map(lambda x: x + 1, num_parallel_calls=2).prefetch(2)
    >>> print(*ds.with_options(Options(executor="inline")))
    1 2 3
    """
    DebugMode.enabled = True


def get_structure(dataset_or_iterator: Any) -> Any:
    """What an element looks like: `element_spec`.

    >>> get_structure(Dataset.range(3))
    TensorSpec(shape=(), dtype=tf.int64, name=None)
    """
    if not hasattr(dataset_or_iterator, "element_spec"):
        raise NotADatasetError(
            "get_structure: dataset_or_iterator must be a Dataset or an Iterator, got "
            f"{check.describe(dataset_or_iterator)}"
        )
    return dataset_or_iterator.element_spec


def get_next_as_optional(iterator: Any) -> Optional:
    """The next element of an iterator, or an empty `Optional` at its end.

    >>> bool(get_next_as_optional(iter(Dataset.range(1))).has_value())
    True
    """
    optional: Optional = iterator.get_next_as_optional()
    return optional


def from_list(elements: Sequence[Any], name: str | None = None) -> Dataset:
    """A dataset of given elements, which are any structures of one kind.

    >>> print(*from_list([(1, b"a"), (2, b"b")]).map(lambda x, y: x))
    1 2
    """
    where = "from_list"
    if not isinstance(elements, list):
        raise UnfitTypeError(f"{where}: needs a list of elements, got {check.describe(elements)}")
    if not elements:
        raise InvalidArgumentError(f"{where}: needs at least one element")
    converted = [check.element(where, element) for element in elements]
    return Dataset(Slices(Data(Chunk.of(converted, where).as_read_only())))


Arguments = ParamSpec("Arguments")


def _for_apply(
    method: Callable[Concatenate[Dataset, Arguments], Dataset],
) -> Callable[Arguments, Transformation]:
    """The function that takes the arguments of a method, and returns a transformation for `apply`.

    >>> ds = Dataset.range(1, 3).map(lambda x: np.full(x, x))
    >>> print(*ds.apply(dense_to_ragged_batch(2)))
    <Ragged [[1], [2, 2]]>
    """

    @functools.wraps(method)
    def make(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Transformation:
        return lambda dataset: method(dataset, *args, **kwargs)

    parameters = inspect.signature(method).parameters.values()
    shown = [one for one in parameters if one.name not in ("self", "name")]
    make.__dict__["__signature__"] = inspect.Signature(shown)
    return make


dense_to_ragged_batch = _for_apply(Dataset.ragged_batch)
unbatch = _for_apply(Dataset.unbatch)
unique = _for_apply(Dataset.unique)
ignore_errors = _for_apply(Dataset.ignore_errors)
enumerate_dataset = _for_apply(Dataset.enumerate)
take_while = _for_apply(Dataset.take_while)
scan = _for_apply(Dataset.scan)
snapshot = _for_apply(Dataset.snapshot)
group_by_window = _for_apply(Dataset.group_by_window)
bucket_by_sequence_length = _for_apply(Dataset.bucket_by_sequence_length)
rejection_resample = _for_apply(Dataset.rejection_resample)


@dataclass(frozen=True)
class Reducer:
    """What `group_by_reducer` does with the elements of one key.

    Args:
        init_func: Gets the key, and returns the first state.
        reduce_func: Gets (state, element), and returns the next state.
        finalize_func: Gets the last state, and returns the element of the result.

    >>> counts = Reducer(lambda key: np.int64(0), lambda state, x: state + 1, lambda state: state)
    >>> print(*Dataset.range(5).apply(group_by_reducer(lambda x: x % 2, counts)))
    3 2
    """

    init_func: Callable[..., Any]
    reduce_func: Callable[..., Any]
    finalize_func: Callable[..., Any]


def group_by_reducer(key_func: Callable[..., Any], reducer: Reducer) -> Transformation:
    """One element for each key, made of all elements with this key; in the order of the keys.

    Args:
        key_func: Gets an element and returns its key, an int64.
        reducer: A `Reducer`.

    >>> sums = Reducer(lambda key: np.int64(0), lambda state, x: state + x, lambda state: state)
    >>> print(*Dataset.range(5).apply(group_by_reducer(lambda x: x % 2, sums)))
    6 4
    """
    where = "group_by_reducer"

    def apply(dataset: Dataset) -> Dataset:
        plan = check.plan_of(where, "dataset", dataset)
        if not isinstance(reducer, Reducer):
            raise NotAConfigError(
                f"{where}: reducer must be a Reducer, got {check.describe(reducer)}"
            )
        key, init, reduce, finalize = reducer_functions(
            where,
            key=key_func,
            init=reducer.init_func,
            reduce=reducer.reduce_func,
            finalize=reducer.finalize_func,
            plan=plan,
        )
        return Dataset(GroupByReducer(plan, key, init, reduce, finalize))

    return apply


def parallel_interleave(
    map_func: Callable[..., Any],
    cycle_length: int,
    block_length: int = 1,
    sloppy: bool | None = False,
    buffer_output_elements: int | None = None,
    prefetch_input_elements: int | None = None,
) -> Transformation:
    """`Dataset.interleave` with parallel calls, for `apply`; `sloppy` gives up the order.

    With `sloppy=None`, `Options.deterministic` decides it. The sizes of its buffers are checked and
    not used: threads read ahead as far as it helps.

    >>> twice = parallel_interleave(lambda x: Dataset.from_tensors(x).repeat(2), cycle_length=2)
    >>> print(*Dataset.range(4).apply(twice))
    0 1 0 1 2 3 2 3
    """
    for name, size, least in (
        ("buffer_output_elements", buffer_output_elements, 1),
        ("prefetch_input_elements", prefetch_input_elements, 0),
    ):
        if size is not None:
            check.integer("parallel_interleave", name, size, at_least=least)
    return lambda dataset: dataset.interleave(
        map_func,
        cycle_length=cycle_length,
        block_length=block_length,
        num_parallel_calls=cycle_length,
        deterministic=None if sloppy is None else not sloppy,
    )


def map_and_batch(
    map_func: Callable[..., Any],
    batch_size: int,
    num_parallel_batches: int | None = None,
    drop_remainder: bool = False,
    num_parallel_calls: int | None = None,
) -> Transformation:
    """`Dataset.map` and then `Dataset.batch`, for `apply`.

    `num_parallel_batches` is another way to say `num_parallel_calls`, in batches.

    >>> print(*Dataset.range(4).apply(map_and_batch(lambda x: x * x, 2)))
    [0 1] [4 9]
    """
    where = "map_and_batch"
    if num_parallel_batches is not None and num_parallel_calls is not None:
        raise InvalidArgumentError(
            f"{where}: num_parallel_batches={num_parallel_batches} and num_parallel_calls="
            f"{num_parallel_calls} say the same; give one of them"
        )
    calls = num_parallel_calls
    if num_parallel_batches is not None:
        size = check.integer(where, "batch_size", batch_size, at_least=1)
        calls = size * check.integer(where, "num_parallel_batches", num_parallel_batches, 1)
    return lambda dataset: dataset.map(map_func, calls).batch(batch_size, drop_remainder)


def shuffle_and_repeat(
    buffer_size: int, count: int | None = None, seed: int | None = None
) -> Transformation:
    """`Dataset.shuffle` and then `Dataset.repeat`, for `apply`.

    >>> dataset = Dataset.range(3).apply(shuffle_and_repeat(3, count=2, seed=1))
    >>> sorted(dataset)[:3]
    [np.int64(0), np.int64(0), np.int64(1)]
    """
    if count is not None and check.integer("shuffle_and_repeat", "count", count) == 0:
        raise InvalidArgumentError("shuffle_and_repeat: count must not be 0")
    return lambda dataset: dataset.shuffle(buffer_size, seed).repeat(count)


def save(
    dataset: Dataset,
    path: Any,
    compression: str | None = None,
    shard_func: Callable[..., Any] | None = None,
    checkpoint_args: Any = None,
) -> None:
    """Writes all elements into a folder: `Dataset.save`.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> save(Dataset.range(3), folder)
    >>> print(*load(folder))
    0 1 2
    """
    dataset.save(
        path, compression=compression, shard_func=shard_func, checkpoint_args=checkpoint_args
    )


Counter = Dataset.counter
RandomDataset = Dataset.random
load = Dataset.load
choose_from_datasets = Dataset.choose_from_datasets
sample_from_datasets = Dataset.sample_from_datasets
