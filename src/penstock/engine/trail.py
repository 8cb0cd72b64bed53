"""Trails: what the streams of a piece find out that the reader of all pieces needs to know."""

from __future__ import annotations

NOWHERE = 1 << 62
"""A place that is behind the end of every file."""


class Trail:
    """What one opened piece has told so far.

    `began` and `ended` are bytes of a file: where the first record of a part of it begins, and
    where the first record begins that is behind the part.
    """

    def __init__(self) -> None:
        self.began: int | None = None
        self.ended: int | None = None

    def part(self, began: int | None, ended: int | None) -> None:
        """A part of a file was read, up to its end if that is told."""
        self.began = self.began if began is None else began
        self.ended = self.ended if ended is None else ended
