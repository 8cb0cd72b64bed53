"""Merging operators: several inputs, one stream; and one input whose elements are datasets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.element.chunk import Chunk, describe
from penstock.element.nest import Tree
from penstock.engine.access import beside
from penstock.engine.stream import Feed, State, Stream
from penstock.errors import InvalidArgumentError, InvalidTypeError


class ZipStream(Stream):
    """One element of each input; ends with the first that ends."""

    def __init__(self, parts: tuple[Stream, ...], tree: Tree) -> None:
        self.inputs = parts
        self._feeds = [Feed(part) for part in parts]
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
            if len(chunk) > limit:
                feed.unread(chunk, limit)
        return beside(self._tree, [chunk.rows(0, limit) for chunk in chunks])

    def _drop_one(self, chunks: list[Chunk], failed: int) -> bool:
        """One element failed in one input: its partners go with it, if they are all there."""
        for feed, chunk in zip(self._feeds, chunks, strict=False):
            if len(chunk) > 1:
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
    """Checks that what comes from several datasets has one structure and one set of dtypes."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._kind: Any = None
        self._shown = ""

    def checked(self, chunk: Chunk) -> Chunk:
        if self._kind is None:
            self._kind, self._shown = chunk.kind, describe(chunk.rows(0, 1).elements()[0])
        elif chunk.kind != self._kind:
            raise InvalidTypeError(
                f"{self._where}: the datasets must have elements of the same structure and "
                f"dtypes, got {self._shown} and {describe(chunk.rows(0, 1).elements()[0])}"
            )
        return chunk


class ConcatenateStream(Stream):
    """One input, then the other."""

    def __init__(
        self, opens: Sequence[Callable[[State], Stream]], which: int, state: State
    ) -> None:
        self._opens = opens
        self._which = which
        self._current = opens[which](state)
        self.inputs = (self._current,)
        self._alike = Alike("Dataset.concatenate")

    def pull(self, limit: int) -> Chunk:
        while True:
            try:
                return self._alike.checked(self._current.pull(limit))
            except StopIteration:
                if self._which + 1 >= len(self._opens):
                    raise
            self._current.close()
            self._which += 1
            self._current = self._opens[self._which](None)
            self.inputs = (self._current,)

    def state(self) -> State:
        return self._which


class ChooseStream(Stream):
    """Elements of several inputs, each time from the one that the choice names."""

    def __init__(self, parts: tuple[Stream, ...], stop_on_empty: bool, done: State) -> None:
        self.inputs = parts
        self._choices = Feed(parts[0])
        self._feeds = [Feed(part) for part in parts[1:]]
        self._stop = stop_on_empty
        self._done: list[int] = list(done or ())
        self._alike = Alike("Dataset.choose_from_datasets")

    def pull(self, limit: int) -> Chunk:
        if self._stop and self._done:
            raise StopIteration
        while len(self._done) < len(self._feeds):
            choices = self._choices.pull(limit)
            numbers = choices.elements()
            run = self._run(numbers)
            number = self._checked(numbers[0], choices)
            if number in self._done:
                run = min(run, len(numbers))
                self._back(choices, run)
                continue
            return self._from(number, run, choices)
        raise StopIteration

    def _run(self, numbers: list[Any]) -> int:
        """How many choices from the front are the same."""
        first = numbers[0]
        return next((i for i, number in enumerate(numbers) if number != first), len(numbers))

    def _from(self, number: int, run: int, choices: Chunk) -> Chunk:
        try:
            chunk = self._feeds[number].pull(run)
        except StopIteration:
            self._done.append(number)
            self._back(choices, 0 if self._stop else 1)
            return self.pull(len(choices))
        except Exception:
            self._back(choices, 1)
            raise
        self._back(choices, len(chunk))
        return self._alike.checked(chunk)

    def _back(self, choices: Chunk, used: int) -> None:
        if used < len(choices):
            self._choices.unread(choices, used)

    def _checked(self, number: Any, choices: Chunk) -> int:
        if not 0 <= int(number) < len(self._feeds):
            self._back(choices, 1)
            raise InvalidArgumentError(
                f"Dataset.choose_from_datasets: choice {int(number)} is not one of the "
                f"{len(self._feeds)} datasets; choices count from 0"
            )
        return int(number)

    def state(self) -> State:
        return list(self._done)

    def input_states(self) -> list[State]:
        return [self._choices.save(), *(feed.save() for feed in self._feeds)]
