"""Structures: all elements that a reader hands out are alike, whichever workers made them.

Workers compare what functions return with what their client saw when it tried them
(`Function.returns`). Where it had no element to try them on, the differences show here.
"""

from __future__ import annotations

from typing import Any

from penstock.element.chunk import Chunk, describe
from penstock.element.nest import Tree, text_of
from penstock.errors import InvalidArgumentError
from penstock.service.logic.feeds import Failure
from penstock.service.protocol.fetches import Rows

_REMEDY = (
    "every element must have the same structure and dtypes; say what the function returns with "
    "map(..., output_signature=...)"
)


class Structures:
    """What the elements of one reader must look like: `tree`, and the dtypes of the first ones."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._kind: Any = None
        self._first = ""

    def pieces(self, rows: Rows, columns: list[Any]) -> list[Chunk | Failure]:
        """What arrived: one chunk, or as many failures as it has elements."""
        if rows.structure == text_of(self._tree):
            return [Chunk(self._tree, columns, rows.count)]
        error = InvalidArgumentError(
            f"distribute: an element has the structure {_shown(rows.structure)}, but that of "
            f"element_spec is {_shown(text_of(self._tree))}; {_REMEDY}"
        )
        return [Failure(error)] * rows.count

    def check(self, chunk: Chunk) -> None:
        """Raises InvalidArgumentError unless the dtypes are those of the first elements."""
        kind = chunk.kind
        if kind == self._kind:
            return
        words = describe(chunk.rows(0, 1).elements()[0])
        if self._kind is not None:
            raise InvalidArgumentError(
                f"distribute: elements are {self._first} at first, but {words} later; {_REMEDY}"
            )
        self._kind, self._first = kind, words


def _shown(structure: str) -> str:
    """The text of a structure as a user would write it; each leaf is a star."""
    return structure.removeprefix("PyTreeSpec(").partition(", NoneIsLeaf")[0] or "*"
