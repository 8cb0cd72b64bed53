"""Results of users' functions: handed on in order, with one structure, and failures in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.element import nest
from penstock.element.chunk import Chunk, changed_structure, describe, unusable_element
from penstock.element.columns import Array
from penstock.element.spec import fits
from penstock.element.values import as_element, as_value, spec_of
from penstock.engine.fitting import fit_chunk
from penstock.engine.inlets import Place
from penstock.engine.trail import put_turn
from penstock.engine.user_calls import Calls, FailedCall
from penstock.errors import InvalidArgumentError, InvalidTypeError, OpError


class Results:
    """Elements that were made and not handed on yet.

    A structure or dtype that differs from the first element's is a failure of that element. The
    first element is that of `Function.returns`, if the function was tried before it was sent here.
    """

    def __init__(self, calls: Calls, ordinal: int = 0) -> None:
        self.where = calls.where
        self._add_origin = calls.add_origin
        self.ordinal = ordinal
        self._waiting: list[Any] = []
        self._made: Chunk | None = None
        """Elements that came as a chunk; then no other elements are waiting."""
        self._begun = ordinal
        """The number of the first result that was added last, for the two fields below."""
        self._numbers: Array | None = None
        self._first_place: Place | None = None
        self._failures = 0
        self._kind: Any = None
        tried = calls.function.returns
        self._first = None if tried is None else (tried.number, tried.structure)
        self._signature = calls.signature
        self._lists = None if tried is None else tried.lists
        """The shapes of the lists in the first element, if there are any."""

    def __len__(self) -> int:
        return len(self._waiting) if self._made is None else len(self._made)

    def add(
        self,
        results: list[Any],
        failures: int = 0,
        numbers: Array | None = None,
        place: Place | None = None,
    ) -> None:
        """Adds results when none are left; `failures` of them are `FailedCall`.

        `numbers` are the numbers of the elements that were the arguments, `place` is that of the
        first of them.
        """
        assert not len(self)
        self._waiting, self._failures = results, failures
        self._begun, self._first_place, self._numbers = self.ordinal, place, numbers

    def add_chunk(self, made: Chunk, numbers: Array | None = None) -> None:
        """Adds results without a failure, and without lists, as a chunk."""
        self.add([], 0, numbers)
        self._made = made

    def hand_on(self, limit: int) -> Chunk:
        """The next elements; raises if the next one is a failure."""
        if self._made is not None:
            return self._hand_on_made(self._made, limit)
        count = min(limit, self._count_good())
        if count == 0:
            raise self._drop_failed()
        try:
            chunk = self._chunk(self._front(count))
        except (InvalidArgumentError, InvalidTypeError):
            count = self._count_like_first(count)
            if count == 0:
                raise self._drop_next(self._misfit()) from None
            chunk = self._chunk(self._front(count))
        self._waiting = self._waiting[count:] if count < len(self._waiting) else []
        return self._add_numbers(chunk)

    def _hand_on_made(self, made: Chunk, limit: int) -> Chunk:
        chunk = made.rows(0, limit)
        try:
            self._check(chunk, chunk.rows(0, 1).elements()[0])
        except (InvalidArgumentError, InvalidTypeError):
            self._made, self._waiting = None, made.elements()
            return self.hand_on(limit)
        self._made = made.rows(len(chunk), len(made)) if len(chunk) < len(made) else None
        return self._add_numbers(chunk)

    def _add_numbers(self, chunk: Chunk) -> Chunk:
        """Adds the numbers of its elements to the chunk that is handed on next."""
        if (numbers := self._next_numbers()) is not None:
            chunk = chunk.with_numbers(numbers[: len(chunk)])
        self.ordinal += len(chunk)
        return chunk

    def _front(self, count: int) -> list[Any]:
        return self._waiting if count == len(self._waiting) else self._waiting[:count]

    def _count_good(self) -> int:
        if not self._failures:
            return len(self._waiting)
        for index, item in enumerate(self._waiting):
            if type(item) is FailedCall:
                return index
        return len(self._waiting)

    def _drop_failed(self) -> Exception:
        self._failures -= 1
        error, place = self._waiting[0].error, self._first_place
        if place is not None:
            place = place.after(self.ordinal - self._begun)
        self._add_origin(error, self.ordinal, place)
        return self._drop_next(error)

    def _drop_next(self, error: Exception) -> Exception:
        """Drops the next element, and returns the error that takes its place."""
        put_turn(error, self._next_numbers())
        self.ordinal += 1
        self._waiting = self._waiting[1:]
        return error

    def _next_numbers(self) -> Array | None:
        """The numbers of the elements that are waiting, if they have some."""
        return None if self._numbers is None else self._numbers[self.ordinal - self._begun :]

    def _chunk(self, elements: list[Any]) -> Chunk:
        chunk = Chunk.of(elements, self.where, self.ordinal)
        self._check(chunk, elements[0])
        if holds_list(elements[0]):
            self._check_lists(elements, chunk)
        return chunk

    def _check(self, chunk: Chunk, first: Any) -> None:
        """Raises if the elements are not like those before, or do not fit the signature."""
        kind = chunk.kind
        if self._kind is None:
            self._set_kind(kind, describe(first))
        elif kind != self._kind:
            raise InvalidArgumentError("changed")
        if self._signature is not None:
            fit_chunk(chunk, self._signature, self.where)

    def _check_lists(self, elements: list[Any], chunk: Chunk) -> None:
        """A list is an array of one shape: the length of `x * [1, 2]` depends on x."""
        if self._lists is None:
            self._lists = list_shapes(elements[0])
        indices = [i for i, x in enumerate(nest.flatten(elements[0])[0]) if type(x) is list]
        found = [_row_shape(chunk.columns[i]) for i in indices]
        if found != self._lists:
            raise InvalidArgumentError("changed")

    def _set_kind(self, kind: Any, structure: str) -> None:
        if self._first is None:
            self._first = (self.ordinal, structure)
        elif structure != self._first[1]:
            raise InvalidArgumentError("changed")
        self._kind = kind

    def _count_like_first(self, count: int) -> int:
        """How many elements from the front have the structure of the first of all."""
        if self._first is None:
            text = _describe_or_none(self._waiting[0])
            if text is None:
                return 0
            self._first = (self.ordinal, text)
        expected = self._first[1]
        same = (self._is_like_first(element, expected) for element in self._waiting[:count])
        return next((i for i, good in enumerate(same) if not good), count)

    def _is_like_first(self, element: Any, expected: str) -> bool:
        if _describe_or_none(element) != expected or not self._fits_signature(element):
            return False
        return self._lists is None or list_shapes(element) == self._lists

    def _fits_signature(self, element: Any) -> bool:
        return self._signature is None or fits(self._signature, as_element(element))

    def _misfit(self) -> Exception:
        """The error of the next element, which does not fit."""
        element, ordinal = self._waiting[0], self.ordinal
        try:
            text = describe(element)
        except OpError as error:
            return unusable_element(self.where, element, ordinal, error)
        if not self._fits_signature(element):
            found = spec_of(as_element(element))
            return InvalidArgumentError(
                f"{self.where} returned {found} for element {ordinal}, which "
                f"does not fit the output_signature {self._signature}; say what it really returns"
            )
        assert self._first is not None
        if text == self._first[1]:
            return InvalidArgumentError(
                f"{self.where} returned a list of shape {self._lists} for element {self._first[0]} "
                f"but {list_shapes(element)} for element {ordinal}; return numpy.array(...) if "
                "shapes may differ; a number times a list repeats the list, so multiply a "
                "numpy.array"
            )
        return changed_structure(self.where, *self._first, ordinal, text)


def _row_shape(column: Any) -> Any:
    """The shape of the rows, None if they have different ones."""
    if not isinstance(column, list):
        return column.shape[1:]
    shapes = {np.shape(leaf) for leaf in column}
    return shapes.pop() if len(shapes) == 1 else None


def _describe_or_none(element: Any) -> str | None:
    try:
        return describe(element)
    except OpError:
        return None


def stack_results(made: list[Any]) -> Chunk | None:
    """The results as a chunk; None if one failed, or if only `Results` can say what is wrong."""
    if any(type(item) is FailedCall for item in made) or holds_list(made[0]):
        return None
    try:
        return Chunk.of(made)
    except OpError:
        return None


def holds_list(element: Any) -> bool:
    return _any_leaf(element, lambda leaf: type(leaf) is list)


def holds_scattered_array(element: Any) -> bool:
    """Whether a leaf is an array whose values are apart in memory, such as a crop or a flip."""
    return _any_leaf(element, lambda leaf: type(leaf) is np.ndarray and not leaf.flags.c_contiguous)


def _any_leaf(element: Any, test: Callable[[Any], bool]) -> bool:
    kind = type(element)
    if kind is tuple:
        return any(_any_leaf(part, test) for part in element)
    if kind is dict:
        return any(_any_leaf(part, test) for part in element.values())
    return test(element)


def list_shapes(element: Any) -> list[tuple[int, ...]]:
    leaves = nest.flatten(element)[0]
    return [np.shape(as_value(leaf)) for leaf in leaves if type(leaf) is list]
