"""Data types: one `DType` per NumPy dtype, named and printed as in TensorFlow.

A `DType` equals the NumPy dtype that it wraps. Strings are `bytes` in arrays of objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError, InvalidTypeError


class DType:
    """The type of a leaf, e.g. `int32`; NumPy accepts it as a dtype.

    >>> int32 = as_dtype("int32")
    >>> int32, int32 == np.int32, as_dtype(str).as_numpy_dtype
    (tf.int32, True, <class 'object'>)
    >>> int32.max, int32.min, int32.size
    (2147483647, -2147483648, 4)
    >>> as_dtype("uint8").limits, as_dtype("complex64").real_dtype
    ((0, 255), tf.float32)
    """

    __slots__ = ("dtype", "name")

    is_quantized = False
    is_numpy_compatible = True

    def __init__(self, name: str, dtype: np.dtype[Any]) -> None:
        self.name = name
        self.dtype = dtype

    @property
    def as_numpy_dtype(self) -> type:
        return object if self.dtype.kind == "O" else self.dtype.type

    @property
    def is_integer(self) -> bool:
        return self.dtype.kind in "iu"

    @property
    def is_floating(self) -> bool:
        return self.dtype.kind == "f" or self.name == "bfloat16"

    @property
    def is_bool(self) -> bool:
        return self.dtype.kind == "b"

    @property
    def is_complex(self) -> bool:
        return self.dtype.kind == "c"

    @property
    def is_unsigned(self) -> bool:
        return self.dtype.kind == "u"

    @property
    def size(self) -> int:
        return self.dtype.itemsize

    @property
    def base_dtype(self) -> DType:
        return self

    @property
    def is_numeric(self) -> bool:
        return self.dtype.kind in "iufc" or self.name == "bfloat16"

    @property
    def real_dtype(self) -> DType:
        """The dtype of the real part of a complex number; else this one."""
        parts = {"complex64": "float32", "complex128": "float64"}
        return _BY_NAME[parts[self.name]] if self.is_complex else self

    @property
    def limits(self) -> tuple[Any, Any]:
        """What images of this dtype hold: 0 to 1 for floats, 0 to the greatest integer."""
        if self.name in ("float32", "float64"):
            return 0, 1
        if not self.is_integer and not self.is_bool:
            raise InvalidArgumentError(f"DType.limits: {self.name} has no limits")
        return 0, self.max

    def is_compatible_with(self, other: Any) -> bool:
        """Whether both are the same dtype.

        >>> as_dtype("int32").is_compatible_with(np.int32)
        True
        """
        if other is None:
            raise InvalidTypeError("DType.is_compatible_with: None is not a data type")
        return as_dtype(other) == self

    def is_subtype_of(self, other: Any) -> bool:
        """Whether both are the same dtype.

        >>> as_dtype("int32").is_subtype_of(as_dtype("int64"))
        False
        """
        return isinstance(other, DType) and other == self

    @property
    def max(self) -> Any:
        """The greatest value."""
        return _limit(self, "max")

    @property
    def min(self) -> Any:
        """The least value."""
        return _limit(self, "min")

    def __getattr__(self, name: str) -> Any:
        """What NumPy's dtype has: libraries read `x.dtype.kind` of arrays."""
        if not name.startswith("_"):
            try:
                return getattr(self.dtype, name)
            except AttributeError:
                pass
        raise AttributeError(f"DType has no attribute {name}")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DType):
            return self.name == other.name
        try:
            return as_dtype(other).name == self.name
        except TypeError:
            return False

    def __hash__(self) -> int:
        return hash(self.dtype)

    def __repr__(self) -> str:
        return f"tf.{self.name}"

    def __str__(self) -> str:
        return f"<dtype: '{self.name}'>"

    def __reduce__(self) -> tuple[Any, ...]:
        return as_dtype, (self.name,)


def _limit(dtype: DType, name: str) -> Any:
    if dtype.is_bool:
        return name == "max"
    if not dtype.is_integer and not dtype.is_floating:
        raise InvalidTypeError(f"DType.{name}: {dtype.name} has no {name}")
    info: Any = np.iinfo(dtype.dtype) if dtype.is_integer else np.finfo(dtype.dtype)
    return getattr(info, name)


_NUMBERS = (
    "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
).split()
_BY_NAME = {name: DType(name, np.dtype(name)) for name in _NUMBERS}
_BY_NAME["bool"] = DType("bool", np.dtype(bool))
_BY_NAME["string"] = DType("string", np.dtype(object))
_PYTHON = {int: "int32", float: "float32", bool: "bool", str: "string", bytes: "string"}
_PYTHON |= {complex: "complex128", object: "string"}
_ALIASES = {"double": "float64", "half": "float16", "str": "string", "object": "string"}
_ALIASES |= {"float": "float32"}


def as_dtype(type_value: Any) -> DType:
    """The `DType` for a DType, a NumPy dtype or scalar type, a Python type or a name.

    >>> as_dtype("float32"), as_dtype(np.int64), as_dtype(bool)
    (tf.float32, tf.int64, tf.bool)
    """
    value = type_value
    if isinstance(value, DType):
        return value
    if isinstance(value, type) and value in _PYTHON:
        return _BY_NAME[_PYTHON[value]]
    name = _ALIASES.get(value, value) if isinstance(value, str) else _numpy_name(value)
    if name == "bfloat16" and name not in _BY_NAME:
        _BY_NAME[name] = DType(name, _bfloat16())
    if name not in _BY_NAME:
        raise InvalidTypeError(f"penstock: {value!r} is not a data type; use one of {_all_names()}")
    return _BY_NAME[name]


def of_numpy(dtype: np.dtype[Any]) -> DType:
    """The `DType` of a NumPy dtype; faster than `as_dtype`."""
    found = _BY_NAME.get(dtype.name)
    return found if found is not None else as_dtype(dtype)


def check_supported(value: Any) -> Any:
    """Returns an array or NumPy scalar of numbers; raises InvalidTypeError for other dtypes.

    An array whose bytes are in the other order is copied into the order of this machine.
    """
    value = to_native(value)
    if is_number(dtype := value.dtype):
        return value
    raise InvalidTypeError(
        f"penstock: {dtype} is not a data type of elements; {_remedy(dtype)}; "
        f"there are {_all_names()}"
    )


def to_native(array: Any) -> Any:
    """The array or NumPy scalar in the byte order of this machine."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def is_number(dtype: np.dtype[Any]) -> bool:
    """Whether an array of this dtype can be a leaf without conversion; strings cannot."""
    return dtype.isnative and (dtype.char in _CHARS or dtype.name == "bfloat16")


_CHARS = frozenset("?bhilqBHILQefdFD")
"""NumPy's character codes of the dtypes above."""


def _remedy(dtype: np.dtype[Any]) -> str:
    if dtype.names:
        return "make a dict of its fields, {name: array[name] for name in array.dtype.names}"
    if dtype.kind in "mM":
        return "convert it with .astype('int64')"
    return "convert it with .astype(...)"


def _all_names() -> str:
    return ", ".join(sorted({*_BY_NAME, "bfloat16"}))


def _numpy_name(value: Any) -> str:
    try:
        dtype = np.dtype(value)
    except TypeError:
        return ""
    return "string" if dtype.kind in "OSU" else dtype.name


def _bfloat16() -> np.dtype[Any]:
    import ml_dtypes

    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def names() -> Iterator[str]:
    """The names of data types that `penstock` has as attributes."""
    yield from _NUMBERS
    yield from ("bool", "string", "bfloat16", "double", "half")


def __getattr__(name: str) -> DType:
    if name in _BY_NAME or name in _ALIASES or name == "bfloat16":
        return as_dtype(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
