"""Recording: a pass through the input that writes its elements down, for later passes to read.

The recording is committed when the last element was handed on, even if the caller never asks for
the end: `zip`, `take` and a counted number of `next` do not. A pass that fails, is closed or is
garbage collected before that leaves nothing behind.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable
from typing import Protocol

from penstock.element.chunk import Chunk
from penstock.engine.contract import State, Stream
from penstock.engine.inlets import Inlet, discard
from penstock.plan.nodes import UNKNOWN, AssertCardinality, Distribute, Generator, Node, Store

log = logging.getLogger("penstock")

Open = Callable[[State], Stream]


class Recorder(Protocol):
    """Where elements are written. It must not refer to its stream, or that is never collected."""

    def write(self, chunk: Chunk) -> None: ...

    def commit(self) -> bool:
        """Makes the recording visible to later passes; False if another writer has taken over."""

    def abandon(self) -> None:
        """Removes the recording, unless it is committed; a second call does nothing."""


class RecordingStream(Stream):
    """The input, passed through and recorded.

    An element that could not be made ends the recording. So does a failure to write, which is
    logged at once and raised at the end of the pass, because it must not replace an element.
    """

    def __init__(self, source: Node, count: int) -> None:
        self._total = _sure_count(source)
        self._looks_ahead = self._total == UNKNOWN and not _may_wait_for_caller(source)
        self._count = count
        self._pid = os.getpid()
        self._recorder: Recorder | None = None
        self._failure: Exception | None = None

    def _read(self, stream: Stream) -> None:
        """Hands on the elements of `stream` without recording them."""
        self.inputs = (stream,)
        self._feed: Stream | Inlet = stream

    def _begin(self, recorder: Recorder | None, open_input: Open) -> None:
        """Opens the input at its start, even if only the rest is wanted: all is recorded."""
        if recorder is not None:
            self._recorder = recorder
            self._finalizer = weakref.finalize(self, recorder.abandon)
        wanted, self._count = self._count, 0
        try:
            self._read(open_input(None))
            if self._looks_ahead:
                self._feed = Inlet(self.inputs[0])
            discard(self, wanted)
        except BaseException:
            self.close()
            raise

    def pull(self, limit: int) -> Chunk:
        try:
            chunk = self._feed.pull(limit)
        except StopIteration:
            self._end()
            raise
        except Exception:
            self._count += 1
            self._abandon()
            raise
        self._count += len(chunk)
        if self._recorder is not None:
            chunk = self._write(self._recorder, chunk)
            if self._is_complete(limit):
                self._commit()
        return chunk

    def _write(self, recorder: Recorder, chunk: Chunk) -> Chunk:
        """Records a chunk and returns it as it is handed on."""
        if os.getpid() != self._pid:
            return chunk  # A forked child: the files belong to its parent.
        try:
            recorder.write(chunk)
        except Exception as error:
            self._fail(error)
        return chunk

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._abandon()
        log.warning("%s (the pass continues and writes nothing)", error)

    def _is_complete(self, limit: int) -> bool:
        if isinstance(self._feed, Inlet):
            return self._feed.is_at_end(limit)
        return self._count == self._total

    def _commit(self) -> None:
        """Commits the recording, if there is one."""
        if self._recorder is None or os.getpid() != self._pid:
            return
        try:
            self._recorder.commit()
        except Exception as error:
            self._fail(error)
        self._abandon()

    def _end(self) -> None:
        self._commit()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def finish(self) -> None:
        """Looks whether the input has ended, where the caller stopped without asking."""
        if self._recorder is not None and self._total == UNKNOWN and not self._looks_ahead:
            # A second call must find what the first one saw: an element, or one that failed.
            if not isinstance(self._feed, Inlet):
                self._feed = Inlet(self.inputs[0])
            if self._feed.is_at_end(1):
                self._commit()
        super().finish()

    def _abandon(self) -> None:
        if self._recorder is not None:
            self._recorder = None
            self._finalizer()

    def save(self) -> State:
        return {"count": self._count, "input": self._feed.save()}

    def close(self) -> None:
        if self._recorder is not None and self._count:
            self._note_partial()
        self._abandon()
        super().close()

    def _note_partial(self) -> None:
        """Called when a pass is closed before its last element, so that nothing is committed."""


def warn_of_partial_passes(store: Store) -> None:
    """Logs a warning at the second pass that ended before it could fill the cache."""
    store.partial_passes += 1
    if store.partial_passes == 2:
        log.warning(
            "Dataset.cache: two passes ended before the last element, so nothing is cached and "
            "each pass computes its elements anew; put take() before cache(), or read to the end"
        )


def _sure_count(node: Node) -> int:
    """The cardinality, but UNKNOWN if it was asserted and is not checked yet."""
    if isinstance(node, AssertCardinality) and node.obstacle is not None:
        return UNKNOWN
    known = all(_sure_count(part) == part.cardinality for part in node.inputs)
    return node.cardinality if known else UNKNOWN


def _may_wait_for_caller(node: Node) -> bool:
    """Whether the next element may come only after the last one was used: do not look ahead."""
    return isinstance(node, Generator | Distribute) or any(map(_may_wait_for_caller, node.inputs))
