"""Remote files: ranges of bytes that are fetched ahead of their use, several at once.

A file that is read in order is fetched ahead by ranges of 1 MiB, as many at once as the latency of
its server needs. A reader that knows which bytes it will need says so with `prefetch`. After the
last of these bytes, the version of the file is compared with that at its opening, so bytes of two
versions are never taken for one file.
"""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.engine.formats.remote_requests import (
    ChangedFileError,
    ShortAnswerError,
    begin,
    limits_of,
    remote_use,
    repeat,
)

Range = tuple[int, int]
"""The bytes from one on and before another."""

Keep = Callable[[bytes], None]
"""Keeps the bytes of a range."""

RangesOf = Callable[[int], Sequence[Range]]
"""The bytes of a block of a table, by its number; none if they are not known."""

RANGE_BYTES = 1 << 20
"""How many bytes one request fetches, if many are needed."""

_FIRST = 1 << 16
"""How many bytes are fetched at least."""

_AHEAD = 16
"""The most ranges of a file that are fetched ahead."""

_CHECKED = 32
"""After so many ranges in order, the version is compared."""

_KEPT = 2
"""How many ranges stay in memory after they were read: footers are read twice."""

_VERSIONS = "ETag etag Content-MD5 Digest mtime LastModified Last-Modified created".split()
"""The fields of a file's description that change with its content; the best one first."""


class FileVersion(NamedTuple):
    """What distinguishes one version of a file from another, without reading it."""

    size: int
    modified: str
    """When it was changed last, and which machine's clock says so; empty if that is not known."""


def connect(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    from fsspec.core import url_to_fs

    system, path = url_to_fs(url)
    return system, path


def has_requests(system: Any) -> bool:
    """Whether files of a system are fetched by requests in fsspec's event loop."""
    return bool(getattr(system, "async_impl", False)) and not getattr(system, "asynchronous", False)


def run(system: Any, request: Callable[[], Awaitable[Any]], path: str) -> Any:
    """The result of a request, which is repeated as `repeat` says."""
    return begin(system, repeat(request, path)).result()


def describe(system: Any, path: str) -> dict[str, Any]:
    """What a server says about a file, now."""
    system.invalidate_cache(path)  # S3 would answer from the last listing.
    if not has_requests(system):
        found: dict[str, Any] = system.info(path)
        return found
    return dict(run(system, lambda: system._info(path), path))


def version_in(info: dict[str, Any]) -> FileVersion:
    modified = next((str(info[name]) for name in _VERSIONS if info.get(name)), "")
    return FileVersion(info.get("size") or 0, modified)


def open_remote(url: str) -> Any:
    system, path = connect(url)
    if has_requests(system):
        info = describe(system, path)
        if info.get("type") == "directory":
            raise IsADirectoryError(url)
        if info.get("size") is not None and info.get("partial", True):
            return RemoteFile(system, path, url, version_in(info))
    file = system.open(path, "rb")
    # fsspec returns the same `memory://` object, with one position, each time it is opened.
    return io.BytesIO(file.getvalue()) if isinstance(file, io.BytesIO) else file


def fetch_whole(url: str) -> bytes:
    """All bytes of a remote file, with one request where that is possible."""
    system, path = connect(url)
    if has_requests(system) and remote_use.get().cache is None:
        return bytes(run(system, lambda: system._cat_file(path), url))
    with open_remote(url) as file:
        return bytes(file.read())


@dataclass(eq=False)
class _FetchedRange:
    """Bytes of a file that are there or on their way."""

    start: int
    stop: int
    future: Future[bytes]
    is_guess: bool = False
    """Whether it is fetched only because the bytes before it were read."""
    is_of_group: bool = False
    """Whether the version is compared after it, or after a later range of its group."""
    was_read: bool = False


class RemoteFile(io.BufferedIOBase):
    """A file behind requests for ranges. One thread at a time may use it."""

    def __init__(self, system: Any, path: str, url: str, version: FileVersion) -> None:
        self._system, self._path, self._url = system, path, url
        self._version = version
        self._size = version.size
        self._position = 0
        self._limits = limits_of(system)
        self._fetched: list[_FetchedRange] = []
        self._read_to = -1
        """Where the last read ended: a read from there on is in order."""
        self._guesses = True
        """Whether bytes are fetched ahead if the file is read in order."""
        self._ahead = 0
        """The bytes up to here are on their way, if the file is read in order."""
        self._count = 0
        """How many ranges were fetched ahead in order."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"a position must be at least 0, got {base + offset}")
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """`size` bytes, fewer only at the end."""
        start = self._position
        whole = max(self._size - start, 0)
        stop = start + (whole if size is None or size < 0 else min(size, whole))
        self._prepare(start, stop)
        parts = []
        while start < stop:
            fetched = self._find(start, stop)
            data = self._wait(fetched)
            parts.append(data[start - fetched.start : stop - fetched.start])
            start += len(parts[-1])
            fetched.was_read = start >= fetched.stop
        self._position = self._read_to = stop
        self._forget()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def prefetch(self, groups: Sequence[Sequence[Range]]) -> bool:
        """Begins to fetch the ranges of groups that are read soon, one after the other.

        Other bytes are not fetched ahead any more, and what was fetched for other groups is
        dropped. True if reading the first group compares the version of the file; else some of
        its bytes were fetched before.
        """
        self._guesses = False
        groups = [self._cut_to_file(group) for group in groups]
        wanted = [each for group in groups for each in group]
        self._drop(lambda p: not p.was_read and not any(_overlap(p, each) for each in wanted))
        for group in groups:
            missing = [each for each in group if not self._has_range(*each)]
            self._begin_all([cut for each in missing for cut in _cut(*each)])
        first = [p for p in self._fetched if any(_overlap(p, each) for each in groups[0])]
        return bool(first) and all(fetched.is_of_group for fetched in first)

    def _cut_to_file(self, ranges: Sequence[Range]) -> list[Range]:
        """The ranges, cut off at the ends of the file: a damaged file may state larger ones."""
        cut = [(max(start, 0), min(stop, self._size)) for start, stop in ranges]
        return [(start, stop) for start, stop in cut if start < stop]

    def _begin_all(self, cuts: Sequence[Range]) -> None:
        for start, stop in cuts:
            self._begin(start, stop, is_checked=stop == cuts[-1][1]).is_of_group = True

    def _drop(self, is_dropped: Callable[[_FetchedRange], bool]) -> None:
        for fetched in [fetched for fetched in self._fetched if is_dropped(fetched)]:
            fetched.future.cancel()
            self._fetched.remove(fetched)

    def _has_range(self, start: int, stop: int) -> bool:
        return self._reach(start) >= stop

    def _reach(self, start: int) -> int:
        """The first byte from `start` on that is neither there nor on its way."""
        for fetched in sorted(self._fetched, key=lambda fetched: fetched.start):
            if fetched.start <= start < fetched.stop:
                start = fetched.stop
        return start

    def _prepare(self, start: int, stop: int) -> None:
        """Begins requests for a read, and for those after it if the file is read in order."""
        if start != self._read_to:
            self._ahead = start
            self._drop(lambda each: each.is_guess and not each.start <= start < each.stop)
        elif self._guesses:
            self._fetch_ahead(start)
        if stop - start > RANGE_BYTES and not self._has_range(start, stop):
            missing = [cut for cut in _cut(start, stop) if not self._has_range(*cut)]
            self._begin_all(missing)

    def _fetch_ahead(self, start: int) -> None:
        """Keeps as many ranges on their way as the limit allows."""
        self._ahead = self._reach(max(self._ahead, start))
        limit = min(self._size, start + min(self._limits.large.depth, _AHEAD) * RANGE_BYTES)
        while self._ahead < limit:
            stop = min((self._ahead // RANGE_BYTES + 1) * RANGE_BYTES, self._size)
            self._count += 1
            is_checked = stop == self._size or self._count % _CHECKED == 0
            self._begin(self._ahead, stop, is_checked).is_guess = True
            self._ahead = stop

    def _find(self, start: int, stop: int) -> _FetchedRange:
        """The range with a byte; it is fetched now if it is not on its way."""
        for fetched in self._fetched:
            if fetched.start <= start < fetched.stop:
                return fetched
        later = [fetched.start for fetched in self._fetched if fetched.start > start]
        end = min([max(stop, start + _FIRST), self._size, *later])
        if end == self._size:  # A footer is read from its end on, in several steps.
            before = [fetched.stop for fetched in self._fetched if fetched.stop <= start]
            start = min(start, max([0, self._size - _FIRST, *before]))
        return self._begin(start, end)

    def _begin(self, start: int, stop: int, is_checked: bool = False) -> _FetchedRange:
        cache = remote_use.get().cache if self._version.modified else None
        key = f"{self._url}\n{self._version}\n{start}-{stop}"
        data = None if cache is None else cache.find(key)
        if data is None:
            keep = None if cache is None else functools.partial(cache.keep, key)
            future = begin(self._system, self._fetch(start, stop, is_checked, keep))
        else:
            future = begin(self._system, self._confirm(data, is_checked))
        fetched = _FetchedRange(start, stop, future)
        self._fetched.append(fetched)
        return fetched

    def _wait(self, fetched: _FetchedRange) -> bytes:
        if not fetched.future.done():
            self._limits.large.is_hungry = True
        try:
            data = fetched.future.result()
        except Exception:
            self._fetched.remove(fetched)
            raise
        finally:
            self._limits.large.is_hungry = False
        fetched.stop = fetched.start + len(data)
        return data

    def _forget(self) -> None:
        """Drops the ranges that were read, except the last few."""
        done = [fetched for fetched in self._fetched if fetched.was_read]
        for fetched in done[:-_KEPT]:
            self._fetched.remove(fetched)

    async def _fetch(self, start: int, stop: int, is_checked: bool, keep: Keep | None) -> bytes:
        """Runs in the event loop, as all coroutines here."""
        limit = self._limits.small if stop - start <= _FIRST else self._limits.large
        began = await limit.enter()
        try:
            data: bytes = await repeat(lambda: self._request(start, stop), self._url)
            if stop - start == RANGE_BYTES:
                limit.adapt(began)
        finally:
            limit.leave()
        if keep is not None:
            await self._system.loop.run_in_executor(None, keep, data)
        return await self._confirm(data, is_checked)

    async def _confirm(self, data: bytes, is_checked: bool) -> bytes:
        if is_checked:
            await self._check_version()
        return data

    async def _request(self, start: int, stop: int) -> bytes:
        data: bytes = await self._system._cat_file(self._path, start=start, end=stop)
        if len(data) == self._size:  # A server without ranges sends the whole file.
            return data[start:]
        if len(data) != stop - start:
            await self._check_version()
            raise ShortAnswerError(f"{len(data)} bytes came instead of {stop - start}")
        return data

    async def _check_version(self) -> None:
        self._system.invalidate_cache(self._path)
        now = version_in(await repeat(lambda: self._system._info(self._path), self._url))
        if now != self._version:
            raise ChangedFileError(
                f"has changed while it was read: it had {_words(self._version)} and has "
                f"{_words(now)}; read it again from its start"
            )

    def close(self) -> None:
        if not self.closed:
            self._drop(lambda fetched: True)
        super().close()


def prefetch_ranges(file: Any, ranges: Sequence[Range]) -> None:
    """Begins to fetch ranges that are read soon, if the file is fetched by ranges."""
    if isinstance(file, RemoteFile):
        file.prefetch([ranges])


def prefetch_blocks(file: Any, number: int, ahead: int, ranges_of: RangesOf) -> bool:
    """Begins to fetch a block of a table, and up to `ahead` blocks after it.

    False if reading the block does not compare the version of the file.
    """
    if not isinstance(file, RemoteFile) or not (ranges := ranges_of(number)):
        return False
    groups, size = [ranges], 0
    for next_number in range(number + 1, number + 1 + ahead):
        groups.append(ranges_of(next_number))
        size += sum(stop - start for start, stop in groups[-1])
        if size >= _AHEAD * RANGE_BYTES:
            break
    return file.prefetch(groups)


def _cut(start: int, stop: int) -> list[Range]:
    return [(at, min(at + RANGE_BYTES, stop)) for at in range(start, stop, RANGE_BYTES)]


def _overlap(fetched: _FetchedRange, other: Range) -> bool:
    return fetched.start < other[1] and other[0] < fetched.stop


def _words(version: FileVersion) -> str:
    return f"{version.size} bytes{f', version {version.modified}' if version.modified else ''}"
