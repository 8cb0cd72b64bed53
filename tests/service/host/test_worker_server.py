"""A worker behind its data port, with a real dispatcher."""

import contextlib
import gc
import hashlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest

from penstock.cli.certificates import make_certificates
from penstock.data.dataset import ENVIRONMENT
from penstock.element.dtypes import int64
from penstock.engine.processes.chunk_memory import host_id
from penstock.errors import (
    AlreadyExistsError,
    CancelledError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
)
from penstock.plan import nodes as n
from penstock.plan.codec import encode
from penstock.plan.functions import Function
from penstock.plan.nodes import Node
from penstock.service.host.control_connection import ControlClient
from penstock.service.host.data_client import connect_data
from penstock.service.host.data_connection import Connection
from penstock.service.host.dispatcher_server import Dispatcher
from penstock.service.host.security import Security
from penstock.service.host.server_setup import DispatcherConfig, WorkerConfig
from penstock.service.host.worker_server import RunningWorker, Worker
from penstock.service.host.worker_streams import decode_state
from penstock.service.protocol import timing
from penstock.service.protocol.data_messages import (
    CloseTask,
    Done,
    Failed,
    Fetch,
    Impossible,
    OpenTask,
    Progress,
    Rows,
    from_failed,
)
from penstock.service.protocol.messages import (
    GetStatus,
    GetStatusReply,
    PutPlan,
    Work,
    WorkerHeartbeatReply,
    WorkerInfo,
)

TOKEN = "a token of these tests"
BEAT_MS = 20


def numbers(stop: int) -> Node:
    return n.Range(0, stop, 1, int64)


def map_plan(source: Node, call: Any) -> Node:
    return n.Map(source, Function(call))


def stream(source: Node) -> Node:
    return n.Filter(source, Function(lambda x: True))


class Service:
    """A dispatcher and a worker, with the calls of a client."""

    def __init__(self, **settings: Any) -> None:
        self.certificates = settings.get("certificates")
        self.dispatcher = Dispatcher(DispatcherConfig(token=TOKEN, certificates=self.certificates))
        self.dispatcher.start()
        self.worker = worker_of(self.dispatcher.address, **settings)
        self.worker.start()
        self.security = Security.of_client(self.dispatcher.address, TOKEN, self.certificates)
        self.control = ControlClient(self.dispatcher.address, self.security)

    @property
    def workers(self) -> list[dict[str, Any]]:
        status = self.control.call(GetStatus())
        assert isinstance(status, GetStatusReply)
        found: list[dict[str, Any]] = status.status["workers"]
        return found

    def info(self) -> WorkerInfo:
        return self.worker._require_running("info").info

    def connect(self, protocol: str = "tcp") -> Connection:
        return connect_data(self.info(), self.security, protocol, host_id(), None)

    def work(self, plan: Node, form: str = "single", **fields: Any) -> Work:
        return self.work_of_bytes(encode(plan), form, **fields)

    def work_of_bytes(self, data: bytes, form: str = "single", **fields: Any) -> Work:
        digest = hashlib.sha256(data).hexdigest()
        self.control.call(PutPlan(digest, 0, len(data), data))
        fields = {"stream": 0, "streams": 1, "key": 7, "epoch": (0,), **fields}
        return Work(digest, "job", form, **fields)

    def close(self) -> None:
        self.control.close()
        self.worker.stop()
        self.dispatcher.stop()


def worker_of(address: str, **settings: Any) -> Worker:
    settings = {"heartbeat_interval_ms": BEAT_MS, "token": TOKEN, **settings}
    return Worker(WorkerConfig(address, **settings), lambda: ENVIRONMENT)


@contextlib.contextmanager
def serving(**settings: Any) -> Iterator[Service]:
    with contextlib.closing(Service(**settings)) as service:
        yield service


@pytest.fixture
def service() -> Iterator[Service]:
    with serving() as made:
        yield made


def answers(connection: Connection, request: int) -> tuple[list[Any], Any]:
    """The messages about a request: the rows as values, and the last message."""
    found: list[Any] = []
    while True:
        message, columns = connection.receive()
        assert message.request == request
        match message:
            case Rows(start=start, count=count):
                assert columns is not None
                assert len(columns[0]) == count
                found += [(start + i, value) for i, value in enumerate(columns[0])]
            case Failed(ordinal=ordinal):
                found.append((ordinal, from_failed(message)))
            case Progress():
                pass
            case Done():
                # The figures of operators are checked by the tests of profiles.
                return found, msgspec.structs.replace(message, operators=())
            case _:
                return found, message


def fetch_answers(
    connection: Connection, work: Work, start: int, stop: int
) -> tuple[list[Any], Any]:
    connection.send(OpenTask(1, work))
    connection.send(Fetch(9, 1, start, stop))
    return answers(connection, 9)


@pytest.mark.parametrize("protocol", ["tcp", "shm"])
@pytest.mark.parametrize("form", ["random", "single"])
def test_elements_are_fetched_by_their_ordinals(service, protocol, form):
    plan = numbers(20) if form == "random" else stream(numbers(20))
    with service.connect(protocol) as connection:
        found, last = fetch_answers(connection, service.work(plan, form), 5, 12)
        assert found == [(i, i) for i in range(5, 12)]
        assert last == Done(9)
        connection.send(Fetch(10, 1, 15, 100))
        found, last = answers(connection, 10)
        assert found == [(i, i) for i in range(15, 20)]
        assert last == Done(10, 20)


@pytest.mark.parametrize("protocol", ["tcp", "shm"])
def test_large_elements_arrive_whole(service, protocol):
    plan = map_plan(numbers(40), lambda x: np.full(300_000, x, np.uint8))
    with service.connect(protocol) as connection:
        found, last = fetch_answers(connection, service.work(plan, "random"), 0, 40)
        assert [ordinal for ordinal, _ in found] == list(range(40))
        assert all((value == ordinal).all() for ordinal, value in found)
        assert last == Done(9)


def test_a_failure_takes_one_ordinal_and_names_its_place(service):
    def fails(x: Any) -> Any:
        if x == 2:
            raise ValueError("not this one")
        return x

    with service.connect() as connection:
        found, last = fetch_answers(
            connection, service.work(map_plan(numbers(5), fails), "random"), 0, 9
        )
    assert [ordinal for ordinal, _ in found] == [0, 1, 2, 3, 4]
    assert last == Done(9, 5)
    error = found[2][1]
    assert isinstance(error, InvalidArgumentError)
    assert "test_worker_server.py" in str(error)
    words = f"element 2 (2): ValueError: not this one (on worker {service.worker.address})"
    assert words in str(error)
    assert "raise ValueError" in error.__notes__[0]


def test_requests_are_answered_one_after_the_other(service):
    work = service.work(stream(numbers(1000)))
    with service.connect() as connection:
        spans = [(0, 10), (500, 510), (10, 20), (0, 10), (995, 1001)]
        for request, (start, stop) in enumerate(spans):
            connection.send(OpenTask(request, work), Fetch(request, request, start, stop))
        for request, (start, stop) in enumerate(spans):
            found, last = answers(connection, request)
            assert found == [(i, i) for i in range(start, min(stop, 1000))]
            assert last == Done(request, 1000 if stop > 1000 else None)


def test_several_connections_share_a_stream(service):
    calls: list[int] = []
    plan = map_plan(stream(numbers(50)), lambda x: calls.append(int(x)) or x)
    work = service.work(plan, kept=True)
    # The plan is sent by value: the worker in this process runs a copy of the function.
    with service.connect() as first, service.connect("shm") as second:
        assert fetch_answers(first, work, 0, 50)[0] == fetch_answers(second, work, 0, 50)[0]
        assert service.worker.tasks() == 1


@pytest.mark.parametrize(
    "fetch",
    [Fetch(1, 7, 0, 1), Fetch(1, 1, -1, 1), Fetch(1, 1, 3, 2)],
    ids=["task", "start", "stop"],
)
def test_invalid_fetches_are_refused_and_valid_ones_served(service, fetch):
    with service.connect() as connection:
        connection.send(OpenTask(1, service.work(numbers(3), "random")))
        connection.send(fetch)
        _, last = answers(connection, 1)
        assert isinstance(last, Impossible)
        assert (last.kind, last.elsewhere) == ("InvalidArgumentError", False)
        assert "open the task first, and ask for a range" in last.message
        connection.send(Fetch(2, 1, 0, 5))
        assert answers(connection, 2)[1] == Done(2, 3)


def test_tasks_are_closed_and_opened_again(service):
    work = service.work(stream(numbers(3)))
    with service.connect() as connection:
        assert fetch_answers(connection, work, 0, 9)[1] == Done(9, 3)
        connection.send(CloseTask(1))
        connection.send(CloseTask(2))
        connection.send(Fetch(1, 1, 0, 9))
        assert isinstance(answers(connection, 1)[1], Impossible)
        assert fetch_answers(connection, work, 0, 9)[1] == Done(9, 3)
        assert fetch_answers(connection, work, 0, 9)[1] == Done(9, 3)


def test_elements_that_cannot_travel_are_refused_in_words(service):
    plan = n.Window(numbers(6), 2, 2)
    with service.connect() as connection:
        _, last = fetch_answers(connection, service.work(plan), 0, 3)
        assert isinstance(last, Impossible)
        assert not last.elsewhere
        assert fetch_answers(connection, service.work(numbers(1), "random"), 0, 3)[1] == Done(9, 1)


def test_every_fetch_of_an_unreadable_plan_is_refused(service):
    with service.connect() as connection:
        for data in (b"garbage", b"penstock plan 1\ngarbage"):
            _, last = fetch_answers(connection, service.work_of_bytes(data), 0, 1)
            assert isinstance(last, Impossible)
            assert service.worker.address in last.message
        unknown = Work("0" * 64, "job", "single", 0, 1, 7, (0,))
        _, last = fetch_answers(connection, unknown, 0, 1)
        assert isinstance(last, Impossible)
        assert last.elsewhere


def test_by_reference_pickles_are_refused():
    settings = {"functions": "by_reference", "modules": ("operator",)}
    with serving(**settings) as service, service.connect() as connection:
        _, last = fetch_answers(connection, service.work(numbers(3), "random"), 0, 1)
        assert isinstance(last, Impossible)
        assert "decode_by_reference: not a plan" in last.message


def test_over_tls(tmp_path):
    make_certificates(str(tmp_path / "certs"), ["localhost"])
    with (
        serving(certificates=str(tmp_path / "certs")) as service,
        service.connect() as connection,
    ):
        work = service.work(stream(n.Repeat(numbers(100), -1)))
        connection.send(OpenTask(1, work))
        connection.send(Fetch(1, 1, 0, 500))
        assert answers(connection, 1)[0] == [(i, i % 100) for i in range(500)]
        connection.send(Fetch(2, 1, 0, 1 << 60))
        assert isinstance(connection.receive()[0], Rows)


class Slow:
    """A function that waits for the test. Pickled by name, so the worker calls this very object."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.goes_on = threading.Event()

    def __call__(self, x: Any) -> Any:
        self.begun.release()
        assert self.goes_on.wait(60)
        return x


SLOW: list[Slow] = []


def slow(x: Any) -> Any:
    return SLOW[-1](x)


@pytest.fixture
def brake() -> Iterator[Slow]:
    SLOW.append(Slow())
    yield SLOW[-1]
    SLOW[-1].goes_on.set()


def slowly(plan: Node) -> Node:
    return map_plan(plan, slow)


def wait_for_calls(connection: Connection, brake: Slow, count: int) -> None:
    for _ in range(count):
        assert brake.begun.acquire(timeout=60)


@contextlib.contextmanager
def leaving(worker: Worker) -> Iterator[None]:
    """Lets a worker drain in a thread, and waits for it at the end."""
    draining = threading.Thread(target=worker.drain, daemon=True)
    draining.start()
    until(lambda: worker._require_running("drain")._gate.draining)
    yield
    draining.join(60)
    assert not draining.is_alive()


@pytest.mark.parametrize("form", ["random", "single"])
def test_draining_finishes_the_element_that_is_made(service, brake, form):
    """The client gets the elements that were made, and requests the rest from other workers."""
    address = service.worker.address
    work = service.work(slowly(numbers(3) if form == "random" else stream(numbers(3))), form)
    with service.connect() as connection, service.connect() as other:
        connection.send(OpenTask(1, work))
        connection.send(Fetch(1, 1, 0, 9))
        wait_for_calls(connection, brake, 1)
        with leaving(service.worker):
            found, last = fetch_answers(other, service.work(numbers(3), "random"), 0, 3)
            assert found == []
            assert isinstance(last, Impossible)
            assert last.elsewhere
            assert f"is about to stop; ask another one (on worker {address})" in last.message
            brake.goes_on.set()
            found, last = answers(connection, 1)
        assert found == [(0, 0)]
        assert isinstance(last, Impossible)
        assert last.elsewhere
        assert not brake.begun.acquire(blocking=False), "another element was begun"
        with pytest.raises(UnavailableError, match="closed it"):
            connection.receive()
    assert service.workers == []
    service.worker.join()


@pytest.mark.parametrize("form", ["random", "single"])
def test_draining_hands_back_what_was_not_begun_at_once(service, brake, form):
    """It does so while the function still runs, so that the client asks other workers early."""
    work = service.work(slowly(numbers(9) if form == "random" else stream(numbers(9))), form)
    with service.connect() as connection:
        connection.send(OpenTask(1, work))
        for request in (1, 2, 3):
            connection.send(Fetch(request, 1, request - 1, request))
        wait_for_calls(connection, brake, 1)
        with leaving(service.worker):
            until(lambda: connection.receive()[0] == Progress(1, leaves=True))
            assert [read_refusal(connection) for _ in range(2)] == [2, 3]
            connection.send(Fetch(4, 1, 3, 6))
            assert read_refusal(connection) == 4
            brake.goes_on.set()
            assert answers(connection, 1) == ([(0, 0)], Done(1))
        assert not brake.begun.acquire(blocking=False), "another element was begun"


def test_draining_leaves_a_mark_from_which_another_worker_continues(service, brake):
    work = service.work(slowly(stream(numbers(9))))
    with service.connect() as connection:
        connection.send(OpenTask(1, work))
        connection.send(Fetch(1, 1, 0, 9))
        wait_for_calls(connection, brake, 1)
        with leaving(service.worker):
            brake.goes_on.set()
            while not isinstance(rows := connection.receive()[0], Rows):
                pass
        assert rows.mark is not None
        assert rows.mark.ordinal == rows.start + rows.count == 1
        assert decode_state(rows.mark.state)[0] == 1


def read_refusal(connection: Connection) -> int:
    """The number of the request that the next message refuses."""
    while isinstance(message := connection.receive()[0], Progress):
        pass
    assert isinstance(message, Impossible)
    assert message.elsewhere
    return message.request


def ends_of(connection: Connection, count: int) -> list[int]:
    """The numbers of the next `count` requests that are answered in full."""
    ends: list[int] = []
    while len(ends) < count:
        message, _ = connection.receive()
        if isinstance(message, Done):
            ends.append(message.request)
    return ends


def test_earlier_elements_of_a_task_are_made_first(service, brake):
    """The client needs elements of a lost worker before the elements that are queued here."""
    with service.connect() as connection:
        connection.send(OpenTask(1, service.work(slowly(numbers(9)), "random")))
        connection.send(OpenTask(2, service.work(slowly(numbers(8)), "random")))
        connection.send(Fetch(1, 1, 0, 1))
        wait_for_calls(connection, brake, 1)
        for request, task, start in ((2, 1, 5), (3, 1, 3), (4, 2, 0), (5, 1, 1)):
            connection.send(Fetch(request, task, start, start + 1))
        brake.goes_on.set()
        assert ends_of(connection, 5) == [1, 5, 3, 2, 4]


def test_requests_with_a_lower_turn_are_answered_first(service, brake):
    """They come even before the rest of a request that was begun: the client needs them first."""
    with service.connect() as connection:
        connection.send(OpenTask(1, service.work(slowly(numbers(9)), "random")))
        connection.send(Fetch(1, 1, 0, 3, turn=7))
        wait_for_calls(connection, brake, 1)
        connection.send(Fetch(2, 1, 5, 6, turn=7))
        opening = OpenTask(2, service.work(slowly(numbers(8)), "random"))
        connection.send(opening, Fetch(3, 2, 4, 5, turn=4), Fetch(4, 2, 0, 1, turn=4))
        connection.send(OpenTask(3, service.work(slowly(numbers(7)), "random")))
        connection.send(Fetch(5, 3, 0, 1, turn=2))
        brake.goes_on.set()
        assert ends_of(connection, 5) == [5, 4, 3, 1, 2]


def test_a_request_with_a_lower_turn_is_answered_before_the_next_element(service, brake):
    """The same holds if the request arrives while an element is being made."""
    with service.connect() as connection:
        connection.send(OpenTask(1, service.work(slowly(numbers(9)), "random")))
        connection.send(OpenTask(2, service.work(numbers(8), "random")))
        connection.send(Fetch(1, 1, 0, 3, turn=7))
        wait_for_calls(connection, brake, 1)
        connection.send(Fetch(2, 2, 4, 5, turn=2))
        brake.goes_on.set()
        rows: list[tuple[int, int]] = []
        while len(rows) < 3:
            message, _ = connection.receive()
            if isinstance(message, Rows):
                rows.append((message.request, message.start))
    assert rows == [(1, 0), (2, 4), (1, 1)]


def until(true: Any) -> None:
    """Waits until a condition holds that another thread makes true."""
    waiting = threading.Event()
    for _ in range(2000):
        if true():
            return
        waiting.wait(0.01)
    raise AssertionError("it did not happen")


def test_draining_has_a_bound(service, brake):
    with service.connect() as connection:
        connection.send(OpenTask(1, service.work(slowly(numbers(3)), "random")))
        connection.send(Fetch(1, 1, 0, 9))
        wait_for_calls(connection, brake, 1)
        service.worker.drain(timeout=0.05)
        with pytest.raises(UnavailableError, match="closed it"):
            answers(connection, 1)
    assert service.workers == []


def test_stops_while_a_function_takes_its_time(service, brake):
    with service.connect() as connection:
        connection.send(OpenTask(1, service.work(slowly(stream(numbers(3))))))
        connection.send(Fetch(1, 1, 0, 9))
        wait_for_calls(connection, brake, 1)
        service.worker.stop()
        service.worker.stop()
        service.worker.join()
        with pytest.raises(UnavailableError, match="closed it"):
            answers(connection, 1)
    assert service.workers == []


def test_a_client_that_vanishes_leaves_nothing_behind(service, brake, monkeypatch):
    monkeypatch.setattr("penstock.service.protocol.timing.IDLE_STREAM", 0.0)
    work = service.work(slowly(stream(numbers(9))))
    first, second = service.connect(), service.connect()
    for connection in (first, second):
        connection.send(OpenTask(1, work))
        connection.send(Fetch(1, 1, 0, 9))
    wait_for_calls(first, brake, 1)
    first.close()
    second.close()
    brake.goes_on.set()
    tasks = service.worker._require_running("tasks").tasks
    until(lambda: all(stream.readers == 0 for stream in tasks.pool.streams.values()))
    assert service.worker._require_running("gate")._gate.wait(60)
    until(lambda: service.worker.tasks() == 0)


def test_the_dispatcher_knows_what_it_does(service):
    until(lambda: service.workers)
    (worker,) = service.workers
    assert worker["address"] == service.worker.address
    assert service.info().host == host_id()
    assert service.info().transfers["tcp"] == service.worker.address
    assert service.worker.address == f"localhost:{service.worker.port}"


def test_registers_again_with_a_dispatcher_that_came_back(service):
    port = service.dispatcher.port
    service.dispatcher.stop()
    service.dispatcher = Dispatcher(DispatcherConfig(port, token=TOKEN))
    service.dispatcher.start()
    until(lambda: [worker["address"] for worker in service.workers] == [service.worker.address])


@pytest.mark.parametrize(
    ("settings", "address", "transfers"),
    [
        ({"worker_address": "127.0.0.1:%port%"}, "127.0.0.1:PORT", ["shm", "tcp"]),
        ({"data_transfer_protocol": "tcp"}, "localhost:PORT", ["tcp"]),
        ({"data_transfer_protocol": "shm"}, "localhost:PORT", ["shm"]),
        ({"data_transfer_address": "127.0.0.1:%dts_port%"}, "localhost:PORT", ["shm", "tcp"]),
        ({"worker_tags": ["a", "b"]}, "localhost:PORT", ["shm", "tcp"]),
    ],
    ids=["address", "tcp", "shm", "transfer", "tags"],
)
def test_says_where_it_is_and_what_it_offers(settings, address, transfers):
    with serving(**settings) as service:
        info, port = service.info(), str(service.worker.port)
        assert info.address == address.replace("PORT", port)
        assert sorted(info.transfers) == transfers
        given = settings.get("data_transfer_address", info.address).replace("%dts_port%", port)
        assert info.transfers.get("tcp", given) == given
        assert info.tags == tuple(settings.get("worker_tags", ()))


def test_without_a_dispatcher_it_says_so():
    worker = worker_of("localhost:1", dispatcher_timeout_ms=100)
    with pytest.raises(UnavailableError, match="dispatcher localhost:1 has not answered for 0.1 s"):
        worker.start()
    worker.stop()
    worker.join()


def test_a_port_in_use_is_named(service):
    other = worker_of(service.dispatcher.address, port=service.worker.port)
    with pytest.raises(AlreadyExistsError, match=f"port {service.worker.port} .*is in use"):
        other.start()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"functions": "by_hand"},
            'functions must be "by_value" or "by_reference", got \'by_hand\'',
        ),
        (
            {"data_transfer_protocol": "pigeon"},
            'data_transfer_protocol must be "tcp", "shm" or None, got \'pigeon\'',
        ),
    ],
    ids=["functions", "transfer"],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(InvalidArgumentError, match=message):
        worker_of("localhost:1", **settings)


def test_where_no_memory_is_shared_it_says_so(service, monkeypatch):
    monkeypatch.setattr("penstock.service.host.admission.can_share", lambda: False)
    worker = worker_of(service.dispatcher.address, data_transfer_protocol="shm")
    with pytest.raises(FailedPreconditionError, match="memory cannot be shared on this machine"):
        worker.start()


def test_it_starts_once(service):
    address = service.worker.address
    service.worker.start()
    assert service.worker.address == address
    fresh = worker_of(service.dispatcher.address)
    with pytest.raises(FailedPreconditionError, match="WorkerServer.address: it does not run"):
        _ = fresh.address
    fresh.stop()
    with pytest.raises(
        FailedPreconditionError, match="WorkerServer.start: this server was stopped"
    ):
        fresh.start()


def test_as_a_context(service):
    with worker_of(service.dispatcher.address) as worker:
        assert worker.tasks() == 0
        assert len(service.workers) == 2
    until(lambda: len(service.workers) == 1)


def test_a_worker_sends_heartbeats_after_one_failed(monkeypatch, caplog):
    say, beats, gone_on = RunningWorker._send_heartbeat, iter([KeyError("odd")]), threading.Event()

    def fail_then_beat(running):
        if (error := next(beats, None)) is not None:
            raise error
        say(running)
        gone_on.set()

    monkeypatch.setattr(RunningWorker, "_send_heartbeat", fail_then_beat)
    with serving():
        assert gone_on.wait(60)
    assert "a heartbeat failed; it retries" in caplog.text


def test_a_worker_whose_calls_are_cancelled_sends_no_more_heartbeats(caplog):
    running = RunningWorker(threading.Event(), interval=0.001)
    running.control, running.tasks = Mock(), Mock()
    running.info = WorkerInfo("w", "w:1", "host")
    running.tasks.statuses.return_value, running.tasks.restarts = (), 0
    registered = WorkerHeartbeatReply(True, (), heartbeat=2.0)
    running.control.call.side_effect = [registered, CancelledError("closed"), SystemExit]
    running._send_heartbeats()
    assert running.control.call.call_count == 2
    assert not caplog.records


@pytest.mark.parametrize(("fixed", "seconds"), [(None, 2 * timing.WORKER_HEARTBEAT), (0.3, 0.3)])
def test_a_worker_calls_as_often_as_the_dispatcher_or_its_user_says(fixed, seconds):
    running = RunningWorker(threading.Event(), fixed)
    running.control, running.tasks = Mock(), Mock()
    running.info = WorkerInfo("w", "w:1", "host")
    running.tasks.statuses.return_value, running.tasks.restarts = (), 0
    running.control.call.return_value = WorkerHeartbeatReply(True, (), heartbeat=2.0)
    running._send_heartbeat()
    assert running._interval == seconds


def test_a_worker_without_references_stops(service):
    worker = worker_of(service.dispatcher.address)
    worker.start()
    info = worker._require_running("info").info
    dropped = weakref.ref(worker)
    del worker
    gc.collect()
    assert dropped() is None
    until(lambda: len(service.workers) == 1)

    def unreachable() -> bool:
        try:
            connect_data(info, service.security, "tcp", host_id(), None).close()
        except UnavailableError:
            return True
        return False

    until(unreachable)
