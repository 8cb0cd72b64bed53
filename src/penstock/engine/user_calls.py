"""Calling users' functions: on many elements at once, in order, each exactly once.

A failure is reported with the operator, the function's file and line and the element's number;
the original exception is its cause. The engine calls users' functions on elements only here;
`plan/shard.py` calls one to see whether it reads files.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from itertools import islice, starmap
from typing import Any
from weakref import WeakKeyDictionary

from penstock.element.chunk import Chunk
from penstock.element.strict import holds_strings, plain, strict
from penstock.element.values import brief
from penstock.engine.call_watch import watch_calls
from penstock.engine.copies import copy_unowned, is_fixed, owners
from penstock.engine.inlets import BUDGET, Place
from penstock.engine.tracebacks import users_level
from penstock.errors import OpError, kind_of
from penstock.plan.functions import Function
from penstock.plan.seeds import generator


class FailedCall:
    """Takes the place of an element that could not be made, among results."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


CONTAINED: ContextVar[bool] = ContextVar("contained", default=False)
"""Whether every exception of a function is the failure of an element, also SystemExit."""


def is_failure(cause: BaseException) -> bool:
    """Whether an exception of a function means that an element could not be made."""
    return isinstance(cause, Exception) or CONTAINED.get()


NOTHING = object()
"""In place of an element that is not known."""


Origin = Callable[[int, Place | None, Any], str]
"""Says where an element comes from, by its number, its place and its value (None: unknown)."""

_TRIAL = 16
"""How many results are handed on singly, before the speed of a function is known."""

_STRICT_EVERY = 251
"""How many calls there are at least from one with strict strings to the next, after the trial.

Their methods are slow: a function that strips 600 words of a text takes nine times as long with
them. It may be many more, as only the first call of a chunk gets them.
"""

_TRIED: WeakKeyDictionary[Function, list[int]] = WeakKeyDictionary()
"""How often each function was called, in all iterations, so that short streams learn, too.

Threads count without a lock: a lost count only makes the trial a little longer.
"""

_SPAN = 8192
"""How many elements are taken from a chunk at once; few, where failures are frequent."""

_BLOCK_SECONDS = 50e-6
_BLOCK = 32


def failure(
    operator: str, function: Function, ordinal: int, cause: BaseException, element: Any = NOTHING
) -> OpError:
    """The error that names the function and the element on which it failed.

    Functions of penstock's own name the call that the user wrote.
    """
    if function.is_own and isinstance(cause, OpError):
        text = cause.message
    else:
        shown = "" if element is NOTHING else f" ({brief(plain(element))})"
        text = (
            f"Dataset.{function.given_to or operator}: {function} failed for element "
            f"{ordinal}{shown}: {type(cause).__name__}: {cause}"
        )
    error = kind_of(cause)(text)
    error.__cause__ = cause
    error.element = None if element is NOTHING else element
    return error


def _trial_count(function: Function) -> list[int]:
    try:
        return _TRIED.setdefault(function, [0])
    except TypeError:  # A callable object without a hash.
        return [0]


def _warn_of_change(where: str, name: str, before: Any, now: Any) -> None:
    warnings.warn(
        f"{where} reads {name!r}, which was {before!r:.60} when the dataset was made and is "
        f"{now!r:.60} now, so its calls use {now!r:.60}; to keep the value, make it a default, as "
        f"in lambda x, {name}={name}: ...; in processes and on workers the function keeps the "
        "value that it was sent with",
        stacklevel=users_level(),
    )


class Calls:
    """One operator's calls of one function."""

    def __init__(
        self,
        operator: str,
        function: Function,
        call: Callable[..., Any] | None = None,
        signature: Any = None,
        origin: Origin | None = None,
        node: Any = None,
    ) -> None:
        self.operator = operator
        self._origin = origin
        self._node = node
        self._seeded = isinstance(call, SeededFunction)
        self.signature = signature
        """The `output_signature` that the results must fit, if there is one."""
        self.function = function
        self.where = f"Dataset.{function.given_to or operator}: {function}"
        if (changed := function.changed_variable()) is not None:
            _warn_of_change(self.where, *changed)
        self.call = watch_calls(self.where, function.call if call is None else call)
        self._block = 1
        self._fixed: bool | None = None
        self._made = _trial_count(function)
        self._span = _TRIAL
        self._called = self._next_strict = 0
        """How many elements were given to the function, and from which on strings are strict."""

    def one(self, element: Any, ordinal: int, *more: Any) -> Any:
        """Calls the function with one element; a tuple becomes separate arguments."""
        call = self.call
        if self._is_strict_next():
            element = strict(element)
        self._made[0] += 1
        self._called += 1
        try:
            value = call(*element, *more) if type(element) is tuple else call(element, *more)
            return plain(copy_unowned(value, owners(element)))
        except BaseException as cause:
            if not is_failure(cause):
                raise
            raise failure(self.operator, self.function, ordinal, cause, element) from cause

    def plain(
        self, ordinal: int, *arguments: Any, copy: Callable[[Any], Any] = copy_unowned
    ) -> Any:
        """Calls the function with these arguments, and copies what it returns."""
        if self.on_trial:
            arguments = strict(arguments)
        self._made[0] += 1
        try:
            return plain(copy(self.call(*arguments)))
        except BaseException as cause:
            if not is_failure(cause):
                raise
            raise failure(self.operator, self.function, ordinal, cause, arguments) from cause

    def many(
        self, chunk: Chunk, ordinal: int, budget: float = BUDGET
    ) -> tuple[list[Any], OpError | None]:
        """Results for the first elements of `chunk`, and the failure of the next, if it failed.

        Stops early when the budget is used up: the caller keeps the rest for later. The strings of
        the first element may be strict.
        """
        elements = chunk.rows(0, 1 if self.on_trial else self._span).elements()
        if is_strict := holds_strings(chunk) and self._is_strict_next():
            elements[0] = strict(elements[0])
        results, error = self._results(elements, chunk.tree.type is tuple, ordinal, budget)
        if is_strict and results:
            results[0] = plain(results[0])
        self._called += len(results)
        return results, error

    def _is_strict_next(self) -> bool:
        """Whether the next call gets strict strings: the first ones do, and few of the others."""
        if self._called < self._next_strict:
            return False
        self._next_strict = self._called + (1 if self.on_trial else _STRICT_EVERY)
        return True

    def _results(
        self, elements: list[Any], unpack: bool, ordinal: int, budget: float
    ) -> tuple[list[Any], OpError | None]:
        until = time.perf_counter() + budget
        results: list[Any] = []
        self._made[0] += 1
        try:
            if not self._fixed:
                self._one_by_one(elements, unpack, until, results)
            if self._fixed:
                self._in_blocks(elements, unpack, until, results)
        except BaseException as cause:
            if not is_failure(cause):
                raise
            self._span = len(results) + 1
            number = ordinal + len(results)
            element = elements[len(results)]
            if self._seeded:
                element = element[1]
            return results, failure(self.operator, self.function, number, cause, element)
        self._span = min(2 * self._span, _SPAN)
        return results, None

    def add_origin(self, error: Exception, ordinal: int, place: Place | None) -> None:
        """Has the error of an element say where the element comes from, if that can be found.

        `place` is the place of the element among the elements that the function is called on.
        """
        if self._origin is None or not isinstance(error, OpError):
            return
        if error.counted is None:  # Else it is the error of an operator before this one.
            error.find_origin = partial(self._origin, ordinal, place, error.element)
            error.counted = self._node, ordinal

    @property
    def on_trial(self) -> bool:
        """Whether the function was called too seldom to know its speed."""
        return self._made[0] < _TRIAL

    def _one_by_one(
        self, elements: list[Any], unpack: bool, until: float, results: list[Any]
    ) -> None:
        """Calls for results that may change later: each is copied before the next call."""
        for element in elements:
            value = self.call(*element) if unpack else self.call(element)
            if self._fixed is None:
                self._fixed = is_fixed(value)
            if self._fixed:
                results.append(value)
                return
            results.append(copy_unowned(value, owners(element)))
            if time.perf_counter() > until:
                return

    def _in_blocks(
        self, elements: list[Any], unpack: bool, until: float, results: list[Any]
    ) -> None:
        """Calls for results that cannot change; reads the clock after every block of calls."""
        each: Callable[..., Any] = starmap if unpack else map
        waiting = iter(elements[len(results) :])
        begun = len(results)
        started = now = time.perf_counter()
        while len(results) < len(elements) and (now <= until or not results):
            block = min(self._block, len(elements) - len(results))  # Other threads may change it.
            want = len(results) + block
            # `extend` appends one by one, so results before a failure are kept.
            results.extend(each(self.call, islice(waiting, block)))
            if len(results) < want:
                raise StopIteration  # The function's own, which `map` took for its end.
            now = time.perf_counter()
        if len(results) > begun:
            self._pace((now - started) / (len(results) - begun))

    def all(self, chunk: Chunk, ordinal: int) -> list[Any]:
        """One result, or a `FailedCall`, for every element of `chunk`."""
        results: list[Any] = []
        while len(results) < len(chunk):
            rest = chunk.rows(len(results), len(chunk))
            made, error = self.many(rest, ordinal + len(results), float("inf"))
            results += made
            if error is not None:
                results.append(FailedCall(error))
        return results

    def _pace(self, seconds: float) -> None:
        """Chooses the length of the next block: short if the function is slow."""
        fits = int(_BLOCK_SECONDS / max(seconds, 1e-9))
        self._block = max(1, min(fits, 2 * self._block, _BLOCK))


class SeededFunction:
    """A random function as a function of (number, element)."""

    def __init__(self, call: Callable[..., Any], seed: int, epoch: tuple[int, ...]) -> None:
        self._call = call
        self.key = (seed, *epoch)

    def __call__(self, number: Any, element: Any) -> Any:
        random = generator(*self.key, int(number))
        if type(element) is tuple:
            return self._call(*element, random)
        return self._call(element, random)
