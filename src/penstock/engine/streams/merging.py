"""Merging operators: several inputs become one stream; `interleave` is in `interleaving`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.element.chunk import Chunk, describe
from penstock.element.index import Array
from penstock.element.nest import Tree
from penstock.engine.access import beside
from penstock.engine.contract import State, Stream
from penstock.engine.inlets import Inlet
from penstock.engine.logs import Sequels
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.plan.seeds import derive_array


class ZipStream(Stream):
    """One element of each input; ends with the first that ends."""

    def __init__(self, parts: tuple[Stream, ...], tree: Tree) -> None:
        self.inputs = parts
        self._feeds = [Inlet(part) for part in parts]
        self._tree = tree

    def pull(self, limit: int) -> Chunk:
        chunks: list[Chunk] = []
        for number, feed in enumerate(self._feeds):
            try:
                chunks.append(feed.pull(limit))
            except StopIteration:
                raise
            except Exception:
                if not self._drop_one(chunks, number):
                    raise StopIteration from None
                raise
            limit = min(limit, len(chunks[-1]))
        for feed, chunk in zip(self._feeds, chunks, strict=True):
            feed.unread(chunk, limit)
        return beside(self._tree, [chunk.rows(0, limit) for chunk in chunks])

    def _drop_one(self, chunks: list[Chunk], failed: int) -> bool:
        """Discards the partners of an element that failed; False if an input has none for it."""
        for feed, chunk in zip(self._feeds, chunks, strict=False):
            feed.unread(chunk, 1)
        for feed in self._feeds[failed + 1 :]:
            try:
                feed.pull(1)
            except StopIteration:
                return False
            except Exception:
                continue
        return True

    def input_states(self) -> list[State]:
        return [feed.save() for feed in self._feeds]


class Alike:
    """Checks that the elements of several datasets have one structure and the same dtypes.

    `structure` describes what they must have; None means that of the first elements.
    """

    def __init__(self, where: str, structure: str | None = None) -> None:
        self._where = where
        self._kind: Any = None
        self._structure = structure

    def is_known(self, chunk: Chunk) -> bool:
        """Whether `check` has seen elements like these, so that it will not raise."""
        return self._kind is not None and bool(chunk.kind == self._kind)

    def check(self, chunk: Chunk) -> Chunk:
        if not self.is_known(chunk):
            structure = describe(chunk.rows(0, 1).elements()[0])
            if self._structure is None:
                self._structure = structure
            if self._kind is not None or structure != self._structure:
                raise InvalidTypeError(
                    f"{self._where}: the datasets must have elements of the same structure and "
                    f"dtypes, got {self._structure} and {structure}"
                )
            self._kind = chunk.kind
        return chunk


class ConcatenateStream(Stream):
    """One input, then the other."""

    def __init__(
        self,
        opens: Sequence[Callable[[State], Stream]],
        which: int,
        state: State,
        sequels: Sequels,
    ) -> None:
        self._opens = opens
        self._sequels = sequels
        self._which = which
        self._current = opens[which](state)
        self.inputs = (self._current,)
        self._alike = Alike("Dataset.concatenate")

    def pull(self, limit: int) -> Chunk:
        while True:
            try:
                return self._alike.check(self._current.pull(limit))
            except StopIteration:
                if self._which + 1 >= len(self._opens):
                    raise
            self._current.close()
            self._which += 1
            self._current = self._sequels.open(self._opens[self._which])
            self.inputs = (self._current,)

    def state(self) -> State:
        return [self._which, *self._sequels.logs()]


class BranchStream(Stream):
    """One of several branches of a plan: its elements get numbers that no other branch gives."""

    def __init__(self, source: Stream, number: int) -> None:
        self.inputs = (source,)
        self._number = number

    def pull(self, limit: int) -> Chunk:
        chunk = self.inputs[0].pull(limit)
        assert chunk.numbers is not None
        return chunk.with_numbers(derive_array(self._number, chunk.numbers))

    def save(self) -> State:
        return self.inputs[0].save()


@dataclass
class _Supply:
    """What one dataset gives for its choices, which are at the indices `at`.

    Choices from `cut` on cannot be served yet: the dataset has no more elements ready, has ended,
    or its next element failed.
    """

    number: int
    at: Array
    chunk: Chunk | None
    cut: int
    error: Exception | None = None
    ended: bool = False


class ChooseStream(Stream):
    """Elements of several inputs: each choice names the input of the next one."""

    def __init__(self, parts: tuple[Stream, ...], stop_on_empty: bool, done: State) -> None:
        self.inputs = parts
        self._choices = Inlet(parts[0])
        self._feeds = [Inlet(part) for part in parts[1:]]
        self._stop = stop_on_empty
        self._done: list[int] = list(done or ())
        self._alike = Alike("Dataset.choose_from_datasets")

    def pull(self, limit: int) -> Chunk:
        while not self._is_finished:
            choices = self._choices.pull(limit)
            supplies = self._supplies(self._valid_choices(choices))
            used = min((supply.cut for supply in supplies), default=0)
            # A dataset has ended only if all choices before its first one are served.
            self._done += [
                supply.number for supply in supplies if supply.ended and supply.at[0] <= used
            ]
            self._give_back(choices, supplies, used)
            chosen = [supply for supply in supplies if used and supply.chunk is not None]
            if chosen:
                return self._merge_supplies(chosen, used)
        raise StopIteration

    @property
    def _is_finished(self) -> bool:
        return bool(self._done) if self._stop else len(self._done) == len(self._feeds)

    def _supplies(self, numbers: Array) -> list[_Supply]:
        """What each chosen dataset has for its choices, as far as all of them have something."""
        supplies: list[_Supply] = []
        for number in dict.fromkeys(numbers.tolist()):
            at = np.flatnonzero(numbers == number)
            supplies.append(self._supply(number, at, len(numbers)))
        return supplies

    def _supply(self, number: int, at: Array, total: int) -> _Supply:
        if number in self._done:
            return _Supply(number, at, None, total)
        try:
            chunk = self._feeds[number].pull(len(at))
        except StopIteration:
            cut = int(at[0]) if self._stop else total
            return _Supply(number, at, None, cut, ended=True)
        except Exception as error:
            self._feeds[number].unraise(error)
            return _Supply(number, at, None, int(at[0]), error)
        cut = int(at[len(chunk)]) if len(chunk) < len(at) else total
        return _Supply(number, at, chunk, cut)

    def _give_back(self, choices: Chunk, supplies: list[_Supply], used: int) -> None:
        """Takes back what follows the first `used` choices; raises if the first choice failed."""
        for supply in supplies:
            if supply.chunk is not None:
                count = int(np.searchsorted(supply.at, used))
                self._feeds[supply.number].unread(supply.chunk, count)
                supply.chunk = supply.chunk.rows(0, count) if count else None
        failed = next(
            (supply for supply in supplies if supply.error is not None and supply.cut == 0), None
        )
        if failed is not None:
            used = 1
        self._choices.unread(choices, used)
        if failed is not None:
            self._feeds[failed.number].pull(1)

    def _merge_supplies(self, supplies: list[_Supply], used: int) -> Chunk:
        chunks = [
            self._alike.check(supply.chunk) for supply in supplies if supply.chunk is not None
        ]
        order = np.concatenate([supply.at[supply.at < used] for supply in supplies])
        return Chunk.join(chunks).take(np.argsort(order, kind="stable"))

    def _valid_choices(self, choices: Chunk) -> Array:
        """The choices before the first invalid one; raises if that is the first of all."""
        numbers = np.asarray(choices.columns[0])
        wrong = np.flatnonzero((numbers < 0) | (numbers >= len(self._feeds)))
        if len(wrong) and wrong[0] == 0:
            self._choices.unread(choices, 1)
            raise InvalidArgumentError(
                f"Dataset.choose_from_datasets: choice {int(numbers[0])} is not one of the "
                f"{len(self._feeds)} datasets; choices count from 0"
            )
        return numbers[: int(wrong[0])] if len(wrong) else numbers

    def state(self) -> State:
        return list(self._done)

    def input_states(self) -> list[State]:
        return [self._choices.save(), *(feed.save() for feed in self._feeds)]
