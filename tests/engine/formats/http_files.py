"""An HTTP server of the files in a folder, with ranges, versions and faults.

As a program it serves until its standard input ends, and prints its port first:

    python tests/engine/formats/http_files.py FOLDER
"""

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
        """For a request: "", the status of an error, or "drop" to close the connection too soon."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def before_answer(self) -> None:
        """Called before each answer; a server of a slow link waits here."""

    def before_bytes(self, count: int) -> None:
        """Called before some bytes are sent."""

    def handle_error(self, *_: Any) -> None:
        """Clients close connections that they do not need any more."""

    def start(self) -> "FileServer":
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
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
        if fault.isdigit():
            self.send_error(int(fault))
            return
        path = self.translate_path(self.path)
        if os.path.isdir(path):
            self._list(path)
        elif not os.path.exists(path):
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            self._send(path, span, fault == "drop")

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

    def _send(self, path: str, span: str, is_dropped: bool) -> None:
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", span) if self.server.has_ranges else None
        state = os.stat(path)
        start, stop = 0, state.st_size
        if found is not None:
            start, stop = int(found[1]), min(int(found[2] or stop) + 1, stop)
        self.send_response(HTTPStatus.OK if found is None else HTTPStatus.PARTIAL_CONTENT)
        if found is not None:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{state.st_size}")
        self.send_header("Content-Length", str(stop - start))
        if self.server.has_versions:
            self.send_header("ETag", f'"{state.st_mtime_ns}-{state.st_size}"')
        self.end_headers()
        if self.command == "GET":
            with open(path, "rb") as file:
                file.seek(start)
                self._write(file.read(stop - start), is_dropped)

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
