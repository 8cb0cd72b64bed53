"""Moves: large states are sent to another worker while elements are made; a move may fail."""

import contextlib
import logging
import math
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from penstock import TensorSpec, int64
from penstock.data import Dataset
from penstock.data.dataset import ENVIRONMENT
from penstock.element.chunk import Chunk
from penstock.engine.processes.chunk_memory import host_id
from penstock.engine.state_values import encode
from penstock.errors import InvalidArgumentError, ResourceExhaustedError
from penstock.plan.nodes import Node
from penstock.service.host import moves
from penstock.service.host.admission import DataListener
from penstock.service.host.data_client import connect_data
from penstock.service.host.data_connection import Connection
from penstock.service.host.fetch_server import FetchGate, FetchServer, serve
from penstock.service.host.runtime import Runtime
from penstock.service.host.tasks import FetchedChunk, Task, Tasks
from penstock.service.protocol import timing
from penstock.service.protocol.data_messages import (
    LARGE_STATE,
    MOST_STATE,
    AddState,
    CachedPart,
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
    """A worker with a gate, which serves `dataset` to all connections."""

    def __init__(self, name: str, dataset: Dataset) -> None:
        self.gate = FetchGate()
        self.may_load = threading.Event()
        """Set if it can load plans: a test may delay that."""
        self.may_load.set()

        def load(digest: str) -> Node:
            self.may_load.wait()
            return dataset.__plan__

        self.tasks = Tasks(load, lambda: ENVIRONMENT, name, connect=dial)
        self.listener = DataListener(self._serve, SECURITY)
        self.info = WorkerInfo(name, "localhost:1", host_id(), dict(self.listener.transfers))

    def _serve(self, connection: Connection) -> None:
        serve(connection, self.tasks, self.gate)


OPEN: list[Connection] = []


def dial(info: WorkerInfo, work: Work) -> Connection:
    OPEN.append(connect_data(info, SECURITY, "tcp", host_id(), None))
    return OPEN[-1]


@pytest.fixture(autouse=True)
def close_all() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


@contextlib.contextmanager
def peers(dataset: Dataset) -> Iterator[tuple[Peer, Peer]]:
    leaves, stays = Peer("leaves", dataset), Peer("stays", dataset)
    with leaves.listener, stays.listener:
        yield leaves, stays


def buffer_numbers(held: int = 20, made: Any = None, size: int = 512) -> Dataset:
    """Numbers behind a shuffle buffer that holds `held` arrays of 4 KB."""
    numbers = Dataset.range(COUNT).scan(np.int64(0), lambda total, x: (total + x, x))
    numbers = numbers.map(lambda x: np.full(size, x)).shuffle(held, seed=3)

    def take_first(x: Any) -> Any:
        if made is not None:
            made(int(x[0]))
        return x[0]

    return numbers.map(take_first, output_signature=Dataset.range(1).element_spec)


def sum_numbers(made: Any = None) -> Dataset:
    """Sums of numbers, which have small states."""

    def note(x: Any) -> Any:
        if made is not None:
            made(int(x))
        return x

    sums = Dataset.range(COUNT).scan(np.int64(0), lambda total, x: (total + x, total + x))
    return sums.map(note, output_signature=Dataset.range(1).element_spec)


class Reader:
    """A client that requests one element after the other."""

    def __init__(
        self, peer: Peer, successor: WorkerInfo | None = None, *, work: Work = WORK
    ) -> None:
        self.connection = dial(peer.info, WORK)
        self.connection.send(OpenTask(1, work))
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
                self.mark = message.moved[0].mark if message.moved else self.mark
            if isinstance(message, until):
                return message

    def read_all(self, start: int, mark: Mark | None = None) -> list[int]:
        begin = len(self.found)
        while isinstance(done := self.read(start, mark=mark), Done) and done.length is None:
            start, mark = start + 1, None
        return self.found[begin:]


def leave(peer: Peer, reader: Reader, start: int) -> int:
    """Lets a worker leave while a reader reads; returns how many elements the reader has then."""
    peer.gate.close()
    while isinstance(reader.read(start), Done):
        start += 1
    return start


def test_a_large_state_moves_while_elements_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "PART", 8 << 10)
    made: list[int] = []
    dataset = buffer_numbers(made=made.append)
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


def test_elements_are_made_until_the_next_worker_has_loaded_the_plan() -> None:
    """The same holds if the state is small."""
    made: list[int] = []
    dataset = sum_numbers(made.append)
    expected = [int(x) for x in dataset]
    with peers(dataset) as (old, new):
        reader = Reader(old, new.info)
        for start in range(8):
            reader.read(start)
        made.clear()
        new.may_load.clear()
        old.gate.close()
        for start in range(8, 40):
            assert isinstance(reader.read(start), Done)
        assert reader.mark is None
        new.may_load.set()
        stop = 40
        while isinstance(reader.read(stop), Done):
            stop += 1
        assert old.gate.wait(60)
        # The state is in the mark: any worker can continue with it, and this one is ready.
        mark = reader.mark
        assert mark is not None
        assert (mark.ordinal, mark.worker) == (stop, "stays")
        assert 0 < len(mark.state) < LARGE_STATE
        assert reader.found + Reader(new).read_all(stop, mark) == expected
        assert made == expected[8:]  # No element is computed twice.


@pytest.mark.parametrize("passes", [0, 1], ids=["begun", "full"])
@pytest.mark.parametrize("size", [1, 512], ids=["small", "large"])
def test_what_a_cache_holds_moves(
    monkeypatch: pytest.MonkeyPatch, passes: int, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The first pass through the cache, or a later one, continues at the other worker."""
    monkeypatch.setattr(moves, "PART", 8 << 10)
    made: list[int] = []
    count = 300
    dataset = cache_arrays(count, size, made.append)
    expected = 3 * [x * (x + 1) // 2 for x in range(count)]
    with peers(dataset) as (old, new):
        reader = Reader(old, new.info)
        begin = passes * count + 8
        for start in range(begin):
            reader.read(start)
        stop = leave(old, reader, begin)
        assert old.gate.wait(60)
        assert reader.mark is not None
        assert (reader.mark.ordinal, reader.mark.worker) == (stop, "stays")
        assert reader.mark.state != b""  # Any worker can continue, though without the cache.
        assert reader.found + Reader(new).read_all(stop, reader.mark) == expected
    assert made == expected[:count]  # No element is computed twice.
    assert not caplog.records


def cache_arrays(count: int, size: int, made: Any) -> Dataset:
    """Three passes through a cache of arrays that one worker computes in order."""

    def note(x: Any) -> Any:
        made(int(x))
        return np.full(size, x)

    sums = Dataset.range(count).scan(np.int64(0), lambda total, x: (total + x, total + x))
    arrays = sums.map(note, output_signature=TensorSpec((None,), int64))
    return arrays.cache().repeat(3).map(lambda x: x[0])


def test_a_worker_passes_on_a_cache_that_it_was_given() -> None:
    made: list[int] = []
    dataset = cache_arrays(300, 1, made.append)
    with peers(dataset) as (old, new), peers(dataset) as (newer, _):
        reader, expected = Reader(old, new.info), [int(x) for x in dataset]
        made.clear()
        for start in range(8):
            reader.read(start)
        stop = leave(old, reader, 8)
        second = Reader(new, newer.info)
        second.read(stop, mark=reader.mark)
        last = leave(new, second, stop + 1)
        assert new.gate.wait(60)
        rest = Reader(newer).read_all(last, second.mark)
        assert reader.found + second.found + rest == expected
        assert made == expected[:300]


def test_a_cache_of_objects_stays_behind(caplog: pytest.LogCaptureFixture) -> None:
    made: list[int] = []
    count = 300
    numbers = sum_numbers(made.append).take(count).map(lambda x: Dataset.range(1))
    dataset = numbers.cache().repeat(2).flat_map(lambda x: x)
    with peers(dataset) as (old, new):
        reader = Reader(old, new.info)
        for start in range(count + 8):
            reader.read(start)
        stop = leave(old, reader, count + 8)
        assert old.gate.wait(60)
        assert reader.found + Reader(new).read_all(stop, reader.mark) == [0] * 2 * count
    assert len(made) > count
    assert "does not get what cache() holds in memory (it has elements that are not" in caplog.text


@pytest.mark.parametrize(
    ("why", "reason"),
    [("full", "would hold 0 MB"), ("late", "takes too long"), ("large", "an element has 0 MB")],
)
def test_a_large_state_moves_without_a_cache_that_cannot_move(
    why: str, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(moves, "PART", 8 << 10)
    dataset = Dataset.zip(cache_arrays(300, 512, [].append), buffer_numbers()).map(lambda x, _: x)
    expected = [int(x) for x in dataset]
    with peers(dataset) as (old, new):
        if why == "full":
            new.tasks.pool.most_moved = 300_000  # The buffer has 80 KB, and the cache 1.2 MB.
        if why == "late":
            open_task = moves.StateSender.open

            def open_late(sender: moves.StateSender, work: Work, until: float) -> None:
                open_task(sender, work, until)
                sender._cached_until = -math.inf

            monkeypatch.setattr(moves.StateSender, "open", open_late)
        if why == "large":
            monkeypatch.setattr(moves, "MOST_STATE", 4000)
        reader = Reader(old, new.info)
        for start in range(320):
            reader.read(start)
        stop = leave(old, reader, 320)
        assert old.gate.wait(60)
        assert reader.mark == Mark(stop, b"", "stays")
        [store] = [s for stream in new.tasks.pool.streams.values() for s in stream.plan.stores]
        assert (store.chunks, store.moved) == (None, [])
        assert reader.found + Reader(new).read_all(stop) == expected
    assert "does not get what cache() holds in memory (" in caplog.text
    assert reason in caplog.text


def test_the_consumers_of_a_coordinated_read_continue_where_the_stream_was() -> None:
    """Each consumer counts its own elements."""
    made: list[int] = []
    dataset = sum_numbers(made.append)
    expected = [int(x) for x in dataset]
    with peers(dataset) as (old, new):
        works = [msgspec.structs.replace(WORK, consumers=2, consumer=c) for c in range(2)]
        fast, slow = (Reader(old, new.info, work=work) for work in works)
        for number in range(10):
            fast.read(number)
            if number < 9:
                slow.read(number)
        until(lambda: all(s._doing is None for s in old.gate.reporter.servers))
        made.clear()
        old.gate.close()
        assert old.gate.wait(60)
        for reader in (fast, slow):
            while not reader.mark:
                reader.receive(Progress)
        assert fast.mark is not None
        assert slow.mark is not None
        assert (fast.mark.ordinal, slow.mark.ordinal) == (10, 9)
        assert fast.mark.worker == slow.mark.worker == "stays"
        assert fast.mark.state == slow.mark.state != b""
        there = [Reader(new, work=work) for work in works]
        assert there[1].read_all(9, slow.mark) == expected[19::2]
        assert there[0].read_all(10, fast.mark) == expected[20::2]
        assert sorted(made) == expected[19:]


def test_a_worker_stays_until_a_slow_consumer_has_what_was_made_for_it() -> None:
    """The state that was sent is after these elements, so no other worker can make them from it."""
    made: list[int] = []
    dataset = buffer_numbers(made=made.append)
    expected = [int(x) for x in dataset]
    with peers(dataset) as (old, new):
        works = [msgspec.structs.replace(WORK, consumers=2, consumer=c) for c in range(2)]
        fast, slow = (Reader(old, new.info, work=work) for work in works)
        for number in range(20):
            fast.read(number)
            if number < 5:
                slow.read(number)
        until(lambda: all(s._doing is None for s in old.gate.reporter.servers))
        made.clear()
        old.gate.close()
        while not slow.mark:
            slow.receive(Progress)
        assert not old.gate.wait(0.05)
        number = 5
        while number < slow.mark.ordinal:
            assert isinstance(slow.read(number), Done)
            number += 1
        assert old.gate.wait(60)
        assert slow.found == expected[1 : 2 * number : 2]
        assert made == []
        assert Reader(new, work=works[1]).read_all(number) == expected[2 * number + 1 :: 2]
        assert set(made) <= set(expected[2 * number - 1 :])


def test_a_client_learns_where_a_stream_continues_before_its_requests_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise it would ask another worker with an earlier mark. A move may end at any time."""
    held, go, seen = threading.Event(), threading.Event(), list(range(8))

    def wait(x: int) -> None:
        if not seen:
            held.set()
            go.wait()
        else:
            seen.pop()

    find_news = FetchServer._find_news

    def end_move_behind(server: FetchServer) -> Progress | None:
        news = find_news(server)
        new.may_load.set()
        until(lambda: not move.is_pending)
        return news

    with peers(sum_numbers(wait)) as (old, new):
        reader = Reader(old, new.info)
        for start in range(8):
            reader.read(start)
        [stream] = old.tasks.pool.streams.values()
        reader.connection.send(OpenTask(2, msgspec.structs.replace(WORK, stream=1)))
        reader.connection.send(Fetch(20, 2, 0, 1), Fetch(21, 1, 8, 9))
        held.wait()  # The thread of the connection makes an element of another stream.
        new.may_load.clear()
        old.gate.close()
        until(lambda: stream in old.gate._moves)
        move = old.gate._moves[stream]
        [server] = old.gate.reporter.servers
        monkeypatch.setattr(FetchServer, "_find_news", end_move_behind)
        server.hand_back()
        refusal = reader.receive(Impossible)
        assert refusal.request == 21
        assert reader.mark is not None
        assert (reader.mark.ordinal, reader.mark.worker) == (8, "stays")
        go.set()
        assert old.gate.wait(60)


def test_elements_that_were_made_are_sent_after_the_stream_was_handed_over() -> None:
    made: list[int] = []
    with peers(sum_numbers(made.append)) as (old, new):
        first, second = (Reader(old, new.info) for _ in range(2))
        for number in range(9):
            first.read(number)
        second.read(0)
        until(lambda: all(s._doing is None for s in old.gate.reporter.servers))
        made.clear()
        new.may_load.clear()
        old.gate.close()
        until(lambda: bool(old.gate._moves))
        [move] = old.gate._moves.values()
        old.gate.enter(can_answer=True)  # The worker does not end before the checks below.
        new.may_load.set()
        until(lambda: not move.is_pending)
        assert isinstance(second.read(8), Done)
        assert second.found[-1] == first.found[8]
        assert isinstance(second.read(9), Impossible)
        assert made == []
        old.gate.leave()
        assert old.gate.wait(60)


def test_no_element_is_begun_that_would_end_after_half_of_the_grace_period() -> None:
    now, clock = [0.0], Runtime()
    clock.now = lambda: now[0]  # type: ignore[method-assign]
    task = state_parts(sum_numbers(), 2)
    [stream] = task._tasks.pool.streams.values()
    info = WorkerInfo("stays", "localhost:1", "host", {})
    move = moves.Move(stream, WORK, info, dial, clock, until=15.0)
    assert move.allows_element(6.0)
    now[0] = 8.0
    assert move.allows_element(6.0)
    assert not move.allows_element(8.0)
    assert not move.is_pending
    assert move.mark is None


def test_a_stream_that_was_not_begun_is_handed_back_at_once() -> None:
    with peers(sum_numbers()) as (old, new):
        new.may_load.clear()
        reader = Reader(old, new.info)
        until(lambda: len(old.gate.reporter.servers) == 1)
        old.gate.close()
        assert isinstance(reader.read(0), Impossible)
        assert old.gate.wait(60)
        assert not old.gate._moves
        new.may_load.set()


def test_each_stream_moves_to_the_worker_that_was_named_for_it() -> None:
    dataset = sum_numbers()
    third = Peer("third", dataset)
    with peers(dataset) as (old, new), third.listener:
        reader = Reader(old, new.info)
        other = msgspec.structs.replace(WORK, stream=1)
        reader.connection.send(OpenTask(2, other))
        reader.read(0)
        reader.connection.send(Fetch(9, 2, 0, 1, None, "", 0, MOST_STATE, third.info))
        reader.receive(Done)
        reader.connection.send(Fetch(10, 1, 1, 2))  # The limits are those of the last request.
        reader.receive(Done)
        reader.connection.send(Fetch(11, 2, 1, 2, None, "", 0, MOST_STATE, new.info))
        reader.receive(Done)
        until(lambda: all(s._doing is None for s in old.gate.reporter.servers))
        old.gate.close()
        assert old.gate.wait(60)
        moved: dict[int, str] = {}
        while len(moved) < 2:
            reader.receive(Progress)
            moved |= {task.task: task.mark.worker for news in reader.news for task in news.moved}
        assert moved == {1: "third", 2: "stays"}


def test_an_idle_stream_moves_without_a_request() -> None:
    made: list[int] = []
    dataset = buffer_numbers(made=made.append)
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
        until(lambda: all(s._doing is None for s in old.gate.reporter.servers))
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
    dataset = buffer_numbers()
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
    dataset = buffer_numbers(made=fail)
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
    with peers(buffer_numbers()) as (old, _):
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
    dataset = buffer_numbers(made=hang)
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
        # The state comes with the last element, as if moves did not exist.
        assert reader.mark is not None
        assert (reader.mark.ordinal, reader.mark.worker) == (5, "")
        assert old.gate.wait(60)


def test_a_large_state_moves_even_if_its_last_element_is_made_before_moves_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread of the connection may notice first that the worker leaves. The client does not
    read, so a large state in the way of the element would block that thread."""
    held, go, begins = threading.Event(), threading.Event(), threading.Event()
    monkeypatch.setattr(FetchServer, "begin_moves", lambda server: begins.wait())

    def wait(x: int) -> None:
        if len(seen) == 4:
            held.set()
            go.wait()
        seen.append(x)

    seen: list[int] = []
    dataset = buffer_numbers(made=wait)
    with peers(dataset) as (old, new):
        reader = Reader(old, new.info)
        for start in range(4):
            reader.read(start)
        reader.connection.send(Fetch(9, 1, 4, 5, None, "", 0, MOST_STATE, new.info))
        held.wait()
        old.gate.close()
        go.set()
        until(lambda: bool(old.gate._moves))  # The thread of the connection has begun it.
        reader.receive(Done)
        while reader.mark is None:
            reader.receive(Progress)
        assert reader.mark == Mark(5, b"", "stays")
        begins.set()
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
        until(lambda: any(s._sending_since for s in old.gate.reporter.servers))
        old.gate.close(1e-3)
        assert old.gate.wait(60)


def test_a_successor_that_stops_to_read_does_not_hold_up_the_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It reads one state and is suspended; the last state does not fit into the socket."""
    monkeypatch.setattr(timing, "SWITCH", 0.05)
    monkeypatch.setattr(timing, "SHORT_COPY", 60.0)
    monkeypatch.setattr(timing, "WORKER_SILENCE", 10.0)  # The system keeps the connection.
    suspended, go = threading.Event(), threading.Event()
    add_state, receive = FetchServer._add_state, FetchServer._receive

    def suspend(server: FetchServer, part: AddState) -> Any:
        if part.mark is not None:
            suspended.set()
        return add_state(server, part)

    def stop_to_read(server: FetchServer) -> None:
        if suspended.is_set() and server._owner is new.tasks:
            go.wait()
        receive(server)

    large = Dataset.range(COUNT).scan(np.zeros(1 << 21), lambda total, x: (total + x, x))
    with peers(large) as (old, new):
        monkeypatch.setattr(FetchServer, "_add_state", suspend)
        monkeypatch.setattr(FetchServer, "_receive", stop_to_read)
        monkeypatch.setattr(timing, "MARK", 0.0)  # There is a mark when the move begins.
        reader = Reader(old, new.info)
        for start in range(4):
            reader.read(start)
        thread = threading.Thread(target=lambda: leave(old, reader, 4), daemon=True)
        thread.start()
        thread.join(20)
        go.set()
        assert not thread.is_alive()
        assert suspended.is_set()
        # The state comes with the last element, as if moves did not exist.
        assert reader.mark is not None
        assert (reader.mark.worker, reader.mark.ordinal) == ("", len(reader.found))
        assert old.gate.wait(60)


def test_a_stream_that_ends_meanwhile_needs_no_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "StateSender", None)  # A move would call None, which raises.
    with peers(buffer_numbers(held=COUNT)) as (old, new):
        reader = Reader(old, new.info)
        assert len(reader.read_all(0)) == COUNT
        old.gate.close()
        assert old.gate.wait(60)


def state_parts(dataset: Dataset, count: int) -> Any:
    """The messages with which a worker sends the state after `count` elements."""
    tasks = Tasks(lambda digest: dataset.__plan__, lambda: ENVIRONMENT, "here")
    task = tasks.open(WORK)
    for part in task.fetch(0, count):
        assert isinstance(part, FetchedChunk)
    return task


def test_a_state_for_a_task_that_is_not_open() -> None:
    with peers(buffer_numbers()) as (_, new):
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
    task = state_parts(buffer_numbers(), 2)
    with pytest.raises(InvalidArgumentError, match="a damaged state"):
        task.add_state(AddState(1, 1, b"\xc1"))
    unknown = {"penstock": {"numbers": np.int64(3).tobytes()}}
    with pytest.raises(InvalidArgumentError, match="values in a state are damaged"):
        task.add_state(AddState(1, 1, b"", Mark(2, msgspec.msgpack.encode(unknown))))


def test_parts_of_caches_are_refused_that_do_not_continue_what_is_there() -> None:
    task = state_parts(cache_arrays(9, 1, print), 2)
    chunk = msgspec.msgpack.encode(encode(Chunk.of([np.arange(1)] * 2), as_text=False))
    with pytest.raises(InvalidArgumentError, match="cache 0 from 1 on, but this worker does not"):
        task.add_state(AddState(1, 1, cached=CachedPart(0, 1, chunk)))
    with pytest.raises(InvalidArgumentError, match="cache 1 from 0 on, but this worker does not"):
        task.add_state(AddState(1, 1, cached=CachedPart(1, 0, chunk)))
    with pytest.raises(InvalidArgumentError, match="what a cache holds arrived damaged"):
        task.add_state(AddState(1, 1, cached=CachedPart(0, 0, msgspec.msgpack.encode([1]))))
    [stream] = task._tasks.pool.streams.values()
    for start in (0, 1, 1):  # Two workers may send the same elements.
        task.add_state(AddState(1, 1, cached=CachedPart(0, start, chunk)))
    assert [len(part) for part in stream.plan.stores[0].moved] == [2, 1]
    task.add_state(AddState(1, 1, cached=CachedPart(0, 3, is_full=True)))
    task.add_state(AddState(1, 1, cached=CachedPart(0, 0, chunk)))
    [held] = stream.list_cached()
    assert ([len(part) for part in held.chunks], held.is_full) == ([2, 1], True)


def test_a_worker_keeps_no_more_states_than_it_may_until_they_are_read() -> None:
    task = state_parts(buffer_numbers(), 2)
    pool, [stream] = task._tasks.pool, task._tasks.pool.streams.values()
    pool.most_moved = 100
    pool.reserve(stream, 60)
    with pytest.raises(ResourceExhaustedError, match="would hold 0 MB of states of workers"):
        pool.reserve(stream, 60)
    list(task.fetch(2, 3))
    pool.reserve(stream, 60)


def test_a_state_that_was_moved_is_kept_for_longer_than_an_idle_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timing, "IDLE_STREAM", -1.0)
    task = state_parts(buffer_numbers(), 2)
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


def test_chunks_of_a_cache_are_joined_to_parts() -> None:
    chunks = [Chunk.of([np.int64(x)] * 2) for x in range(6)]
    parts = [part.elements() for part in moves.cut_chunks(chunks, 3, 40)]
    assert parts == [[1, 2, 2, 3, 3], [4, 4, 5, 5]]
    assert list(moves.cut_chunks(chunks, 12, 40)) == []


def test_a_large_chunk_of_a_cache_is_cut_into_parts() -> None:
    chunks = [Chunk.of([np.full(10, x) for x in range(9)]), Chunk.of([np.zeros(100)] * 2)]
    parts = [len(part) for part in moves.cut_chunks(chunks, 2, 160)]
    assert parts == [2, 2, 2, 2, 1]
