"""A server of files behind a slow link: answers wait, and share a number of bytes a second.

    python -m benchmarks.slow_link FOLDER LATENCY RATE

It prints its port, and serves until its standard input ends.
"""

from __future__ import annotations

import sys
import threading
import time

from tests.engine.formats.http_files import FileServer


class SlowServer(FileServer):
    """`latency` in seconds, `rate` in bytes per second."""

    def __init__(self, folder: str, latency: float, rate: float) -> None:
        super().__init__(folder)
        self._latency, self._rate = latency, rate
        self._lock = threading.Lock()
        self._busy_until = 0.0

    def before_answer(self) -> None:
        time.sleep(self._latency)

    def before_bytes(self, count: int) -> None:
        """Waits until the link has sent what all connections gave it before."""
        with self._lock:
            now = time.perf_counter()
            # A sleep takes longer than asked for; the link sends in that time, too.
            begin = max(self._busy_until, now - 0.02)
            self._busy_until = until = begin + count / self._rate
        time.sleep(max(0.0, until - now))


def main() -> None:
    server = SlowServer(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
