"""`Tensor`: an ndarray that also answers `.numpy()`, as TensorFlow's eager tensors do.

Tensors exist only in this room: functions and loops get them, and what functions return becomes
plain NumPy again before the engine sees it. A tensor never changes: `x += 1` makes a new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from penstock.data.arguments import describe
from penstock.distribute.values import texts
from penstock.distribute.values.variables import Variable
from penstock.element.dtypes import DType, as_dtype, of_numpy
from penstock.element.spec import TensorShape
from penstock.errors import (
    InvalidArgumentError,
    InvalidTypeError,
    UnfitTypeError,
    UnimplementedError,
)
from penstock.shim.literals import cast_array, convert_value, is_literal, leaf_of
from penstock.tf.missing_operations import missing_from_tf

Array: TypeAlias = Any
"""A plain array. Its dtype and the dtypes of results are known at run time only."""

_equal: Any = np.equal
_differ: Any = np.not_equal
_VIEW = np.ndarray.view
_ITEM = np.ndarray.__getitem__
_SHAPE = np.ndarray.shape.__get__
_DTYPE = np.ndarray.dtype.__get__


_DIVISIONS = {np.floor_divide, np.remainder, np.fmod, np.divmod}
_ORDERS = {np.less, np.less_equal, np.greater, np.greater_equal}
_ARITHMETIC = {np.add, np.subtract, np.multiply, np.maximum, np.minimum, _equal, _differ, *_ORDERS}
"""What needs no check of numbers of one dtype."""

_REFUSED: dict[str, set[Any]] = {
    "b": {np.add, np.true_divide, np.floor_divide, np.remainder, np.power, *_ORDERS},
    "O": _ORDERS,
}
"""What TensorFlow does not compute of bools and of strings, but NumPy does."""


class Tensor(np.ndarray[Any, Any]):
    """An array with TensorFlow's `numpy()`, `shape`, `dtype`, texts and rules for operators.

    A single number or string is a tensor without dimensions. NumPy, torch and JAX take it as the
    array that it is; NumPy's functions return plain arrays.

    >>> x = as_tensor(np.arange(3))
    >>> x, (x * 2)[1].numpy(), x.shape, x.dtype
    (<tf.Tensor: shape=(3,), dtype=int64, numpy=array([0, 1, 2])>, np.int64(2), ..., tf.int64)
    """

    __slots__ = ()

    if not TYPE_CHECKING:  # A type checker knows the names, and would take any other one, too.

        def __getattr__(self, name: str) -> NoReturn:
            # Libraries ask for many names: a search for similar ones would take a millisecond.
            raise missing_from_tf("Tensor", name, ())

    def numpy(self) -> Any:
        """A copy as a plain array; of a single value, a NumPy scalar or bytes.

        `np.asarray(x)` is the array without a copy.
        """
        return _ITEM(self, ()) if self.ndim == 0 else _VIEW(self, np.ndarray).copy()

    @property  # type: ignore[misc]
    def shape(self) -> TensorShape:
        return TensorShape(_SHAPE(self))

    @property
    def dtype(self) -> DType:
        return of_numpy(_DTYPE(self))

    @property
    def backing_device(self) -> str:
        """The device whose memory holds the values: the same."""
        return str(self.device)

    def get_shape(self) -> TensorShape:
        return self.shape

    def set_shape(self, shape: Any) -> None:
        """Checks the shape, which is known already."""
        if not TensorShape(shape).fits(_SHAPE(self)):
            raise InvalidArgumentError(
                f"Tensor.set_shape: {TensorShape(shape)} does not fit the shape {_SHAPE(self)}"
            )

    @property
    def device(self) -> Any:
        return "/job:localhost/replica:0/task:0/device:CPU:0"

    def ref(self) -> Reference:
        """The tensor as a key of a dict."""
        return Reference(self)

    def __getitem__(self, key: Any) -> Tensor:
        try:
            # A list has an index for each dimension, as a tuple has.
            return as_tensor(_ITEM(self, plain_key(tuple(key) if type(key) is list else key)))
        except IndexError as error:
            kind = InvalidTypeError if "only integers" in str(error) else InvalidArgumentError
            raise kind(f"Tensor[...]: {error}") from None

    def __setitem__(self, key: Any, value: Any) -> None:
        raise InvalidTypeError("Tensor: does not support item assignment; use x.numpy()")

    def __iter__(self) -> Any:
        if self.ndim == 0:
            raise InvalidTypeError("Tensor: a single value cannot be iterated over")
        return (self[number] for number in range(len(self)))

    def __contains__(self, value: object) -> bool:
        return bool(np.any(self.__eq__(value)))

    def __bool__(self) -> bool:
        return self.size > 0 and np.ndarray.__bool__(self)

    def __str__(self) -> str:
        return texts.short(plain_leaf(self))

    def __repr__(self) -> str:
        return texts.full(plain_leaf(self))

    def __format__(self, spec: str) -> str:
        return format(plain_leaf(self), spec)

    __hash__ = None

    def __reduce__(self) -> Any:
        return as_tensor, (plain_leaf(self),)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return func(*to_plain(args), **to_plain(kwargs))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if ufunc in _ARITHMETIC and method == "__call__" and not kwargs:
            alike = _find_alike(*inputs)
            if alike is not None:
                return _compute(ufunc, *alike)
        operands = match_operands(ufunc.__name__, inputs)
        if ufunc in _DIVISIONS and self.dtype.is_integer and not np.all(operands[1]):
            raise InvalidArgumentError(f"{ufunc.__name__}: Integer division by zero")
        if ufunc in _REFUSED.get(_DTYPE(self).kind, ()):
            raise UnfitTypeError(
                f"{ufunc.__name__}: does not take values of {self.dtype.name}; use tf.cast"
            )
        if ufunc is np.matmul:
            check_matrices("matmul", *operands)
        try:
            with np.errstate(all="ignore"):
                compute = divide_down if ufunc is np.floor_divide else getattr(ufunc, method)
                result = compute(*operands, **to_plain(kwargs))
        except (ValueError, OverflowError) as error:
            raise InvalidArgumentError(f"{ufunc.__name__}: {error}") from None
        except TypeError as error:
            raise UnfitTypeError(f"{ufunc.__name__}: {error}") from None
        return tuple(map(as_tensor, result)) if type(result) is tuple else as_tensor(result)

    def __eq__(self, other: object) -> Any:
        """Whether values are equal; False if the shapes cannot be compared, as in TensorFlow."""
        return False if other is None else _compare(_equal, self, other, False)

    def __ne__(self, other: object) -> Any:
        return True if other is None else _compare(_differ, self, other, True)


def _find_alike(left: Any, right: Any) -> tuple[Any, Any] | None:
    """Operands that need no check: numbers of one dtype, or floats and a number of Python."""
    if type(left) is not Tensor:
        return None
    dtype = _DTYPE(left)
    if type(right) is Tensor:
        if dtype.kind in "iuf" and _DTYPE(right) is dtype:
            return _VIEW(left, np.ndarray), _VIEW(right, np.ndarray)
    elif dtype.kind == "f" and type(right) in (float, int):
        return _VIEW(left, np.ndarray), right
    return None


def _compute(ufunc: Any, left: Any, right: Any) -> Tensor:
    try:
        with np.errstate(all="ignore"):
            return as_tensor(ufunc(left, right))
    except (ValueError, OverflowError) as error:
        raise InvalidArgumentError(f"{ufunc.__name__}: {error}") from None


def divide_down(left: Any, right: Any, **kwargs: Any) -> Any:
    """`left // right`; of floats the quotient is rounded, then the next whole number is taken.

    NumPy computes with the exact quotient: for it, `1.0 // 0.1` is 9, not 10.
    """
    if np.result_type(left, right).kind in "iu":
        return np.floor_divide(left, right, **kwargs)
    return np.floor(np.true_divide(left, right), **kwargs)


def _compare(ufunc: Any, left: Tensor, right: Any, unfit: bool) -> Any:
    if getattr(right, "__array_ufunc__", left) is None:
        return NotImplemented  # Ragged tensors compare themselves.
    try:
        return ufunc(left, right)
    except InvalidArgumentError:
        if _are_broadcast(_SHAPE(left), to_array(right).shape):
            raise
        return as_tensor(np.bool_(unfit))


def _are_broadcast(left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    pairs = zip(reversed(left), reversed(right), strict=False)
    return all(a == b or a == 1 or b == 1 for a, b in pairs)


def check_matrices(call: str, left: Array, right: Array) -> None:
    """Products need two dimensions at least."""
    if np.ndim(left) < 2 or np.ndim(right) < 2:
        raise InvalidArgumentError(
            f"{call}: needs matrices, got the shapes {np.shape(left)} and {np.shape(right)}; "
            "use tf.tensordot"
        )


for _name in "add sub mul truediv floordiv mod pow and or xor matmul".split():
    # A tensor never changes, so an assignment with an operator makes a new one.
    setattr(Tensor, f"__i{_name}__", getattr(np.ndarray, f"__{_name}__"))


class Reference:
    """A tensor or variable by its identity."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def deref(self) -> Any:
        return self._tensor

    def __hash__(self) -> int:
        return id(self._tensor)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and other._tensor is self._tensor


def as_tensor(value: Any) -> Tensor:
    """A tensor of an array, a NumPy scalar or bytes, without a copy."""
    kind = type(value)
    if kind is np.ndarray:
        return _VIEW(value, Tensor)
    if kind is Tensor:
        return value  # type: ignore[no-any-return]
    if isinstance(value, bytes):
        return _VIEW(np.array(bytes(value), object), Tensor)
    return _VIEW(np.asarray(value), Tensor)


def plain_leaf(tensor: Tensor) -> Any:
    """A tensor as the leaf of an element: an array, a NumPy scalar or bytes."""
    return _VIEW(tensor, np.ndarray) if tensor.ndim else _ITEM(tensor, ())


def to_plain(value: Any) -> Any:
    """Arguments of NumPy's functions: tensors in tuples, lists and dicts as plain arrays."""
    kind = type(value)
    if kind is Tensor:
        return _VIEW(value, np.ndarray)
    if kind is tuple or kind is list:
        return kind(map(to_plain, value))
    if kind is dict:
        return {name: to_plain(part) for name, part in value.items()}
    if kind is TensorShape:
        return tuple(value)
    return _VIEW(value, np.ndarray) if isinstance(value, Tensor) else value


def plain_key(key: Any) -> Any:
    """An index without tensors: single integers are ints, arrays are arrays."""
    if type(key) is tuple:
        return tuple(map(plain_key, key))
    if type(key) is slice:
        return slice(
            *(part if part is None else int(part) for part in (key.start, key.stop, key.step))
        )
    if isinstance(key, Tensor):
        return plain_leaf(key)
    return key


def to_array(value: Any, dtype: Any = None, call: str = "convert_to_tensor") -> Array:
    """Any value that TensorFlow takes for a tensor, as a plain array; numbers get its dtypes."""
    kind = type(value)
    if isinstance(value, Tensor):
        value = _VIEW(value, np.ndarray)
        kind = np.ndarray
    elif kind is not list and isinstance(value, list) and hasattr(value, "__array__"):
        # The numbers of `tf.train.Int64List` and `FloatList` have a dtype.
        value, kind = np.asarray(value), np.ndarray
    if kind is np.ndarray and value.dtype.kind not in "USO":
        if not value.dtype.isnative:
            value = value.astype(value.dtype.newbyteorder("="))
        return value if dtype is None else _cast_known(call, value, as_dtype(dtype))
    if dtype is not None and isinstance(value, np.number):
        return _cast_known(call, np.asarray(value), as_dtype(dtype))
    if isinstance(value, TensorShape):
        value = value.as_list()
    if isinstance(value, list | tuple):
        return _list_to_array(value, None if dtype is None else as_dtype(dtype), call)
    if dtype is None:
        return _as_array(leaf_of(call, value))
    return _convert_literal(call, value, as_dtype(dtype))


def _cast_known(call: str, array: Array, dtype: DType) -> Array:
    if array.dtype == dtype.dtype:
        return array
    if dtype.name == "string" or (array.dtype.kind == "f" and dtype.is_integer):
        raise InvalidTypeError(f"{call}: {describe(array)} cannot become {dtype.name}; use tf.cast")
    return cast_array(array, dtype)


_FROM_BOOL = {"int32", "int64", "uint64", "float16", "float32", "float64"}


def _convert_literal(call: str, value: Any, dtype: DType) -> Array:
    """A value of Python in a dtype: integers of up to 64 bits wrap, as in TensorFlow."""
    try:
        return _as_array(convert_value(call, value, dtype))
    except (InvalidArgumentError, InvalidTypeError):
        wide = _try_array(value, dtype) if is_literal(value) else None
        if type(value) is int and dtype.is_floating:
            return cast_array(np.array(float(value)), dtype)
        if wide is None:
            raise
        wraps = dtype.is_integer and (wide.dtype.kind == "i" or wide.dtype == dtype.dtype)
        if not wraps and not (wide.dtype.kind == "b" and dtype.name in _FROM_BOOL):
            raise
        return cast_array(wide, dtype)


def _try_array(value: Any, dtype: DType | None = None) -> Array | None:
    """What NumPy makes of a value; None if it makes nothing of it."""
    try:
        if dtype is not None and dtype.name == "uint64" and all_integers(value):
            return np.array(value, np.uint64)  # NumPy makes floats of [1, 2**63].
        return np.array(value)
    except (ValueError, TypeError, OverflowError):
        return None


def _list_to_array(value: Any, dtype: DType | None, call: str) -> Array:
    """A (nested) list as one array.

    Tensors and variables in it decide the dtype. Without them, the first number does: integers
    are int32 if all of them fit, and floats are float32, except that float64 and float16 of NumPy
    keep their dtype at the beginning of a list.
    """
    leaves = list(list_leaves(value))
    if has_any(leaves, _TENSORS):
        known = [_dtype_of(leaf) for leaf in leaves if isinstance(leaf, _TENSORS)]
        if any(one != known[0] for one in known):
            names = ", ".join(of_numpy(one).name for one in known)
            raise InvalidArgumentError(f"{call}: a list has tensors of {names}; use tf.cast")
        return _pack(value, of_numpy(known[0]) if dtype is None else dtype, call)
    if dtype is not None:
        return _convert_literal(call, value, dtype)
    made = _pack_numbers(value, leaves) if has_any(leaves, (np.generic, np.ndarray)) else None
    return _as_array(leaf_of(call, value)) if made is None else made


_TENSORS = (Tensor, Variable)


def list_leaves(value: Any) -> Iterator[Any]:
    """What is in a list and in the lists in it."""
    for part in value:
        if isinstance(part, list | tuple):
            yield from list_leaves(part)
        else:
            yield part


def all_integers(value: Any) -> bool:
    """Whether a value of Python is an integer, or a list of nothing else."""
    leaves = list_leaves(value) if isinstance(value, list | tuple) else [value]
    return all(type(leaf) is int for leaf in leaves)


def has_any(values: Iterable[Any], kinds: tuple[type, ...]) -> bool:
    """Whether a value is of one of these kinds."""
    return any(issubclass(kind, kinds) for kind in set(map(type, values)))


def _dtype_of(value: Any) -> np.dtype[Any]:
    dtype: np.dtype[Any] = _DTYPE(value) if isinstance(value, Tensor) else to_array(value).dtype
    return dtype


def _pack(value: Any, dtype: DType, call: str) -> Array:
    """A list that has tensors in it, in one dtype."""
    if isinstance(value, _TENSORS):
        array = to_array(value)
        return array if array.dtype == dtype.dtype else _cast_tensor(call, array, dtype)
    if not isinstance(value, list | tuple) or not has_any(list_leaves(value), _TENSORS):
        return to_array(value, dtype, call)
    parts = [_pack(part, dtype, call) for part in value]
    if any(part.shape != parts[0].shape for part in parts):
        shapes = ", ".join(str(part.shape) for part in parts)
        raise InvalidArgumentError(f"{call}: a list has parts of the shapes {shapes}")
    return np.stack(parts)


def _cast_tensor(call: str, array: Array, dtype: DType) -> Array:
    if array.dtype.kind == "O" or dtype.name == "string":
        raise UnimplementedError(f"{call}: {of_numpy(array.dtype).name} cannot become {dtype.name}")
    return cast_array(array, dtype)


def _pack_numbers(value: Any, leaves: list[Any]) -> Array | None:
    """A list with numbers of NumPy in it; None if it has other values, too."""
    kinds = {np.asarray(leaf).dtype.kind for leaf in leaves}
    array = _try_array(value) if kinds <= set("biuf") and kinds & set("iuf") else None
    if array is None or array.dtype.kind not in "iuf" or (array.dtype.kind != "f" and "b" in kinds):
        return None
    first = leaves[0].dtype if isinstance(leaves[0], np.generic | np.ndarray) else None
    if array.size == 0:
        return array.astype(np.float32)
    if array.dtype.kind == "f":
        return array.astype(first if first in (np.float16, np.float64) else np.float32)
    least, greatest = int(array.min()), int(array.max())
    if greatest > _LIMITS["int64"][1]:
        return None
    low, high = _LIMITS["int32"]
    return array.astype(np.int32 if low <= least and greatest <= high else np.int64)


def _as_array(leaf: Any) -> Array:
    if isinstance(leaf, np.ndarray):
        return leaf
    return np.array(leaf, object) if isinstance(leaf, bytes) else np.asarray(leaf)


_LIMITS = {
    name: (int(np.iinfo(name).min), int(np.iinfo(name).max))
    for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
}
_DIVIDED = {"int8", "uint8", "int16", "uint16"}


def quotient_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of quotients: float32 of integers of up to 16 bits, float64 of wider ones."""
    if dtype.kind not in "iu":
        return dtype
    return np.dtype(np.float32 if dtype.name in _DIVIDED else np.float64)


def divide_arrays(left: Array, right: Array) -> Array:
    """Quotients of two arrays of one dtype."""
    dtype = quotient_dtype(left.dtype)
    return np.true_divide(left.astype(dtype, copy=False), right.astype(dtype, copy=False))


_FREE = {"left_shift", "right_shift", "ldexp"}


def match_operands(call: str, values: tuple[Any, ...]) -> list[Any]:
    """Operands of one dtype: values that are no tensors get the dtype of the first tensor.

    Tensors of different dtypes are an error, as in TensorFlow; NumPy would convert them.
    """
    dtypes = _dtypes_of_tensors(call, values)
    dtype = of_numpy(dtypes[0] if dtypes else _dtype_of_first(call, values))
    convert = _operand if dtypes else _literal_operand
    arrays = [convert(call, value, dtype) for value in values]
    if call in ("divide", "true_divide") and dtype.name in _DIVIDED:
        return [np.asarray(array, np.float32) for array in arrays]
    return arrays


def operand_dtype(call: str, values: Sequence[Any]) -> DType:
    """The dtype that operands get: that of the tensors, which must be one; else of the first."""
    dtypes = _dtypes_of_tensors(call, values)
    return of_numpy(dtypes[0] if dtypes else _dtype_of_first(call, values))


def _dtypes_of_tensors(call: str, values: Sequence[Any]) -> list[np.dtype[Any]]:
    dtypes = [_dtype_of(value) for value in values if isinstance(value, _TENSORS)]
    if len(dtypes) > 1 and len(set(dtypes)) > 1 and call not in _FREE:
        names = " and ".join(of_numpy(dtype).name for dtype in dtypes)
        raise UnfitTypeError(f"{call}: the operands have the dtypes {names}; use tf.cast")
    return dtypes


def _operand(call: str, value: Any, dtype: DType) -> Any:
    kind = type(value)
    if kind is Tensor:
        return _VIEW(value, np.ndarray)
    if (kind is int or kind is float) and dtype.dtype.kind == "f":
        return value  # NumPy converts Python's numbers to the dtype of the array.
    if kind is int and dtype.is_integer:
        low, high = _LIMITS[dtype.name]
        if low <= value <= high:
            return value
    return _literal_operand(call, value, dtype)


def _literal_operand(call: str, value: Any, dtype: DType) -> Array:
    try:
        return to_array(value, dtype, call)
    except InvalidTypeError as error:
        raise UnfitTypeError(error.message) from None


def _dtype_of_first(call: str, values: Sequence[Any]) -> np.dtype[Any]:
    """The dtype of the first value, in which no array of floats may lose its fractions."""
    first: np.dtype[Any] = to_array(values[0], None, call).dtype
    if first.kind in "biu":
        others = (one.dtype for one in values[1:] if isinstance(one, np.ndarray | np.generic))
        return next((one for one in others if one.kind in "fc"), first)
    return first
