"""Data connections: messages and chunks, perhaps compressed, between a client and a worker.

They begin after the handshake. One thread may send while another receives. After an error the
connection is closed: a message that was half sent or half read cannot be completed. A receiver
checks every size before it allocates memory for it.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from lz4 import block as lz4
from msgspec.structs import replace

from penstock.element.chunk import Chunk
from penstock.element.columns import Column
from penstock.element.nest import text_of
from penstock.engine.figures import Figures
from penstock.engine.gather import Gather
from penstock.engine.processes.chunk_memory import BUFFERS, MappedSlabs, SlabPool
from penstock.engine.tuning import cores
from penstock.errors import (
    DataLossError,
    DeadlineExceededError,
    InvalidArgumentError,
    OpError,
    ResourceExhaustedError,
    UnavailableError,
)
from penstock.service.host.security import ProcessLoss
from penstock.service.host.sockets import BodySlices, Channel, Part, take_first
from penstock.service.protocol.data_messages import (
    CHECK_SIZE,
    HEAD_SIZE,
    SLAB,
    Closing,
    Mark,
    Release,
    Rows,
    ToClient,
    ToWorker,
    body_size,
    check_bytes,
    checksum,
    decode_message,
    decoder_of_client,
    decoder_of_worker,
    frame,
    is_undamaged,
    pack_columns,
    read_head,
    slab_decoder,
    unpack_columns,
)
from penstock.version import PROTOCOL

INLINE = 48 << 10
"""Chunks of fewer bytes go through the socket, even if memory is shared."""

_RELEASE_COUNT = 8  # A client sends a message of its own for this many unused segments.
_MOST_UNREAD = 256
_MOST_ROWS = 1 << 28  # A bound of its own, because rows may have no bytes.
_READ_AHEAD = 16 << 10

Received = tuple[ToClient | ToWorker, list[Column] | None]


class Connection:
    """One end of a data connection; error messages call the other end `peer`.

    If both ends share memory, the client has `mapped` and the worker `pool`. If `checks`, a worker
    sends checksums of elements, because the network may damage them.
    """

    def __init__(
        self,
        channel: Channel,
        peer: str,
        *,
        client: bool,
        pool: SlabPool | None = None,
        mapped: MappedSlabs | None = None,
        compressor: Compressor | None = None,
        checks: bool = False,
    ) -> None:
        self.peer = peer
        self.process_loss = ProcessLoss()
        """What the worker reported in the handshake."""
        self.protocol = PROTOCOL
        """A client's end: the version of the protocol that the worker speaks."""
        self._channel, self._client = channel, client
        self._pool, self._mapped, self._compressor = pool, mapped, compressor
        self._incoming = MessageReader(channel, client, pool=pool, mapped=mapped)
        self._sending = threading.Lock()
        """Held while a thread sends: a frame is sent as a whole."""
        self._receiving = threading.Lock()
        """Held while a thread reads frames; guards `_incoming` and appending to `_unread`."""
        self._checks = checks
        self._slices = BodySlices()  #: guarded by _sending
        self._aborted = False  # Set by any thread, and never reset.
        self._unread: deque[Received] = deque()
        """Messages that `poll`, or a sender in search of released segments, has read."""

    def fileno(self) -> int:
        return self._channel.fileno()

    def send(self, *messages: ToClient | ToWorker) -> None:
        """Sends messages that have no columns."""
        with self._sending:
            try:
                frames = chain.from_iterable(map(frame, messages))
                self._channel.send([*self._release_frames(), *frames])
            except BaseException as error:
                raise self._abort_after(error) from None

    def offer(self, make_message: Callable[[], ToClient]) -> bool:
        """Sends a small message, unless another thread is sending or the socket is full.

        The message is made only if it is sent; returns whether it was.
        """
        if not self._sending.acquire(blocking=False):
            return False
        try:
            has_room = self._channel.has_room()
            if has_room:
                self._channel.send(frame(make_message()))
            return has_room
        finally:
            self._sending.release()

    def send_rows(
        self,
        request: int,
        start: int,
        chunk: Chunk,
        mark: Mark | None = None,
        seconds: float = 0.0,
        began: int | None = None,
        operators: tuple[Figures, ...] = (),
    ) -> int:
        """Sends a chunk, whose memory the caller may change afterwards; returns its bytes."""
        columns, parts = pack_columns(chunk)
        size = sum(map(len, parts))
        rows = Rows(
            request=request,
            start=start,
            count=len(chunk),
            columns=columns,
            nbytes=size,
            mark=mark,
            seconds=seconds,
            structure=text_of(chunk.tree),
            began=began,
            operators=operators,
        )
        with self._sending:
            try:
                if (
                    self._pool is None
                    or size < INLINE
                    or not self._send_shared(self._pool, rows, parts)
                ):
                    self._send_inline(rows, parts)
            except BaseException as error:
                raise self._abort_after(error) from None
        return size

    def set_receive_timeout(self, seconds: float) -> None:
        """Makes `receive` raise if a message that has begun does not continue for `seconds`."""
        self._channel.set_receive_timeout(seconds)

    def receive(self) -> Received:
        """The next message, with columns if it is `Rows`; raises UnavailableError at the end."""
        with self._receiving:
            try:
                if self._mapped is not None and self._mapped.unused_count >= _RELEASE_COUNT:
                    self._send_releases()
                received = self._unread.popleft() if self._unread else self._incoming.read()
                if self._aborted:
                    raise EOFError
                return received
            except BaseException as error:
                raise self._abort_after(error) from None

    def pending(self) -> bool:
        """Whether data was read ahead, which a select on the socket does not report."""
        return bool(self._unread) or self._incoming.complete() or self._channel.pending()

    def poll(self) -> bool:
        """Reads what has arrived, without blocking; returns whether a message is there."""
        try:
            if not self.pending():
                self._read_available()
            return self.pending()
        except BaseException as error:
            raise self._abort_after(error) from None

    def abort(self) -> None:
        """Ends the connection; in all threads, `send` and `receive` raise UnavailableError."""
        self._aborted = True
        self._channel.shut()

    def close(self) -> None:
        """Ends the connection and frees its resources; received arrays stay valid."""
        self.abort()
        with self._sending, self._receiving:
            self._channel.close()
            if self._pool is not None:
                self._pool.close()
            if self._mapped is not None:
                self._mapped.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _release_frames(self) -> list[bytes]:
        if self._mapped is None or not self._mapped.unused_count:
            return []
        return frame(Release(self._mapped.take_unused(), self._mapped.take_retired()))

    def _send_releases(self) -> None:
        """Sends releases now, unless another thread is sending and includes them."""
        if self._sending.acquire(blocking=False):
            try:
                self._channel.send(self._release_frames())
            finally:
                self._sending.release()

    def _send_inline(self, rows: Rows, parts: list[memoryview]) -> None:
        compressor = self._compressor
        if compressor is None:
            self._send_body(rows, parts, rows.nbytes)
            return
        packed, body = compressor.compress(parts, rows.nbytes)
        began = time.monotonic()
        self._send_body(replace(rows, packed=packed), body, sum(map(len, body)))
        if not packed:
            compressor.learn(parts, rows.nbytes, time.monotonic() - began)

    def _send_body(self, rows: Rows, body: Sequence[Part], size: int) -> None:
        if not self._checks:
            self._channel.send([*frame(rows, size), *body])
            return
        ahead, left, crc = frame(replace(rows, checked=True), size + CHECK_SIZE), deque(body), 0
        for count in self._slices.sizes(size):
            parts = take_first(left, count)
            crc = checksum(parts, crc)
            behind = [] if left else [check_bytes(crc)]
            self._channel.send([*ahead, *parts, *behind])
            ahead = []

    def _send_shared(self, pool: SlabPool, rows: Rows, parts: list[memoryview]) -> bool:
        """Sends rows through shared memory; returns False if no cell is free."""
        cell = pool.reuse(rows.nbytes)
        if cell is None:
            self._read_available()
            cell = pool.reuse(rows.nbytes) or pool.extend(rows.nbytes)
        if cell is None:
            return False
        _copy_parts(cell.memory, parts)
        rows = replace(rows, segment=cell.segment)
        if cell.slab is None:
            self._channel.send(frame(rows))
            return True
        announcement = frame(cell.slab, kind=SLAB)
        self._channel.send([*announcement, *frame(rows)], [cell.descriptor])
        pool.close_descriptor(cell.slab.number)
        return True

    def _read_available(self) -> None:
        """Reads what has arrived, such as released segments, unless another thread is reading."""
        if len(self._unread) >= _MOST_UNREAD or not self._receiving.acquire(blocking=False):
            return
        try:
            self._incoming.read_available()
            while self._incoming.complete():
                received = self._incoming.read()
                if type(received[0]) is not Release:
                    self._unread.append(received)
        finally:
            self._receiving.release()

    def _abort_after(self, error: BaseException) -> BaseException:
        """Aborts the connection and returns the error to raise."""
        if isinstance(error, InvalidArgumentError):
            return error  # Nothing was sent.
        reason = "it was aborted" if self._aborted else str(error) or "the other side closed it"
        if isinstance(error, DataLossError) and not self._aborted and not self._client:
            with contextlib.suppress(OSError):  # The client learns why, unless that would block.
                self.offer(functools.partial(Closing, error.message))
        self.abort()
        if isinstance(error, MemoryError):
            return ResourceExhaustedError(
                f"data connection to {self.peer}: no memory for what arrives; use smaller batches"
            )
        # The network may not reach the machine of a peer that is alive.
        is_unreachable = getattr(error, "errno", None) in (errno.EHOSTUNREACH, errno.ENETUNREACH)
        if isinstance(error, TimeoutError | BlockingIOError) or is_unreachable:
            if isinstance(error, BlockingIOError):
                reason = "a message was cut short"  # What the system says is that it waited long.
            return DeadlineExceededError(
                f"data connection to {self.peer}: the network carries nothing ({reason})"
            )
        if isinstance(error, EOFError | OSError) and not isinstance(error, OpError):
            return UnavailableError(f"data connection to {self.peer}: {reason}")
        return error


@functools.lru_cache(maxsize=1)
def _copier(process: int) -> Gather:
    """Copies with two threads, which is twice as fast; a forked child makes its own."""
    return Gather(min(cores(), 2))


def _copy_parts(memory: Any, parts: Sequence[Part]) -> None:
    start = 0
    for part in parts:
        end = start + len(part)
        # NumPy releases the GIL while it copies; a memoryview does not.
        _copier(os.getpid()).copy(memory[start:end], np.frombuffer(part, np.uint8))
        start = end


class MessageReader:
    """Reads messages and columns from a channel; maps shared memory and applies releases."""

    def __init__(
        self,
        channel: Channel,
        client: bool,
        *,
        pool: SlabPool | None,
        mapped: MappedSlabs | None,
    ) -> None:
        self._channel = channel
        self._reader = FrameReader(channel)
        self._slices = BodySlices()
        self._decoder = decoder_of_client if client else decoder_of_worker
        self._pool, self._mapped = pool, mapped
        self.read_available, self.complete = self._reader.read_available, self._reader.complete

    def read(self) -> Received:
        """The next message, with its columns; `Rows` with None arrived damaged."""
        kind, data, body = self._reader.frame()
        while kind == SLAB:
            self._map_slab(data, body)
            kind, data, body = self._reader.frame()
        message = decode_message(self._decoder, data)
        if type(message) is Rows:
            return message, self._read_columns(message, body)
        if body:
            raise DataLossError(f"data connection: {body} bytes after a {type(message).__name__}")
        if type(message) is Release:
            self._release(message)
        return message, None

    def _map_slab(self, data: memoryview, body: int) -> None:
        if self._mapped is None or body:
            raise DataLossError("data connection: shared memory where none is used")
        slab = decode_message(slab_decoder, data)
        self._mapped.map(slab, self._channel.descriptor())

    def _release(self, release: Release) -> None:
        if self._pool is None:
            raise DataLossError("data connection: a release where no memory is shared")
        self._pool.release(release.segments)
        self._pool.retire(release.retired)

    def _read_columns(self, rows: Rows, size: int) -> list[Column] | None:
        """The columns of rows with a body of `size` bytes; None if the body is damaged."""
        shared, described = rows.segment >= 0, body_size(rows.columns)
        if rows.checked:
            size -= CHECK_SIZE
        expected = described
        if shared:
            expected = 0
        elif rows.packed:
            expected = min(max(size, 0), described)
        if rows.nbytes != described or size != expected:
            raise DataLossError(
                f"data connection: {size} bytes after rows of {rows.nbytes}, described as "
                f"{described}"
            )
        body = self._shared_body(rows) if shared else self._received_body(rows, size)
        if body is None:
            return None
        columns = unpack_columns(rows.columns, body)
        if not 0 <= rows.count <= _MOST_ROWS or any(
            len(column) != rows.count for column in columns
        ):
            raise DataLossError(f"data connection: a column that does not have {rows.count} rows")
        return columns

    def _shared_body(self, rows: Rows) -> memoryview:
        if self._mapped is None:
            raise DataLossError("data connection: a segment where no memory is shared")
        return self._mapped.take(rows.segment, rows.nbytes)

    def _received_body(self, rows: Rows, size: int) -> memoryview | None:
        body = self._read_checked(size) if rows.checked else self._read_body(size)
        if body is None or not rows.packed:
            return body
        plain = BUFFERS.take(rows.nbytes)
        decompress(rows.packed, body, plain)
        return plain

    def _read_body(self, size: int) -> memoryview:
        body = BUFFERS.take(size)
        self._reader.fill(body)
        return body

    def _read_checked(self, size: int) -> memoryview | None:
        """A body that its checksum follows; None if either is damaged."""
        whole, start, crc = BUFFERS.take(size + CHECK_SIZE), 0, 0
        for count in self._slices.sizes(len(whole)):
            part = whole[start : start + count]
            self._reader.fill(part)
            crc = checksum((part,), crc)
            start += count
        return whole[:size] if is_undamaged(crc) else None


class FrameReader:
    """Reads frames from a channel, ahead if possible; raises EOFError if it ends."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._buffer = memoryview(bytearray(_READ_AHEAD))
        self._start = self._end = 0

    def frame(self) -> tuple[int, memoryview, int]:
        """The kind of the next frame, its message, and the size of its body, which is not read.

        The message is valid until the next read. Raises DataLossError if it arrived damaged.
        """
        kind, size, body, check = read_head(self.bytes(HEAD_SIZE))
        message = self.bytes(size)
        if checksum((message,)) != check:
            raise DataLossError(f"data connection: a message of {size} bytes arrived damaged")
        return kind, message, body

    def bytes(self, size: int) -> memoryview:
        """The next `size` bytes; valid until the next read."""
        if size > _READ_AHEAD:
            large = memoryview(bytearray(size))
            self.fill(large)
            return large
        if self._start + size > _READ_AHEAD:
            self._compact()
        while self._end - self._start < size:
            if not (count := self._channel.receive(self._buffer[self._end :])):
                raise EOFError
            self._end += count
        self._start += size
        return self._buffer[self._start - size : self._start]

    def fill(self, target: memoryview) -> None:
        """Fills `target`; what was not read ahead is received into it directly."""
        here = min(self._end - self._start, len(target))
        target[:here] = self._buffer[self._start : self._start + here]
        self._start += here
        if self._start == self._end:
            self._start = self._end = 0
        left = len(target) - here
        if left and self._channel.receive_all(target[here:]) < left:
            raise EOFError

    def read_available(self) -> None:
        """Reads ahead what has arrived, without blocking."""
        if self._start:
            self._compact()
        if self._end < _READ_AHEAD:
            self._end += self._channel.receive_now(self._buffer[self._end :])

    def complete(self) -> bool:
        """Whether `frame` and its body can be read, or raise, without blocking."""
        here = self._end - self._start
        if here < HEAD_SIZE:
            return False
        try:
            _, message, body, _ = read_head(self._buffer[self._start : self._start + HEAD_SIZE])
        except DataLossError:
            return True
        return here >= HEAD_SIZE + message + body

    def _compact(self) -> None:
        left = self._end - self._start
        self._buffer[:left] = self._buffer[self._start : self._end].tobytes()
        self._start, self._end = 0, left


# Compression of elements that travel through a network; never on one machine.
# The client requests a mode, the worker decides for each frame, and the frame says what it did.


COMPRESS_NEVER, COMPRESS_AUTO, COMPRESS_ALWAYS = range(3)
_COMPRESSION_MODES = {None: COMPRESS_NEVER, "AUTO": COMPRESS_AUTO, "SNAPPY": COMPRESS_ALWAYS}

LZ4 = "lz4"
"""The name by which a frame says that it is compressed."""

_LEAST_COMPRESSED = 4 << 10  # Smaller bodies are not compressed.
_MOST_COMPRESSED = 1 << 30  # Larger bodies are not compressed.
_SLOW_NETWORK = 300e6  # Bytes per second; compression would slow a faster network down.
_SAMPLE = 64 << 10  # Bytes that `learn` compresses to see whether compression pays.
_PROBE_EVERY = 64  # Of so many bodies one is sent uncompressed, to measure the network again.


def compression_mode(compression: str | None) -> int:
    """The number of a mode, as sent in the handshake."""
    if compression not in _COMPRESSION_MODES:
        raise InvalidArgumentError(
            f'compression must be None, "AUTO" or "SNAPPY", got {compression!r}'
        )
    return _COMPRESSION_MODES[compression]


class Compressor:
    """Compresses what a worker sends to one client, in the mode that the client requested."""

    def __init__(self, mode: int) -> None:
        self._always = mode == COMPRESS_ALWAYS
        self._pays = False
        self._number = 0

    def compress(
        self, parts: Sequence[memoryview], size: int
    ) -> tuple[str, Sequence[bytes | memoryview]]:
        """The name of the compression (empty: none), and the parts to send."""
        self._number += 1
        fits = _LEAST_COMPRESSED <= size <= _MOST_COMPRESSED
        is_worthwhile = self._pays and self._number % _PROBE_EVERY != 0
        if not fits or not (self._always or is_worthwhile):
            return "", parts
        compressed = _compress_parts(parts)
        return (LZ4, [compressed]) if len(compressed) < size else ("", parts)

    def learn(self, parts: Sequence[memoryview], size: int, seconds: float) -> None:
        """Decides, from the time that uncompressed parts took, whether to compress later ones."""
        if self._always or size < _SAMPLE:
            return
        self._pays = False
        if size / max(seconds, 1e-9) < _SLOW_NETWORK:
            sample = max(parts, key=len)[:_SAMPLE]
            self._pays = len(_compress_parts([sample])) < 0.7 * len(sample)


def _compress_parts(parts: Sequence[memoryview]) -> bytes:
    whole: bytes = lz4.compress(b"".join(parts), store_size=False)
    return whole


def decompress(name: str, data: memoryview, target: memoryview) -> None:
    """Decompresses `data` into `target`; raises DataLossError if it does not fill it."""
    size = len(target)
    try:
        if name != LZ4:
            raise ValueError(f"unknown compression {name!r:.20}")
        plain = lz4.decompress(data, uncompressed_size=size)
        if len(plain) != size:
            raise ValueError(f"{len(plain)} bytes instead of {size}")
    except (ValueError, lz4.LZ4BlockError) as error:
        raise DataLossError(f"data connection: cannot uncompress elements ({error})") from None
    target[:] = plain
