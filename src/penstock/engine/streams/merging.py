"""Merging operators: several inputs become one stream.

`interleave` is in `interleaving`; `choose_from_datasets` and `mix` are in `choosing`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.element.chunk import Chunk, describe
from penstock.element.nest import Tree
from penstock.engine.access import beside
from penstock.engine.contract import State, Stream
from penstock.engine.inlets import Inlet, discard
from penstock.engine.logs import Sequels
from penstock.errors import InvalidTypeError
from penstock.plan.seeds import derive_array


class ZipStream(Stream):
    """One element of each input; ends with the first that ends."""

    def __init__(self, parts: tuple[Stream, ...], tree: Tree) -> None:
        self.inputs = parts
        self._feeds = [Inlet(part) for part in parts]
        self._tree = tree

    def pull_needed(self, needed: int, limit: int, rows: int = 0) -> Chunk:
        chunks: list[Chunk] = []
        for number, feed in enumerate(self._feeds):
            try:
                chunks.append(feed.pull(limit, needed))
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
        return not any(discard(feed, 1) for feed in self._feeds[failed + 1 :])

    def _input_states(self) -> list[State]:
        return [feed.save() for feed in self._feeds]


class StructureCheck:
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
    """One input, then the other: `open_part` opens number 0 or 1 at a state."""

    def __init__(
        self,
        open_part: Callable[[int, State], Stream],
        which: int,
        state: State,
        sequels: Sequels,
    ) -> None:
        self._open_part = open_part
        self._sequels = sequels
        self._which = which
        self.inputs = (open_part(which, state),)
        self._structures = StructureCheck("Dataset.concatenate")

    def pull_needed(self, needed: int, limit: int, rows: int = 0) -> Chunk:
        while True:
            try:
                return self._structures.check(self.inputs[0].pull_needed(needed, limit, rows))
            except StopIteration:
                if self._which:
                    raise
            self.inputs[0].close()
            self._which = 1
            self.inputs = (self._sequels.open(partial(self._open_part, 1)),)

    def _own_state(self) -> State:
        return [self._which, *self._sequels.logs()]


class BranchStream(Stream):
    """One of several branches of a plan: its elements get numbers that no other branch gives."""

    def __init__(self, source: Stream, number: int) -> None:
        self.inputs = (source,)
        self._number = number

    def pull_needed(self, needed: int, limit: int, rows: int = 0) -> Chunk:
        chunk = self.inputs[0].pull_needed(needed, limit, rows)
        assert chunk.numbers is not None
        return chunk.with_numbers(derive_array(self._number, chunk.numbers))

    def save(self) -> State:
        return self.inputs[0].save()
