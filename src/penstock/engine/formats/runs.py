"""Runs: one writing of elements into a folder, under a number of its own.

File readers see no change before `commit`, so a writer may fail or be killed at any point. A run
removes only folders that its lock file or the metadata name as runs.
"""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from penstock.element.chunk import Chunk
from penstock.element.descriptions import spec_to_json
from penstock.element.spec import relax
from penstock.engine.fitting import fit_chunk, spec_of_chunk
from penstock.engine.formats.checked_files import check_packing
from penstock.engine.formats.chunks import ChunkWriter, read_chunks
from penstock.engine.formats.folders import join, open_folder
from penstock.engine.formats.locks import LockFile
from penstock.engine.formats.saved import METADATA, SavedInfo, find, to_bytes
from penstock.errors import AbortedError, DataLossError, InvalidArgumentError, NotFoundError

SPEC = "dataset_spec.json"
"""The spec again: programs written for TensorFlow check whether this file exists."""

Shard = Callable[[Any], int]
"""Returns the number of the shard for an element."""

Mark = dict[str, Any]
"""A run, and how many elements each of its shards had: where an interrupted save continues."""

_OPEN_FILES = 64
_SHARDS = 1 << 62


class RunWriter:
    """Writes elements by shards; their spec is checked if it is given, and found out if not.

    `shapes` is a spec that says which shapes may differ, if `spec` is not given: see `ChunkWriter`.
    `before` is the mark of an interrupted run, whose elements this one begins with.
    """

    def __init__(
        self,
        path: str,
        compression: str | None,
        shard: Shard | None,
        call: str,
        spec: Any = None,
        shapes: Any = None,
        before: Mark | None = None,
    ) -> None:
        self._continued = before
        self._path, self._call, self._shard = path, call, shard
        self._declared, self._found = spec, spec
        self._shapes = shapes if spec is None else spec
        self._packing = check_packing(compression, call)
        if spec is not None:
            self._check_spec()
        self._folder = open_folder(path, call)
        self._remote = "://" in path
        self._folder.make("")
        self._lock = LockFile(join(path, "lockfile"), path, call, self._clean)
        if not self._remote:
            self._lock.acquire()
        self._run, self._pid = self._lock.token, os.getpid()
        self._writers: dict[int, ChunkWriter] = {}
        self._open: dict[int, ChunkWriter] = {}
        self._adopted: list[int] = []
        self._count = 0
        self._committed = False
        if before is not None:
            self._copy_or_abandon(before)

    def _copy_or_abandon(self, mark: Mark) -> None:
        try:
            self._copy(mark)
        except NotFoundError:
            self.abandon()
            raise NotFoundError(
                f"{self._call}: the files of the interrupted save are no longer in {self._path!r}; "
                "delete its checkpoints to save all elements anew"
            ) from None
        except BaseException:
            self.abandon()
            raise

    def _copy(self, mark: Mark) -> None:
        """Begins with the elements that an interrupted run had when it was marked."""
        for number, count in mark["counts"]:
            self._count += count
            file = join(self._path, self._file(number, mark["run"]))
            for chunk in read_chunks(file, self._packing, self._call):
                self._writer(number).write(chunk.rows(0, count))
                count -= min(count, len(chunk))
                if not count:
                    break

    def mark(self) -> Mark:
        """Makes all elements so far readable, and says how many there are."""
        for writer in self._writers.values():
            writer.settle()
        return {
            "run": self._run,
            "counts": [[number, writer.count] for number, writer in self._writers.items()],
        }

    def drop_continued(self) -> None:
        """Removes the interrupted run; its elements were copied, and a newer mark was kept."""
        if self._continued is not None:
            self._remove(self._continued["run"])
            self._continued = None

    def leave(self) -> None:
        """Releases the lock, and leaves the files for a run that continues this one."""
        for writer in self._writers.values():
            writer.pause()
        self._lock.release()

    def _check_spec(self) -> None:
        try:
            spec_to_json(self._declared)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{self._call}: {error.message}") from None

    def write(self, chunk: Chunk) -> None:
        self._note(chunk)
        if self._shard is None:
            self._writer(0).write(chunk)
        else:
            numbers = np.array([self._number(self._shard(row)) for row in chunk.elements()])
            for number in np.unique(numbers).tolist():
                self._writer(number).write(chunk.take(np.flatnonzero(numbers == number)))
        self._count += len(chunk)

    def _note(self, chunk: Chunk) -> None:
        if self._declared is not None:
            fit_chunk(chunk, self._declared, self._call)
        elif self._found is None:
            self._found = spec_of_chunk(chunk)
        else:
            self._found = relax(self._found, spec_of_chunk(chunk), self._call)

    def _number(self, result: Any) -> int:
        try:
            number = operator.index(result)
        except TypeError:
            number = -1
        if not 0 <= number < _SHARDS:
            raise InvalidArgumentError(
                f"{self._call}: shard_func must return the number of a shard, an integer of at "
                f"least 0, got {result!r:.80}"
            )
        return number

    def _writer(self, number: int) -> ChunkWriter:
        """The writer of a shard. Not all files stay open: there may be more shards than handles."""
        writer = self._writers.get(number)
        if writer is None:
            self._folder.make(f"{self._run}/{number:08}.shard")
            path = join(self._path, self._file(number))
            writer = self._writers[number] = ChunkWriter(
                path, self._packing, self._call, self._shapes
            )
        self._open.pop(number, None)
        self._open[number] = writer
        if len(self._open) > _OPEN_FILES and not self._remote:
            self._open.pop(next(iter(self._open))).pause()
        return writer

    def make_shard(self, number: int) -> str:
        """Makes the folder of a shard; returns the file that another process will write there."""
        self._folder.make(f"{self._run}/{number:08}.shard")
        return join(self._path, self._file(number))

    def adopt(self, number: int, count: int) -> None:
        """Counts a shard that another process wrote; its elements must fit the declared spec."""
        self._adopted.append(number)
        self._count += count

    def _file(self, number: int, run: str = "") -> str:
        return f"{run or self._run}/{number:08}.shard/{0:08}.snapshot"

    def commit(self) -> bool:
        """Makes this run visible; False if another writer has taken the folder over."""
        for writer in self._writers.values():
            writer.close()
        if not self._remote and not self._lock.held():
            self.abandon()
            return False
        before = self._before()
        shards = tuple(self._file(number) for number in sorted([*self._writers, *self._adopted]))
        info = SavedInfo(self._found, shards, self._count, self._packing, self._run, before)
        self._folder.replace(METADATA, to_bytes(info))
        self._committed = True
        if self._found is not None:
            spec = json.dumps(spec_to_json(self._found)).encode()
            self._folder.replace(SPEC, spec)
        self._remove(before)
        self.abandon()
        return True

    def abandon(self) -> None:
        """Releases the lock; removes this run unless it was committed. May be called twice."""
        if os.getpid() != self._pid:
            return  # A forked child: the run belongs to its parent.
        if not self._committed:
            for writer in self._writers.values():
                writer.abandon()
            self._writers = {}
            self._remove(self._run)
        self._lock.release()

    def _before(self) -> str:
        """The run that file readers see now."""
        try:
            info = find(self._path, self._call)
        except DataLossError:
            return ""
        return "" if info is None else info.run

    def _remove(self, run: str) -> None:
        if run:
            self._folder.remove(run)

    def _clean(self, run: str) -> None:
        """Removes the run of a writer that died, or the run that it replaced."""
        if self._continued is not None and self._continued["run"] == run:
            return
        if self._before() != run:
            self._remove(run)
            return
        info = find(self._path, self._call)
        self._remove("" if info is None else info.replaced)


def save(
    path: str, chunks: Iterable[Chunk], spec: Any, compression: str | None, shard: Shard | None
) -> None:
    """Saves elements into a folder; what was saved there before is replaced, at the very end."""
    run = RunWriter(path, compression, shard, "Dataset.save", spec)
    try:
        for chunk in chunks:
            run.write(chunk)
        commit_save(run, path)
    finally:
        run.abandon()


def commit_save(run: RunWriter, path: str) -> None:
    """Makes a run visible; AbortedError if another writer has taken the folder over."""
    if not run.commit():
        raise AbortedError(
            f"Dataset.save: another writer has begun to write {path!r} anew; "
            "give each writer its own folder"
        )
