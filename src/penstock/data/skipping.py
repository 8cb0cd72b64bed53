"""`on_error` of the readers: what becomes of files that cannot be read.

Files are checked when a dataset of tables is made; records and rows when they are read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from penstock.engine.formats.bad_files import BAD_FILE, SkipLog
from penstock.engine.formats.files import resolve_paths
from penstock.errors import InvalidArgumentError
from penstock.plan.nodes import IgnoreErrors, Node

Result = TypeVar("Result")


class BadFiles:
    """How one call of a reader treats bad files."""

    def __init__(self, call: str, on_error: Any) -> None:
        if on_error not in ("raise", "skip"):
            raise InvalidArgumentError(
                f'{call}: on_error must be "raise" or "skip", got {on_error!r}'
            )
        self._call, self._skips = call, on_error == "skip"
        self._log = SkipLog(call, "files")
        self._first: Exception | None = None

    @contextlib.contextmanager
    def checking(self) -> Iterator[None]:
        """Skips the block after an error of a bad file."""
        try:
            yield
        except BAD_FILE as error:
            if not self._skips:
                raise
            self._first = self._first or error
            self._log.add(error)

    def resolve(self, paths: Sequence[bytes]) -> list[str]:
        """The files that paths and patterns name."""
        if not self._skips or not paths:
            return resolve_paths(paths, self._call)
        found: list[str] = []
        for path in paths:
            with self.checking():
                found += resolve_paths(path, self._call)
        if not found:
            self.report(has_good=False)
        return found

    def read_first(self, paths: Sequence[str], read: Callable[[str], Result]) -> tuple[str, Result]:
        """The first file that can be read, and what is read of it.

        Bad files before it are not counted: they are read, and fail, again.
        """
        for path in paths[:-1] if self._skips else ():
            with contextlib.suppress(*BAD_FILE):
                return path, read(path)
        path = paths[-1] if self._skips else paths[0]
        return path, read(path)

    def report(self, has_good: bool) -> None:
        """Logs how many files were left out; raises if no other file is there."""
        self._log.report()
        if not has_good and self._first is not None:
            raise self._first

    def skip_in(self, plan: Node) -> Node:
        """The plan, without what cannot be read if errors are skipped."""
        self._log.report()
        return IgnoreErrors(plan, reader=self._call) if self._skips else plan
