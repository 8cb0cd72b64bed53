"""Chunks and specs: whether elements that come from a file are what somebody expects of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.element import nest
from penstock.element.chunk import Chunk, leaf_kind
from penstock.element.columns import Column
from penstock.element.descriptions import same_structure
from penstock.element.dtypes import of_numpy
from penstock.element.ragged import Ragged
from penstock.element.spec import RaggedTensorSpec, TensorSpec, TypeSpec, relax
from penstock.element.values import spec_of_leaf
from penstock.errors import InvalidArgumentError


def fitted(chunk: Chunk, spec: Any, where: str) -> Chunk:
    """`chunk` in the structure of `spec`; InvalidArgumentError if its elements do not fit it."""
    leaves, tree = nest.flatten(spec)
    if same_structure(tree, chunk.tree) and all(map(_fits, leaves, chunk.columns)):
        return chunk if tree == chunk.tree else Chunk(tree, chunk.columns, chunk.size)
    raise InvalidArgumentError(
        f"{where}: there are elements {spec_of_chunk(chunk)}, which do not fit the element_spec "
        f"{spec}; give the spec that the elements have"
    )


def _fits(spec: TypeSpec, column: Column) -> bool:
    if isinstance(column, list):
        return all(map(spec.fits, _different(column)))
    if spec.batch(None).fits(column):
        return True
    return isinstance(column, Ragged) and all(map(spec.fits, column))


def _different(leaves: list[Any]) -> list[Any]:
    """One leaf of every kind and shape."""
    kinds = ((leaf_kind(leaf), getattr(leaf, "dtype", None), np.shape(leaf)) for leaf in leaves)
    return list(dict(zip(kinds, leaves, strict=True)).values())


def spec_of_chunk(chunk: Chunk) -> Any:
    """The spec of the elements in a chunk, as exact as it is."""
    return nest.unflatten(chunk.tree, [_spec_of_column(column) for column in chunk.columns])


def _spec_of_column(column: Column) -> TypeSpec:
    if isinstance(column, np.ndarray):
        return TensorSpec(column.shape[1:], of_numpy(column.dtype))
    if isinstance(column, Ragged):
        spec = spec_of_leaf(column).unbatch()
        flat = isinstance(spec, RaggedTensorSpec) and not spec.ragged_rank
        # A row of arrays is an array: the same whether the rows came as a list or as a Ragged.
        return TensorSpec(spec.shape, spec.dtype) if flat else spec  # type: ignore[attr-defined]
    spec, *others = map(spec_of_leaf, _different(column))
    for other in others:
        spec = relax(spec, other)
    return spec
