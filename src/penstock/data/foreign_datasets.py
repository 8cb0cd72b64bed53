"""Frames and datasets of other libraries: pandas, Polars, Hugging Face, PyTorch and Ray Data.

Nothing here imports a library before the user has passed one of its objects.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from penstock.data import arguments as check
from penstock.data.table_plans import (
    comes_from,
    describe_columns,
    plan_files,
    plan_positions,
    plan_table,
    select_columns,
)
from penstock.element import nest
from penstock.element.columns import take
from penstock.element.spec import TensorSpec
from penstock.element.values import as_array, as_element, spec_of
from penstock.engine.formats.arrow_columns import ArrowBlock, check_fill, specs_of
from penstock.engine.formats.extras import load_extra
from penstock.engine.formats.tables import Selection
from penstock.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from penstock.plan.functions import Function, calls_method
from penstock.plan.nodes import Generator, Map, Node, Range, Unbatch


def table_of_pandas(frame: Any) -> Any:
    """The columns of a pandas frame as an Arrow table; the index is left out.

    NaN is a value in a column of floats, and a missing value in every other column.
    """
    call = "Dataset.from_pandas"
    if not comes_from(frame, "pandas") or not hasattr(frame, "columns"):
        raise InvalidTypeError(f"{call}: needs a DataFrame, got {check.describe(frame)}")
    arrow = load_extra("pyarrow", call)
    arrays = {}
    counts = collections.Counter(frame.columns)
    for name in frame.columns:
        if not isinstance(name, str) or counts[name] > 1:
            raise InvalidArgumentError(
                f"{call}: columns must have different names that are strings, got {name!r}; "
                "name them, as in frame.set_axis(names, axis=1)"
            )
        try:
            arrays[name] = _array_of_series(arrow, frame[name])
        except (arrow.ArrowException, TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"{call}: column {name!r} of dtype {frame[name].dtype} cannot be read: {error}; "
                "convert it, as in frame[name].astype(str), or leave it out with frame.drop"
            ) from error
    return arrow.table(arrays)


def _array_of_series(arrow: Any, series: Any) -> Any:
    dtype = series.dtype
    if isinstance(dtype, np.dtype) and dtype.kind == "f":
        return arrow.array(series.to_numpy(), from_pandas=False)
    return arrow.array(series, from_pandas=True)


def table_of_polars(frame: Any) -> Any:
    """A Polars frame as an Arrow table."""
    call = "Dataset.from_polars"
    if comes_from(frame, "polars") and hasattr(frame, "collect"):
        raise InvalidTypeError(
            f"{call}: a LazyFrame has no rows yet; pass frame.collect(), or read its files with "
            "Dataset.from_parquet"
        )
    if not comes_from(frame, "polars") or not hasattr(frame, "columns"):
        raise InvalidTypeError(f"{call}: needs a DataFrame, got {check.describe(frame)}")
    load_extra("pyarrow", call)
    for name, dtype in frame.schema.items():
        if dtype.is_nested() or str(dtype) != "Object":
            continue
        raise InvalidArgumentError(
            f"{call}: column {name!r} has Python objects, which no element can have; convert it, "
            "or leave it out with frame.drop"
        )
    return frame.to_arrow()


def plan_huggingface(dataset: Any, columns: Any, fill: Any) -> Node:
    """The rows of a Hugging Face dataset, from its Arrow table."""
    source, call = "from_huggingface", "Dataset.from_huggingface"
    if isinstance(dataset, dict):
        raise InvalidTypeError(
            f"{call}: this is a dict of datasets; choose one of {', '.join(map(repr, dataset))}"
        )
    if not comes_from(dataset, "datasets"):
        raise InvalidTypeError(f"{call}: needs a datasets.Dataset, got {check.describe(dataset)}")
    if not hasattr(dataset, "data"):
        return _plan_stream(call, dataset, columns, fill)
    if dataset.format["type"] == "custom":
        raise InvalidArgumentError(
            f"{call}: the dataset has a transform, which would not be called; remove it with "
            "with_format(None), and use Dataset.map"
        )
    names = list(dataset.format["columns"]) if columns is None else columns
    paths = _mapped_paths(dataset.data)
    if paths is None:
        plan = plan_table(source, dataset.data.table, columns=names, fill=fill)
    else:
        plan = plan_files(source, "arrow", paths=paths, columns=names, fill=fill)
    indices = dataset._indices
    return plan if indices is None else plan_positions(plan, indices.column(0).to_numpy())


def _mapped_paths(table: Any) -> list[str] | None:
    """The files that a table maps, if it has exactly their rows and columns; else None."""
    blocks = getattr(table, "blocks", [[table]])
    parts = [block[0] for block in blocks if len(block) == 1]
    mapped = [part for part in parts if getattr(part, "path", None) and _keeps_rows(part.replays)]
    if len(mapped) != len(blocks):
        return None
    return [part.path for part in mapped]


def _keeps_rows(replays: Any) -> bool:
    """Whether the changes that a table makes to its file only choose columns."""
    return all(name in ("drop", "replace_schema_metadata", "select") for name, *_ in replays or ())


def _plan_stream(call: str, dataset: Any, columns: Any, fill: Any) -> Node:
    """The rows of a dataset that can only be read from its start, some Arrow tables at a time."""
    features = dataset.features
    by_rows = dataset._ex_iterable.iter_arrow is None
    if features is None:
        first = next(_read_tables(dataset.with_format("arrow"), by_rows), None)
        if first is None:
            raise InvalidArgumentError(f"{call}: the dataset is empty")
        schema = first.schema
    else:
        schema = features.arrow_schema
    if columns is not None:  # Hugging Face then reads no other columns.
        names = select_columns(call, columns, specs_of(schema), "")
        dataset = dataset.select_columns(list(names))
        schema = load_extra("pyarrow", call).schema([schema.field(name) for name in names])
    stream = dataset.with_format("arrow")
    tables = functools.partial(iterate_huggingface, stream, schema, by_rows)
    return _plan_tables(call, tables, schema, columns, fill)


def _read_tables(stream: Any, by_rows: bool) -> Iterator[Any]:
    """Some rows at a time. Hugging Face joins only rows of equal types, so those are joined here.

    A value that is missing, an empty list or a whole number has another type than its neighbours.
    """
    if not by_rows:
        yield from stream.iter(_ROWS)
        return
    rows, first = stream.iter(1), 0
    while group := list(itertools.islice(rows, _ROWS)):
        yield _join_rows(group, first)
        first += len(group)


def _join_rows(rows: list[Any], first: int) -> Any:
    arrow, joined = load_extra("pyarrow", _HUGGINGFACE), rows[0].slice(0, 0)
    try:
        return arrow.concat_tables(rows, promote_options="permissive")
    except arrow.ArrowException:
        for number, row in enumerate(rows, first):
            joined = _append_row(joined, row, number)
        raise


def _append_row(table: Any, row: Any, number: int) -> Any:
    arrow = load_extra("pyarrow", _HUGGINGFACE)
    try:
        return arrow.concat_tables([table, row], promote_options="permissive")
    except arrow.ArrowException as error:
        raise InvalidArgumentError(
            f"{_HUGGINGFACE}: row {number} has {describe_columns(row.schema)}, but the rows "
            f"before have {describe_columns(table.schema)} ({error}); {_STATE_TYPES}"
        ) from error


def iterate_huggingface(stream: Any, schema: Any, by_rows: bool) -> Iterator[Any]:
    """The rows of a stream as Arrow tables, all of one schema."""
    first = 0
    for table in _read_tables(stream, by_rows):
        yield _with_schema(table, schema, first)
        first += len(table)


def _with_schema(table: Any, schema: Any, first: int) -> Any:
    """The table with the columns of a schema, if each of them can hold its values."""
    known = table.select([name for name in table.column_names if name in schema.names])
    if known.schema.equals(schema):
        return known
    arrow = load_extra("pyarrow", _HUGGINGFACE)
    with contextlib.suppress(arrow.ArrowException):
        known = arrow.concat_tables([schema.empty_table(), known], promote_options="permissive")
    if not known.schema.equals(schema):
        raise InvalidArgumentError(
            f"{_HUGGINGFACE}: rows {first} to {first + len(table) - 1} have "
            f"{describe_columns(table.schema)}, but the first rows have "
            f"{describe_columns(schema)}; {_STATE_TYPES}"
        )
    return known


_HUGGINGFACE = "Dataset.from_huggingface"

_STATE_TYPES = (
    "state the types of all columns, as in "
    "dataset.cast(datasets.Features({'x': datasets.Value('float64')}))"
)


def _plan_tables(
    call: str, tables: Callable[[], Iterator[Any]], schema: Any, columns: Any, fill: Any
) -> Node:
    """The rows of Arrow tables of one schema, which `tables` makes anew for each iteration."""
    specs = specs_of(schema)
    names = select_columns(call, columns, specs, "")
    kinds = {name: schema.field(name).type for name in names}
    selection = Selection(call, "", names, check_fill(call, fill, kinds))
    batches = Function(functools.partial(iterate_batches, tables, selection))
    signature = {name: nest.map_structure(lambda s: s.batch(None), specs[name]) for name in names}
    return Unbatch(Generator(batches, (), signature))


def iterate_batches(tables: Callable[[], Iterator[Any]], selection: Selection) -> Iterator[Any]:
    """The columns of Arrow tables, a batch at a time."""
    first = 0
    for table in tables():
        for batch in table.combine_chunks().to_batches():
            rows = ArrowBlock(batch, first, selection).rows(range(batch.num_rows), take)
            yield nest.unflatten(rows.tree, rows.columns)
            first += batch.num_rows


_ROWS = 256
"""How many rows of a stream are converted at once."""


def plan_ray(dataset: Any, columns: Any, fill: Any) -> Node:
    """The rows of a dataset of Ray Data: by position if it is materialized, else in its order."""
    call = "Dataset.from_ray"
    if not comes_from(dataset, "ray") or not hasattr(dataset, "to_arrow_refs"):
        raise InvalidTypeError(f"{call}: needs a ray.data.Dataset, got {check.describe(dataset)}")
    arrow, data = load_extra("pyarrow", call), load_extra("ray.data", call, "ray")
    if isinstance(dataset, data.dataset.MaterializedDataset):
        blocks = load_extra("ray", call, "ray").get(dataset.to_arrow_refs())
        table = arrow.concat_tables(map(_with_plain_tensors, blocks))
        return plan_table("from_ray", table, columns=columns, fill=fill)
    # A saved state counts rows, so each iteration must have the same order.
    dataset.context.execution_options.preserve_order = True
    try:
        first = dataset.take_batch(1, batch_format="pyarrow")
    except ValueError:
        raise InvalidArgumentError(f"{call}: the dataset is empty") from None
    schema = _with_plain_tensors(first).schema
    return _plan_tables(call, functools.partial(iterate_ray, dataset), schema, columns, fill)


def iterate_ray(dataset: Any) -> Iterator[Any]:
    """The rows of a dataset of Ray Data, as Arrow tables; Ray computes it for this iteration."""
    if not load_extra("ray", "Dataset.from_ray", "ray").is_initialized():
        raise FailedPreconditionError(
            "Dataset.from_ray: this process is not connected to Ray; read the dataset in a program "
            "or task of Ray, or save it to files that workers read"
        )
    batches = dataset.iter_batches(batch_size=_ROWS, batch_format="pyarrow")
    return map(_with_plain_tensors, batches)


def _with_plain_tensors(table: Any) -> Any:
    """The table with Ray's columns of tensors as columns of Arrow's own type for tensors."""
    for number, field in enumerate(table.schema):
        if getattr(field.type, "extension_name", "").startswith("ray.data.arrow_tensor"):
            table = table.set_column(number, field.name, _plain_tensors(table.column(number)))
    return table


def _plain_tensors(column: Any) -> Any:
    arrow = load_extra("pyarrow", "Dataset.from_ray")
    shape = tuple(column.type.shape)
    kind = arrow.fixed_shape_tensor(column.type.storage_type.value_type, shape)
    chunks = []
    for chunk in column.chunks:
        lists = arrow.FixedSizeListArray.from_arrays(chunk.storage.flatten(), math.prod(shape))
        chunks.append(arrow.ExtensionArray.from_storage(kind, lists))
    return arrow.chunked_array(chunks, kind)


def plan_torch(dataset: Any, parallel: Any) -> Node:
    """The items of a PyTorch dataset: by index if it has a length, else in its own order."""
    call = "Dataset.from_torch"
    calls = check.parallelism(call, "num_parallel_calls", parallel)
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        numbers = Range(0, len(dataset), 1, check.dtype(call, "dtype", np.int64))
        item = Function(functools.partial(get_item, dataset))
        return Map(numbers, item, parallel=calls)
    if not hasattr(dataset, "__iter__"):
        raise InvalidTypeError(
            f"{call}: needs a dataset with __getitem__ and __len__, or with __iter__, got "
            f"{check.describe(dataset)}"
        )
    if calls is not None:
        raise InvalidArgumentError(
            f"{call}: num_parallel_calls={parallel} needs a dataset with __getitem__ and __len__; "
            f"{type(dataset).__name__} can only be iterated over"
        )
    return _plan_iterable(call, dataset)


def _plan_iterable(call: str, dataset: Any) -> Node:
    """The elements of an iterable; its first one says what they look like."""
    first = next(iterate(dataset), _NOTHING)
    if first is _NOTHING:
        raise InvalidArgumentError(f"{call}: the dataset is empty")
    signature = nest.map_structure(_any_length, spec_of(check.element(call, first, as_element)))
    return Generator(Function(functools.partial(iterate, dataset)), (), signature)


_NOTHING = object()


def _any_length(spec: Any) -> Any:
    """Other elements may have other shapes of the same rank."""
    if isinstance(spec, TensorSpec) and spec.shape.rank:
        return TensorSpec([None] * spec.shape.rank, spec.dtype)
    return spec


@calls_method("__iter__", given_to="from_torch")
def iterate(dataset: Any) -> Iterator[Any]:
    """The elements of a PyTorch dataset."""
    return map(_without_tensors, iter(dataset))


@calls_method("__getitem__", given_to="from_torch")
def get_item(dataset: Any, number: Any) -> Any:
    """One item of a PyTorch dataset."""
    return _without_tensors(dataset[int(number)])


def _without_tensors(value: Any) -> Any:
    """Tensors of any device as arrays; everything else as it is."""
    kind = type(value)
    if kind is tuple:
        return tuple([_without_tensors(part) for part in value])
    if kind is dict:
        return {key: _without_tensors(part) for key, part in value.items()}
    if isinstance(value, np.ndarray | np.generic | int | float | str | bytes):
        return value
    if hasattr(value, "detach"):
        return _array_of(value)
    leaves, tree = nest.flatten(value)
    if tree == nest.LEAF:
        return value
    return nest.unflatten(tree, [_without_tensors(leaf) for leaf in leaves])


def _array_of(tensor: Any) -> Any:
    try:
        return tensor.numpy(force=True)
    except (TypeError, RuntimeError):  # It needs a conversion, or an error that says what to do.
        return as_array(tensor.detach().cpu())
