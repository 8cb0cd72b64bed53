"""Control flow: functions are Python, so these call the functions that they are given."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from penstock.element.dtypes import DType, as_dtype
from penstock.element.spec import RaggedTensorSpec, TensorSpec
from penstock.errors import InvalidArgumentError, InvalidTypeError, UnfitTypeError
from penstock.shim import printing, tf_nest
from penstock.tf.operations import integer
from penstock.tf.ported_functions import unwrap
from penstock.tf.ragged_values import RaggedTensor, stack_rows
from penstock.tf.values import as_tensor, to_array


def cond(
    pred: Any, true_fn: Callable[[], Any], false_fn: Callable[[], Any], name: str | None = None
) -> Any:
    """What one of two functions returns."""
    return true_fn() if bool(to_array(pred)) else false_fn()


def _values(result: Any) -> Any:
    """Python's values in a result as tensors."""
    if result is None or isinstance(result, RaggedTensor):
        return result
    return tf_nest.map_structure(
        lambda leaf: as_tensor(to_array(leaf)) if isinstance(leaf, _VALUES) else leaf, result
    )


_VALUES = bool | int | float | complex | str | bytes | np.ndarray | np.generic


def case(
    pred_fn_pairs: Any,
    default: Callable[[], Any] | None = None,
    exclusive: bool = False,
    strict: bool = False,
    name: str | None = None,
) -> Any:
    """What the function of the first condition that is True returns."""
    for pred, function in pred_fn_pairs:
        if bool(to_array(pred)):
            return function()
    if default is None:
        raise InvalidArgumentError("tf.case: no condition is True, and there is no default")
    return default()


def switch_case(
    branch_index: Any, branch_fns: Any, default: Any = None, name: str | None = None
) -> Any:
    """What the function with the number `branch_index` returns; by default, the last one."""
    listed = list(branch_fns.items() if isinstance(branch_fns, dict) else branch_fns)
    is_numbered = bool(listed) and isinstance(listed[0], tuple)
    functions = dict(listed if is_numbered else enumerate(listed))
    last = default if default is not None else functions[max(functions)]
    return functions.get(integer("switch_case", "branch_index", branch_index), last)()


def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    shape_invariants: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    maximum_iterations: Any = None,
    name: str | None = None,
) -> Any:
    """The variables after `body` was called as long as `cond` is True."""
    values = _values(loop_vars)
    left = None if maximum_iterations is None else int(maximum_iterations)
    while (left is None or left > 0) and bool(to_array(cond(*values))):
        made = body(*values)
        values = _values(made if isinstance(made, list | tuple) else [made])
        left = None if left is None else left - 1
    return type(loop_vars)(values) if isinstance(loop_vars, list | tuple) else values


def map_fn(
    fn: Callable[..., Any],
    elems: Any,
    dtype: Any = None,
    parallel_iterations: Any = None,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    name: str | None = None,
    fn_output_signature: Any = None,
) -> Any:
    """A function of every row, and its results stacked."""
    leaves = [
        one if isinstance(one, RaggedTensor) else as_tensor(to_array(one))
        for one in tf_nest.flatten(elems)
    ]
    rows = [fn(tf_nest.pack_sequence_as(elems, list(row))) for row in zip(*leaves, strict=True)]
    declared = dtype if fn_output_signature is None else fn_output_signature
    if not rows:
        like = elems if declared is None else declared
        return tf_nest.map_structure(lambda one: as_tensor(np.zeros(0, _dtype_of(one))), like)
    columns = list(zip(*(tf_nest.flatten(row) for row in rows), strict=True))
    are_ragged = [False] * len(columns)
    if declared is None and any(isinstance(one, RaggedTensor) for one in leaves):
        are_ragged = [_has_rows(column) for column in columns]
    elif declared is not None and len(specs := tf_nest.flatten(declared)) == len(columns):
        are_ragged = [isinstance(spec, RaggedTensorSpec) for spec in specs]
    made = list(map(_stack_results, columns, are_ragged))
    return tf_nest.pack_sequence_as(rows[0], made)


def _dtype_of(value: Any) -> Any:
    kind = value if isinstance(value, DType | str | type) else getattr(value, "dtype", None)
    return to_array(value).dtype if kind is None else as_dtype(kind).dtype


def _has_rows(column: Sequence[Any]) -> bool:
    return any(isinstance(one, RaggedTensor) or np.ndim(one) for one in column)


def _stack_results(column: Sequence[Any], is_ragged: bool) -> Any:
    """The results of all rows: as ragged rows, or in one array."""
    if is_ragged:
        return stack_rows(column)
    return as_tensor(np.stack([to_array(one) for one in column]))


vectorized_map = map_fn


def foldl(fn: Callable[..., Any], elems: Any, initializer: Any = None, **_: Any) -> Any:
    """One value from all rows: `fn` of the value so far and the next row."""
    rows = list(as_tensor(to_array(elems)))
    first = rows.pop(0) if initializer is None else _values(initializer)
    return functools.reduce(lambda state, row: _values(fn(state, row)), rows, first)


def py_function(
    func: Callable[..., Any] | None = None,
    inp: Sequence[Any] | None = None,
    Tout: Any = None,  # noqa: N803
    name: str | None = None,
) -> Any:
    """A Python function of tensors; its results get the dtypes `Tout`.

    Without `func` it is a decorator: `@tf.py_function(Tout=tf.int64)`.
    """
    if _is_decorator("py_function", func, inp, Tout):
        return _decorator(py_function, Tout)
    assert func is not None
    parts = _parts_of_result(func(*[_argument(value) for value in inp or ()]))
    count = len(Tout) if isinstance(Tout, list | tuple) else 1
    return _declare("py_function", parts[:count], Tout, _cast)


def numpy_function(
    func: Callable[..., Any] | None = None,
    inp: Sequence[Any] | None = None,
    Tout: Any = None,  # noqa: N803
    stateful: bool = True,
    name: str | None = None,
) -> Any:
    """A Python function of NumPy arrays; arrays that it returns keep their dtypes.

    Python's numbers get the dtypes `Tout`. Without `func` it is a decorator:
    `@tf.numpy_function(Tout=tf.int64)`.
    """
    if _is_decorator("numpy_function", func, inp, Tout):
        return _decorator(numpy_function, Tout)
    assert func is not None
    parts = _parts_of_result(unwrap(func(*[_numpy(value) for value in inp or ()])))
    if isinstance(Tout, list | tuple) and not Tout:
        return None
    return _declare("numpy_function", parts, Tout, _convert)


def _is_decorator(call: str, func: Any, inp: Any, types: Any) -> bool:
    """Whether a call without `func` makes a decorator; raises for calls that TensorFlow refuses."""
    if types is None:
        raise InvalidTypeError(f"tf.{call}: needs Tout; a decorator is @tf.{call}(Tout=tf.int64)")
    if func is None and inp is not None:
        raise InvalidTypeError(f"tf.{call}: a decorator takes no inp; leave it out, or pass func")
    if func is not None and inp is None:
        raise InvalidTypeError(f"tf.{call}: needs inp, the list of the function's arguments")
    return func is None


def _decorator(call: Callable[..., Any], types: Any) -> Callable[..., Any]:
    """A decorator: the function is called by `py_function` or `numpy_function`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call_with(*args: Any) -> Any:
            return call(function, list(args), types)

        return call_with

    return decorate


def _argument(value: Any) -> Any:
    return as_tensor(to_array(value)) if isinstance(value, list | tuple) else _values(value)


def _numpy(value: Any) -> Any:
    """An argument as NumPy reads it: numbers of Python have 64 bits."""
    is_python = isinstance(value, bool | int | float | list | tuple)
    numbers = np.asarray(value) if is_python else None
    array = numbers if numbers is not None and numbers.dtype.kind in "biuf" else to_array(value)
    return array[()] if array.ndim == 0 else array


def _parts_of_result(result: Any) -> list[Any]:
    """The values that a function returned: a list or tuple holds several, None holds none."""
    if result is None:
        return []
    return list(result) if isinstance(result, list | tuple) else [result]


def _declare(call: str, parts: list[Any], declared: Any, convert: Callable[[Any, Any], Any]) -> Any:
    """What a function returned, converted to the dtypes of `Tout`."""
    is_list = isinstance(declared, list | tuple)
    types = list(declared) if is_list else [declared]
    if len(parts) != len(types):
        raise InvalidArgumentError(
            f"tf.{call}: Tout has {len(types)} dtypes, but {len(parts)} values came back"
        )
    made = list(map(convert, parts, types))
    return made if is_list else made[0]


def _cast(value: Any, declared: Any) -> Any:
    """One result of a `py_function`: of the dtype, or as the spec says."""
    if isinstance(value, RaggedTensor):
        return value
    dtype = declared.dtype if isinstance(declared, TensorSpec) else declared
    return _as_declared(unwrap(value), dtype, "py_function")


def _convert(value: Any, dtype: Any) -> Any:
    """One result of a `numpy_function`, which has a dtype of its own unless it is Python's."""
    if isinstance(value, np.ndarray | np.generic):
        return as_tensor(value)
    return _as_declared(value, dtype, "numpy_function")


def _as_declared(value: Any, dtype: Any, call: str) -> Any:
    """A result with its dtype; a result that does not fit raises InvalidArgumentError."""
    try:
        return as_tensor(to_array(value, as_dtype(dtype), call))
    except InvalidTypeError as error:
        raise UnfitTypeError(f"tf.{error.message}; return what Tout declares") from None


def print(*inputs: Any, **options: Any) -> None:
    """Prints tensors in the short form of TensorFlow; see `penstock.print`."""
    printing.print(*unwrap(inputs), **options)


def group(*inputs: Any, **_: Any) -> None:
    """Nothing: every operation has run already."""


def no_op(name: str | None = None) -> None:
    """Nothing."""


def executing_eagerly() -> bool:
    """True: functions always run as they are written."""
    return True


class name_scope:  # noqa: N801
    """A context that changes nothing."""

    def __init__(self, name: Any = None) -> None:
        self.name = name

    def __enter__(self) -> Any:
        return self.name

    def __exit__(self, *_: object) -> None:
        return None


def foldr(fn: Callable[..., Any], elems: Any, initializer: Any = None, **_: Any) -> Any:
    """One value from all rows, from the last to the first."""
    return foldl(fn, to_array(elems)[::-1], initializer)


def scan(fn: Callable[..., Any], elems: Any, initializer: Any = None, **_: Any) -> Any:
    """The values of `foldl` after every row, stacked."""
    rows = list(as_tensor(to_array(elems)))
    first = rows.pop(0) if initializer is None else _values(initializer)
    states = list(accumulate(rows, lambda state, row: _values(fn(state, row)), initial=first))
    kept = states if initializer is None else states[1:]
    return as_tensor(np.stack([to_array(one) for one in kept]))


class control_dependencies(name_scope):  # noqa: N801
    """A context that changes nothing: operations run in the order of the program."""


class device(name_scope):  # noqa: N801
    """A context that changes nothing: elements are in the memory of the host."""


class init_scope(name_scope):  # noqa: N801
    """A context that changes nothing: functions always run as they are written."""
