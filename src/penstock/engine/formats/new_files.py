"""Writers of new files, which appear complete or not at all.

Bytes go to a file that no reader looks for. Readers see only the last step of `close`. A file
behind a URL is first written to the local disk, and sent as a whole.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from typing import BinaryIO, ClassVar, Self

from penstock.engine.formats.files import (
    Path,
    as_path,
    name_partial,
    translate_errors,
    translate_write_errors,
)
from penstock.engine.formats.remote_files import connect
from penstock.errors import FailedPreconditionError


class FileWriter(ABC):
    """Writes one file, which replaces a file of its name. Subclasses say what is written."""

    call: ClassVar[str]

    def __init__(self, path: Path) -> None:
        self._path = as_path(path, self.call)
        with translate_write_errors(self._path, self.call):
            self._partial = _make_temporary() if "://" in self._path else name_partial(self._path)
            self._file: BinaryIO = open(self._partial, "wb", buffering=1 << 20)  # noqa: SIM115
        self._closed = False

    @abstractmethod
    def _finish(self) -> None:
        """Writes all that is not in the file yet."""

    @abstractmethod
    def _release(self) -> None:
        """Ends what writes to the file; it may have ended before."""

    def _check_open(self) -> None:
        if self._closed:
            raise FailedPreconditionError(
                f"{self.call}.write: {self._path!r} is closed; make a new writer"
            )

    def close(self) -> None:
        """Completes the file; a second call does nothing."""
        if self._closed:
            return
        try:
            self._finish()
            with translate_errors(self._path, f"{self.call}.close"):
                self._file.close()
                if "://" in self._path:
                    system, inside = connect(self._path)
                    system.put_file(self._partial, inside)
                else:
                    os.replace(self._partial, self._path)
        finally:
            self._discard()

    def _discard(self) -> None:
        """Removes what was written, unless it has got its name."""
        self._closed = True
        with contextlib.suppress(Exception):
            self._release()
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            os.unlink(self._partial)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        elif not self._closed:
            self._discard()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self._discard()


def _make_temporary() -> str:
    import tempfile

    handle, name = tempfile.mkstemp(prefix="penstock-")
    os.close(handle)
    return name
