"""Strangers: peers without the token neither stop a dispatcher nor use up its resources.

The dispatcher is a process of its own, which may have 1024 files open, as on most machines.
"""

import contextlib
import os
import random
import re
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from penstock.service.host.control_connection import ControlClient
from penstock.service.host.dispatcher_server import ControlServer
from penstock.service.host.security import PROOF_SIZE, ProcessLoss, Security
from penstock.service.protocol.messages import GetDataset, GetStatus, GetStatusReply, Ok, Request

TOKEN = "a token that strangers do not have"
PROGRAM = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
from penstock.service.host.server_setup import DispatcherConfig
from penstock.service.host.dispatcher_server import Dispatcher
dispatcher = Dispatcher(DispatcherConfig(token={TOKEN!r}))
dispatcher.start()
print(dispatcher.port, flush=True)
sys.stdin.read()
"""


class Victim(NamedTuple):
    port: int
    process: int

    def memory(self) -> int:
        """Bytes that the process has in memory."""
        with open(f"/proc/{self.process}/status", encoding="ascii") as file:
            found = re.search(r"VmRSS:\s+(\d+) kB", file.read())
        assert found is not None
        return int(found[1]) << 10

    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.process}/fd"))

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.process}/task"))


@pytest.fixture(scope="module")
def victim() -> Iterator[Victim]:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        yield Victim(int(process.stdout.readline()), process.pid)
        process.kill()


@pytest.fixture(scope="module", autouse=True)
def _many_files() -> Iterator[None]:
    """Raises the limit of open files for this process: many systems begin with 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Member(threading.Thread):
    """Asks the dispatcher again and again, sometimes on a new connection, until it is stopped."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.address, self.answers, self.error = f"localhost:{port}", 0, None
        self.enough = threading.Event()
        self.more = threading.Condition()

    def run(self) -> None:
        try:
            while not self.enough.is_set():
                client = ControlClient(self.address, Security(TOKEN.encode()))
                for _ in range(5):
                    assert isinstance(client.call(GetStatus()), GetStatusReply)
                client.close()
                with self.more:
                    self.answers += 5
                    self.more.notify_all()
        except BaseException as error:
            with self.more:
                self.error = error
                self.more.notify_all()

    def goes_on(self, answers: int = 20) -> bool:
        """Waits for more answers."""
        with self.more:
            enough = self.answers + answers
            self.more.wait_for(lambda: self.error or self.answers >= enough)
        assert self.error is None
        return True


@pytest.fixture
def member(victim: Victim) -> Iterator[Member]:
    member = Member(victim.port)
    member.start()
    yield member
    member.enough.set()
    member.join()


@contextlib.contextmanager
def crowd(port: int, count: int, say: Callable[[socket.socket], object]) -> Iterator[None]:
    """Opens `count` connections, calls `say` on each, and keeps all of them open."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stranger = socket.create_connection(("127.0.0.1", port))
            stack.callback(stranger.close)
            stranger.settimeout(0.0)
            with contextlib.suppress(OSError):
                say(stranger)
        yield


def field(name: bytes, value: bytes) -> bytes:
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


HEADERS = b"\x83\x86" + b"".join(
    field(name, value)
    for name, value in (
        (b":path", b"/penstock.Control/Call"),
        (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
)
CALL = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + (b"\0\0\0\4\0\0\0\0\0")
    + (len(HEADERS).to_bytes(3, "big") + b"\1\4\0\0\0\1" + HEADERS)
)
"""The beginning of a gRPC call that never sends its message."""


@pytest.mark.parametrize("said", [b"", b"p", b"penstock ctrl 3\n", b"\x16\x03\x01\x02", CALL])
def test_calls_that_never_get_to_the_point(victim: Victim, member: Member, said: bytes) -> None:
    with crowd(victim.port, 100, lambda stranger: stranger.send(said)):
        assert member.goes_on()


def test_more_connections_than_files(victim: Victim, member: Member) -> None:
    with crowd(victim.port, 1100, lambda stranger: None):
        assert member.goes_on()
        assert victim.files() < 300
        assert victim.threads() < 300


def test_messages_without_a_proof_take_no_memory(victim: Victim, member: Member) -> None:
    assert member.goes_on()
    before, piece = victim.memory(), bytes(64 << 10)

    def shout(stranger: socket.socket) -> None:
        stranger.sendall(b"penstock ctrl 3\n".ljust(88, b"x"))
        for _ in range(128):
            stranger.sendall(piece)

    with crowd(victim.port, 200, shout):
        assert member.goes_on()
        assert victim.memory() - before < 32 << 20


def test_noise(victim: Victim, member: Member) -> None:
    dice = random.Random(1)
    with crowd(victim.port, 300, lambda each: each.send(dice.randbytes(dice.randrange(200)))):
        assert member.goes_on()


def test_a_copied_conversation(victim: Victim) -> None:
    """The bytes that a member sent are sent again: they get no answer and prove nothing."""
    said, answered = bytearray(), bytearray()
    with recording(victim.port, said, answered) as port:
        client = ControlClient(f"localhost:{port}", Security(TOKEN.encode()))
        assert isinstance(client.call(GetStatus()), GetStatusReply)
        assert isinstance(client.call(GetStatus()), GetStatusReply)
        client.close()
    with socket.create_connection(("127.0.0.1", victim.port)) as thief:
        with contextlib.suppress(OSError):  # The dispatcher may have closed it by then.
            thief.sendall(said)
            thief.shutdown(socket.SHUT_WR)
        got = b""
        with contextlib.suppress(ConnectionError):
            while piece := thief.recv(1 << 16):
                got += piece
    refusal = 48 + 3 + len(ProcessLoss().pack()) + PROOF_SIZE
    assert len(answered) > refusal
    # A fresh nonce, and a refusal of the old proof.
    assert len(got) <= refusal
    assert got[48:49] != b"\x01"


def test_a_message_that_is_sent_twice_on_its_own_connection() -> None:
    handled: list[Request] = []

    def handle(request: Request) -> Ok:
        handled.append(request)
        return Ok()

    security, said = Security(TOKEN.encode()), bytearray()
    server = ControlServer(handle, "localhost", 0, security)
    server.start()
    with recording(server.port, said, bytearray(), twice=True) as port:
        client = ControlClient(f"localhost:{port}", security)
        calls = [GetDataset(name) for name in "abc"]
        assert [client.call(call) for call in calls] == [Ok(), Ok(), Ok()]
        client.close()
    server.stop()
    assert handled == calls


@contextlib.contextmanager
def recording(
    port: int, said: bytearray, answered: bytearray, twice: bool = False
) -> Iterator[int]:
    """A relay that records all bytes; `twice`: it sends a client's third piece two times."""
    listening = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                near = listening.accept()[0]
                far = socket.create_connection(("127.0.0.1", port))
                for pair in ((near, far, said), (far, near, answered)):
                    threading.Thread(target=relay, args=pair).start()

    def relay(source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
        pieces = 0
        with source, contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                kept += piece
                pieces += 1
                sink.sendall(piece * (1 + (twice and kept is said and pieces == 3)))
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        accepting.join()
        listening.close()
