"""Sources: streams that begin a plan."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from penstock.element import strings
from penstock.element.chunk import Chunk
from penstock.engine.access import Access, Epoch, leaf
from penstock.engine.call_watch import watch_calls
from penstock.engine.contract import State, Stream
from penstock.engine.fitting import converter
from penstock.engine.formats import open_reader, saved
from penstock.engine.formats.records import ParsedRecords, Part, RecordReader
from penstock.engine.formats.tfrecord import TFRecordReader
from penstock.engine.inlets import BUDGET, Inlet
from penstock.engine.trail import Trail
from penstock.engine.user_calls import Calls, failure, is_failure
from penstock.errors import InvalidArgumentError
from penstock.plan.nodes import Generator, Records, Saved
from penstock.plan.parts import DIVISION, NOWHERE
from penstock.plan.seeds import derive_array, numbers_from

_MOST_AT_ONCE = 1 << 62


class AccessStream(Stream):
    """A plan with random access, from a position on.

    Where it calls functions, elements are made one at a time, so that one failure costs one
    element and nothing is called twice.
    """

    def __init__(
        self,
        read: Access,
        epoch: Epoch,
        start: int,
        stop: int | None,
        pure: bool,
        release: Callable[[], None],
    ) -> None:
        self._read = read
        self._epoch = epoch
        self._position = start
        self._stop = stop
        self._pure = pure
        self._release = release
        self._most = _MOST_AT_ONCE
        """The most elements that are read at once: few after a failure, then more again."""

    def pull(self, limit: int) -> Chunk:
        start = self._position
        if self._stop is not None and start >= self._stop:
            self._release()
            raise StopIteration
        stop = start + (min(limit, self._most) if self._pure else 1)
        stop = stop if self._stop is None else min(stop, self._stop)
        try:
            chunk = self._read(range(start, stop), self._epoch)
        except Exception:
            self._position = start + 1
            self._most = 1
            if stop == start + 1:
                raise
            # One of the elements fails; read singly, the elements before it come first.
            return self._read(range(start, start + 1), self._epoch)
        self._position = stop
        self._most = min(2 * self._most, _MOST_AT_ONCE)
        return chunk

    def save(self) -> State:
        return self._position

    def close(self) -> None:
        self._release()


class GeneratorStream(Stream):
    """What a Python generator yields. It can only be run from its start, so it is replayed."""

    def __init__(self, node: Generator, count: State) -> None:
        self._node = node
        self._count = 0
        self._running: Iterator[Any] | None = None
        self._error: Exception | None = None
        """The failure of the next element."""
        self._next: Callable[[Iterator[Any]], Any] = next
        self._convert = converter(node.signature)
        self._replay(count or 0)

    def _replay(self, count: int) -> None:
        while self._count < count:
            try:
                iterator = self._iterator()
                self._next(iterator)
            except StopIteration:
                pass
            except Exception:  # The caller got it before the state was saved.
                self._running = iter(())
            self._count += 1

    def _iterator(self) -> Iterator[Any]:
        if self._running is None:
            calls = Calls("from_generator", self._node.function)
            # Not copied: it may be a list of all elements, each of which is copied when it is used.
            self._running = iter(calls.plain(0, *self._node.arguments, copy=lambda made: made))
            where = f"Dataset.from_generator: {self._node.function}"
            self._next = watch_calls(where, next, has_key=False)
        return self._running

    def pull_needed(self, needed: int, limit: int, rows: int = 0) -> Chunk:
        """No more than is needed: a generator may wait until its caller has used the last one.

        Of a slow generator less than is needed, so that others work on it meanwhile.
        """
        if self._error is not None:
            error, self._error = self._error, None
            self._count += 1
            raise error
        values: list[Any] = []
        until = time.perf_counter() + BUDGET
        try:
            while len(values) < min(needed, limit) or (rows > 0 and len(values) < limit):
                values.append(self._next_value(self._count + len(values)))
                if rows > 0:
                    rows -= _count_rows(values[-1]) or rows
                if time.perf_counter() > until:
                    break
        except StopIteration:
            if not values:
                raise
            self._running = iter(())
        except Exception as error:
            if not values:
                self._count += 1
                raise
            self._error = error
        self._count += len(values)
        return Chunk.of(values)

    def _next_value(self, ordinal: int) -> Any:
        try:
            iterator = self._iterator()
            value = self._next(iterator)
        except StopIteration:
            raise
        except BaseException as cause:
            if not is_failure(cause):
                raise
            self._running = iter(())
            raise failure("from_generator", self._node.function, ordinal, cause) from cause
        return self._convert_value(value, ordinal)

    def _convert_value(self, value: Any, ordinal: int) -> Any:
        try:
            return self._convert(value)
        except (ValueError, TypeError, OverflowError) as cause:
            raise InvalidArgumentError(
                f"Dataset.from_generator: {self._node.function} yielded {value!r:.80} as "
                f"element {ordinal}, which does not fit the output_signature "
                f"{self._node.signature}: {str(cause).removeprefix('penstock: ')}"
            ) from cause

    def _own_state(self) -> State:
        return self._count

    def close(self) -> None:
        running: Any = self._running
        self._running = iter(())
        # If another thread is inside of it, it is closed when that thread drops it.
        if hasattr(running, "close") and not getattr(running, "gi_running", False):
            running.close()


def _count_rows(value: Any) -> int:
    """The rows of an element; 0 if its first component is no array with rows."""
    while type(value) is tuple or type(value) is dict:
        value = next(iter(value.values() if type(value) is dict else value), None)
    return len(value) if type(value) is np.ndarray and value.ndim else 0


class RecordsStream(Stream):
    """The records of the files that the input names.

    The state is the place of the current file's name and the offset in that file. A record's number
    is derived from its file's number and from where the record ends, which is the same for a file
    reader of one part of the file.
    """

    def __init__(
        self,
        node: Records,
        source: Stream,
        position: State,
        numbered: bool,
        trail: Trail | None = None,
    ) -> None:
        self.inputs = (source,)
        self._trail = trail
        self._node = node
        others = (DIVISION, "spec")
        self._options = {name: value for name, value in node.options if name not in others}
        """What a file reader is opened with."""
        self._part: Part | None = self._options.get("part")
        self._is_behind = self._options.get("begin") == NOWHERE
        """Whether an earlier part of the file could not be read, so this part has no records."""
        self._names = Inlet(source)
        self._reader: RecordReader[Any] | None = None
        self._begin = position
        self._numbered = numbered

    def pull(self, limit: int) -> Chunk:
        while True:
            if self._reader is None:
                self._file = self._names.pull(1)
                if self._is_behind:
                    self._report(NOWHERE, NOWHERE)
                    continue
                position, self._begin = self._begin or 0, None
                self._reader = self._open_reader(position)
            reader = self._reader
            try:
                chunk = self._with_numbers(limit) if self._numbered else self._read(limit)
            except Exception:
                if reader.has_ended:  # Else the next pull continues behind the damaged record.
                    self._close_reader()
                self._report(_find_began(reader, self._part), NOWHERE)  # The rest is not read.
                raise
            if chunk is not None:
                self._report(_find_began(self._reader), None)
                return chunk
            self._report(_find_began(self._reader), self._reader.position)
            self._close_reader()

    def _report(self, began: int | None, end: int | None) -> None:
        """Reports to the trail where the part of the file began and ended."""
        if self._trail is not None and self._part is not None:
            self._trail.part(began, end)

    def _open_reader(self, position: int) -> RecordReader[Any]:
        name = _text(self._file.elements()[0])
        reader = open_reader(self._node.format, name, self._options, position)
        self._finalizer = weakref.finalize(self, reader.close)
        return reader

    def _read(self, limit: int) -> Chunk | None:
        assert self._reader is not None
        records = self._reader.read(limit)
        return self._chunk(records) if records else None

    def _with_numbers(self, limit: int) -> Chunk | None:
        """Reads records singly: `position` is that of a record's end only between two reads."""
        assert self._reader is not None
        assert self._file.numbers is not None
        chunks: list[Chunk] = []
        ends: list[int] = []
        try:
            while len(chunks) < limit and (record := self._reader.read(1)):
                chunks.append(self._chunk(record))
                ends.append(self._reader.position)
        except Exception:
            if not chunks:
                raise
            self._close_reader()
            self._reader = self._open_reader(ends[-1])  # The next pull raises the same error again.
        if not chunks:
            return None
        numbers = derive_array(int(self._file.numbers[0]), np.array(ends, np.uint64))
        return Chunk.join(chunks).with_numbers(numbers)

    def _chunk(self, records: list[Any]) -> Chunk:
        if isinstance(records, ParsedRecords):
            return records.chunk
        return leaf(strings.make_column(records))

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._finalizer()
        self._reader = None

    def _own_state(self) -> State:
        return self._begin if self._reader is None else self._reader.position

    def _input_states(self) -> list[State]:
        return [self._names.save() if self._reader is None else self._names.place.state]

    def close(self) -> None:
        self._close_reader()
        super().close()


def _find_began(reader: RecordReader[Any], part: Part | None = None) -> int | None:
    """Where a file reader found the first record; where its `part` starts if it read nothing."""
    if part is not None and not reader.position:
        return part[0]
    return reader.began if isinstance(reader, TFRecordReader) else None


def _text(name: Any) -> str:
    try:
        return name.decode() if isinstance(name, bytes) else str(name)
    except UnicodeDecodeError:
        raise InvalidArgumentError(
            f"penstock: a path must be UTF-8, got {name!r}; rename the file, or open it in a "
            "function"
        ) from None


class ChunksStream(Stream):
    """The chunks of an iterator, without the first `skip` elements."""

    def __init__(self, chunks: Callable[[], Iterator[Chunk]], skip: State) -> None:
        self._chunks = chunks()
        self._rest: Chunk | None = None
        self._count = 0
        while self._count < (skip or 0):
            self.pull((skip or 0) - self._count)

    def pull(self, limit: int) -> Chunk:
        whole = self._rest if self._rest is not None else next(self._chunks)
        chunk = whole.rows(0, limit)
        self._rest = whole.rows(limit, len(whole)) if len(whole) > limit else None
        self._count += len(chunk)
        return chunk

    def _own_state(self) -> State:
        return self._count


def saved_chunks(node: Saved, numbered: bool) -> Iterator[Chunk]:
    """The elements of the shards that `node` names; an element's number depends on its shard."""
    for number, shard in enumerate(node.shards):
        count = 0
        for chunk in saved.read_shard(node.path, shard, node.compression, node.spec):
            numbers = numbers_from(count, len(chunk)) if numbered else None
            if numbers is not None and len(node.shards) > 1:
                numbers = derive_array(number, numbers)
            count += len(chunk)
            yield chunk.with_numbers(numbers)
