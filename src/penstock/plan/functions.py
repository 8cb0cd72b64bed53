"""Functions in plans: opaque Python callables, named in messages by file and line."""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, ModuleType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from penstock.errors import InvalidTypeError, UnfitTypeError
from penstock.plan.read_values import plain_values

_Call = TypeVar("_Call", bound=Callable[..., Any])


class Trial(NamedTuple):
    """What a function returned for a sample."""

    number: int
    """Of the element."""
    structure: str
    """As text, with dtypes."""
    lists: list[tuple[int, ...]] | None = None
    """The shapes of the lists in it, if there are any."""


@dataclass
class Notes:
    """What a process has found out about a function."""

    trial: Trial | None = None
    """What a call on a sample returned."""
    calls_run: tuple[str, str] = ("", "")
    """Where parallel calls ran last, "threads" or "processes", and why, for `explain` and for the
    next iteration; empty if nowhere."""
    task_rows: int = 0
    """How many elements a process was given last to call the function on; 0 if none was."""
    variables: dict[str, Any] = field(default_factory=dict)
    """The plain values that the function read from variables when it was passed."""


@dataclass(frozen=True)
class Function:
    """A user's callable, printed with its place in the source; equal if the callables are equal.

    >>> print(Function(len))
    len
    """

    call: Callable[..., Any]
    returns: Trial | None = field(default=None, compare=False)
    """The number of an element and what the function returned for it.

    It is set in plans that were received from another process. No process sees all elements of
    such a plan, so each compares its results with the element that the sender tried.
    """

    __leaf__ = True

    @functools.cached_property
    def notes(self) -> Notes:
        return Notes()

    @property
    def trial(self) -> Trial | None:
        """The value of `returns` after this function is sent to another process."""
        return self.notes.trial or self.returns

    def changed_variable(self) -> tuple[str, Any, Any] | None:
        """A variable with another value than when it was noted: its name and both; only once."""
        if not (noted := self.notes.variables):
            return None
        for name, value in plain_values(self.call).items():
            before = noted.get(name, value)
            if value is not before and value != before:
                self.notes.variables = {}
                return name, before, value
        return None

    def __getstate__(self) -> dict[str, Any]:
        return {"call": self.call, "returns": self.trial}

    @property
    def name(self) -> str:
        inner = _unwrap(self.call)
        return getattr(inner, "__name__", type(inner).__name__)

    @property
    def given_to(self) -> str:
        """The method of `Dataset` that the user passed it to; empty: the one of its operator."""
        method = _find_method(self.call)
        return getattr(self.call, _GIVEN_TO, "") if method is None else method.given_to

    @functools.cached_property
    def is_own(self) -> bool:
        """Whether penstock defines the function."""
        return str(getattr(_unwrap(self.call), "__module__", "")).startswith("penstock.")

    @functools.cached_property
    def description(self) -> str:
        """Its name and its place in the source, as in "decode at train.py:12"."""
        code = getattr(_unwrap(self.call), "__code__", None)
        if code is None:
            return self.name
        return f"{self.name} at {os.path.basename(code.co_filename)}:{code.co_firstlineno}"

    def __str__(self) -> str:
        return self.description

    __repr__ = __str__


def load_cloudpickle() -> ModuleType:
    """The package cloudpickle, which sends whole what the main program defines.

    In a process that `multiprocessing` has spawned, the main program is a module that no other
    process can import.
    """
    import cloudpickle

    if (main := sys.modules.get("__mp_main__")) is not None:
        cloudpickle.register_pickle_by_value(main)
    return cloudpickle  # type: ignore[no-any-return]


def travel_problem(function: Function) -> str:
    """Why a function cannot be sent to another process; empty if it can."""
    try:
        load_cloudpickle().dumps(function, protocol=5, buffer_callback=lambda _: None)
    except Exception as error:
        return cannot_travel(error)
    return ""


def cannot_travel(error: Exception) -> str:
    """The reason for an error that pickling a function raised."""
    return f"it cannot be sent to a process ({type(error).__name__}: {error})"


class _Method(NamedTuple):
    """A method of a user's object, which a function of penstock's own calls."""

    name: str
    given_to: str


_METHOD_ATTRIBUTE = "__calls_method__"


def calls_method(name: str, given_to: str) -> Callable[[_Call], _Call]:
    """Marks a function that calls a method of its first argument, an object of the user.

    Messages then name that method, and `given_to`, the method of `Dataset` that got the object.
    """

    def decorate(call: _Call) -> _Call:
        setattr(call, _METHOD_ATTRIBUTE, _Method(name, given_to))
        return call

    return decorate


_GIVEN_TO = "__given_to__"


def wraps_for(given_to: str, wrapped: Callable[..., Any]) -> Callable[[_Call], _Call]:
    """As `functools.wraps`; messages name `given_to`, the method that got the wrapped function."""

    def decorate(call: _Call) -> _Call:
        functools.update_wrapper(call, wrapped)
        setattr(call, _GIVEN_TO, given_to)
        return call

    return decorate


def _find_method(call: Any) -> _Method | None:
    """The method that a partial of a marked function calls."""
    if not isinstance(call, functools.partial) or not call.args:
        return None
    found: _Method | None = getattr(call.func, _METHOD_ATTRIBUTE, None)
    return found


def _unwrap(call: Any) -> Any:
    """The function inside partials, decorators and bound methods."""
    while isinstance(call, functools.partial):
        method = _find_method(call)
        call = call.func if method is None else getattr(type(call.args[0]), method.name)
    inner = inspect.unwrap(call)
    return getattr(inner, "__func__", inner)


def check_function(
    where: str, call: Any, arguments: int | None = None, meaning: str = ""
) -> Function:
    """`call` as a `Function`; raises if it cannot be called, or not with `arguments` values.

    The error says what these arguments are, if `meaning` does.
    """
    if not callable(call):
        raise UnfitTypeError(f"{where}: needs a function, got {call!r}")
    if arguments is not None:
        _check_arity(where, call, arguments, meaning)
    if isinstance(call, Function):
        return call
    function = Function(call)
    if found := plain_values(call):
        function.notes.variables = found
    return function


def _check_arity(where: str, call: Callable[..., Any], arguments: int, meaning: str) -> None:
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*([None] * arguments))
    except TypeError as error:
        given = f"{arguments} argument{'' if arguments == 1 else 's'}"
        raise InvalidTypeError(
            f"{where}: {Function(call)} is called with {given}"
            f"{meaning and f' ({meaning})'}, but takes {signature}: {error}"
        ) from None


def fingerprint(call: Callable[..., Any]) -> str:
    """A digest of a function's code, captured values and defaults.

    It is equal in every process, except where a captured value has no text of its own.
    """
    inner = _unwrap(call)
    digest = hashlib.sha256()
    code = getattr(inner, "__code__", None)
    digest.update(_code_text(code).encode() if code else _stable_text(inner).encode())
    for cell in getattr(inner, "__closure__", None) or ():
        digest.update(_stable_text(cell.cell_contents).encode())
    for name in ("__defaults__", "__kwdefaults__"):
        digest.update(_stable_text(getattr(inner, name, None)).encode())
    return digest.hexdigest()


def _code_text(code: CodeType) -> str:
    constants = [c if not isinstance(c, CodeType) else _code_text(c) for c in code.co_consts]
    return repr((code.co_code, code.co_names, code.co_varnames, constants))


def _stable_text(value: Any) -> str:
    """A text of a value without memory addresses, and with every element of an array."""
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value))}"
    if isinstance(value, list | tuple):
        return f"{type(value).__qualname__}({', '.join(map(_stable_text, value))})"
    if isinstance(value, dict):
        return f"{type(value).__qualname__}({', '.join(map(_stable_text, value.items()))})"
    if isinstance(value, np.ndarray):
        kind, text = value.dtype, value.dtype.kind == "O"
        held = (
            _stable_text(value.tolist()).encode() if text else np.ascontiguousarray(value).tobytes()
        )
        return f"array({value.shape}, {kind}, {hashlib.sha256(held).hexdigest()})"
    text = repr(value)
    return type(value).__qualname__ if " at 0x" in text else text
