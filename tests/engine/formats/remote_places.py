"""Servers of files in processes of their own: HTTP and S3 on this machine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_HTTP = str(Path(__file__).parent / "http_files.py")
_S3 = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").disabled = True
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def serve(*command: str) -> Iterator[int]:
    """A process that prints its port and ends with its standard input; the port."""
    with subprocess.Popen(
        [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()


@contextmanager
def serve_http(folder: Path) -> Iterator[str]:
    """The URL under which the files of a folder are."""
    with serve(_HTTP, str(folder)) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def serve_s3(folder: Path) -> Iterator[str]:
    """The URL of a bucket with the files of a folder."""
    import s3fs

    with serve("-c", _S3) as port, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "name")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem.clear_instance_cache()
        system = s3fs.S3FileSystem()
        system.mkdir("data")
        upload(system, folder, "data")
        yield "s3://data"
        s3fs.S3FileSystem.clear_instance_cache()


def upload(system: object, folder: Path, root: str) -> None:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            system.pipe_file(f"{root}/{path.relative_to(folder)}", path.read_bytes())  # type: ignore[attr-defined]
