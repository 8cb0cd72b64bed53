"""Users' functions inside plans: Python, opaque, and always located by file and line."""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError, InvalidTypeError


@dataclass(frozen=True)
class Function:
    """A callable that knows where it was written; equal if it is the same callable.

    >>> print(Function(len))
    len
    """

    call: Callable[..., Any]
    returns: tuple[int, str] | None = field(default=None, compare=False)
    """The number of an element and the structure that the function returned for it, in words.

    Only functions of plans that were sent here have it: no process sees all elements of such a
    plan, so all of them compare with the element that the sender has tried.
    """

    __leaf__ = True

    @property
    def tried(self) -> tuple[int, str] | None:
        """What `returns` is once this function was sent to another process."""
        return self.__dict__.get("_tried", self.returns)

    def note_trial(self, number: int, structure: str) -> None:
        """The function was called on element `number` to learn what it returns."""
        self.__dict__["_tried"] = (number, structure)

    def __getstate__(self) -> dict[str, Any]:
        return {"call": self.call, "returns": self.tried}

    @property
    def name(self) -> str:
        inner = _unwrapped(self.call)
        return getattr(inner, "__name__", type(inner).__name__)

    def __str__(self) -> str:
        code = getattr(_unwrapped(self.call), "__code__", None)
        if code is None:
            return self.name
        return f"{self.name} at {os.path.basename(code.co_filename)}:{code.co_firstlineno}"

    __repr__ = __str__


def _unwrapped(call: Any) -> Any:
    while isinstance(call, functools.partial):
        call = call.func
    inner = inspect.unwrap(call)
    return getattr(inner, "__func__", inner)


def checked(where: str, call: Any, arguments: int | None = None) -> Function:
    """`call` as a `Function`; an error at once if it cannot be called (with `arguments` values)."""
    if not callable(call):
        raise InvalidArgumentError(f"{where}: needs a function, got {call!r}")
    if arguments is not None:
        _check_arity(where, call, arguments)
    return call if isinstance(call, Function) else Function(call)


def _check_arity(where: str, call: Callable[..., Any], arguments: int) -> None:
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*([None] * arguments))
    except TypeError as error:
        raise InvalidTypeError(
            f"{where}: {Function(call)} is called with {arguments} argument(s), "
            f"one per component of the element, but takes {signature}: {error}"
        ) from None


def fingerprint(call: Callable[..., Any]) -> str:
    """The same for the same code and the same captured values, in every process where possible."""
    inner = _unwrapped(call)
    digest = hashlib.sha256()
    code = getattr(inner, "__code__", None)
    digest.update(_code_text(code).encode() if code else _stable(inner).encode())
    for cell in getattr(inner, "__closure__", None) or ():
        digest.update(_stable(cell.cell_contents).encode())
    for name in ("__defaults__", "__kwdefaults__"):
        digest.update(_stable(getattr(inner, name, None)).encode())
    return digest.hexdigest()


def _code_text(code: CodeType) -> str:
    constants = [c if not isinstance(c, CodeType) else _code_text(c) for c in code.co_consts]
    return repr((code.co_code, code.co_names, code.co_varnames, constants))


def _stable(value: Any) -> str:
    """A text that does not hold an address, and holds all of an array."""
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value))}"
    if isinstance(value, list | tuple):
        return f"{type(value).__qualname__}({', '.join(map(_stable, value))})"
    if isinstance(value, dict):
        return f"{type(value).__qualname__}({', '.join(map(_stable, value.items()))})"
    if isinstance(value, np.ndarray):
        kind, text = value.dtype, value.dtype.kind == "O"
        held = _stable(value.tolist()).encode() if text else np.ascontiguousarray(value).tobytes()
        return f"array({value.shape}, {kind}, {hashlib.sha256(held).hexdigest()})"
    text = repr(value)
    return type(value).__qualname__ if " at 0x" in text else text
