"""The `tf` of the programs: penstock, and beside it the names that only the programs need.

penstock comes first: a name that it has is penstock's own. Nothing here may repair or hide what the
product does; these are the small tensor operations that a user would write in NumPy.
"""

import importlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock import errors
from penstock.element.ragged import Ragged

MISSING = object()


class Names:
    """Attributes of `product`, then those of `extra`; a dict in `extra` is a module of names."""

    def __init__(self, product: Any, extra: dict[str, Any], path: str = "tf") -> None:
        self._product, self._extra, self._path = product, extra, path

    def __getattr__(self, name: str) -> Any:
        own, extra = getattr(self._product, name, MISSING), self._extra.get(name, MISSING)
        if isinstance(extra, dict):
            return Names(own, extra, f"{self._path}.{name}")
        if own is MISSING and extra is MISSING:
            raise AttributeError(f"{self._path}.{name}: neither penstock nor the harness has it")
        return extra if own is MISSING else own

    def __reduce__(self) -> tuple[Any, ...]:
        """Functions that name `tf` travel to the workers of a service."""
        return at_path, (self._path,)


def at_path(path: str) -> Any:
    """`tf.io` and the like."""
    found: Any = namespace()
    for name in path.split(".")[1:]:
        found = getattr(found, name)
    return found


def namespace() -> Names:
    """What a program sees as `tf`."""
    return Names(importlib.import_module("penstock"), EXTRA)


def tensor(value: Any) -> Any:
    """A value as TensorFlow takes it: ints are int32, floats float32, strings bytes."""
    if isinstance(value, str | bytes):
        return value.encode() if isinstance(value, str) else value
    array = np.asarray(value)
    if array.dtype.kind in "US":
        return np.array([tensor(one) for one in array.ravel().tolist()], object).reshape(
            array.shape
        )
    if not _holds_numpy(value):
        array = array.astype({"i": np.int32, "f": np.float32}.get(array.dtype.kind, array.dtype))
    return array[()]


def cast(value: Any, dtype: Any) -> Any:
    """A value as the given dtype, whether that is NumPy's or penstock's."""
    if getattr(dtype, "name", dtype) in ("string", "object"):
        return tensor(value)
    return np.asarray(value).astype(getattr(dtype, "as_numpy_dtype", dtype))[()]


def _holds_numpy(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_holds_numpy(one) for one in value)
    return hasattr(value, "dtype")


def fill(dims: Sequence[int], value: Any) -> Any:
    filling = tensor(value)
    kind = object if isinstance(filling, bytes) else filling.dtype
    return np.full([int(dim) for dim in dims], filling, kind)


def reshape(value: Any, shape: Sequence[int]) -> Any:
    return np.reshape(tensor(value), [int(dim) for dim in shape])


def concat(values: Sequence[Any], axis: int) -> Any:
    return np.concatenate([tensor(value) for value in values], axis)


def cond(pred: Any, true_fn: Callable[[], Any], false_fn: Callable[[], Any]) -> Any:
    return true_fn() if pred else false_fn()


def py_function(func: Callable[..., Any], inp: Sequence[Any], Tout: Any) -> Any:
    """Calls `func`; the results have the dtypes of `Tout`, a list of results for a list of them."""
    result = func(*(tensor(value) for value in inp))
    if isinstance(Tout, list | tuple):
        return [cast(one, dtype) for one, dtype in zip(result, Tout, strict=True)]
    return cast(result, Tout)


def ensure_shape(value: Any, shape: Sequence[int | None]) -> Any:
    found = np.shape(value)
    fits = len(found) == len(shape) and all(
        want in (None, have) for want, have in zip(shape, found, strict=True)
    )
    if not fits:
        raise errors.InvalidArgumentError(f"ensure_shape: the shape is {found}, not {shape}")
    return value


def check_numerics(value: Any, message: str) -> Any:
    if not np.isfinite(value).all():
        raise errors.InvalidArgumentError(f"check_numerics: {message}: got {value}")
    return value


def as_string(value: Any) -> Any:
    array = np.asarray(value)
    return tensor(np.array([str(one) for one in array.ravel()]).reshape(array.shape))


def ragged_constant(rows: Sequence[Any], dtype: Any = None) -> Any:
    items = [item for row in rows for item in row]
    if any(isinstance(item, list | tuple) for item in items):
        return _build_ragged(ragged_constant(items, dtype), rows)
    values = tensor(items)
    return _build_ragged(values if dtype is None else cast(values, dtype), rows)


def ragged_range(starts: Any, limits: Any = None, deltas: Any = 1) -> Any:
    firsts, ends = (np.zeros_like(starts), starts) if limits is None else (starts, limits)
    firsts, ends, steps = np.broadcast_arrays(tensor(firsts), tensor(ends), tensor(deltas))
    kind = np.result_type(firsts, ends)
    rows = [np.arange(*row, dtype=kind) for row in zip(firsts, ends, steps, strict=True)]
    return _build_ragged(np.concatenate(rows), rows)


def _build_ragged(values: Any, rows: Sequence[Any]) -> Any:
    return Ragged(values, np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64))


def read_file(filename: bytes) -> bytes:
    with open(filename, "rb") as file:
        return file.read()


class Checkpoint:
    """Variables and iterators by their names, in a file."""

    def __init__(self, **parts: Any) -> None:
        self._parts = parts

    def save(self, prefix: str) -> str:
        arrays = {f"{name}{VALUE}": _save_part(one) for name, one in self._parts.items()}
        np.savez(path := f"{prefix}-1.npz", **arrays)
        return path

    def restore(self, path: str) -> None:
        with np.load(path) as arrays:
            for name, one in self._parts.items():
                _restore(one, arrays[f"{name}{VALUE}"])


def _save_part(part: Any) -> Any:
    return json.dumps(part.state_dict()) if hasattr(part, "state_dict") else part.numpy()


def _restore(part: Any, value: Any) -> None:
    if hasattr(part, "load_state_dict"):
        part.load_state_dict(json.loads(str(value)))
    else:
        part.assign(value)


VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


def list_variables(path: str) -> list[tuple[str, list[int]]]:
    with np.load(path) as arrays:
        return [(name, list(arrays[name].shape)) for name in arrays]


def no_sparse(*_: Any, **__: Any) -> Any:
    raise errors.UnimplementedError(
        "tf.sparse: penstock has no sparse tensors; use ragged or dense"
    )


EXTRA: dict[str, Any] = {
    "add": lambda x, y: np.add(tensor(x), tensor(y)),
    "concat": concat,
    "cond": cond,
    "convert_to_tensor": tensor,
    "ensure_shape": ensure_shape,
    "fill": fill,
    "numpy_function": py_function,
    "py_function": py_function,
    "reshape": reshape,
    "debugging": {"check_numerics": check_numerics},
    "io": {"read_file": read_file},
    "ragged": {"constant": ragged_constant, "range": ragged_range},
    "sparse": {"from_dense": no_sparse},
    "strings": {"as_string": as_string},
    "train": {"Checkpoint": Checkpoint, "list_variables": list_variables},
}
