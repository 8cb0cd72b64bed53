"""Streams that read remote files through a cache folder, as the options of their plan say.

The files find the folder in a context variable, which the threads of a stream inherit. So
functions of the user that read files use it, too.
"""

from __future__ import annotations

from penstock.element.chunk import Chunk
from penstock.element.index import Index
from penstock.engine.access import Access, Epoch
from penstock.engine.contract import Remote, State, Stream
from penstock.engine.formats.file_cache import FileCache, open_cache
from penstock.engine.formats.remote_requests import RemoteUse, remote_use
from penstock.plan.options import Options


def cache_of(options: Options) -> FileCache | None:
    """Where ranges of remote files are kept."""
    if options.cache_dir is None:
        return None
    return open_cache(options.cache_dir, options.cache_bytes)


def with_cache(stream: Stream, options: Options) -> Stream:
    """The stream of a whole plan, with the cache folder of the plan's options."""
    cache = cache_of(options)
    return stream if cache is None else _CachedFiles(stream, RemoteUse(cache=cache))


def read_with_cache(read: Access, options: Options) -> Access:
    """The access to a whole plan, with the cache folder of the plan's options."""
    cache = cache_of(options)
    if cache is None:
        return read
    use = RemoteUse(cache=cache)

    def read_cached(index: Index, epoch: Epoch) -> Chunk:
        before = remote_use.set(use)
        try:
            return read(index, epoch)
        finally:
            remote_use.reset(before)

    return read_cached


class _CachedFiles(Stream):
    """Pulls from a stream whose files use a cache."""

    def __init__(self, stream: Stream, use: RemoteUse) -> None:
        self.inputs = (stream,)
        self._stream, self._use = stream, use

    def pull_needed(self, needed: int, limit: int, rows: int = 0) -> Chunk:
        before = remote_use.set(self._use)
        try:
            return self._stream.pull_needed(needed, limit, rows)
        finally:
            remote_use.reset(before)

    def save(self) -> State:
        return self._stream.save()

    @property
    def remote(self) -> Remote | None:
        return self._stream.remote
