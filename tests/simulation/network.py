"""The network: calls that are lost, late or twice, and data connections that break.

Everything that travels is bytes, made and read by the codec of the service.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.errors import UnavailableError
from penstock.service.host.control import refused_as
from penstock.service.protocol.frames import decoder_of_client, decoder_of_worker, understand
from penstock.service.protocol.messages import Refused, Reply, Request
from tests.simulation.kernel import Bell, Process, Program, World

encode = msgspec.msgpack.Encoder().encode
decode_request: Callable[[bytes], Any] = msgspec.msgpack.Decoder(Request).decode
decode_reply: Callable[[bytes], Any] = msgspec.msgpack.Decoder(Reply).decode

ATTEMPT = 5.0
"""Seconds after which a call is made again."""

Answer = Callable[[bytes, Callable[[bytes | None], None]], None]
"""Takes a request, and what to do with the answer; None: nobody listens there."""


@dataclass
class Weather:
    """How bad the network is, as probabilities."""

    lost: float = 0.0
    twice: float = 0.0
    slow: float = 0.0
    cut: float = 0.0

    def clear(self) -> None:
        self.lost = self.twice = self.slow = self.cut = 0.0


class Network:
    """Between everybody and the dispatcher, and between clients and workers."""

    def __init__(self, world: World, weather: Weather) -> None:
        self.world = world
        self.weather = weather
        self.answer: Answer = lambda request, reply: reply(None)
        self.listeners: dict[str, Process] = {}
        """Workers by where they hand out data."""

    def delay(self) -> float:
        random = self.world.random
        if self.world.chance(self.weather.slow):
            return random.random() * 3.0
        return 0.0002 + random.random() * 0.003

    def call(self, request: Any, timeout: float = 30.0) -> Program:
        """What the dispatcher answers; raises its refusal, or UnavailableError."""
        data, world = encode(request), self.world
        until, pause = world.now + timeout, 0.1
        while True:
            attempt = _Attempt()
            self._send(data, attempt)
            left = until - world.now
            if not attempt.answers and left > 0:
                yield attempt.bell, min(left, ATTEMPT)
            if attempt.answers and attempt.answers[0] is not None:
                reply = decode_reply(attempt.answers[0])
                if isinstance(reply, Refused):
                    raise refused_as(reply)
                return reply
            if world.now >= until:
                raise UnavailableError(f"no answer to {type(request).__name__} in {timeout:g} s")
            yield min(pause, max(until - world.now, 0.001))
            pause = min(2 * pause, 2.0)

    def _send(self, data: bytes, attempt: _Attempt) -> None:
        world, weather = self.world, self.weather
        if not world.chance(weather.lost):
            world.at(self.delay(), lambda: self.answer(data, self._back(attempt)))
        else:
            self._lose(attempt)
        if world.chance(weather.twice):
            late = world.random.random() ** 3 * 15.0
            world.at(late, lambda: self.answer(data, lambda reply: None))

    def _back(self, attempt: _Attempt) -> Callable[[bytes | None], None]:
        def reply(data: bytes | None) -> None:
            if not self.world.chance(self.weather.lost):
                self.world.at(self.delay(), lambda: attempt.arrive(data))
            else:
                self._lose(attempt)

        return reply

    def _lose(self, attempt: _Attempt) -> None:
        """Mostly, who sent it is told that the connection broke."""
        if self.world.chance(0.8):
            self.world.at(self.delay(), lambda: attempt.arrive(None))

    def connect(self, client: Process, bell: Bell, where: str) -> Program:
        """A data connection; UnavailableError if there is none to be had."""
        yield self.delay()
        worker = self.listeners.get(where)
        if worker is None or self.world.chance(self.weather.lost):
            yield self.delay()
            raise UnavailableError(f"nobody listens at {where}")
        there = Endpoint(self, worker, Bell(), decoder_of_worker)
        here = Endpoint(self, client, bell, decoder_of_client)
        here.peer, there.peer = there, here
        worker.accept(there)  # type: ignore[attr-defined]
        yield self.delay()
        return here


class _Attempt:
    def __init__(self) -> None:
        self.bell = Bell()
        self.answers: list[bytes | None] = []

    def arrive(self, data: bytes | None) -> None:
        self.answers.append(data)
        self.bell.ring()


class Endpoint:
    """One end of a data connection: in order and complete, until it breaks."""

    peer: Endpoint

    def __init__(self, network: Network, owner: Process, bell: Bell, decoder: Any) -> None:
        self.owner = owner
        self.bell = bell
        self.inbox: deque[tuple[Any, bytes]] = deque()
        self.broken = False
        self._network = network
        self._decoder = decoder
        self._last = 0.0
        """When the last message arrives that was sent from the other end."""
        self._deaf = False

    def send(self, message: Any, body: bytes = b"") -> None:
        """Raises UnavailableError if it is known that nobody is there."""
        if self.broken:
            raise UnavailableError("the connection is broken")
        network, world = self._network, self._network.world
        if world.chance(network.weather.cut):
            self.cut()
            return
        data, peer = encode(message), self.peer
        peer._last = max(peer._last, world.now + network.delay())
        world.when(peer._last, lambda: peer._arrive(data, body))

    def _arrive(self, data: bytes, body: bytes) -> None:
        if not self.broken and not self._deaf:
            self.inbox.append((understand(self._decoder, data), body))
            self.bell.ring()

    def receive(self) -> tuple[Any, bytes] | None:
        """What has come; None: nothing yet. UnavailableError at the end."""
        if self.inbox:
            return self.inbox.popleft()
        if self.broken:
            raise UnavailableError("the connection is broken")
        return None

    def cut(self) -> None:
        """Nothing passes any more; both ends find out, each in its time."""
        self._network.world.tell(
            f"a connection of {self.owner.name} and {self.peer.owner.name} is cut"
        )
        for end in (self, self.peer):
            end._deaf = True
            self._network.world.at(self._network.delay(), end._break)

    def vanish(self) -> None:
        """Nothing passes any more, and nobody is told."""
        self._deaf = self.peer._deaf = True

    def close(self) -> None:
        self.broken = True
        self._network.world.at(self._network.delay(), self.peer._break)

    def _break(self) -> None:
        if not self.broken:
            self.broken = True
            self.bell.ring()
