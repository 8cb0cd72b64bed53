"""What comes in on a data connection: frames become messages and columns.

Everything is checked against everything else before memory is taken for it.
"""

from __future__ import annotations

from penstock.element.columns import Column
from penstock.errors import DataLossError
from penstock.service.host.compression import expand
from penstock.service.host.memory import BUFFERS
from penstock.service.host.reading import FrameReader
from penstock.service.host.segments import MappedSlabs, SlabPool
from penstock.service.host.wires import Channel
from penstock.service.protocol.bodies import body_size, unpack_columns
from penstock.service.protocol.fetches import Release, Rows, ToClient, ToWorker
from penstock.service.protocol.frames import (
    SLAB,
    checksum,
    decoder_of_client,
    decoder_of_worker,
    slab_decoder,
    understand,
)

_MOST_ROWS = 1 << 28  # Some have no bytes that could be counted.

Received = tuple[ToClient | ToWorker, list[Column] | None]


class Incoming:
    """The receiving half of a connection; shared memory is mapped and released on the way."""

    def __init__(
        self, channel: Channel, client: bool, pool: SlabPool | None, mapped: MappedSlabs | None
    ) -> None:
        self._channel = channel
        self._reader = FrameReader(channel)
        self._decoder = decoder_of_client if client else decoder_of_worker
        self._pool, self._mapped = pool, mapped
        self.look, self.complete = self._reader.look, self._reader.complete

    def read(self) -> Received:
        """The next message, with its columns; `Rows` without columns arrived damaged."""
        kind, data, body = self._reader.frame()
        while kind == SLAB:
            self._map(data, body)
            kind, data, body = self._reader.frame()
        message = understand(self._decoder, data)
        if type(message) is Rows:
            return message, self._columns(message, body)
        if body:
            raise DataLossError(f"data connection: {body} bytes behind a {type(message).__name__}")
        if type(message) is Release:
            self._release(message)
        return message, None

    def _map(self, data: memoryview, body: int) -> None:
        if self._mapped is None or body:
            raise DataLossError("data connection: shared memory where none is used")
        slab = understand(slab_decoder, data)
        self._mapped.map(slab, self._channel.descriptor())

    def _release(self, release: Release) -> None:
        if self._pool is None:
            raise DataLossError("data connection: a release where no memory is shared")
        self._pool.release(release.segments)

    def _columns(self, rows: Rows, size: int) -> list[Column] | None:
        """The columns of rows that have `size` bytes behind them; None where those are damaged."""
        shared, described = rows.segment >= 0, body_size(rows.columns)
        follow = 0 if shared else size if rows.packed and size < described else described
        if rows.nbytes != described or size != follow:
            raise DataLossError(
                f"data connection: {size} bytes behind rows of {rows.nbytes}, described as "
                f"{described}"
            )
        body = self._shared(rows) if shared else self._sent(rows, size)
        if body is None:
            return None
        columns = unpack_columns(rows.columns, body)
        if not 0 <= rows.count <= _MOST_ROWS or any(
            len(column) != rows.count for column in columns
        ):
            raise DataLossError(f"data connection: a column that has not {rows.count} rows")
        return columns

    def _shared(self, rows: Rows) -> memoryview:
        if self._mapped is None:
            raise DataLossError("data connection: a segment where no memory is shared")
        return self._mapped.take(rows.segment, rows.nbytes)

    def _sent(self, rows: Rows, size: int) -> memoryview | None:
        body = BUFFERS.take(size)
        self._reader.fill(body)
        if rows.check is not None and checksum((body,)) != rows.check:
            return None
        if not rows.packed:
            return body
        plain = BUFFERS.take(rows.nbytes)
        expand(rows.packed, body, plain)
        return plain
