"""A dispatcher around the real logic: decide, journal, apply, answer; it crashes and restarts.

The journal is a list of transactions, each a list of bytes. A dispatcher that restarts from it
must know what it knew, unless its disk lost facts that it had confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec

from penstock.errors import OpError, UnavailableError
from penstock.service.host.control_connection import error_to_reply
from penstock.service.logic.dispatcher import decide, snapshot, stamp_reply, tick
from penstock.service.logic.dispatcher_records import LOST
from penstock.service.logic.facts import ClientHeard, DispatcherStarted, Fact, WorkerHeard
from penstock.service.logic.state import Settings, State
from penstock.service.protocol.messages import Hello, HelloReply, Leave
from tests.service.logic.invariants import check
from tests.simulation.kernel import Process, Violation
from tests.simulation.network import Network, decode_request, encode
from tests.simulation.plans import element

_decode: Callable[[bytes], Fact] = msgspec.msgpack.Decoder(Fact).decode

TICK = 1.0
_PAUSE = 3.0
"""A longer pause between two looks at the clock means that the process was suspended."""


class Dispatcher:
    """The service's dispatcher with all its restarts; `keeps`: it has a journal."""

    def __init__(
        self, network: Network, settings: Settings, keeps: bool = True, checked: bool = False
    ) -> None:
        self.network = network
        self.world = network.world
        self.settings = settings
        self.keeps = keeps
        self.checked = checked
        self.journal: list[list[bytes]] = []
        self.full_until = 0.0
        """Until then its disk is full."""
        self.failing = False
        """Whether the power fails while the next facts are on their way to the disk."""
        self.lives = 0
        self.answered = 0
        self.late: dict[str, set[int]] = {}
        """Elements that leaving readers reported too late: other readers may have got them."""
        network.answer = self._arrive
        self.process = Process(self.world, "dispatcher")
        self.process.alive = False
        self.start()

    # Starts and crashes

    def start(self) -> None:
        """Starts for the first time, or restarts from its journal."""
        world = self.world
        self.lives += 1
        self.process = Process(world, f"dispatcher#{self.lives}")
        self._last, self._slept = world.now, 0.0
        if not self.keeps:
            self.journal = []
        name = f"d{self.lives}"
        self.state = State(replace(self.settings, dispatcher=name, started=world.now))
        for line in self._lines():
            self.state.apply(_decode(line), world.now)
        self.full_until = 0.0
        self.commit((DispatcherStarted(name),))
        if world.chance(0.5):
            self.compact()
        self.process.spawn(self._tick)
        world.tell(f"{self.process.name} is up")

    def crash(self) -> None:
        self.world.tell(f"{self.process.name} dies")
        self.check_replay()
        self.process.kill()

    def lose_power(self) -> None:
        """Kills it. What is not on disk is lost; what it had answered is on disk."""
        self.world.tell(f"{self.process.name} loses power")
        self.process.kill()

    def lose_facts(self) -> None:
        """Kills it, and removes some of the last facts, although its disk had confirmed them."""
        self.crash()
        kept = len(self.journal) - self.world.random.randint(1, 12)
        self.journal = self.journal[: max(1, kept)]
        self.world.tell(f"its journal is cut to {len(self.journal)} transactions")

    def compact(self) -> None:
        facts = snapshot(self.state)
        if self.keeps and self.world.now >= self.full_until:
            self.journal = [[encode(fact) for fact in facts]]

    def _lines(self) -> Iterator[bytes]:
        for transaction in self.journal:
            yield from transaction

    def check_replay(self) -> None:
        """Checks that the replayed journal gives the same state."""
        if not self.keeps:
            return
        again = State(self.state.settings)
        for line in self._lines():
            again.apply(_decode(line), self.world.now)
        if snapshot(again) != snapshot(self.state):
            raise Violation("the journal, replayed, does not give the state of the dispatcher")

    # Answering requests

    def _arrive(self, data: bytes, reply: Callable[[bytes | None], None]) -> None:
        if not self.process.alive:
            reply(None)
        elif self.process.paused_until > self.world.now:
            self.world.when(
                self.process.paused_until,
                lambda: self._arrive(data, reply),
                self.process,
            )
        elif (answer := self.handle(data)) is not None:
            reply(answer)
        else:
            reply(None)

    def handle(self, data: bytes) -> bytes | None:
        """The answer; None if the power fails before the facts are on disk."""
        request = decode_request(data)
        self.answered += 1
        if isinstance(request, Hello):
            return encode(HelloReply(self.state.dispatcher))
        try:
            decision = decide(self.state, request, self._clock())
        except OpError as error:
            self.world.tell("refuses", request, error)
            return encode(error_to_reply(error))
        if (decision.facts and decision.facts[0].durable) or len(decision.facts) > 1:
            self.world.tell(request, "->", decision.facts)
        late = isinstance(request, Leave) and self._is_lost(request)
        durable = any(fact.durable for fact in decision.facts)
        if durable and self.world.now < self.full_until:
            return self._wait_for_room(decision.facts)
        if durable and self.failing:
            self.lose_power()
            return None
        self.commit(decision.facts)
        if late:
            self._left_late(request)
        return encode(stamp_reply(self.state, request, decision.reply))

    def _wait_for_room(self, facts: tuple[Fact, ...]) -> bytes:
        self.world.tell("the disk of the dispatcher is full")
        for fact in facts:
            if isinstance(fact, ClientHeard | WorkerHeard):
                self.state.apply(fact, self._clock())
        return encode(error_to_reply(UnavailableError("the disk is full")))

    def _is_lost(self, request: Leave) -> bool:
        client = self.state.clients.get(request.client)
        return client is not None and client.standing == LOST

    def _left_late(self, request: Leave) -> None:
        """Notes what a leaving reader had consumed; the dispatcher must not lease that again."""
        group = self.state.group(self.state.clients[request.client])
        said = self.late.setdefault(request.client, set())
        for stream, start, stop in ((at.stream, at.start, at.stop) for at in request.consumed):
            said |= {element(stream, ordinal) for ordinal in range(start, stop)}
            if stream in group.tracks and group.tracks[stream].free.inside(start, stop):
                raise Violation(f"what {request.client} used is free when it has left")

    def commit(self, facts: tuple[Fact, ...]) -> None:
        self.journal.append([encode(fact) for fact in facts if fact.durable])
        for fact in facts:
            self.state.apply(fact, self._clock())
        if self.checked:
            check(self.state)

    def _tick(self) -> None:
        while True:
            self.world.wait(TICK)
            facts = tick(self.state, self._clock())
            if self.world.now < self.full_until:
                continue
            if facts:
                self.world.tell("time passes:", facts)
            self.commit(facts)

    def _clock(self) -> float:
        """A clock that stops while the process is suspended."""
        gap = self.world.now - self._last
        self._slept += max(0.0, gap - _PAUSE)
        self._last = self.world.now
        return self.world.now - self._slept
