"""The network: calls that are lost, late or twice, and data connections that break.

Everything that travels is bytes, made and read by the codec of the service.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from penstock.errors import UnavailableError
from penstock.service.host.control_connection import is_transient, reply_to_error
from penstock.service.protocol import timing
from penstock.service.protocol.messages import ErrorReply, Reply, Request
from tests.simulation.endpoints import Endpoint, Peer
from tests.simulation.kernel import Bell, World

encode = msgspec.msgpack.Encoder().encode
decode_request: Callable[[bytes], Any] = msgspec.msgpack.Decoder(Request).decode
decode_reply: Callable[[bytes], Any] = msgspec.msgpack.Decoder(Reply).decode

DISPATCHER = "the dispatcher"
"""The address at which it listens."""

ATTEMPT = 5.0
"""Seconds after which a call is repeated."""

Answer = Callable[[bytes, Callable[[bytes | None], None]], None]
"""Takes a request and a callback for the answer; the answer None: no process listens there."""


@dataclass
class Weather:
    """How bad the network is, as probabilities."""

    lost: float = 0.0
    twice: float = 0.0
    slow: float = 0.0
    cut: float = 0.0
    damage: float = 0.0
    """The share of damaged frames between clients and workers."""
    crowds: dict[str, float] = field(default_factory=dict)
    """Ports that foreign connections flood, and until when."""

    def clear(self) -> None:
        self.lost = self.twice = self.slow = self.cut = self.damage = 0.0
        self.crowds.clear()


class Network:
    """Connects the dispatcher with all processes, and clients with workers."""

    def __init__(self, world: World, weather: Weather) -> None:
        self.world = world
        self.weather = weather
        self.answer: Answer = lambda request, reply: reply(None)
        self.listeners: dict[str, Peer] = {}
        """Workers by the address at which they serve data."""
        self.severed: dict[tuple[str, str], float] = {}
        """Pairs (sender, receiver) between which nothing passes, and until when."""

    def is_crowded_out(self, where: str) -> bool:
        """Whether foreign connections push out one that has not proved the token yet."""
        return self.world.now < self.weather.crowds.get(where, 0.0) and self.world.chance(0.7)

    def delay(self) -> float:
        random = self.world.random
        if self.world.chance(self.weather.slow):
            return random.random() * 3.0
        return 0.0002 + random.random() * 0.003

    def sever(self, sender: str, receiver: str, seconds: float) -> None:
        """Holds back what one process sends to another; systems repeat it until it arrives."""
        self.world.tell(f"nothing passes from {sender} to {receiver} for {seconds:g} s")
        self.severed[sender, receiver] = self.world.now + seconds

    def passes(self, sender: str, receiver: str) -> float:
        """When a message that is sent now arrives."""
        return max(self.world.now, self.severed.get((sender, receiver), 0.0)) + self.delay()

    def call(self, request: Any, timeout: float = 30.0) -> Any:
        """Returns the dispatcher's answer; raises its refusal, or UnavailableError."""
        data, world = encode(request), self.world
        until, pause = world.now + timeout, 0.1
        while True:
            attempt = _Attempt()
            self._send(data, attempt)
            if (left := until - world.now) > 0:
                world.wait(min(left, ATTEMPT), attempt.bell)
            if attempt.answers and attempt.answers[0] is not None:
                reply = decode_reply(attempt.answers[0])
                if isinstance(reply, ErrorReply) and not is_transient(reply):
                    raise reply_to_error(reply)
                if not isinstance(reply, ErrorReply):
                    return reply
            if world.now >= until:
                raise UnavailableError(f"no answer to {type(request).__name__} in {timeout:g} s")
            world.wait(min(pause, until - world.now))
            pause = min(2 * pause, 2.0)

    def _send(self, data: bytes, attempt: _Attempt) -> None:
        world, weather = self.world, self.weather
        if not self.is_crowded_out(DISPATCHER) and not world.chance(weather.lost):
            world.at(self.delay(), lambda: self.answer(data, self._back(attempt)))
        else:
            self._lose(attempt)
        if world.chance(weather.twice):
            late = world.random.random() ** 3 * 15.0
            world.at(late, lambda: self.answer(data, lambda reply: None))

    def _back(self, attempt: _Attempt) -> Callable[[bytes | None], None]:
        def reply(data: bytes | None) -> None:
            if not self.world.chance(self.weather.lost):
                self.world.at(self.delay(), partial(attempt.arrive, data))
            else:
                self._lose(attempt)

        return reply

    def _lose(self, attempt: _Attempt) -> None:
        """Loses a message; in most cases its sender learns that the connection broke."""
        if self.world.chance(0.8):
            self.world.at(self.delay(), partial(attempt.arrive, None))

    def connect(self, client: Peer, where: str) -> Endpoint:
        """Opens a data connection; raises UnavailableError if that is not possible."""
        self.world.wait(self.delay())
        worker = self.listeners.get(where)
        if worker is not None and self._is_severed(client, worker):
            self.world.wait(timing.HANDSHAKE)
            raise UnavailableError(f"{where} did not answer")
        pushed = self.is_crowded_out(where)
        if worker is None or pushed or self.world.chance(self.weather.lost):
            self.world.wait(self.delay())
            raise UnavailableError(f"nobody listens at {where}")
        here = Endpoint(self, client, client=True)
        there = Endpoint(self, worker, client=False)
        here.peer, there.peer = there, here
        client.hold(here)
        worker.hold(there)
        worker.accept(there)
        self.world.wait(self.delay())
        return here

    def _is_severed(self, one: Peer, other: Peer) -> bool:
        ways = ((one.name, other.name), (other.name, one.name))
        return any(self.severed.get(way, 0.0) > self.world.now for way in ways)


class _Attempt:
    def __init__(self) -> None:
        self.bell = Bell()
        self.answers: list[bytes | None] = []

    def arrive(self, data: bytes | None) -> None:
        self.answers.append(data)
        self.bell.ring()
