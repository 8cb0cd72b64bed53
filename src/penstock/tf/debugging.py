"""`tf.debugging`: assertions about tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.element.dtypes import as_dtype, of_numpy
from penstock.element.spec import TensorShape
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.tf.missing_operations import refuse_names_of_tf
from penstock.tf.operations import name_call
from penstock.tf.values import as_tensor, match_operands, to_array

__all__ = [
    "Assert",
    "assert_all_finite",
    "assert_equal",
    "assert_greater",
    "assert_greater_equal",
    "assert_integer",
    "assert_less",
    "assert_less_equal",
    "assert_near",
    "assert_negative",
    "assert_non_negative",
    "assert_non_positive",
    "assert_none_equal",
    "assert_positive",
    "assert_rank",
    "assert_rank_at_least",
    "assert_rank_in",
    "assert_scalar",
    "assert_shapes",
    "assert_type",
    "check_numerics",
]


def Assert(condition: Any, data: Any, summarize: Any = None, name: str | None = None) -> None:  # noqa: N802
    """Raises InvalidArgumentError with `data` unless the condition is True."""
    if not np.all(to_array(condition)):
        raise InvalidArgumentError(
            f"tf.debugging.Assert: {[np.asarray(to_array(one)) for one in data]}"
        )


def _compare(call: str, compute: Callable[[Any, Any], Any]) -> Callable[..., None]:
    def check(
        x: Any, y: Any, message: str | None = None, summarize: Any = None, name: Any = None
    ) -> None:
        left, right = match_operands(call, (x, y))
        if not np.all(compute(left, right)):
            raise _failure(call, message, f"x = {left}, y = {right}")

    doc = f"Raises InvalidArgumentError unless `{call.removeprefix('assert_')}` holds."
    return name_call(check, call, doc)


def _failure(call: str, message: str | None, shown: str) -> InvalidArgumentError:
    text = f"{message} " if message else ""
    return InvalidArgumentError(f"tf.debugging.{call}: {text}Condition does not hold; {shown:.200}")


def _sign(call: str, compute: Callable[[Any], Any]) -> Callable[..., None]:
    def check(x: Any, message: str | None = None, summarize: Any = None, name: Any = None) -> None:
        array = to_array(x)
        if not np.all(compute(array)):
            raise _failure(call, message, f"x = {array}")

    return name_call(check, call, f"Raises InvalidArgumentError unless all values are {call[7:]}.")


assert_equal = _compare("assert_equal", np.equal)
assert_less = _compare("assert_less", np.less)
assert_less_equal = _compare("assert_less_equal", np.less_equal)
assert_greater = _compare("assert_greater", np.greater)
assert_greater_equal = _compare("assert_greater_equal", np.greater_equal)
assert_positive = _sign("assert_positive", lambda x: x > 0)
assert_negative = _sign("assert_negative", lambda x: x < 0)
assert_non_negative = _sign("assert_non_negative", lambda x: x >= 0)
assert_non_positive = _sign("assert_non_positive", lambda x: x <= 0)


_assert_none_equal = _compare("assert_none_equal", np.not_equal)


def assert_none_equal(
    x: Any, y: Any, summarize: Any = None, message: str | None = None, name: Any = None
) -> None:
    """Raises InvalidArgumentError unless `none_equal` holds."""
    _assert_none_equal(x, y, message)


def assert_near(
    x: Any, y: Any, rtol: Any = None, atol: Any = None, message: str | None = None, **_: Any
) -> None:
    """Raises InvalidArgumentError unless the values are close."""
    left, right = (np.asarray(one) for one in match_operands("assert_near", (x, y)))
    step = 10 * np.finfo(left.dtype if left.dtype.kind == "f" else np.float64).eps
    relative, absolute = (step if one is None else float(one) for one in (rtol, atol))
    if not np.all(np.abs(left - right) <= absolute + relative * np.abs(right)):
        raise _failure("assert_near", message, f"x = {left}, y = {right}")


def check_numerics(tensor: Any, message: str, name: str | None = None) -> Any:
    """The tensor, if it holds no NaN and no infinity."""
    array = to_array(tensor)
    if not np.isfinite(array).all():
        raise InvalidArgumentError(
            f"tf.debugging.check_numerics: {message} : Tensor had NaN or Inf"
        )
    return as_tensor(array)


def assert_all_finite(x: Any, message: str, name: str | None = None) -> Any:
    """The tensor, if it holds no NaN and no infinity."""
    return check_numerics(x, message)


def assert_rank(x: Any, rank: Any, message: str | None = None, name: Any = None) -> None:
    """Raises InvalidArgumentError unless there are `rank` dimensions."""
    if to_array(x).ndim != int(rank):
        raise _failure("assert_rank", message, f"the rank is {to_array(x).ndim}, not {rank}")


def assert_rank_at_least(x: Any, rank: Any, message: str | None = None, name: Any = None) -> None:
    """Raises InvalidArgumentError if there are fewer dimensions."""
    if to_array(x).ndim < int(rank):
        raise _failure("assert_rank_at_least", message, f"the rank is {to_array(x).ndim}")


def assert_rank_in(x: Any, ranks: Any, message: str | None = None, name: Any = None) -> None:
    """Raises InvalidArgumentError unless the number of dimensions is one of `ranks`."""
    if to_array(x).ndim not in [int(one) for one in ranks]:
        raise _failure("assert_rank_in", message, f"the rank is {to_array(x).ndim}, not in {ranks}")


def assert_scalar(tensor: Any, message: str | None = None, name: Any = None) -> Any:
    """The tensor, if it is a single value."""
    array = to_array(tensor)
    if array.ndim:
        raise _failure("assert_scalar", message, f"the shape is {array.shape}")
    return as_tensor(array)


def assert_integer(x: Any, message: str | None = None, name: Any = None) -> None:
    """Raises TypeError unless the values are integers."""
    if to_array(x).dtype.kind not in "iu":
        raise InvalidTypeError(f"tf.debugging.assert_integer: {message or ''} {to_array(x).dtype}")


def assert_type(tensor: Any, tf_type: Any, message: str | None = None, name: Any = None) -> None:
    """Raises TypeError unless the dtype is `tf_type`."""
    found = of_numpy(to_array(tensor).dtype)
    if found != as_dtype(tf_type):
        raise InvalidTypeError(
            f"tf.debugging.assert_type: {message or ''} must be {as_dtype(tf_type).name}, "
            f"got {found.name}"
        )


def assert_shapes(shapes: Any, data: Any = None, message: str | None = None, **_: Any) -> None:
    """Raises ValueError unless tensors fit shapes; a name in a shape has one size everywhere."""
    sizes: dict[Any, int] = {}
    for tensor, wanted in shapes.items() if isinstance(shapes, dict) else shapes:
        found = to_array(tensor).shape
        fits = len(found) == len(wanted)
        for size, want in zip(found, wanted, strict=False):
            known = want if isinstance(want, int) else sizes.setdefault(want, size)
            fits = fits and (want is None or known == size)
        if not fits:
            raise _failure("assert_shapes", message, f"{TensorShape(found)} is not {wanted}")


__getattr__ = refuse_names_of_tf("debugging", __all__)
