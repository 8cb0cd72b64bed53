"""`trace`: a file for Perfetto about what the iterators of a program did, and when."""

from __future__ import annotations

import logging
import os
from types import TracebackType

from penstock.data.arguments import describe
from penstock.engine import spans
from penstock.errors import FailedPreconditionError, InvalidTypeError, kind_of

log = logging.getLogger("penstock")


class trace:  # noqa: N801 (used like a function: `with trace(...)`)
    """Writes what iterators do in a block to a file, which https://ui.perfetto.dev opens.

    >>> import penstock
    >>> with penstock.trace("/tmp/penstock-doctest-trace.json"):
    ...     batches = list(penstock.Dataset.range(100).map(lambda x: x + 1).batch(10))

    It has a track for each operator, thread and worker, and for the copies to devices. Iterators
    that began before the block are not in it. The file is written at the end of the block, also
    after an error.

    Args:
        path: The file, which is replaced if it exists.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, str | os.PathLike):
            raise InvalidTypeError(f"penstock.trace: path must be a file, got {describe(path)}")
        self._path = path

    def __enter__(self) -> trace:
        if spans.active is not None:
            raise FailedPreconditionError(
                "penstock.trace: a trace is being recorded; end its block first"
            )
        try:
            with open(self._path, "w", encoding="utf-8"):
                pass  # An error of the path comes before the work, not after it.
        except OSError as error:
            raise kind_of(error)(
                f"penstock.trace: {os.fspath(self._path)!r} cannot be written: {error.strerror}; "
                "give the path of a file in a folder that exists"
            ) from None
        spans.active = self._recorder = spans.SpanRecorder()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        spans.active = None
        self._recorder.write(self._path)
        if self._recorder.dropped_count:
            log.warning(
                "penstock.trace: the first %d of all spans are not in %s; trace a shorter time",
                self._recorder.dropped_count,
                self._path,
            )
