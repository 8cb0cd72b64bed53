"""Calling users' functions: on many elements at once, in order, each exactly once.

A failure is reported with the operator, the function's file and line and the element's number;
the original exception is its cause. Nobody else calls a user's function on elements.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice, starmap
from typing import Any

from penstock.element.chunk import Chunk
from penstock.engine.stream import BUDGET
from penstock.errors import OpError, kind_of
from penstock.plan.functions import Function


class Failed:
    """Stands among results for an element that could not be made."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


_BLOCK_SECONDS = 50e-6
_BLOCK = 64


def failure(operator: str, function: Function, ordinal: int, cause: BaseException) -> OpError:
    """The error that tells the user which function failed on which element."""
    error = kind_of(cause)(
        f"Dataset.{operator}: {function} failed for element {ordinal}: "
        f"{type(cause).__name__}: {cause}"
    )
    error.__cause__ = cause
    return error


class Calls:
    """One operator's calls of one function."""

    def __init__(
        self, operator: str, function: Function, call: Callable[..., Any] | None = None
    ) -> None:
        self.operator = operator
        self.function = function
        self.call = function.call if call is None else call
        self.where = f"Dataset.{operator}: {function}"
        self._block = 1

    def one(self, element: Any, ordinal: int, *more: Any) -> Any:
        """The function of one element; a tuple is handed over as separate arguments."""
        call = self.call
        try:
            return call(*element, *more) if type(element) is tuple else call(element, *more)
        except Exception as cause:
            raise failure(self.operator, self.function, ordinal, cause) from cause

    def plain(self, ordinal: int, *arguments: Any) -> Any:
        """The function of arguments that are handed over as they are."""
        try:
            return self.call(*arguments)
        except Exception as cause:
            raise failure(self.operator, self.function, ordinal, cause) from cause

    def many(
        self, chunk: Chunk, ordinal: int, budget: float = BUDGET
    ) -> tuple[list[Any], OpError | None]:
        """Results for the first elements of `chunk`, and the failure that came next, if one did.

        Stops early when the budget is used up: the caller keeps the rest for later.
        """
        elements = chunk.elements()
        each: Callable[..., Any] = starmap if chunk.tree.type is tuple else map
        waiting = iter(elements)
        results: list[Any] = []
        started = now = time.perf_counter()
        while len(results) < len(elements):
            want = min(self._block, len(elements) - len(results))
            begin, before = now, len(results)
            try:
                # Appends as it goes, so what was made before a failure is kept.
                results.extend(each(self.call, islice(waiting, want)))
            except Exception as cause:
                return results, self._failure(ordinal + len(results), cause)
            if len(results) - before < want:
                # The function itself raised StopIteration, which `map` took for its end.
                return results, self._failure(ordinal + len(results), StopIteration())
            now = time.perf_counter()
            self._pace(want, now - begin)
            if now - started > budget:
                break
        return results, None

    def all(self, chunk: Chunk, ordinal: int) -> list[Any]:
        """One result, or a `Failed`, for every element of `chunk`."""
        results: list[Any] = []
        while len(results) < len(chunk):
            rest = chunk.rows(len(results), len(chunk))
            made, error = self.many(rest, ordinal + len(results), float("inf"))
            results += made
            if error is not None:
                results.append(Failed(error))
        return results

    def _failure(self, ordinal: int, cause: BaseException) -> OpError:
        return failure(self.operator, self.function, ordinal, cause)

    def _pace(self, count: int, seconds: float) -> None:
        """Looks at the clock after every block, and a block is short when the function is slow."""
        fits = int(count * _BLOCK_SECONDS / max(seconds, 1e-9))
        self._block = max(1, min(fits, 2 * count, _BLOCK))
