"""Endpoints: data connections of simulated processes, with the interface of the real ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.element.chunk import Chunk
from penstock.errors import DataLossError, UnavailableError
from penstock.service.host.data_connection import MessageReader
from penstock.service.host.security import ProcessLoss
from penstock.service.protocol import timing
from penstock.service.protocol.data_messages import (
    Closing,
    Rows,
    check_bytes,
    checksum,
    frame,
    pack_columns,
)
from penstock.version import PROTOCOL
from tests.simulation.kernel import Bell, Process

if TYPE_CHECKING:
    from tests.simulation.network import Network


_PROBED = timing.KEEP_ALIVE_IDLE + timing.KEEP_ALIVE_INTERVAL * timing.KEEP_ALIVE_PROBES
"""Seconds after which an operating system notices that the peer's machine is gone."""


class Peer(Process):
    """A process with data connections; they end with it."""

    def __init__(self, network: Network, name: str) -> None:
        super().__init__(network.world, name)
        self.network = network
        self.connections: list[Endpoint] = []

    def hold(self, end: Endpoint) -> None:
        self.connections = [other for other in self.connections if not other.broken] + [end]

    def accept(self, end: Endpoint) -> None:
        raise AssertionError(f"{self.name} listens, and does not say what it does with {end}")

    def kill(self, silently: bool = False) -> None:
        """`silently`: its host crashes as well, so that its peers get no signal."""
        super().kill()
        for end in self.connections:
            end.vanish() if silently else end.close()


class ArrivedFrame:
    """A channel that has received one frame, as a whole."""

    left = memoryview(b"")
    """The bytes that were not read yet."""

    def receive(self, view: memoryview) -> int:
        count = min(len(view), len(self.left))
        view[:count], self.left = self.left[:count], self.left[count:]
        return count

    receive_all = receive


class Endpoint:
    """One end of a data connection: in order and complete, until it breaks."""

    peer: Endpoint
    process_loss = ProcessLoss()
    protocol = PROTOCOL

    def __init__(self, network: Network, owner: Peer, client: bool) -> None:
        self.owner = owner
        self.client = client
        self._frame = ArrivedFrame()
        self._reader = MessageReader(self._frame, client, pool=None, mapped=None)
        self.bell = Bell()
        """Rings when there is something to read, or the connection has ended."""
        self.broken = False
        self._network = network
        self._world = network.world
        self._arrived: deque[bytes] = deque()
        self._ahead: deque[bytes] = deque()
        """Frames that were received together with the one that was read last."""
        self._last = 0.0
        """When the last message that the other end sent arrives."""
        self._deaf = False
        self._aborted = False

    def __str__(self) -> str:
        """As a real connection names its other end."""
        return self.owner.name

    def send(self, *messages: Any) -> None:
        for message in messages:
            self._send(message)

    def _send(self, message: Any, body: bytes = b"") -> None:
        """Raises UnavailableError if it is known that no process listens."""
        if self.broken or self._world.over:
            raise UnavailableError("the connection is broken")
        network, world = self._network, self._world
        if world.chance(network.weather.cut):
            self.cut()
            if world.chance(0.5):
                self._break()
                raise UnavailableError("the connection breaks")
            return
        peer = self.peer
        peer._last = max(peer._last, network.passes(self.owner.name, peer.owner.name))
        sent = b"".join([*frame(message, len(body)), body])
        if world.chance(network.weather.damage):
            sent = self._flip_bit(sent)
        world.when(peer._last, partial(peer._arrive, sent))

    def _flip_bit(self, sent: bytes) -> bytes:
        """The same bytes with one bit flipped."""
        at = self._world.random.randrange(len(sent))
        flipped = sent[at] ^ (1 << self._world.random.randrange(8))
        self._world.tell(f"a frame from {self.owner.name} to {self.peer.owner.name} is damaged")
        return b"".join((sent[:at], bytes([flipped]), sent[at + 1 :]))

    def send_rows(self, request: int, start: int, chunk: Chunk, **more: Any) -> int:
        columns, parts = pack_columns(chunk)
        body = b"".join(parts)
        rows = Rows(request, start, len(chunk), columns, nbytes=len(body), checked=True, **more)
        self._send(rows, body + check_bytes(checksum((body,))))
        return len(body)

    def offer(self, make_message: Callable[[], Any]) -> bool:
        if not self.broken and not self._world.over:
            with suppress(UnavailableError):
                self._send(make_message())
                return True
        return False

    def _arrive(self, sent: bytes) -> None:
        if not self.broken and not self._deaf:
            self._arrived.append(sent)
            self.bell.ring()

    @property
    def readable(self) -> bool:
        """Whether a selector would report it as readable."""
        return bool(self._arrived) or self.broken

    def pending(self) -> bool:
        return bool(self._ahead)

    def poll(self) -> bool:
        if not self._ahead:
            self._ahead, self._arrived = self._arrived, self._ahead
        return bool(self._ahead)

    def set_receive_timeout(self, seconds: float) -> None:
        """Frames arrive as a whole here."""

    def receive(self) -> tuple[Any, Any]:
        """The next message, with its columns; UnavailableError at the end."""
        while not self.poll():
            if self.broken:
                raise UnavailableError("the connection is broken")
            self._world.wait(None, self.bell)
        if self._aborted:
            raise UnavailableError("the connection was aborted")
        try:
            self._frame.left = memoryview(self._ahead.popleft())
            return self._reader.read()
        except DataLossError as error:
            if not self.client:
                self._send(Closing(error.message))
            self.close()
            raise

    def cut(self) -> None:
        """Breaks the connection; each end notices after a delay of its own."""
        self._world.tell(f"a connection of {self.owner.name} and {self.peer.owner.name} is cut")
        for end in (self, self.peer):
            end._deaf = True
            self._world.at(self._network.delay(), end._break)

    def vanish(self) -> None:
        """Breaks the connection without a signal to either end.

        The system of a worker probes its clients, which may be workers, and ends the connection.
        """
        self._deaf = self.peer._deaf = True
        if self.client:
            self._world.at(_PROBED, self.peer._break)

    def abort(self) -> None:
        self._aborted = True
        self.close()

    def close(self) -> None:
        if not self._deaf:
            told = self._network.passes(self.owner.name, self.peer.owner.name)
            self._world.when(told, self.peer._break)
        self._break()

    def _break(self) -> None:
        if not self.broken:
            self.broken = True
            self.bell.ring()
