"""The files of a cache: elements that one complete pass wrote, for all later passes to read.

    <name>.data-00000-of-00001   the elements, a chunk file
    <name>.index                 how many; with it the cache is complete
    <name>_0.lockfile            the process that is filling the cache
    <name>_0.<number>            the elements that it has written so far

A complete cache is read without comparing it with the pipeline.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from penstock.element.chunk import Chunk
from penstock.engine.formats.blocks import translate_write_errors
from penstock.engine.formats.chunks import ChunkWriter, read_chunks
from penstock.engine.formats.locks import LockFile
from penstock.errors import NotFoundError, UnimplementedError

_CALL = "Dataset.cache"


class CacheFiles:
    """The files of one cache, as they are found."""

    def __init__(self, name: str) -> None:
        if "://" in name:
            raise UnimplementedError(
                f"{_CALL}: a cache needs a local file, got {name!r}; "
                "Dataset.save can write to other places"
            )
        self.name = name
        self.data = f"{name}.data-00000-of-00001"
        self.index = f"{name}.index"

    @property
    def complete(self) -> bool:
        return os.path.exists(self.index) and os.path.exists(self.data)

    def read(self, skip: int) -> Iterator[Chunk]:
        """The elements, without the first `skip`."""
        return read_chunks(self.data, None, _CALL, skip)


class CacheWriter:
    """Fills a cache; raises AlreadyExistsError while another writer does."""

    def __init__(self, files: CacheFiles) -> None:
        self._files = files
        self._pid = os.getpid()
        folder = os.path.dirname(files.name) or "."
        if not os.path.isdir(folder):
            raise NotFoundError(f"{_CALL}: the folder {folder!r} does not exist; make it first")
        self._lock = LockFile(f"{files.name}_0.lockfile", files.name, _CALL, self._clean)
        self._lock.acquire()
        self._partial = f"{files.name}_0.{self._lock.token}"
        try:
            self._writer = ChunkWriter(self._partial, call=_CALL)
        except BaseException:
            self._lock.release()
            raise

    def _clean(self, token: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(f"{self._files.name}_0.{token}")

    def write(self, chunk: Chunk) -> None:
        self._writer.write(chunk)

    def commit(self) -> bool:
        """Makes the cache complete; False if another writer has taken over filling it."""
        self._writer.close()
        if not self._lock.held():
            return False
        with translate_write_errors(self._files.data, _CALL):
            os.replace(self._partial, self._files.data)
            with open(self._files.index, "w", encoding="utf-8") as file:
                file.write(f"{self._writer.count}\n")
        return True

    def abandon(self) -> None:
        """Removes the incomplete file; a second call does nothing."""
        if os.getpid() == self._pid:  # In a forked child, the files belong to its parent.
            self._writer.abandon()
            self._lock.release()
