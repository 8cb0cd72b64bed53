"""A relay between clients and a worker's data port: it can cut a frame in the middle, hold
all bytes back, and flip bits.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading

_PIECE = 1 << 16
_RESET = struct.pack("ii", 1, 0)
"""Does not linger: the peer sees a reset."""


class Proxy:
    """Passes everything on to `port`, which need not be there yet."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._lock = threading.Lock()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._flows = threading.Event()
        self._flows.set()
        self._every = 0
        self.answered = 0
        """How many bytes the clients were sent."""
        self.flipped = 0
        """How many bits it has flipped."""
        self._listener = socket.create_server(("localhost", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> int:
        """Breaks all connections; returns how many."""
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for ends in pairs:
            for end in ends:
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    end.shutdown(socket.SHUT_RDWR)
        return len(pairs)

    def stall(self) -> None:
        """Passes nothing on until `flow`; connections stay, and new ones seem to succeed."""
        self._flows.clear()

    def flow(self) -> None:
        self._flows.set()

    def damage(self, every: int) -> None:
        """Flips one bit in about `every` bytes; 0: in none."""
        self._every = every

    def close(self) -> None:
        self.flow()
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
        for way in ((near, far, False, done), (far, near, True, done)):
            threading.Thread(target=self._pass_on, args=way, daemon=True).start()
        threading.Thread(target=self._forget, args=(pair, done), daemon=True).start()

    def _forget(self, pair: tuple[socket.socket, socket.socket], done: threading.Semaphore) -> None:
        for _ in pair:
            done.acquire()
        with self._lock:
            self._pairs.discard(pair)
        for end in pair:
            end.close()

    def _pass_on(
        self, source: socket.socket, sink: socket.socket, answers: bool, done: threading.Semaphore
    ) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE):
                before, passed = passed, passed + len(piece)
                if self._every and before // self._every != passed // self._every:
                    piece = self._damage_piece(piece)
                self._flows.wait()
                sink.sendall(piece)
                if answers:
                    self.answered += len(piece)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
        done.release()

    def _damage_piece(self, piece: bytes) -> bytes:
        at = random.randrange(len(piece))
        with self._lock:
            self.flipped += 1
        return piece[:at] + bytes([piece[at] ^ 1 << random.randrange(8)]) + piece[at + 1 :]
