"""Elements and specs: checks that chunks fit a spec, and converts values to a signature.

Elements of files, of functions with an `output_signature` and of generators pass through here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.element import nest
from penstock.element.chunk import Chunk, pick_different, spec_of_leaves
from penstock.element.columns import Column
from penstock.element.descriptions import same_structure
from penstock.element.dtypes import DType, of_numpy
from penstock.element.ragged import Ragged
from penstock.element.spec import RaggedTensorSpec, TensorSpec, TypeSpec
from penstock.element.values import as_value, spec_of_leaf
from penstock.engine.copies import copy_unowned
from penstock.errors import InvalidArgumentError


def fit_chunk(chunk: Chunk, spec: Any, where: str) -> Chunk:
    """`chunk` in the structure of `spec`; InvalidArgumentError if its elements do not fit."""
    if fits_spec(chunk, spec):
        tree = nest.flatten(spec)[1]
        return chunk if tree == chunk.tree else Chunk(tree, chunk.columns, chunk.size)
    raise InvalidArgumentError(
        f"{where}: there are elements {spec_of_chunk(chunk)}, which do not fit the element_spec "
        f"{spec}; give the spec that the elements have"
    )


def fits_spec(chunk: Chunk, spec: Any) -> bool:
    leaves, tree = nest.flatten(spec)
    return same_structure(tree, chunk.tree) and all(map(_fits, leaves, chunk.columns))


def _fits(spec: TypeSpec, column: Column) -> bool:
    if isinstance(column, list):
        return all(map(spec.fits, pick_different(column)))
    if spec.batch(None).fits(column):
        return True
    return isinstance(column, Ragged) and all(map(spec.fits, column))


def spec_of_chunk(chunk: Chunk) -> Any:
    """The most exact spec of the elements in a chunk."""
    return nest.unflatten(chunk.tree, [_spec_of_column(column) for column in chunk.columns])


def _spec_of_column(column: Column) -> TypeSpec:
    if isinstance(column, np.ndarray):
        return TensorSpec(column.shape[1:], of_numpy(column.dtype))
    if isinstance(column, Ragged):
        spec = spec_of_leaf(column).unbatch()
        flat = isinstance(spec, RaggedTensorSpec) and not spec.ragged_rank
        # A row of arrays is an array: the same whether the rows came as a list or as a Ragged.
        return TensorSpec(spec.shape, spec.dtype) if flat else spec  # type: ignore[attr-defined]
    return spec_of_leaves(column)


Convert = Callable[[Any], Any]

_NUMBERS = (int, float, bool, np.integer, np.floating, np.bool_)


def converter(signature: Any) -> Convert:
    """Converts values to `signature`; ValueError or TypeError where one does not fit."""
    if type(signature) is tuple:
        return _tuple([converter(part) for part in signature])
    if type(signature) is dict:
        return _dict({key: converter(part) for key, part in signature.items()})
    leaves, tree = nest.flatten(signature)
    converts = [_leaf(leaf) for leaf in leaves]
    if tree == nest.LEAF:
        return converts[0]

    def convert(value: Any) -> Any:
        parts = nest.flatten_up_to(tree, value)
        made = [convert(part) for convert, part in zip(converts, parts, strict=True)]
        return nest.unflatten(tree, made)

    return convert


def _tuple(converts: list[Convert]) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not tuple or len(value) != len(converts):
            raise ValueError("not a tuple of that length")
        return tuple([convert(part) for convert, part in zip(converts, value, strict=True)])

    return convert


def _dict(converts: dict[Any, Convert]) -> Convert:
    def convert(value: Any) -> Any:
        if not isinstance(value, dict) or value.keys() != converts.keys():
            raise ValueError("not a dict with those keys")
        return {key: convert(value[key]) for key, convert in converts.items()}

    return convert


def _leaf(spec: Any) -> Convert:
    if isinstance(spec, TensorSpec):
        return _scalar(spec) if spec.shape.dims == () else _array(spec)

    def convert(value: Any) -> Any:
        leaf = copy_unowned(as_value(value))
        if not spec.fits(leaf):
            raise ValueError("another kind of value")
        return leaf

    return convert


def _scalar(spec: TensorSpec) -> Convert:
    dtype = spec.dtype.dtype
    slow = _array(spec)
    if dtype.kind not in "iubf":
        return slow
    make, exact = dtype.type, dtype.kind != "f"
    low, high = _limits(dtype)

    def convert(value: Any) -> Any:
        kind = type(value)
        if kind is make:
            return value
        if not issubclass(kind, _NUMBERS) or not low <= value <= high:
            return slow(value)
        made = make(value)
        if exact and made != value:
            _refuse_loss(value, made)
        return made

    return convert


def _limits(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """The smallest and the largest number of a dtype."""
    if dtype.kind == "b":
        return 0, 1
    limits: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    return dtype.type(limits.min).item(), dtype.type(limits.max).item()


def _convert_array(value: Any, dtype: DType) -> Any:
    if dtype.dtype.kind == "O":
        return as_value(value, dtype)
    given = np.asarray(value)
    if given.dtype.kind == "c" and dtype.dtype.kind != "c":
        raise ValueError("a complex number is not a real one")
    with np.errstate(over="ignore", invalid="ignore"):
        made = as_value(value, dtype)
        if isinstance(made, np.ndarray | np.generic):
            _refuse_loss(given, made)
    return made


def _refuse_loss(given: Any, made: Any) -> None:
    """Raises ValueError if a number was cut, or is too large; it may be rounded to a float."""
    if made.dtype.kind in "iub":
        lost = np.asarray(made != given)
    else:
        lost = np.asarray(~np.isfinite(made))
        if lost.any():
            lost &= np.isfinite(given)
    if lost.any():
        first = np.asarray(given)[lost].flat[0]
        raise ValueError(f"{first} cannot be stored as {made.dtype.name} without loss")


def _array(spec: TensorSpec) -> Convert:
    dtype, shape = spec.dtype, spec.shape

    def convert(given: Any) -> Any:
        value = given
        if isinstance(value, (list, tuple)) and not value:
            value = np.zeros(0, dtype.dtype)
        if type(value) is not np.ndarray or value.dtype != dtype.dtype or not value.ndim:
            value = _convert_array(value, dtype)
        if not shape.fits(np.shape(value)):
            raise ValueError("another shape")
        return copy_unowned(value) if hasattr(given, "__array__") else value

    return convert
