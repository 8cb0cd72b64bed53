"""Moves: large states reach another worker while elements are made; nothing depends on it."""

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from penstock.data import Dataset
from penstock.data.dataset import ENVIRONMENT
from penstock.engine.processes.chunk_memory import host_id
from penstock.errors import InvalidArgumentError, ResourceExhaustedError
from penstock.service.host import moves
from penstock.service.host.admission import DataListener
from penstock.service.host.data_client import connect_data
from penstock.service.host.data_connection import Connection
from penstock.service.host.fetch_gate import FetchGate
from penstock.service.host.fetch_server import serve
from penstock.service.host.tasks import FetchedChunk, Task, Tasks
from penstock.service.protocol import timing
from penstock.service.protocol.data_messages import (
    LARGE_STATE,
    MOST_STATE,
    AddState,
    Done,
    Fetch,
    Impossible,
    Mark,
    OpenTask,
    Progress,
    Rows,
)
from penstock.service.protocol.messages import Work, WorkerInfo
from tests.integration.clusters import until
from tests.service.host.wire_peers import SECURITY

WORK = Work("digest", "job", "single", 0, 1, 7, (0,))
COUNT = 400


class Peer:
    """A worker with a gate, which serves `dataset` to all that connect."""

    def __init__(self, name: str, dataset: Dataset) -> None:
        self.calls: list[int] = []
        self.gate = FetchGate()
        self.tasks = Tasks(lambda digest: dataset.__plan__, lambda: ENVIRONMENT, name, connect=dial)
        self.listener = DataListener(self._serve, SECURITY)
        self.info = WorkerInfo(name, "localhost:1", host_id(), dict(self.listener.transfers))

    def _serve(self, connection: Connection) -> None:
        serve(connection, self.tasks, self.gate)


OPEN: list[Connection] = []


def dial(info: WorkerInfo, work: Work) -> Connection:
    OPEN.append(connect_data(info, SECURITY, "tcp", host_id(), None))
    return OPEN[-1]


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


@contextlib.contextmanager
def peers(dataset: Dataset) -> Iterator[tuple[Peer, Peer]]:
    leaves, stays = Peer("leaves", dataset), Peer("stays", dataset)
    with leaves.listener, stays.listener:
        yield leaves, stays


def buffered(held: int = 20, made: Any = None, size: int = 512) -> Dataset:
    """Numbers behind a shuffle buffer that holds `held` arrays of 4 KB."""
    numbers = Dataset.range(COUNT).scan(np.int64(0), lambda total, x: (total + x, x))
    numbers = numbers.map(lambda x: np.full(size, x)).shuffle(held, seed=3)

    def take_first(x: Any) -> Any:
        if made is not None:
            made(int(x[0]))
        return x[0]

    return numbers.map(take_first, output_signature=Dataset.range(1).element_spec)


class Reader:
    """A client that requests one element after the other."""

    def __init__(self, peer: Peer, successor: WorkerInfo | None = None) -> None:
        self.connection = dial(peer.info, WORK)
        self.connection.send(OpenTask(1, WORK))
        self.successor = successor
        self.found: list[int] = []
        self.mark: Mark | None = None
        self.news: list[Progress] = []
        self._requests = 0

    def read(self, start: int, most_state: int = MOST_STATE, mark: Mark | None = None) -> Any:
        """Requests element `start`; returns the last message about it."""
        self._requests += 1
        fetch = Fetch(self._requests, 1, start, start + 1, mark, "", 0, most_state, self.successor)
        self.connection.send(fetch)
        return self.receive(Done | Impossible)

    def receive(self, until: Any) -> Any:
        while True:
            message, columns = self.connection.receive()
            if isinstance(message, Rows):
                assert columns is not None
                self.found += [int(x) for x in columns[0]]
                self.mark = message.mark or self.mark
            elif isinstance(message, Progress) and message.leaves:
                self.news.append(message)
            if isinstance(message, until):
                return message

    def read_all(self, start: int, mark: Mark | None = None) -> list[int]:
        begin = len(self.found)
        while isinstance(done := self.read(start, mark=mark), Done) and done.length is None:
            start, mark = start + 1, None
        return self.found[begin:]


def leave(peer: Peer, reader: Reader, start: int) -> int:
    """Lets a worker leave while a reader reads on; returns what the reader has then."""
    peer.gate.close()
    while isinstance(reader.read(start), Done):
        start += 1
    return start


def test_a_large_state_moves_while_elements_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "PART", 8 << 10)
    made: list[int] = []
    dataset = buffered(made=made.append)
    expected = [int(x) for x in dataset]
    with peers(dataset) as (old, new):
        reader = Reader(old, new.info)
        for start in range(8):
            reader.read(start)
        made.clear()
        stop = leave(old, reader, 8)
        assert reader.news[0].moving == (1,)
        assert reader.mark == Mark(stop, b"", "stays")
        assert old.gate.wait(60)
        rest = Reader(new).read_all(stop)
        assert reader.found + rest == expected
        assert made == expected[8:]  # No element is computed twice.


def test_an_idle_stream_moves_without_a_request() -> None:
    made: list[int] = []
    dataset = buffered(made=made.append)
    expected = [int(x) for x in dataset]
    with peers(dataset) as (old, new):
        reader = Reader(old, new.info)
        for start in range(8):
            reader.read(start)
        made.clear()
        old.gate.close()
        assert old.gate.wait(60)
        while not any(news.moved for news in reader.news):
            reader.receive(Progress)
        [moved] = reader.news[-1].moved
        assert (moved.task, moved.mark) == (1, Mark(8, b"", "stays"))
        assert isinstance(reader.read(8), Impossible)
        assert reader.found + Reader(new).read_all(8) == expected
        assert made == expected[8:]


def test_the_client_of_an_idle_stream_gets_a_small_state() -> None:
    dataset = Dataset.range(COUNT).scan(np.int64(0), lambda total, x: (total + x, total))
    expected = [int(x) for x in dataset]
    with peers(dataset) as (old, new):
        reader = Reader(old)
        for start in range(200):  # A mark is saved after 64 chunks.
            reader.read(start)
        until(lambda: all(s._doing is None for s in old.gate.reporter.servers))  # type: ignore[attr-defined]
        old.gate.close()
        assert old.gate.wait(60)
        reader.receive(Progress)
        [moved] = reader.news[-1].moved
        assert (moved.mark.ordinal, moved.mark.worker) == (200, "")
        assert 0 < len(moved.mark.state) < LARGE_STATE
        stream = old.tasks.pool.streams
        assert reader.found + Reader(new).read_all(200, moved.mark) == expected
        assert stream


@pytest.mark.parametrize("why", ["gone", "leaves", "full", "old", "dies"])
def test_without_a_successor_the_state_travels_through_the_client(
    why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock.service")
    dataset = buffered()
    expected = [int(x) for x in dataset]
    with peers(dataset) as (old, new):
        reasons = {
            "gone": "is the worker running",
            "leaves": "about to stop",
            "full": "may hold 0 MB",
            "old": "earlier version",
            "dies": "data connection to worker",
        }
        if why == "gone":
            new.listener.close()
        if why == "leaves":
            new.gate.close()
        if why == "full":
            new.tasks.pool.most_moved = 0
        if why == "dies":  # In the middle of the state.
            monkeypatch.setattr(moves, "PART", 8 << 10)
            parts = iter(range(3))
            add = Task.add_state

            def add_or_die(task: Task, part: AddState) -> None:
                if next(parts, None) is None:
                    OPEN[-1].abort()
                add(task, part)

            monkeypatch.setattr(Task, "add_state", add_or_die)
        if why == "old":
            monkeypatch.setattr(moves, "MOVED_STATES", 1 << 30)
        reader = Reader(old, new.info)
        for start in range(8):
            reader.read(start)
        stop = leave(old, reader, 8)
        assert old.gate.wait(60)
        assert reader.mark is not None
        assert (reader.mark.ordinal, reader.mark.worker) == (stop, "")
        assert reader.mark.is_large
        assert reasons[why] in caplog.text
        third = Peer("third", dataset)
        with third.listener:
            assert reader.found + Reader(third).read_all(stop, reader.mark) == expected


def test_a_stream_whose_elements_fail_moves_as_well() -> None:
    def fail(x: int) -> None:
        if fails:
            raise ValueError(x)

    fails: list[bool] = []
    dataset = buffered(made=fail)
    expected = [int(x) for x in dataset]
    with peers(dataset) as (old, new):
        reader = Reader(old, new.info)
        for start in range(8):
            reader.read(start)
        fails.append(True)
        stop = leave(old, reader, 8)
        assert old.gate.wait(60)
        [moved] = [moved for news in reader.news for moved in news.moved]
        assert moved.mark == Mark(stop, b"", "stays")
        fails.clear()
        assert Reader(new).read_all(stop) == expected[stop:]


def test_a_client_that_names_no_successor_gets_the_state_as_before() -> None:
    with peers(buffered()) as (old, _):
        reader = Reader(old)
        for start in range(8):
            reader.read(start)
        old.gate.close()
        reader.read(8)
        assert old.gate.wait(60)
        assert reader.news == [] or not reader.news[0].moving
        assert isinstance(reader.read(8), Impossible)


def test_a_move_is_given_up_after_a_part_of_the_grace_period() -> None:
    """The function does not return, so there is no state to send."""
    held, go = threading.Event(), threading.Event()

    def hang(x: int) -> None:
        if len(seen) == 4:
            held.set()
            go.wait()
        seen.append(x)

    seen: list[int] = []
    dataset = buffered(made=hang)
    with peers(dataset) as (old, new):
        reader = Reader(old, new.info)
        for start in range(4):
            reader.read(start)
        thread = threading.Thread(target=lambda: reader.read(4), daemon=True)
        thread.start()
        held.wait()
        old.gate.close(0.2)
        until(lambda: bool(old.gate._moves))
        [move] = old.gate._moves.values()
        until(lambda: not move.is_pending)
        assert move.mark is None
        go.set()
        thread.join()
        # Its last element brings the state, as if nothing could move.
        assert reader.mark is not None
        assert (reader.mark.ordinal, reader.mark.worker) == (5, "")
        assert old.gate.wait(60)


def test_a_client_that_does_not_read_does_not_hold_up_a_worker_that_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timing, "SWITCH", 1e-3)
    large = Dataset.range(COUNT).map(lambda x: np.full(1 << 20, x))
    with peers(large) as (old, _):
        connection = dial(old.info, WORK)
        connection.send(OpenTask(1, WORK))
        connection.send(Fetch(1, 1, 0, COUNT))
        until(lambda: any(s._sending_since for s in old.gate.reporter.servers))  # type: ignore[attr-defined]
        old.gate.close(1e-3)
        assert old.gate.wait(60)


def test_a_stream_that_ends_meanwhile_needs_no_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "IDLE_CURSOR", 1e-3)
    monkeypatch.setattr(moves, "StateSender", None)  # None is made.
    with peers(buffered(held=COUNT)) as (old, new):
        reader = Reader(old, new.info)
        assert len(reader.read_all(0)) == COUNT
        old.gate.close()
        assert old.gate.wait(60)


def state_parts(dataset: Dataset, count: int) -> Any:
    """What a worker says to another one about the state behind `count` elements."""
    tasks = Tasks(lambda digest: dataset.__plan__, lambda: ENVIRONMENT, "here")
    task = tasks.open(WORK)
    for part in task.fetch(0, count):
        assert isinstance(part, FetchedChunk)
    return task


def test_a_state_for_a_task_that_is_not_open() -> None:
    with peers(buffered()) as (_, new):
        connection = dial(new.info, WORK)
        connection.send(AddState(5, 1))
        found = connection.receive()[0]
        assert isinstance(found, Impossible)
        assert (found.request, found.kind) == (5, "InvalidArgumentError")
        assert "a state of task 1, which is not open" in found.message


def test_states_are_refused_that_no_stream_needs_or_that_are_damaged() -> None:
    task = state_parts(Dataset.range(9), 2)
    with pytest.raises(InvalidArgumentError, match="continues anywhere without a state"):
        task.add_state(AddState(1, 1))
    task = state_parts(buffered(), 2)
    with pytest.raises(InvalidArgumentError, match="a damaged state"):
        task.add_state(AddState(1, 1, b"\xc1"))
    unknown = {"penstock": {"numbers": np.int64(3).tobytes()}}
    with pytest.raises(InvalidArgumentError, match="values in a state are damaged"):
        task.add_state(AddState(1, 1, b"", Mark(2, msgspec.msgpack.encode(unknown))))


def test_a_worker_keeps_no_more_states_than_it_may_until_they_are_read() -> None:
    task = state_parts(buffered(), 2)
    pool, [stream] = task._tasks.pool, task._tasks.pool.streams.values()
    pool.most_moved = 100
    pool.reserve(stream, 60)
    with pytest.raises(ResourceExhaustedError, match="holds 0 MB of states of workers that left"):
        pool.reserve(stream, 60)
    list(task.fetch(2, 3))
    pool.reserve(stream, 60)


def test_a_state_that_was_moved_is_kept_for_longer_than_an_idle_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timing, "IDLE_STREAM", -1.0)
    task = state_parts(buffered(), 2)
    tasks = task._tasks
    [stream] = tasks.pool.streams.values()
    tasks.pool.reserve(stream, 60)
    task.close()
    tasks.tidy()
    assert tasks.pool.streams
    tasks.tidy(jobs=())
    assert not tasks.pool.streams


def test_parts_have_about_as_many_bytes_as_they_may() -> None:
    elements = [np.zeros(size, np.uint8) for size in (10, 50, 60, 200, 10)]
    parts = [[len(x) for x in part] for part in moves.cut_parts(elements, 100)]
    assert parts == [[10, 50, 60], [200], [10]]
    assert list(moves.cut_parts([], 100)) == []
