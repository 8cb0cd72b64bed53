"""A dispatcher without a host: requests in, facts journalled as bytes and applied, answers out."""

from __future__ import annotations

import msgspec

from penstock.plan.shape import Shape
from penstock.service.logic.dispatcher import decide, snapshot, tick
from penstock.service.logic.facts import DispatcherStarted, Fact
from penstock.service.logic.state import Settings, State
from penstock.service.protocol.messages import (
    ClientHeartbeat,
    Grant,
    JobOptions,
    Lease,
    LeaseReply,
    OpenIteration,
    RegisterDataset,
    RegisterWorker,
    Reply,
    Request,
    StreamRange,
    WorkerInfo,
)
from tests.service.logic.invariants import check

OFF, DYNAMIC, FILE, DATA = 0, 1, 2, 3
RANDOM = Shape("random", length=100)
SPLIT = Shape("split", streams=4)
SINGLE = Shape("single")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Fact).decode


class World:
    """One dispatcher, its journal and its clock. Everything is checked after every step."""

    def __init__(self, settings: Settings | None = None, checked: bool = True) -> None:
        self.settings = settings or Settings(worker_timeout=60.0)
        self.now = 100.0
        self.checked = checked
        self.journal: list[bytes] = []
        self.state = State(self.settings)
        self.commit((DispatcherStarted("d"),))

    def ask(self, request: Request) -> Reply:
        before = snapshot(self.state) if self.checked else ()
        decision = decide(self.state, request, self.now)
        if self.checked:
            assert snapshot(self.state) == before, "decide changed the state"
        self.commit(decision.facts)
        return decision.reply

    def commit(self, facts: tuple[Fact, ...]) -> None:
        self.journal += [_encode(fact) for fact in facts if fact.durable]
        for fact in facts:
            self.state.apply(fact, self.now)
        if self.checked:
            check(self.state)

    def wait(self, seconds: float) -> tuple[Fact, ...]:
        self.now += seconds
        facts = tick(self.state, self.now)
        self.commit(facts)
        return facts

    def replay_journal(self) -> State:
        state = State(self.settings)
        for line in self.journal:
            state.apply(_decode(line), self.now)
        return state

    def restart(self) -> None:
        """Crashes the dispatcher and restarts it from its journal."""
        self.state = self.replay_journal()
        self.commit((DispatcherStarted(f"d{self.state.starts}"),))

    def compact(self) -> None:
        self.journal = [_encode(fact) for fact in snapshot(self.state)]

    # Requests of workers and clients

    def worker(self, name: str, address: str = "", host: str = "h") -> Reply:
        info = WorkerInfo(name, address or f"{name}:1", host)
        return self.ask(RegisterWorker(info, ""))

    def dataset(self, shape: Shape = RANDOM, cardinality: int = 100, structure: str = "s") -> str:
        request = RegisterDataset("digest", structure, b"spec", shape, cardinality)
        return self.ask(request).dataset_id

    def open(
        self,
        client: str,
        dataset_id: str,
        job: str | None = "job",
        mode: int = DYNAMIC,
        repetition: int = 0,
        key: int = 7,
        epoch: tuple[int, ...] = (1,),
        host: str = "h",
        consumer: int = -1,
        group: str = "",
        resumes: tuple[str, ...] = (),
        consumed: tuple[StreamRange, ...] = (),
        finished: tuple[tuple[int, int], ...] = (),
        held: tuple[StreamRange, ...] = (),
        program: str = "",
        by_id: bool = False,
        endless: bool = False,
        begins: tuple[int, ...] = (),
        names: tuple[str, ...] = (),
        **options: object,
    ) -> Reply:
        return self.ask(
            OpenIteration(
                *(client, job, repetition, dataset_id, JobOptions(mode, **options), key, epoch),
                *(host, consumer, group, resumes, consumed, finished),
                held=held,
                program=program,
                by_id=by_id,
                endless=endless,
                streams=len(begins),
                begins=begins,
                names=names,
            )
        )

    def beat(self, client: str, version: int = -1, **more: object) -> Reply:
        return self.ask(ClientHeartbeat(client, version, **more))

    def lives(self, client: str) -> None:
        """A client confirms the dispatcher's latest version."""
        self.beat(client, self.beat(client).version)

    def lease(self, client: str, want: int = 10, **more: object) -> LeaseReply:
        """The next lease of a client."""
        number = self.state.clients[client].number + 1 if client in self.state.clients else 1
        return self.ask(Lease(client, number, want, **more))

    def leases(self, client: str, want: int = 10, **more: object) -> list[tuple[int, int, int]]:
        return spans(self.lease(client, want, **more).grants)

    def read(self, client: str, want: int = 10) -> list[tuple[int, int, int]]:
        """Leases elements for a client, and reports them as consumed."""
        grants = self.lease(client, want).grants
        self.beat(client, consumed=tuple(grant.range for grant in grants))
        return spans(grants)

    def record(self, client: str):
        return self.state.iterations[self.state.clients[client].job]

    def places(self, client: str) -> dict[int, str | None]:
        return {place.stream: place.worker for place in self.record(client).places}


def spans(grants: tuple[Grant, ...]) -> list[tuple[int, int, int]]:
    return [(g.range.stream, g.range.start, g.range.stop) for g in grants]
