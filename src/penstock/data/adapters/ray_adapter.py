"""Datasets for Ray Data: a `ray.data.Dataset` whose blocks tasks of Ray compute.

A task computes one shard of the plan, so the rows have the order of the dataset if Ray keeps it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from penstock.data.arguments import integer
from penstock.data.dataset import Dataset
from penstock.data.shard_contents import ShardContent, divide_plan, read_shard
from penstock.element import nest
from penstock.element.columns import Array, Column
from penstock.element.ragged import Ragged
from penstock.element.spec import DatasetSpec
from penstock.engine.formats.extras import load_extra
from penstock.errors import InvalidArgumentError
from penstock.plan import codec, seeds

WHERE = "Dataset.to_ray"
_ITEM = "item"
"""The column of elements that are no dicts, as in `ray.data.from_items`."""

_BLOCKS_PER_CPU = 2


def adapt(dataset: Dataset, num_blocks: int | None) -> Any:
    """Implements `Dataset.to_ray`."""
    from penstock.launch.ray_service import connect_ray

    _check_columns(dataset.element_spec)
    connect_ray("auto")
    if num_blocks is None:
        cpus = load_extra("ray", WHERE, "ray").cluster_resources().get("CPU", 1.0)
        most = max(1, int(_BLOCKS_PER_CPU * cpus))
    else:
        most = integer(WHERE, "num_blocks", num_blocks, at_least=1)
    contents = divide_plan(WHERE, dataset.__plan__, most)
    read = functools.partial(read_blocks, codec.encode(dataset.__plan__), contents, seeds.draw())
    numbers = load_extra("ray.data", WHERE, "ray").range(
        len(contents), override_num_blocks=max(1, len(contents))
    )
    return numbers.map_batches(read, batch_size=1)


def _check_columns(spec: Any) -> None:
    columns = spec if isinstance(spec, Mapping) else {_ITEM: spec}
    for name, column in columns.items():
        leaves, tree = nest.flatten(column)
        if tree != nest.LEAF or isinstance(leaves[0], DatasetSpec) or not isinstance(name, str):
            raise InvalidArgumentError(
                f"{WHERE}: elements must be dicts of columns, or single values, got {spec}; make "
                'them dicts first, as in map(lambda x, y: {"x": x, "y": y})'
            )


def read_blocks(
    plan: bytes, contents: tuple[ShardContent, ...], key: int, numbers: dict[str, Array]
) -> Iterator[dict[str, Array]]:
    """The rows of the shards with these numbers, some at a time."""
    for number in numbers["id"]:
        for chunk in read_shard(plan, contents[number], key):
            found = nest.unflatten(chunk.tree, chunk.columns)
            columns = found if isinstance(found, Mapping) else {_ITEM: found}
            yield {name: _as_array(column) for name, column in columns.items()}


def _as_array(column: Column) -> Array:
    """A column as Ray Data takes it: leaves of different shapes are objects."""
    if isinstance(column, np.ndarray):
        return column
    leaves = np.empty(len(column), object)
    leaves[:] = [leaf.to_list() if isinstance(leaf, Ragged) else leaf for leaf in column]
    return leaves
