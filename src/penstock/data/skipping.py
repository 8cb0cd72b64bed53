"""`on_error` of the file readers: whether files that cannot be read raise or are skipped.

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
    """How one call of a file reader treats bad files."""

    def __init__(self, call: str, on_error: Any) -> None:
        if on_error not in ("raise", "skip"):
            raise InvalidArgumentError(
                f'{call}: on_error must be "raise" or "skip", got {on_error!r}'
            )
        self._call, self.skips = call, on_error == "skip"
        self._log = SkipLog(call, "files")
        self._first: Exception | None = None

    @contextlib.contextmanager
    def checking(self) -> Iterator[None]:
        """Skips the block after an error of a bad file."""
        try:
            yield
        except BAD_FILE as error:
            if not self.skips:
                raise
            self._first = self._first or error
            self._log.add(error)

    def resolve(self, paths: Sequence[bytes]) -> list[str]:
        """The files that paths and patterns name."""
        if not self.skips or not paths:
            return resolve_paths(paths, self._call)
        found: list[str] = []
        for path in paths:
            with self.checking():
                found += resolve_paths(path, self._call)
        if not found:
            self.report(has_good=False)
        return found

    def read_first(
        self, paths: Sequence[str], read: Callable[[str], Result | None], nothing: str
    ) -> tuple[str, Result]:
        """The first file that `read` finds something in, and what it finds.

        `read` returns None for a file that has nothing; `nothing` says what a file then lacks, and
        what to do if no file has it. Bad files before are not counted: they are read again.
        """
        bad: Exception | None = None
        for path in paths:
            try:
                found = read(path)
            except BAD_FILE as error:
                if not self.skips:
                    raise
                bad = bad or error
                continue
            if found is not None:
                return path, found
        raise bad or InvalidArgumentError(f"{self._call}: {paths[0]!r} {nothing}")

    def report(self, has_good: bool) -> None:
        """Logs how many files were left out; raises if no other file is there."""
        self._log.report()
        if not has_good and self._first is not None:
            raise self._first

    def skip_in(self, plan: Node) -> Node:
        """The plan, without what cannot be read if errors are skipped."""
        self._log.report()
        return IgnoreErrors(plan, reader=self._call) if self.skips else plan
