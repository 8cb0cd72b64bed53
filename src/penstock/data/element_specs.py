"""Checks of element specs, and between the specs of several datasets.

Nothing here calls a function to infer a spec: unknown specs are left to the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.data.arguments import describe, dtype, is_dataset, signature
from penstock.element import nest
from penstock.element.dtypes import int32, int64, string
from penstock.element.ragged import Ragged
from penstock.element.spec import (
    DatasetSpec,
    NoneTensorSpec,
    RaggedTensorSpec,
    TensorShape,
    TensorSpec,
    relax_all,
)
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.plan.nodes import Node, known_rows, known_spec


def check_alike(where: str, plans: Sequence[Node]) -> None:
    """Datasets that are merged into one must have the same structure and dtypes."""
    specs = [spec for spec in map(known_spec, plans) if spec is not None]
    if specs:
        relax_all(specs, where)


def check_unique(where: str, spec: Any) -> None:
    leaves = nest.flatten(spec)[0]
    if len(leaves) != 1:
        raise InvalidArgumentError(
            f"{where}: elements must have one component, got {spec}; map to one of them"
        )
    if not isinstance(leaves[0], TensorSpec) or leaves[0].dtype not in (int32, int64, string):
        raise InvalidTypeError(f"{where}: elements must be int32, int64 or strings, got {spec}")


def check_choice(where: str, spec: Any) -> None:
    """A choice is an int64 scalar; a shape that is not known may be one."""
    scalar = isinstance(spec, TensorSpec) and spec.dtype == int64 and not spec.shape.rank
    if not scalar:
        raise InvalidTypeError(f"{where}: choice_dataset must hold int64 scalars, got {spec}")


def check_numpy(where: str, spec: Any) -> None:
    if any(isinstance(leaf, DatasetSpec) for leaf in nest.flatten(spec)[0]):
        raise InvalidTypeError(f"{where}: elements are datasets, {spec}; iterate over them instead")


def plain(element: Any) -> Any:
    """An element of NumPy values: a ragged one is an object array of its rows."""
    if isinstance(element, np.ndarray | np.generic | bytes):
        return element
    return nest.map_structure(_plain_leaf, element)


def _plain_leaf(leaf: Any) -> Any:
    if is_dataset(leaf):
        raise InvalidTypeError(
            "Dataset.as_numpy_iterator: an element is a dataset; iterate over it"
        )
    return leaf.numpy() if isinstance(leaf, Ragged) else leaf


def leading_dimension(where: str, spec: Any) -> int | None:
    """How many rows every component has, if that is known; an error if one has no rows."""
    leaves = [leaf for leaf in nest.flatten(spec)[0] if not isinstance(leaf, NoneTensorSpec)]
    rows: set[int] = set()
    for leaf in leaves:
        has_shape = isinstance(leaf, TensorSpec | RaggedTensorSpec | DatasetSpec)
        if not has_shape or leaf.shape.rank == 0:
            raise InvalidArgumentError(
                f"{where}: every component must have rows, got {leaf}; use batch first"
            )
        rows |= set() if leaf.rows is None else {leaf.rows}
    if len(rows) > 1:
        raise InvalidArgumentError(
            f"{where}: the components of an element have {sorted(rows)} rows; "
            "they must have the same number"
        )
    return rows.pop() if rows else None


def rows_of_elements(where: str, plan: Node) -> int | None:
    """How many rows each element has, if that is certain: no function is called to find out."""
    spec = known_spec(plan)
    return known_rows(plan) if spec is None else leading_dimension(where, spec)


def generator_signature(where: str, types: Any, shapes: Any, given: Any) -> Any:
    """The signature of a generator: `given`, or made of types and shapes."""
    if given is not None:
        if types is not None or shapes is not None:
            raise InvalidTypeError(
                f"{where}: output_signature already says what output_types and output_shapes do"
            )
        return signature(where, given)
    if types is None:
        raise InvalidTypeError(f"{where}: needs an output_signature, e.g. TensorSpec((), int64)")
    kinds, tree = nest.flatten(types)
    try:
        parts = [None] * len(kinds) if shapes is None else nest.flatten_up_to(tree, shapes)
    except ValueError as error:
        message = f"{where}: output_shapes must have the structure of output_types"
        raise InvalidTypeError(f"{message}, got {describe(shapes)}") from error
    leaves = [
        TensorSpec(TensorShape(part), dtype(where, "output_types", kind))
        for kind, part in zip(kinds, parts, strict=True)
    ]
    return nest.unflatten(tree, leaves)
