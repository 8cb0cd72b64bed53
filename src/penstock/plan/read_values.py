"""The variables that a lambda or an inner function reads when it is called.

Functions of datasets are called long after they were written. By then a loop may have given their
variables other values: `[ds.filter(lambda x: x == label) for label in labels]`.
"""

from __future__ import annotations

import builtins
import dis
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeGuard

_READS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_WRITES = {"STORE_GLOBAL", "STORE_NAME", "STORE_DEREF", "DELETE_GLOBAL", "DELETE_DEREF"}
_SEE_ALL = {"eval", "exec", "globals", "locals", "vars"}
"""A function that calls one of these may read any variable."""

_OF_MODULES = ("__builtins__", "__file__", "__loader__", "__name__", "__package__", "__spec__")


class _Variables(NamedTuple):
    """The variables of a function that are not its own."""

    read: frozenset[str]
    """Global variables that it reads."""
    written: frozenset[str]
    """Variables of its module, or of the functions around it, that it assigns to."""


def keep_values(call: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with the present values of the variables that it reads; they stay the same.

    Objects are not copied: the function sees what other code changes in them. Only lambdas and
    inner functions are changed, and not the variables that they assign to themselves.

    >>> made = [keep_values(lambda: number) for number in range(3)]
    >>> [call() for call in made]
    [0, 1, 2]
    """
    if not _is_written_inline(call):
        return call
    read, written = _variables(call.__code__)
    values, known = call.__globals__, vars(builtins)
    later = any(name not in values and name not in known for name in read)
    if not (later or read & _SEE_ALL or read & written):
        values = {name: values[name] for name in (*read, *_OF_MODULES) if name in values}
    kept = types.FunctionType(
        call.__code__, values, call.__name__, call.__defaults__, _copy_cells(call, written)
    )
    kept.__kwdefaults__ = call.__kwdefaults__
    kept.__qualname__, kept.__module__ = call.__qualname__, call.__module__
    kept.__doc__, kept.__annotations__ = call.__doc__, call.__annotations__
    kept.__dict__.update(call.__dict__)
    return kept


def plain_values(call: Callable[..., Any]) -> dict[str, Any]:
    """The numbers and texts that a lambda or an inner function reads from variables, by name.

    >>> label = "cat"
    >>> plain_values(lambda x: x == label)
    {'label': 'cat'}
    """
    return {
        name: value
        for name, value in _values(call)
        if type(value) in _PLAIN and name not in _variables(call.__code__).written
    }


_PLAIN = (bool, int, float, str, bytes, type(None))


def _values(call: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    if not _is_written_inline(call):
        return
    for name, cell in zip(call.__code__.co_freevars, call.__closure__ or (), strict=True):
        if not is_empty(cell):
            yield name, cell.cell_contents
    for name in _variables(call.__code__).read:
        if name in call.__globals__:
            yield name, call.__globals__[name]


def _is_written_inline(call: Any) -> TypeGuard[types.FunctionType]:
    """Whether it is a lambda or an inner function: those are written where they are used."""
    return isinstance(call, types.FunctionType) and "<" in call.__qualname__


def _copy_cells(
    call: types.FunctionType, written: frozenset[str]
) -> tuple[types.CellType, ...] | None:
    if call.__closure__ is None:
        return None
    names = call.__code__.co_freevars
    return tuple(
        cell if name in written or is_empty(cell) else types.CellType(cell.cell_contents)
        for name, cell in zip(names, call.__closure__, strict=True)
    )


def is_empty(cell: types.CellType) -> bool:
    """Whether its variable has no value yet, as that of a function that is defined below."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


@functools.lru_cache(4096)
def _variables(code: types.CodeType) -> _Variables:
    found = [
        (step.opname, step.argval)
        for part in codes_of(code)
        for step in dis.get_instructions(part)
        if step.argval not in part.co_cellvars  # These are the function's own.
    ]
    return _Variables(
        frozenset(name for operation, name in found if operation in _READS),
        frozenset(name for operation, name in found if operation in _WRITES),
    )


def codes_of(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function and of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_of(constant)
