"""Values: which objects can be leaves, and how Python values are converted to leaves.

A leaf is a NumPy array or scalar, `bytes`, a `Ragged`, `None`, or an object with a method
`__leaf_spec__`, such as a dataset. Python ints become int32, floats float32 and strings bytes; a
list or `range` becomes one array.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from penstock.element import nest, strings
from penstock.element.datasets import Datasets
from penstock.element.dtypes import DType, as_dtype, check_supported, of_numpy
from penstock.element.dtypes import string as string_dtype
from penstock.element.ragged import Ragged
from penstock.element.spec import NoneTensorSpec, RaggedTensorSpec, TensorSpec, TypeSpec
from penstock.element.strings import bytes_of
from penstock.errors import InvalidArgumentError, InvalidTypeError, UnfitTypeError

_INT32 = np.iinfo(np.int32)


def as_value(value: Any, dtype: Any = None) -> Any:
    """Converts `value` to a leaf, of `dtype` if given; InvalidTypeError if that is impossible."""
    if dtype is None:
        return _as_leaf(value)
    dtype = as_dtype(dtype)
    if type(value) in _NUMBERS and dtype != string_dtype:
        return np.asarray(value).astype(dtype.dtype)[()]
    if isinstance(value, list | tuple | range):  # Narrowing to float32 first would round.
        return convert(_from_list(value, dtype), dtype, value)
    return convert(_as_leaf(value), dtype, value)


def _as_leaf(value: Any) -> Any:
    kind = type(value)
    if kind is np.ndarray:
        return _from_array(value)
    if isinstance(value, np.generic):
        return bytes_of(value) if value.dtype.kind in "SU" else check_supported(value)
    if value is None or kind is bytes or is_opaque(value):
        return value
    if isinstance(value, Ragged):
        return value if value.dtype.kind == "O" else _from_ragged(value)
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, int):
        return _from_int(value)
    if isinstance(value, float):
        return np.float32(value)
    if isinstance(value, complex):
        return np.complex128(value)
    if isinstance(value, (str, bytes)):
        return bytes_of(value)
    if isinstance(value, list | tuple | range):
        return _from_list(value)
    if hasattr(value, "__array__"):
        array = as_array(value)
        if array.dtype == object and hasattr(value, "columns"):
            return _from_mixed_columns(value, array)
        return _from_array(array)
    remedy = "use arrays, numbers, strings, or tuples and dicts of them"
    if isinstance(value, Mapping):
        remedy = "convert it with dict(...)"
    elif isinstance(value, Iterator):
        remedy = "make a list of it, or use Dataset.from_generator"
    raise UnfitTypeError(
        f"penstock: a value of type {kind.__name__} cannot be an element; {remedy}"
    )


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """The array of another library's value, such as a tensor of torch, without a copy."""
    masked = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(value, masked.MaskedArray) and masked.is_masked(value):
        raise UnfitTypeError(
            "penstock: an array with masked values cannot be an element; convert it with "
            ".filled(value), or let a second array say which values count"
        )
    if str(getattr(value, "dtype", "")) != "torch.bfloat16":
        return _convert_foreign(value)
    # torch refuses to convert it, as NumPy alone does not have the dtype.
    bits = value.detach().cpu().view(sys.modules["torch"].int16).numpy()
    bits_as_numbers: np.ndarray[Any, Any] = bits.view(as_dtype("bfloat16").dtype)
    return bits_as_numbers


def _convert_foreign(value: Any) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(value)
    except (RuntimeError, TypeError) as error:  # torch: it needs a gradient, or is on a GPU.
        raise UnfitTypeError(
            f"penstock: a value of type {type(value).__name__} cannot be an element: {error}"
        ) from error


def _from_mixed_columns(frame: Any, array: np.ndarray[Any, Any]) -> Any:
    """The array of a data frame, if all its columns are strings."""
    try:
        return _from_array(array)
    except InvalidArgumentError:
        raise InvalidArgumentError(
            f"penstock: the columns of a {type(frame).__name__} have different types, so they are "
            "not one array; use Dataset.from_pandas or Dataset.from_polars, or a dict of columns"
        ) from None


def is_opaque(value: Any) -> bool:
    """Whether `value` is an object with a spec of its own, such as a dataset."""
    return hasattr(type(value), "__leaf_spec__")


def _from_int(value: int) -> Any:
    if _INT32.min <= value <= _INT32.max:
        return np.int32(value)
    try:
        return np.int64(value)
    except OverflowError:
        raise InvalidArgumentError(f"penstock: {value} does not fit into 64 bits") from None


def _from_array(array: np.ndarray[Any, Any]) -> Any:
    array = strings.from_array(array) if array.dtype.kind in "SUO" else check_supported(array)
    return array if array.ndim else array[()]


def _from_ragged(ragged: Ragged) -> Ragged:
    values = ragged.values
    made = _from_ragged(values) if isinstance(values, Ragged) else check_supported(values)
    return ragged if made is values else Ragged(made, ragged.row_splits)


def _advice(kinds: Iterable[type]) -> str:
    if any(issubclass(kind, dict) for kind in kinds):
        return 'make a dict of lists, like {"a": [1, 2]}, or use a tuple'
    if type(None) in kinds:
        return "replace each None, for example by -1 or numpy.nan, or leave these rows out"
    return "use a tuple for a structure"


def _from_list(value: list[Any] | tuple[Any, ...] | range, wanted: DType | None = None) -> Any:
    """One array from a (nested) list.

    It has one of TensorFlow's dtypes if no number is NumPy's, and if it will not be converted to
    one that is `wanted`.
    """
    if isinstance(value, range) and not value and wanted is None:
        return np.zeros(0, np.int32)  # Also empty, a range is one of integers.
    kinds = strings.kinds(value)
    if kinds and all(hasattr(kind, "__plan__") for kind in kinds):
        return _stack_datasets(value)
    texts = [issubclass(kind, str | bytes) for kind in kinds]
    if any(texts) and not all(texts):
        raise InvalidArgumentError(
            f"penstock: {short_repr(value)} mixes strings and numbers; use a tuple for a structure"
        )
    if not any(texts) and not all(_arrayish(kind) for kind in kinds):
        raise InvalidArgumentError(
            f"penstock: {short_repr(value)} cannot be made into an array; {_advice(kinds)}"
        )
    _check_mixture(value, kinds)
    try:
        array = strings.from_list(value) if any(texts) else _numbers_of(value, kinds, wanted)
    except InvalidArgumentError:
        raise
    except ValueError:
        raise InvalidArgumentError(
            f"penstock: the rows of {short_repr(value)} differ in length; "
            "use penstock.Ragged.from_rows(rows) for ragged data, or a tuple for a structure"
        ) from None
    if any(texts):
        return array
    return _from_array(narrow(array) if wanted is None and kinds <= _NUMBERS else array)


def _numbers_of(value: Any, kinds: set[type], wanted: DType | None) -> np.ndarray[Any, Any]:
    if kinds == {int} and wanted is not None and wanted.dtype == np.uint64:
        with contextlib.suppress(OverflowError):
            return np.array(value, np.uint64)
    array = np.array(value)
    if int in kinds and (wanted is None or wanted.dtype.kind != "f"):
        strings.refuse_large_integers(value, array)
    return array


def _stack_datasets(value: Any) -> Datasets:
    """An array of datasets from a (nested) list."""
    rows = [_stack_datasets(row) if isinstance(row, list | tuple) else row for row in value]
    made = Datasets(rows)
    try:
        made.__leaf_spec__()
    except InvalidTypeError as error:
        raise InvalidArgumentError(error.message) from None
    return made


_NUMBERS = {bool, int, float, complex}


def _check_mixture(value: Any, kinds: set[type]) -> None:
    """Raises for NumPy numbers of different kinds, which NumPy would convert to one silently."""
    found = {_KINDS.get(np.dtype(kind).kind) for kind in kinds if issubclass(kind, np.generic)}
    if found and len(found | {_KINDS["f"] for kind in kinds if kind is float}) > 1:
        names = sorted(kind.__name__ for kind in kinds)
        raise InvalidArgumentError(
            f"penstock: {short_repr(value)} mixes {' and '.join(names)}, and a list is one array; "
            "convert them to one dtype, or use a tuple for a structure"
        )


_KINDS = {"b": "bool", "i": "integer", "u": "integer", "f": "float", "c": "complex"}


def _arrayish(kind: type) -> bool:
    return kind in _NUMBERS or issubclass(kind, np.generic) or hasattr(kind, "__array__")


def narrow(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Converts an array of Python numbers to the dtype that TensorFlow would choose."""
    if array.dtype == np.float64:
        return array.astype(np.float32)
    if array.dtype == np.int64:
        fits = array.size == 0 or (array.min() >= _INT32.min and array.max() <= _INT32.max)
        return array.astype(np.int32) if fits else array
    return array


def short_repr(value: Any) -> str:
    """A value as error messages show it."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class BareText(str):
    """A string whose `repr` has no quotes: the text of a leaf in the text of its structure."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


_MOST_SHOWN = 100


def brief(element: Any) -> str:
    """An element on a part of a line: short values as they are, long ones by their shape.

    >>> brief((np.zeros((224, 224, 3), np.uint8), {"label": np.int64(3), "name": b"a.jpg"}))
    "(uint8[224, 224, 3], {'label': 3, 'name': b'a.jpg'})"
    """
    leaves, tree = nest.flatten(element)
    text = repr(nest.unflatten(tree, [BareText(_brief_leaf(leaf)) for leaf in leaves]))
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "..."


def _brief_leaf(leaf: Any) -> str:
    if isinstance(leaf, bytes | str):
        return repr(leaf) if len(leaf) <= _MOST_SHOWN // 2 else f"{len(leaf)} bytes"
    if isinstance(leaf, np.generic):
        return repr(leaf.item())
    if isinstance(leaf, np.ndarray) and (leaf.size > 6 or leaf.ndim > 1):
        return f"{'string' if leaf.dtype.kind == 'O' else leaf.dtype.name}{list(leaf.shape)}"
    if isinstance(leaf, np.ndarray):
        return repr(leaf.tolist())
    return f"a {type(leaf).__name__}" if is_opaque(leaf) else short_repr(leaf)


def convert(leaf: Any, dtype: DType, shown: Any = None) -> Any:
    """Converts `leaf` to `dtype`; InvalidTypeError between strings and numbers."""
    if isinstance(leaf, Ragged):
        return Ragged(convert(leaf.values, dtype), leaf.row_splits)
    is_text = isinstance(leaf, bytes) or getattr(leaf, "dtype", np.dtype(int)).kind == "O"
    if is_text != (dtype == string_dtype) or leaf is None or is_opaque(leaf):
        what = leaf if shown is None else shown
        raise InvalidTypeError(f"penstock: {short_repr(what)} cannot be converted to {dtype.name}")
    return leaf if is_text else leaf.astype(dtype.dtype, copy=False)


def spec_of_leaf(leaf: Any) -> TypeSpec:
    """The spec of one leaf, with its exact shape."""
    if isinstance(leaf, bytes):
        return TensorSpec((), string_dtype)
    if isinstance(leaf, Ragged):
        return RaggedTensorSpec(leaf.shape, leaf.dtype, leaf.ragged_rank, leaf.row_splits.dtype)
    if leaf is None:
        return NoneTensorSpec()
    if is_opaque(leaf):
        spec: TypeSpec = leaf.__leaf_spec__()
        return spec
    return TensorSpec(leaf.shape, of_numpy(leaf.dtype))


def as_element(value: Any) -> Any:
    """Converts every leaf of a structure by `as_value`."""
    leaves, tree = nest.flatten(value)
    return nest.unflatten(tree, [as_value(leaf) for leaf in leaves])


def spec_of(element: Any) -> Any:
    return nest.map_structure(spec_of_leaf, element)


def zeros(spec: TypeSpec, rows: int = 1) -> Any:
    """A leaf that fits `spec`: zeros or empty strings, with unknown dimensions of `rows`."""
    if isinstance(spec, RaggedTensorSpec):
        return _zero_ragged(spec, rows)
    if not isinstance(spec, TensorSpec):
        return None
    shape = tuple(rows if d is None else d for d in spec.shape.dims or ())
    array = np.zeros(shape, spec.dtype.dtype)
    if spec.dtype == string_dtype:
        array.fill(b"")
    return array if shape else array[()]


def _zero_ragged(spec: RaggedTensorSpec, rows: int) -> Any:
    dims = tuple(rows if d is None else d for d in spec.shape.dims or (rows, rows))
    value: Any = np.zeros(
        (int(np.prod(dims[: spec.ragged_rank + 1])), *dims[spec.ragged_rank + 1 :])
    )
    value = value.astype(spec.dtype.dtype)
    for depth in range(spec.ragged_rank, 0, -1):
        count = int(np.prod(dims[:depth]))
        value = Ragged(value, np.arange(count + 1) * dims[depth])
    return value
