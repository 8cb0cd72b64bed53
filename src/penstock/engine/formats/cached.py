"""The files of a cache: elements that one complete pass wrote down, for all later ones to read.

    <name>.data-00000-of-00001   the elements, a chunk file
    <name>.index                 how many; with it the cache is complete
    <name>_0.lockfile            who is filling the cache
    <name>_0.<number>            what has been written so far

A complete cache is believed, whatever pipeline it stands in.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from penstock.element.chunk import Chunk
from penstock.engine.formats.blocks import written
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
    """Fills a cache; AlreadyExistsError if somebody else is doing so."""

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
        """Makes the cache complete; False if somebody else has taken over filling it."""
        self._writer.close()
        if not self._lock.held():
            return False
        with written(self._files.data, _CALL):
            os.replace(self._partial, self._files.data)
            with open(self._files.index, "w", encoding="utf-8") as file:
                file.write(f"{self._writer.count}\n")
        return True

    def abandon(self) -> None:
        """Removes what is not complete; twice is fine."""
        if os.getpid() == self._pid:  # Not in a forked child: the files are its parent's.
            self._writer.abandon()
            self._lock.release()
