import contextlib
import gc
import hashlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref

import pytest

from penstock.errors import (
    AlreadyExistsError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnavailableError,
    UnfitServerError,
)
from penstock.plan.shape import Shape
from penstock.service.host import journal as journals
from penstock.service.host.control_connection import ControlClient
from penstock.service.host.dispatcher_server import Dispatcher
from penstock.service.host.security import Security
from penstock.service.host.server_setup import DispatcherConfig
from penstock.service.logic.dispatcher import snapshot
from penstock.service.protocol.messages import (
    DatasetInfo,
    GetDataset,
    GetPlan,
    GetPlanReply,
    GetStatus,
    GetStatusReply,
    Hello,
    HelloReply,
    Ok,
    PutPlan,
    PutPlanReply,
    RegisterDataset,
    RegisterDatasetReply,
    RegisterWorker,
    WorkerInfo,
)

TOKEN = "a token for all of these tests"
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
PLAN = b"the bytes of a plan"
DIGEST = hashlib.sha256(PLAN).hexdigest()
HELLO = Hello(PYTHON)


def registration(dataset_id: str | None = None, request: str = "") -> RegisterDataset:
    return RegisterDataset(DIGEST, "structure", b"spec", Shape("random"), 5, dataset_id, request)


@pytest.fixture
def make_dispatcher():
    """Makes dispatchers, and stops them after the test."""
    with contextlib.ExitStack() as stack:

        def make(**config) -> Dispatcher:
            dispatcher = Dispatcher(DispatcherConfig(**{"token": TOKEN, **config}))
            stack.callback(dispatcher.stop)
            return dispatcher

        yield make


@contextlib.contextmanager
def client_of(address: str):
    """A client that waits for a dispatcher which takes long to start on a busy machine."""
    client = ControlClient(address, Security.of_client(address, TOKEN), timeout=600)
    try:
        yield client
    finally:
        client.close()


def put(dispatcher) -> None:
    dispatcher.handle(PutPlan(DIGEST, 0, len(PLAN), PLAN))


# Life


def test_it_answers_from_start_to_stop(make_dispatcher):
    dispatcher = make_dispatcher()
    assert dispatcher.address == f"localhost:{dispatcher.port}"
    dispatcher.start()
    dispatcher.start()
    with client_of(dispatcher.address) as client:
        assert isinstance(client.call(GetStatus()), GetStatusReply)
        dispatcher.stop()
        dispatcher.stop()
        with pytest.raises(UnavailableError, match="has not answered for 0.1 s"):
            client.call(GetStatus(), 0.1)
    with pytest.raises(FailedPreconditionError, match="this server was stopped; make a new one"):
        dispatcher.start()
    with pytest.raises(UnavailableError, match="the dispatcher was stopped; make a new one"):
        dispatcher.handle(GetStatus())


def test_join_waits_for_stop(make_dispatcher):
    dispatcher = make_dispatcher()
    dispatcher.start()
    waiting = threading.Thread(target=dispatcher.join)
    waiting.start()
    assert waiting.is_alive()
    dispatcher.stop()
    waiting.join()


def test_stop_without_start(make_dispatcher):
    dispatcher = make_dispatcher()
    dispatcher.stop()
    assert make_dispatcher(port=dispatcher.port).port == dispatcher.port


def test_its_threads_end(make_dispatcher):
    before = set(threading.enumerate())  # Perhaps of a dispatcher that another test has dropped.
    dispatcher = make_dispatcher()
    dispatcher.start()
    dispatcher.handle(GetStatus())
    dispatcher.stop()
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if thread.name == "penstock-dispatcher"]


def test_its_clock_continues_after_errors(make_dispatcher, monkeypatch, caplog):
    ticks, gone_on = iter([KeyError("odd")]), threading.Event()

    def tick(ledger):
        if (error := next(ticks, None)) is not None:
            raise error
        gone_on.set()

    monkeypatch.setattr("penstock.service.host.journal.Ledger.tick", tick)
    make_dispatcher(job_gc_check_interval_ms=10).start()
    assert gone_on.wait(60)
    assert "could not apply what has expired; tries again" in caplog.text


def test_a_dispatcher_that_is_dropped_stops(tmp_path):
    dispatcher = Dispatcher(DispatcherConfig(token=TOKEN, work_dir=str(tmp_path)))
    dispatcher.start()
    dropped, closed = weakref.ref(dispatcher), dispatcher._handler.closed
    port = dispatcher.port
    del dispatcher
    gc.collect()
    assert dropped() is None
    assert closed.wait(10)
    again = Dispatcher(DispatcherConfig(port, token=TOKEN, work_dir=str(tmp_path)))
    again.stop()


PROGRAM = """
import os, sys, tempfile
sys.path[:0] = {path!r}
from penstock.service.host.server_setup import DispatcherConfig
from penstock.service.host.dispatcher_server import Dispatcher
dispatcher = Dispatcher(DispatcherConfig(token="a token of a program"))
dispatcher.start()
child = os.fork()
if child == 0:
    dispatcher = None
    os._exit(0)
os.waitpid(child, 0)
print(os.listdir(tempfile.gettempdir()))
"""


def test_a_program_ends_without_stop_and_leaves_nothing(tmp_path):
    program = PROGRAM.format(path=sys.path)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    assert done.stdout == "[]\n"
    assert list(tmp_path.iterdir()) == []


# Settings


def test_a_bad_port(make_dispatcher):
    with pytest.raises(
        UnfitServerError, match="port must be from 1 to 65535, or 0 for a free one, got -5"
    ):
        make_dispatcher(port=-5)


def test_a_port_in_use(make_dispatcher, tmp_path):
    port = make_dispatcher().port
    with pytest.raises(AlreadyExistsError, match=f"port {port} is in use; choose another"):
        make_dispatcher(port=port, work_dir=str(tmp_path))
    make_dispatcher(work_dir=str(tmp_path))  # The failed dispatcher released the folder.


def test_fault_tolerance_needs_a_folder(make_dispatcher):
    with pytest.raises(
        InvalidArgumentError, match="fault_tolerant_mode needs a work_dir, got None; name a"
    ):
        make_dispatcher(fault_tolerant_mode=True)


def test_a_folder_is_made(make_dispatcher, tmp_path):
    make_dispatcher(fault_tolerant_mode=True, work_dir=str(tmp_path / "a" / "b"))
    files = {file.name for file in (tmp_path / "a" / "b").iterdir()}
    assert files >= {"arrays", "journal.sqlite", "plans"}


def test_a_folder_that_cannot_be_made(make_dispatcher, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        FailedPreconditionError, match="dispatcher: work_dir: .* leads through a fi"
    ):
        make_dispatcher(work_dir=str(tmp_path / "file" / "folder"))


def test_plans_that_cannot_be_kept(make_dispatcher, tmp_path):
    (tmp_path / "plans").write_text("")
    with pytest.raises(FailedPreconditionError, match="dispatcher: .*plans' exists already; "):
        make_dispatcher(work_dir=str(tmp_path))
    (tmp_path / "plans").unlink()
    make_dispatcher(work_dir=str(tmp_path))


def test_functions(make_dispatcher):
    assert make_dispatcher(functions="by_reference").handle(HELLO).functions == "by_reference"
    with pytest.raises(InvalidArgumentError, match='"by_value" or "by_reference", got .by_magic'):
        make_dispatcher(functions="by_magic")


def test_not_for_other_machines_without_a_token(make_dispatcher, monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in ("PENSTOCK_TOKEN", "PENSTOCK_TOKEN_FILE", "PENSTOCK_CERTIFICATES"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(FailedPreconditionError, match="can be reached from other machines"):
        make_dispatcher(host="0.0.0.0", token=None)
    dispatcher = make_dispatcher(host="0.0.0.0")
    assert "server at 0.0.0.0:0: without TLS, anyone" in caplog.text
    assert dispatcher.address == f"{socket.gethostname()}:{dispatcher.port}"


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o770, 0o701, 0o1777])
def test_a_work_dir_that_other_users_can_see_is_refused(make_dispatcher, tmp_path, mode):
    tmp_path.chmod(mode)
    with pytest.raises(
        PermissionDeniedError,
        match=f"dispatcher: work_dir: .* is open to other users .mode {mode:o}.; "
        f"chmod 700 {tmp_path}, or name a folder that does not exist yet",
    ):
        make_dispatcher(work_dir=str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    make_dispatcher(work_dir=str(tmp_path / "inside"))
    assert (tmp_path / "inside").stat().st_mode & 0o777 == 0o700


def test_a_work_dir_that_is_made_is_private_with_any_umask(make_dispatcher, tmp_path):
    before = os.umask(0)
    try:
        make_dispatcher(work_dir=str(tmp_path / "a" / "b"))
    finally:
        os.umask(before)
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_the_token_of_the_user_is_found_by_all_processes(make_dispatcher, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in ("PENSTOCK_TOKEN", "PENSTOCK_TOKEN_FILE", "PENSTOCK_CERTIFICATES"):
        monkeypatch.delenv(name, raising=False)
    dispatcher = make_dispatcher(token=None)
    dispatcher.start()
    client = ControlClient(dispatcher.address, Security.of_client(dispatcher.address))
    assert isinstance(client.call(HELLO), HelloReply)
    client.close()


# Requests


def test_hello(make_dispatcher):
    welcome = make_dispatcher().handle(HELLO)
    assert welcome.functions == "by_value"
    assert welcome.dispatcher


def test_another_python_is_refused(make_dispatcher):
    problem = f"the dispatcher runs Python {PYTHON}, and this process 2.7; .*: use the same"
    with pytest.raises(FailedPreconditionError, match=problem):
        make_dispatcher().handle(Hello("2.7"))


def test_plans_come_and_go(make_dispatcher):
    dispatcher = make_dispatcher()
    assert dispatcher.handle(PutPlan(DIGEST, 0, len(PLAN), PLAN[:5])) == PutPlanReply(5)
    with pytest.raises(FailedPreconditionError, match="plan .* has not arrived; send it first"):
        dispatcher.handle(registration())
    assert dispatcher.handle(PutPlan(DIGEST, 5, len(PLAN), PLAN[5:])) == PutPlanReply(len(PLAN))
    assert dispatcher.handle(GetPlan(DIGEST)) == GetPlanReply(PLAN, len(PLAN))
    with pytest.raises(NotFoundError, match="is not known to this dispatcher"):
        dispatcher.handle(GetPlan("0" * 64))


def test_requests_go_to_the_logic_and_its_refusals_come_back(make_dispatcher):
    dispatcher = make_dispatcher()
    dispatcher.start()
    put(dispatcher)
    with client_of(dispatcher.address) as client:
        registered = client.call(registration(request="r"))
        assert client.call(registration(request="r")) == registered
        info = client.call(GetDataset(registered.dataset_id))
        assert isinstance(info, DatasetInfo)
        assert (info.digest, info.cardinality) == (DIGEST, 5)
        with pytest.raises(NotFoundError, match="nothing"):
            client.call(GetDataset("nothing"))


def test_status(make_dispatcher):
    dispatcher = make_dispatcher()
    assert dispatcher.status() == dispatcher.handle(GetStatus()).status


# Remembering


def start_dispatcher(work_dir, port: int = 0) -> tuple[subprocess.Popen, int]:
    """A dispatcher in a process of its own."""
    program = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from penstock.service.host.server_setup import DispatcherConfig\n"
        "from penstock.service.host.dispatcher_server import Dispatcher\n"
        f"config = DispatcherConfig({port}, work_dir={str(work_dir)!r}, token={TOKEN!r})\n"
        "dispatcher = Dispatcher(config)\n"
        "dispatcher.start()\n"
        "print(dispatcher.port, flush=True)\n"
        "dispatcher.join()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", program], stdout=subprocess.PIPE
    )
    return process, int(process.stdout.readline())


def kill_process(process: subprocess.Popen) -> None:
    with process:
        os.kill(process.pid, signal.SIGKILL)


def test_everything_continues_after_kill(tmp_path):
    first, port = start_dispatcher(tmp_path)
    with client_of(f"localhost:{port}") as client:
        welcome = client.call(HELLO)
        client.call(PutPlan(DIGEST, 0, len(PLAN), PLAN))
        registered = client.call(registration())
        kill_process(first)
        second, _ = start_dispatcher(tmp_path, port)
        try:
            assert client.call(HELLO) == welcome
            assert client.call(GetDataset(registered.dataset_id)).digest == DIGEST
            assert client.call(GetPlan(DIGEST)) == GetPlanReply(PLAN, len(PLAN))
            assert client.call(registration()) != registered
        finally:
            kill_process(second)


def test_requests_during_a_restart_are_answered_once_it_is_back(tmp_path):
    first, port = start_dispatcher(tmp_path)
    answers = []
    with client_of(f"localhost:{port}") as client:
        client.call(PutPlan(DIGEST, 0, len(PLAN), PLAN))

        def register() -> None:
            answers.extend(client.call(registration(request=f"r{n}")) for n in range(200))

        caller = threading.Thread(target=register)
        caller.start()
        kill_process(first)
        second, _ = start_dispatcher(tmp_path, port)
        try:
            caller.join()
            again = [client.call(registration(request=f"r{n}")) for n in range(200)]
        finally:
            kill_process(second)
    assert answers == again
    assert len({answer.dataset_id for answer in answers}) == 200


def test_without_a_folder_all_is_forgotten(make_dispatcher):
    first = make_dispatcher()
    put(first)
    dataset_id = first.handle(registration()).dataset_id
    first.stop()
    second = make_dispatcher(port=first.port)
    with pytest.raises(NotFoundError, match=dataset_id):
        second.handle(GetDataset(dataset_id))


def test_one_dispatcher_for_a_folder(make_dispatcher, tmp_path):
    first = make_dispatcher(work_dir=str(tmp_path))
    with pytest.raises(
        AlreadyExistsError, match="is in use by another dispatcher .*; stop that one"
    ):
        make_dispatcher(work_dir=str(tmp_path))
    put(first)
    assert isinstance(first.handle(registration()), RegisterDatasetReply)


def test_a_damaged_journal(make_dispatcher, tmp_path):
    (tmp_path / "journal.sqlite").write_bytes(b"no" * 1000)
    with pytest.raises(DataLossError, match="journal.sqlite' is damaged .*; put a copy"):
        make_dispatcher(work_dir=str(tmp_path))
    (tmp_path / "journal.sqlite").unlink()
    make_dispatcher(work_dir=str(tmp_path))


def test_a_long_journal_is_compacted_and_means_the_same(make_dispatcher, tmp_path, monkeypatch):
    monkeypatch.setattr(journals, "_SLACK", 10)
    first = make_dispatcher(work_dir=str(tmp_path))
    put(first)
    first.handle(registration("d"))
    lengths = []
    worker = RegisterWorker(WorkerInfo("w", "localhost:1", "here"), PYTHON)
    for number in range(100):
        info = WorkerInfo("w", "localhost:1", "here", {"tcp": f"localhost:{number}"})
        first.handle(RegisterWorker(info, PYTHON))
        lengths.append(len(first._handler.ledger._journal))
    assert max(lengths) < 60
    assert any(later < earlier for earlier, later in itertools.pairwise(lengths))
    facts = snapshot(first._handler.ledger._state)
    first.stop()
    second = make_dispatcher(work_dir=str(tmp_path))
    assert second.handle(GetDataset("d")).digest == DIGEST
    assert second.handle(worker) == Ok()
    assert len(snapshot(second._handler.ledger._state)) == len(facts)


def test_a_full_disk_refuses_in_words_and_stays_up(make_dispatcher, tmp_path):
    dispatcher = make_dispatcher(work_dir=str(tmp_path))
    put(dispatcher)
    file = dispatcher._handler.ledger._journal._file
    (pages,) = file.execute("PRAGMA page_count").fetchone()
    file.execute(f"PRAGMA max_page_count = {pages}").fetchall()
    taken = []

    def fill() -> None:
        for number in range(1000):
            request = registration(f"d{number}" + "x" * 500)
            taken.append(dispatcher.handle(request).dataset_id)

    with pytest.raises(UnavailableError, match="cannot write its journal .*full.*; free"):
        fill()
    dispatcher._handler.ledger.tick()
    refused = f"d{len(taken)}" + "x" * 500
    with pytest.raises(NotFoundError, match="d"):
        dispatcher.handle(GetDataset(refused))
    assert [dispatcher.handle(GetDataset(name)).digest for name in taken] == [DIGEST] * len(taken)
    file.execute("PRAGMA max_page_count = 1000000").fetchall()
    assert dispatcher.handle(registration(refused)) == RegisterDatasetReply(refused)


def test_a_client_waits_until_the_disk_has_room(make_dispatcher, tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.service.protocol.timing.CONTROL_WARNING", 0.0)
    dispatcher = make_dispatcher(work_dir=str(tmp_path))
    dispatcher.start()
    put(dispatcher)
    journal, answers = dispatcher._handler.ledger._journal, []
    file = journal._file
    (pages,) = file.execute("PRAGMA page_count").fetchone()
    file.execute(f"PRAGMA max_page_count = {pages}").fetchall()
    refused, write = threading.Semaphore(0), journal._write

    def fail(*rows, **options) -> None:
        try:
            write(*rows, **options)
        except ResourceExhaustedError:
            refused.release()
            raise

    monkeypatch.setattr(journal, "_write", fail)
    request = registration("x" * 100_000)
    with client_of(dispatcher.address) as client:
        caller = threading.Thread(target=lambda: answers.append(client.call(request)))
        caller.start()
        for _ in range(3):
            assert refused.acquire(timeout=60)
        assert not answers
        with dispatcher._handler.ledger._lock:
            file.execute("PRAGMA max_page_count = 1000000").fetchall()
        caller.join(60)
    assert answers == [RegisterDatasetReply("x" * 100_000)]


def test_a_clock_does_not_count_sleep(monkeypatch):
    times = iter([100.0, 100.5, 101.0, 161.0, 161.5])
    monkeypatch.setattr(journals.time, "monotonic", lambda: next(times))
    clock = journals.AwakeClock()
    assert [clock.now() for _ in range(4)] == [100.5, 101.0, 104.0, 104.5]
