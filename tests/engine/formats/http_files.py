"""An HTTP server of the files in a folder, with ranges, versions and faults.

As a program it serves until its standard input ends, and prints its port first:

    python tests/engine/formats/http_files.py FOLDER
"""

import hashlib
import http.server
import os
import re
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

_PIECE = 1 << 16


class FileServer(http.server.ThreadingHTTPServer):
    """Serves a folder; the fields may change while it runs."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, folder: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.has_ranges = True
        self.has_versions = True
        self.requests: list[tuple[str, str, str]] = []
        """Method, path and range of each request."""
        self.fault: Callable[[str, str, str], str] = lambda method, path, span: ""
        """For a request: "", "503", or "drop" for a connection that ends within the answer."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def before_answer(self) -> None:
        """Called before each answer; a server of a slow link waits here."""

    def before_bytes(self, count: int) -> None:
        """Called before some bytes are sent."""

    def start(self) -> "FileServer":
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def stop(self) -> None:
        self.shutdown()
        self.server_close()


class _Handler(http.server.SimpleHTTPRequestHandler):
    server: FileServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments, directory=arguments[2].folder)

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        span = self.headers.get("Range", "")
        self.server.requests.append((self.command, self.path, span))
        self.server.before_answer()
        fault = self.server.fault(self.command, self.path, span)
        if fault == "503":
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE)
            return
        path = self.translate_path(self.path)
        if os.path.isdir(path):
            self._list(path)
        elif not os.path.exists(path):
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            with open(path, "rb") as file:
                self._send(file.read(), span, fault == "drop")

    def _list(self, path: str) -> None:
        names = (
            f"{name}/" if os.path.isdir(os.path.join(path, name)) else name
            for name in sorted(os.listdir(path))
        )
        text = "".join(f'<a href="{name}">{name}</a>\n' for name in names).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(text)

    def _send(self, data: bytes, span: str, is_dropped: bool) -> None:
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", span) if self.server.has_ranges else None
        start, stop = 0, len(data)
        if found is not None:
            start = int(found[1])
            stop = min(int(found[2] or len(data) - 1) + 1, len(data))
        version = f'"{hashlib.md5(data).hexdigest()}"'
        if self.headers.get("If-Match", version) != version:
            self.send_error(HTTPStatus.PRECONDITION_FAILED)
            return
        self.send_response(HTTPStatus.OK if found is None else HTTPStatus.PARTIAL_CONTENT)
        if found is not None:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        self.send_header("Accept-Ranges", "bytes" if self.server.has_ranges else "none")
        self.send_header("Content-Length", str(stop - start))
        if self.server.has_versions:
            self.send_header("ETag", version)
        self.end_headers()
        if self.command == "GET":
            self._write(data[start:stop], is_dropped)

    def _write(self, data: bytes, is_dropped: bool) -> None:
        if is_dropped:
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
            return
        for at in range(0, len(data), _PIECE):
            self.server.before_bytes(len(data[at : at + _PIECE]))
            self.wfile.write(data[at : at + _PIECE])


def main() -> None:
    server = FileServer(sys.argv[1]).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
