"""A relay between clients and a worker's data port, which can be cut in the middle of a frame."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

_PIECE = 1 << 16
_RESET = struct.pack("ii", 1, 0)
"""Lingers for no time: whoever is at the other end sees a reset."""


class Proxy:
    """Passes everything on to `port`, which need not be there yet."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._lock = threading.Lock()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._listener = socket.create_server(("localhost", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> int:
        """Breaks all connections; says how many."""
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for ends in pairs:
            for end in ends:
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    end.shutdown(socket.SHUT_RDWR)
        return len(pairs)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near = self._listener.accept()[0]
            except OSError:
                return
            try:
                far = socket.create_connection(("localhost", self._target))
            except OSError:
                near.close()
                continue
            self._join(near, far)

    def _join(self, near: socket.socket, far: socket.socket) -> None:
        pair = (near, far)
        with self._lock:
            self._pairs.add(pair)
        done = threading.Semaphore(0)
        for source, sink in (pair, pair[::-1]):
            threading.Thread(target=_pass_on, args=(source, sink, done), daemon=True).start()
        threading.Thread(target=self._forget, args=(pair, done), daemon=True).start()

    def _forget(self, pair: tuple[socket.socket, socket.socket], done: threading.Semaphore) -> None:
        for _ in pair:
            done.acquire()
        with self._lock:
            self._pairs.discard(pair)
        for end in pair:
            end.close()


def _pass_on(source: socket.socket, sink: socket.socket, done: threading.Semaphore) -> None:
    try:
        while piece := source.recv(_PIECE):
            sink.sendall(piece)
    except OSError:
        pass
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
    done.release()
