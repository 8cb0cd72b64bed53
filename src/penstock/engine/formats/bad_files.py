"""Files and records that cannot be read: which errors `on_error="skip"` of the readers skips."""

from __future__ import annotations

import logging

from penstock.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
)

BAD_FILE = (DataLossError, FailedPreconditionError, InvalidArgumentError, NotFoundError)
"""The file is damaged, missing, a folder, of another format or schema, or has changed.

A server that does not answer or a full disk says nothing about a file: skipping would lose good
data.
"""

_SHOWN = 10
"""So many errors are logged one by one; further errors are only counted."""

log = logging.getLogger("penstock")


class SkipLog:
    """Logs the first errors that a call skips, and at the end how many there were."""

    def __init__(self, call: str, what: str) -> None:
        self._call, self._what = call, what
        self.count = self._errors = 0

    def add(self, error: Exception, count: int = 1) -> None:
        """Counts an error, for which `count` records, rows or files are left out."""
        self.count += count
        self._errors += 1
        if self._errors <= _SHOWN:
            named = f"{type(error).__name__}: {error}"
            text = error.message if isinstance(error, OpError) else named
            log.warning("%s: left out: %s", self._call, text.removeprefix(f"{self._call}: "))

    def report(self) -> None:
        """Logs the count, if there is one, and begins anew."""
        if self.count:
            log.warning(
                "%s: %d %s could not be read and were left out", self._call, self.count, self._what
            )
        self.count = self._errors = 0
