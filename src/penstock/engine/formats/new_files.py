"""New files that appear complete, or not at all.

Bytes go to a file that no reader looks for. `commit` is the only step that readers can see.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import BinaryIO

from penstock.engine.formats.files import Path, as_path, translate_errors, translate_write_errors


class NewFile:
    """A file to write. It gets its name by `commit`, and replaces a file of that name.

    A file behind a URL is first written to the local disk, and sent as a whole.
    """

    def __init__(self, path: Path, call: str) -> None:
        self.path = as_path(path, call)
        self._is_remote = "://" in self.path
        with translate_write_errors(self.path, call):
            self._partial = self._name_partial()
            self.file: BinaryIO = open(self._partial, "wb", buffering=1 << 20)  # noqa: SIM115

    def _name_partial(self) -> str:
        if not self._is_remote:
            return f"{self.path}.{secrets.token_hex(8)}.partial"
        import tempfile

        handle, name = tempfile.mkstemp(prefix="penstock-")
        os.close(handle)
        return name

    def commit(self, call: str) -> None:
        """Makes the file visible."""
        try:
            with translate_errors(self.path, call):
                self.file.close()
                if not self._is_remote:
                    os.replace(self._partial, self.path)
                    return
                from fsspec.core import url_to_fs

                system, inside = url_to_fs(self.path)
                system.put_file(self._partial, inside)
        finally:
            self.discard()

    def discard(self) -> None:
        """Removes what was written, unless it was committed; a second time does nothing."""
        with contextlib.suppress(OSError):
            self.file.close()
        with contextlib.suppress(OSError):
            os.unlink(self._partial)
