"""Saved datasets: a folder with elements in Arrow IPC files, by shards, and their metadata.

    snapshot.metadata                  the spec, the run, its shards and counts
    dataset_spec.json                  the spec again
    <run>/<number>.shard/<n>.snapshot  the elements of one shard: see `chunks`

The metadata is replaced as a whole, and file readers read only files that it names. So they see no
change before a writer commits its run, and a writer may fail or be killed at any point. The names
are TensorFlow's, the content of the files is not.
"""

from __future__ import annotations

import json
import logging
import operator
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.element.chunk import Chunk
from penstock.element.descriptions import spec_from_json, spec_to_json
from penstock.element.spec import relax
from penstock.engine.fitting import fit_chunk, spec_of_chunk
from penstock.engine.formats.checked_files import check_packing
from penstock.engine.formats.chunks import ChunkWriter, name_call, read_chunks
from penstock.engine.formats.extras import crc32c
from penstock.engine.formats.files import (
    join,
    make_folder,
    read_small,
    remove_folder,
    replace_file,
)
from penstock.engine.formats.locks import LockFile
from penstock.errors import (
    AbortedError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)

METADATA = "snapshot.metadata"
SPEC = "dataset_spec.json"
"""The spec again: programs written for TensorFlow check whether this file exists."""

_SPEC_OF_TENSORFLOW = "dataset_spec.pb"

_VERSION = 3
"""Of the metadata, and of the files. In version 2, the files are those of `blocks`."""

_READABLE = (2, _VERSION)

_POLL = 0.1
"""Seconds between two checks whether a dataset was saved."""

_WARN = 5.0
"""Seconds after which waiting for it is reported."""

log = logging.getLogger("penstock")


@dataclass(frozen=True)
class SavedInfo:
    """A saved dataset: its spec, its shards (files, relative to the folder) and its length.

    `run` is the folder of its files, `replaced` the folder of the run before it, if there was one.
    """

    spec: Any
    shards: tuple[str, ...]
    count: int
    compression: str | None = None
    run: str = ""
    replaced: str = ""


def to_bytes(info: SavedInfo) -> bytes:
    spec = None if info.spec is None else spec_to_json(info.spec)
    text = json.dumps(info.__dict__ | {"spec": spec, "version": _VERSION}, indent=1).encode()
    return b"%08x %b" % (crc32c(text), text)


def find(path: str, call: str) -> SavedInfo | None:
    """Reads the metadata of a folder; None if no dataset was completely saved there."""
    data = read_small(join(path, METADATA), call)
    if data is None:
        return None
    try:
        return _from_bytes(data)
    except FailedPreconditionError as error:
        raise FailedPreconditionError(f"{call}: {path!r} cannot be read: {error.message}") from None
    except (ValueError, TypeError, LookupError) as error:
        if read_small(join(path, _SPEC_OF_TENSORFLOW), call) is not None:
            raise FailedPreconditionError(
                f"{call}: TensorFlow saved {path!r}, in a format of its own; have TensorFlow write "
                "the elements as TFRecord files, and read those"
            ) from None
        raise DataLossError(
            f"{call}: {join(path, METADATA)!r} is damaged, or no file of penstock's ({error}); if "
            "it is penstock's, write the dataset anew"
        ) from error


def _from_bytes(data: bytes) -> SavedInfo:
    crc, text = data[:9], data[9:]
    if b"%08x " % crc32c(text) != crc:
        raise ValueError("its checksum is wrong")
    found = json.loads(text)
    if (version := found.pop("version")) not in _READABLE:
        raise ValueError(f"it is of another version: format {version}, not {_VERSION}")
    if not all(re.fullmatch(r"\d*", found[run]) for run in ("run", "replaced")):
        raise ValueError("a run is a number")
    spec = found["spec"] if found["spec"] is None else spec_from_json(found["spec"])
    return SavedInfo(**found | {"spec": spec, "shards": tuple(found["shards"])})


def describe(path: str, compression: str | None = None, wait: bool = False) -> SavedInfo:
    """The metadata of a folder; NotFoundError if no dataset was completely saved there.

    With `wait`, blocks until one is saved. A wrong `compression` is noticed only when elements are
    read.
    """
    check_packing(compression, "Dataset.load")
    info = _wait_for(path) if wait else find(path, "Dataset.load")
    if info is None:
        raise NotFoundError(
            f"Dataset.load: {path!r} holds no saved dataset; write one there with Dataset.save"
        )
    return info


def _wait_for(path: str) -> SavedInfo:
    """The metadata of a folder, as soon as a dataset was saved there."""
    started = warned = time.monotonic()
    while (info := find(path, "Dataset.load")) is None:
        if (now := time.monotonic()) - warned > _WARN:
            warned = now
            log.warning("Dataset.load: waiting for %.0f s: %r is empty", now - started, path)
        time.sleep(_POLL)
    return info


def read_shard(path: str, shard: str, compression: str | None, spec: Any) -> Iterator[Chunk]:
    """The elements of a shard; InvalidArgumentError if `spec` is wrong."""
    call = "Dataset.load"
    try:
        for chunk in read_chunks(join(path, shard), compression, call):
            yield fit_chunk(chunk, spec, f"{call}: {path!r}")
    except NotFoundError as error:
        raise NotFoundError(
            f"{call}: {shard!r} in {path!r} is gone; if the dataset was written anew, load it again"
        ) from error


# Writing: a run writes elements into a folder of its own. It removes only folders that its lock
# file or the metadata name as runs.

Shard = Callable[[Any], int]
"""Returns the number of the shard for an element."""

RunProgress = dict[str, Any]
"""A run, and how many elements each of its shards had: where an interrupted save continues."""

_OPEN_FILES = 64
_SHARDS = 1 << 62


class RunWriter:
    """Writes elements by shards; their spec is checked if it is given, and found out if not.

    `shapes` is a spec that says which shapes may differ, if `spec` is not given: see `ChunkWriter`.
    `before` is the progress of an interrupted run, whose elements this one begins with.
    """

    def __init__(
        self,
        path: str,
        compression: str | None,
        shard: Shard | None,
        call: str,
        spec: Any = None,
        shapes: Any = None,
        before: RunProgress | None = None,
    ) -> None:
        self._continued = before
        self._path, self._call, self._shard = path, call, shard
        self._declared, self._found = spec, spec
        self._shapes = shapes if spec is None else spec
        self._packing = check_packing(compression, call)
        if spec is not None:
            with name_call(call):
                spec_to_json(spec)  # It raises if files cannot have such elements.
        self._remote = "://" in path
        make_folder(path, call)
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

    def _copy_or_abandon(self, progress: RunProgress) -> None:
        try:
            self._copy(progress)
        except NotFoundError:
            self.abandon()
            raise NotFoundError(
                f"{self._call}: the files of the interrupted save are no longer in {self._path!r}; "
                "delete its checkpoints to save all elements anew"
            ) from None
        except BaseException:
            self.abandon()
            raise

    def _copy(self, progress: RunProgress) -> None:
        """Begins with the elements that an interrupted run had when its progress was saved."""
        for number, count in progress["counts"]:
            self._count += count
            file = join(self._path, self._file(number, progress["run"]))
            for chunk in read_chunks(file, self._packing, self._call):
                self._writer(number).write(chunk.rows(0, count))
                count -= min(count, len(chunk))
                if not count:
                    break

    def save_progress(self) -> RunProgress:
        """Makes all elements so far readable, and says how many there are."""
        for writer in self._writers.values():
            writer.settle()
        return {
            "run": self._run,
            "counts": [[number, writer.count] for number, writer in self._writers.items()],
        }

    def drop_continued(self) -> None:
        """Removes the interrupted run: its elements were copied, and newer progress was saved."""
        if self._continued is not None:
            self._remove(self._continued["run"])
            self._continued = None

    def leave(self) -> None:
        """Releases the lock, and leaves the files for a run that continues this one."""
        for writer in self._writers.values():
            writer.pause()
        self._lock.release()

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
            path = self.make_shard(number)
            writer = ChunkWriter(path, self._packing, self._call, self._shapes)
            self._writers[number] = writer
        self._open.pop(number, None)
        self._open[number] = writer
        if len(self._open) > _OPEN_FILES and not self._remote:
            self._open.pop(next(iter(self._open))).pause()
        return writer

    def make_shard(self, number: int) -> str:
        """Makes the folder of a shard; returns the file in it that is to be written."""
        make_folder(join(self._path, f"{self._run}/{number:08}.shard"), self._call)
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
        if not self._remote and not self._lock.is_held():
            self.abandon()
            return False
        before = self._before()
        shards = tuple(self._file(number) for number in sorted([*self._writers, *self._adopted]))
        info = SavedInfo(self._found, shards, self._count, self._packing, self._run, before)
        replace_file(join(self._path, METADATA), to_bytes(info), self._call)
        self._committed = True
        if self._found is not None:
            spec = json.dumps(spec_to_json(self._found)).encode()
            replace_file(join(self._path, SPEC), spec, self._call)
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
            remove_folder(join(self._path, run))

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
