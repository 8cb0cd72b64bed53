"""Packets: messages between two processes of this machine, with large ones in shared memory.

A packet has a head, a body (buffers, as `element.buffers` packs them) and a note (plain values,
pickled). A small packet travels through the socket, a large one lies in a cell of shared memory.
Both processes run the same program for the same user, so a receiver trusts what it receives.

A cell belongs to the receiver until no array shows it any more. The receiver names such cells in
the head of its next packet.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.element.buffers import padded_size
from penstock.engine.processes.chunk_memory import (
    Cell,
    MappedSlabs,
    SlabPool,
    allocate_aligned,
)
from penstock.engine.processes.descriptors import receive_descriptor, send_descriptors

_SMALL = 16 << 10
"""Bytes of the largest body and note that travel through the socket.

Two packets of this size fit into the buffer of any socket, so that sending them does not block.
"""

_HEAD = struct.Struct("<IqQI")
_MOST_RELEASED = 512
_LARGEST = 2 * _SMALL + (16 << 10)
_NO_SEGMENT = -1


class Packets:
    """One end of a connection. One thread at a time may send, and one receive."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._cells = SlabPool(strict=False)
        self._mapped = MappedSlabs(limit=None, writable=True)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, note: Any, parts: Sequence[memoryview] = (), descriptor: int = -1) -> None:
        """Sends a note, buffers, and a descriptor.

        Raises OSError if the peer has ended, and MemoryError if no memory can be shared.
        """
        data = pickle.dumps(note, pickle.HIGHEST_PROTOCOL)
        size = sum(map(len, parts))
        total = size + len(data)
        if total <= _SMALL:
            body = b"".join((*parts, data))
            self._send(_NO_SEGMENT, size, data, descriptor=descriptor, body=body)
            return
        cell = self._lend(total)
        sent = [np.frombuffer(part, np.uint8) for part in (*parts, memoryview(data))]
        np.concatenate(sent, out=cell.memory)
        if cell.slab is not None:  # One descriptor travels with a packet: the slab's goes first.
            self._send(_NO_SEGMENT, 0, b"", descriptor=cell.descriptor, slab=cell.slab)
            self._cells.close_descriptor(cell.slab.number)
        self._send(cell.segment, size, data, descriptor=descriptor)

    def _lend(self, size: int) -> Cell:
        cell = self._cells.reuse(size) or self._cells.extend(size)
        if cell is None:
            raise MemoryError(f"there is no shared memory for {size} bytes")
        return cell

    def _send(
        self,
        segment: int,
        size: int,
        data: bytes,
        *,
        descriptor: int,
        slab: Any = None,
        body: bytes = b"",
    ) -> None:
        released = self._mapped.take_unused(_MOST_RELEASED)
        retired = self._mapped.take_retired(_MOST_RELEASED)
        extra = pickle.dumps((released, retired, slab))
        head = _HEAD.pack(len(extra), segment, size, len(data)) + extra
        packet = head.ljust(padded_size(len(head)), b"\0") + body
        send_descriptors(self._socket, packet, [descriptor] if descriptor >= 0 else [])

    def receive(self) -> tuple[Any, memoryview, int] | None:
        """Blocks until a packet arrives; returns its note, its buffers and its descriptor.

        The descriptor is -1 if the packet has none. Returns None at the end of the connection.
        """
        while True:
            packet, descriptor = receive_descriptor(self._socket, _LARGEST)
            if not packet:
                return None
            extra_size, segment, size, data_size = _HEAD.unpack_from(packet)
            released, retired, slab = pickle.loads(packet[_HEAD.size : _HEAD.size + extra_size])
            self._cells.release(released)
            self._cells.retire(retired)
            if slab is not None:
                self._mapped.map(slab, descriptor)
                descriptor = -1
            if not data_size:
                continue
            if segment == _NO_SEGMENT:
                body = _copy(memoryview(packet)[padded_size(_HEAD.size + extra_size) :])
            else:
                body = self._mapped.take(segment, size + data_size)
            return pickle.loads(body[size : size + data_size]), body[:size], descriptor

    def shut(self) -> None:
        """Ends the connection, also for a peer that waits for a packet."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()
        self._cells.close()
        self._mapped.close()


def _copy(data: memoryview) -> memoryview:
    """The same bytes at an aligned address, in memory that may be written to."""
    copied = allocate_aligned(len(data))
    copied[:] = np.frombuffer(data, np.uint8)
    return copied.data
