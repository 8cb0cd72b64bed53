"""The command line: the help has commands that run, and servers end after a signal."""

import json
import logging
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from socket import socket
from typing import Any

import numpy as np
import pytest

from penstock.cli import main, overview
from penstock.cli.overview import LEGEND
from penstock.data import Dataset
from penstock.data.experimental import service
from penstock.service.host.data_client import Link, Links
from penstock.service.host.http_pages import make_metrics_token
from penstock.service.logic.feeds import Ask
from penstock.service.logic.fetching import Fetcher
from penstock.service.protocol.messages import Work
from penstock.version import PROTOCOL, VERSION
from tests.integration.clusters import until

COMMANDS = "dispatcher worker status top doctor certs metrics-token dashboard-link".split()


@contextmanager
def command(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own; it is killed if it is still there at the end."""
    paths = os.pathsep.join(filter(None, sys.path))
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": paths} | environment,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def without_strangers(log: str) -> list[str]:
    """The lines of a log, except about programs of other tests that have tried the port."""
    return [line for line in log.splitlines() if "ended before the token was proved" not in line]


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.fixture(autouse=True)
def logger(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands that run in this process set up its logs."""
    logger = logging.getLogger("penstock")
    level, handlers = logger.level, list(logger.handlers)
    monkeypatch.setattr(logger, "propagate", logger.propagate)
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers


@pytest.fixture
def dispatcher() -> Iterator[service.DispatchServer]:
    with service.DispatchServer() as server:
        yield server


def address(server: service.DispatchServer) -> str:
    return server.target.removeprefix("grpc://")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    assert f"\n  penstock {name} " in capsys.readouterr().out


def test_the_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    text = capsys.readouterr().out
    assert all(f"\n    {name} " in text for name in COMMANDS)


def test_wrong_arguments_are_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["worker"])
    assert "the following arguments are required: --dispatcher" in capsys.readouterr().err


def test_an_error_is_one_line_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dispatcher", "--port", "-5"]) == 1
    words = "penstock dispatcher: DispatcherConfig: port must be from 1 to 65535"
    assert capsys.readouterr().err.startswith(words)


def test_an_error_names_the_dispatcher_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o755)
    assert main(["dispatcher", "--work-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("penstock dispatcher: work_dir: ")


def test_the_help_has_the_worker_timeout(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["dispatcher", "--help"])
    assert "counts as lost (default: 10)" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", ["status", "forget"])
def test_an_error_names_the_argument_token_file(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_TOKEN_FILE", "")
    assert main([name, "grpc://localhost:1", "--token-file", "/no/such/file"]) == 1
    words = f"penstock {name}: --token-file: '/no/such/file' does not exist"
    assert capsys.readouterr().err.startswith(words)


def test_a_dispatcher_and_a_worker_serve_and_leave() -> None:
    with command("dispatcher") as dispatcher:
        first = line_of(dispatcher)
        target = first.split()[3].rstrip(";")
        assert first.startswith("penstock dispatcher at grpc://localhost:")
        assert first.endswith(f"penstock worker --dispatcher {target.removeprefix('grpc://')}\n")
        with command("worker", "--dispatcher", target) as worker:
            assert line_of(worker).startswith("penstock worker at localhost:")
            squares = Dataset.range(20).map(lambda x: x * x)
            remote = squares.apply(service.distribute("distributed_epoch", target))
            assert list(remote) == list(squares)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait() == 0
        dispatcher.send_signal(signal.SIGINT)
        assert dispatcher.wait() == 0
        assert dispatcher.stderr is not None
        logged = [line.split(" ", 1)[1] for line in without_strangers(dispatcher.stderr.read())]
        assert logged[0].startswith(f"INFO dispatcher: started at {target[7:]}")
        assert logged[-1] == "INFO dispatcher: stopped"
        assert [line for line in logged if not line.startswith("INFO dispatcher: ")] == []


def test_http_ports_of_processes(capsys: pytest.CaptureFixture[str]) -> None:
    with command("dispatcher", "--metrics-port", "0", "--dashboard-port", "0") as dispatcher:
        target = line_of(dispatcher).split()[3].rstrip(";")
        metrics = line_of(dispatcher).removeprefix("metrics at ").strip()
        link = line_of(dispatcher).removeprefix("dashboard at ").split()[0]
        url = link.partition("/?")[0].removeprefix("http://")
        assert main(["dashboard-link", url]) == 0
        for each in (link, capsys.readouterr().out.strip()):
            opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            assert b"<title>penstock</title>" in opener.open(each).read()
        with command("worker", "--dispatcher", target, "--metrics-port", "0") as worker:
            line_of(worker)
            of_worker = line_of(worker).removeprefix("metrics at ").strip()
            assert page(of_worker.replace("/metrics", "/readyz")) == "ready\n"
            squares = Dataset.range(20).map(lambda x: x * x)
            remote = squares.apply(service.distribute("distributed_epoch", target))
            assert list(remote) == list(squares)
            # The plan process reports to its worker, and the worker to the dispatcher.
            until(lambda: "penstock_worker_elements_sent_total 20.0\n" in page(of_worker))
            until(lambda: "penstock_elements_made_total 20.0\n" in page(metrics))
            assert "penstock_worker_plan_processes 1.0\n" in page(of_worker)
            assert "penstock_elements_handed_out_total 20.0\n" in page(metrics)


def page(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        text: str = answer.read().decode()
    return text


def test_the_metrics_token_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = "a token of this service"
    file = tmp_path / "token"
    file.write_text(token)
    file.chmod(0o600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_TOKEN_FILE", "")  # The command sets it.
        assert main(["metrics-token", "--token-file", str(file)]) == 0
    assert capsys.readouterr().out == make_metrics_token(token.encode()).decode() + "\n"


def test_a_worker_finishes_what_it_has_begun(
    dispatcher: service.DispatchServer, tmp_path: Path
) -> None:
    begun, go = pipe(tmp_path / "begun"), pipe(tmp_path / "go")

    def slow(x: Any) -> Any:
        with open(begun, "w"), open(go):
            return x + 1

    with command("worker", "--dispatcher", address(dispatcher)) as worker, reading() as pool:
        line_of(worker)
        result = pool.submit(next, elements(slow, dispatcher))
        with open(begun):
            worker.send_signal(signal.SIGTERM)
            with open(go, "w"):
                assert worker.poll() is None
        assert result.result() == 1
        assert worker.wait() == 0


def test_a_worker_that_leaves_costs_no_element_twice(
    dispatcher: service.DispatchServer, tmp_path: Path
) -> None:
    """The worker finishes the elements that it has begun, and another worker makes the rest.

    So a reader waits for at most one element, and no element is made twice.
    """
    calls = str(tmp_path / "calls")

    def note(x: Any) -> Any:
        with open(calls, "a") as file:
            file.write(f"{x}\n")
        threading.Event().wait(0.005)
        return x

    count = 200
    numbers = Dataset.range(count).map(note, output_signature=Dataset.range(1).element_spec)
    remote = numbers.apply(service.distribute("distributed_epoch", dispatcher.target))
    with command("worker", "--dispatcher", address(dispatcher)) as worker, in_process(dispatcher):
        line_of(worker)
        until(lambda: len(service.status(dispatcher.target)["workers"]) == 2)
        with iter(remote) as iterator:
            found = [int(next(iterator)) for _ in range(50)]
            worker.send_signal(signal.SIGTERM)
            found += [int(x) for x in iterator]
        assert worker.wait() == 0
    assert found == list(range(count))
    made = [int(line) for line in Path(calls).read_text().split()]
    assert sorted(made) == list(range(count))


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_worker_that_leaves_hands_back_what_it_has_not_begun(
    dispatcher: service.DispatchServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_killed: bool,
) -> None:
    """Other workers make the rest while the leaving worker finishes its element or is killed."""
    count, folder = 24, str(tmp_path)

    def make(x: Any) -> Any:
        with open(f"{folder}/made", "a") as file:
            file.write(f"{os.environ['WHO']} {x}\n")
        while not os.path.exists(f"{folder}/go-{x}"):
            threading.Event().wait(0.002)
        return x

    def list_made(who: str) -> list[int]:
        lines = (tmp_path / "made").read_text().split("\n")[:-1]
        return [int(line.split()[1]) for line in lines if line.startswith(who)]

    lists: list[int] = []
    want = Links.want

    def note_list(links: Links, workers: Any) -> list[str]:
        lists.append(len(workers := list(workers)))
        return want(links, workers)

    monkeypatch.setattr(Links, "want", note_list)
    numbers = Dataset.range(count).map(make, output_signature=Dataset.range(1).element_spec)
    remote = numbers.apply(service.distribute("distributed_epoch", dispatcher.target))
    start = partial(command, "worker", "--dispatcher", address(dispatcher))
    with start(WHO="leaves") as worker, start(WHO="stays") as other, reading() as pool:
        line_of(worker), line_of(other)
        until(lambda: len(service.status(dispatcher.target)["workers"]) == 2)
        result = pool.submit(lambda: [int(x) for x in remote])
        until((tmp_path / "made").exists)
        until(lambda: list_made("leaves") and list_made("stays"))
        [last] = list_made("leaves")
        worker.send_signal(signal.SIGTERM)
        for x in set(range(count)) - {last}:
            (tmp_path / f"go-{x}").touch()
        # The other worker has made the rest, and the dispatcher has removed the first worker.
        until(lambda: len(list_made("leaves") + list_made("stays")) == count and lists[-1] == 1)
        assert worker.poll() is None
        assert list_made("leaves") == [last]
        if is_killed:
            worker.kill()
            until(lambda: last in list_made("stays"))
        (tmp_path / f"go-{last}").touch()
        assert result.result() == list(range(count))
        assert worker.wait() == (-signal.SIGKILL if is_killed else 0)
    again = [last] if is_killed else []
    assert sorted(list_made("leaves") + list_made("stays")) == sorted([*range(count), *again])


def add_up(dataset: Dataset) -> Dataset:
    """The same elements, which one worker computes in order."""
    return dataset.scan(np.int64(0), lambda total, x: (total + x, x))


def large(x: Any) -> Any:
    """An element of 256 KB."""
    return np.full(1 << 15, x)


@pytest.mark.parametrize(
    "derive",
    [
        lambda d: d.filter(lambda x: True),
        add_up,
        lambda d: add_up(d).map(large).shuffle(9, seed=2).map(lambda a: a[0]),
    ],
    ids=["filter", "scan", "shuffle"],
)
def test_a_stream_of_a_worker_that_leaves_is_continued_where_it_was(
    dispatcher: service.DispatchServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, derive: Any
) -> None:
    """The plan has no random access, but still no element is made twice."""
    begun, go, calls = pipe(tmp_path / "begun"), pipe(tmp_path / "go"), tmp_path / "calls"
    count, log = 24, str(calls)
    numbers = derive(Dataset.range(count))
    expected = [int(x) for x in numbers]
    held = expected[12]

    def make(x: Any) -> Any:
        with open(log, "a") as file:
            file.write(f"{os.getpid()} {x}\n")
        if x == held:
            with open(begun, "w"), open(go):
                pass
        return x

    readers: list[Fetcher] = []
    join = Fetcher.join

    def note_reader(fetcher: Fetcher, worker: str) -> None:
        readers.append(fetcher)
        join(fetcher, worker)

    monkeypatch.setattr(Fetcher, "join", note_reader)
    made = numbers.map(make, output_signature=Dataset.range(1).element_spec)
    remote = made.apply(service.distribute("distributed_epoch", dispatcher.target))
    with command("worker", "--dispatcher", address(dispatcher)) as worker, reading() as pool:
        line_of(worker)
        result = pool.submit(lambda: [int(x) for x in remote])
        with open(begun), in_process(dispatcher):
            worker.send_signal(signal.SIGTERM)
            until(lambda: any(reader.leaving for reader in readers))
            with open(go, "w"):
                assert result.result() == expected
            assert worker.wait() == 0
    own = str(os.getpid())
    by = [line.split() for line in calls.read_text().splitlines()]
    assert [int(x) for who, x in by if who != own] == expected[:13]
    assert [int(x) for who, x in by if who == own] == expected[13:]


def test_a_stream_of_a_worker_that_leaves_comes_before_later_streams(
    dispatcher: service.DispatchServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker has begun a later part, and finishes only its current element of that."""
    folder, length = str(tmp_path), 12

    def make(x: Any) -> Any:
        with open(f"{folder}/made", "a") as file:
            file.write(f"{os.environ['WHO']} {x}\n")
        while not (os.path.exists(f"{folder}/go-{x}") or os.path.exists(f"{folder}/go")):
            threading.Event().wait(0.002)
        return x

    def list_made(who: str) -> list[int]:
        lines = (tmp_path / "made").read_text().split("\n")[:-1]
        return [int(line.split()[1]) for line in lines if line.startswith(who)]

    sent: list[tuple[int, int]] = []
    refusals: list[int] = []
    fetch, refuse = Link.fetch, Fetcher.refuse

    def note_request(link: Link, ask: Ask, work: Work, **rest: Any) -> None:
        fetch(link, ask, work, **rest)
        sent.append((work.stream, ask.start))

    def note_refusal(fetcher: Fetcher, request: int, *rest: Any) -> None:
        refusals.append(request)
        refuse(fetcher, request, *rest)

    monkeypatch.setattr(Link, "fetch", note_request)
    monkeypatch.setattr(Fetcher, "refuse", note_refusal)
    streams = Dataset.range(8).flat_map(
        lambda i: Dataset.range(length).map(lambda j: i * length + j)
    )
    numbers = streams.map(make, output_signature=Dataset.range(1).element_spec)
    remote = numbers.apply(service.distribute("distributed_epoch", dispatcher.target))
    start = partial(command, "worker", "--dispatcher", address(dispatcher))
    with start(WHO="leaves") as worker, reading() as pool:
        line_of(worker)
        result = pool.submit(lambda: [int(x) for x in remote])
        until((tmp_path / "made").exists)
        with start(WHO="stays") as other:
            line_of(other)
            until(lambda: list_made("stays"))
            [later] = list_made("stays")
            assert list_made("leaves") == [0]
            assert later >= length
            worker.send_signal(signal.SIGTERM)
            until(lambda: refusals)
            (tmp_path / "go-0").touch()
            until(lambda: (0, 1) in sent)
            (tmp_path / "go").touch()
            assert result.result() == list(range(8 * length))
            assert worker.wait() == 0
    assert list_made("stays")[:2] == [later, 1]
    assert sorted(list_made("leaves") + list_made("stays")) == list(range(8 * length))


def test_a_second_signal_stops_a_worker_at_once(
    dispatcher: service.DispatchServer, tmp_path: Path
) -> None:
    begun, never = pipe(tmp_path / "begun"), pipe(tmp_path / "never")

    def wait_for_release(x: Any) -> Any:
        with open(begun, "w"), open(never):
            return x

    with command("worker", "--dispatcher", address(dispatcher)) as worker, reading() as pool:
        line_of(worker)
        result = pool.submit(next, iterator := elements(wait_for_release, dispatcher))
        with open(begun):
            worker.send_signal(signal.SIGTERM)
            assert line_of(worker) == "penstock worker leaves; once more to stop it at once\n"
            worker.send_signal(signal.SIGTERM)
            assert worker.wait() == 128 + signal.SIGTERM
        # Another worker makes the element again that the first one had begun.
        with in_process(dispatcher), open(begun), open(never, "w"):
            assert result.result() == 0
        assert list(iterator) == []


def pipe(path: Path) -> str:
    """Opening it blocks until another process opens its other end."""
    os.mkfifo(path)
    return str(path)


@contextmanager
def reading() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def elements(function: Any, dispatcher: service.DispatchServer) -> Iterator[Any]:
    made = Dataset.range(1).map(function, output_signature=Dataset.range(1).element_spec)
    return iter(made.apply(service.distribute("distributed_epoch", dispatcher.target)))


def in_process(dispatcher: service.DispatchServer) -> service.WorkerServer:
    return service.WorkerServer(service.WorkerConfig(address(dispatcher)))


@pytest.mark.parametrize("options", [(), ("--quiet",)])
def test_a_child_ends_with_its_parent(
    dispatcher: service.DispatchServer, options: tuple[str, ...]
) -> None:
    with command(
        "worker", "--stop-with-stdin", "--dispatcher", address(dispatcher), *options
    ) as child:
        assert child.stdin is not None
        if not options:
            assert line_of(child).startswith("penstock worker at localhost:")
            # Ctrl-C in a terminal is for the parent, which then ends its children.
            child.send_signal(signal.SIGINT)
        child.stdin.close()
        assert child.wait() == 0
        assert line_of(child) == ""


def test_a_child_ends_with_its_parent_even_if_the_dispatcher_does_not_answer() -> None:
    with socket() as unused:
        unused.bind(("127.0.0.1", 0))
        place = f"localhost:{unused.getsockname()[1]}"
        with command("worker", "--stop-with-stdin", "--dispatcher", place) as child:
            assert child.stdin is not None
            child.stdin.close()
            assert child.wait() == 0


def test_a_worker_without_a_dispatcher_says_so() -> None:
    with socket() as unused:
        unused.bind(("127.0.0.1", 0))
        place = f"localhost:{unused.getsockname()[1]}"
        with command("worker", "--dispatcher", place, "--dispatcher-timeout", "0.1") as worker:
            words = f"penstock worker: dispatcher {place} has not answered"
            assert words in worker.communicate()[1]
    assert worker.returncode == 1


def test_a_worker_that_waits_says_so_and_ends_with_ctrl_c() -> None:
    with socket() as unused:
        unused.bind(("127.0.0.1", 0))
        place = f"localhost:{unused.getsockname()[1]}"
        with command("worker", "--dispatcher", place) as waiting:
            assert waiting.stderr is not None
            assert f"dispatcher {place} does not answer (" in waiting.stderr.readline()
            waiting.send_signal(signal.SIGINT)
            assert waiting.communicate() == ("", "")
    assert waiting.returncode == 130


def test_it_prints_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"penstock {VERSION} (protocol {PROTOCOL})\n"


def test_a_dispatcher_may_open_as_many_files_as_the_system_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = [(64, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    assert main(["dispatcher", "--token-file", "/no/such/file"]) == 1
    assert limits[-1] == (4096, 4096)
    assert main(["dispatcher", "--token-file", "/no/such/file"]) == 1
    assert len(limits) == 2


def test_a_token_may_come_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "token"
    assert main(["dispatcher", "--token-file", str(file)]) == 1
    assert f"--token-file: '{file}' does not exist" in capsys.readouterr().err
    file.write_text("a secret of more than sixteen letters")
    file.chmod(0o600)
    with command("dispatcher", "--token-file", str(file)) as dispatcher:
        target = line_of(dispatcher).split()[3].rstrip(";")
        with command("worker", "--dispatcher", target, "--token-file", str(file)) as worker:
            assert line_of(worker).startswith("penstock worker at")
        with command("worker", "--dispatcher", target) as stranger:
            assert stranger.wait() == 1


def test_status_as_json(
    dispatcher: service.DispatchServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with in_process(dispatcher):
        assert main(["status", dispatcher.target, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["workers"]) == 1


def test_status_as_tables(
    dispatcher: service.DispatchServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with in_process(dispatcher) as worker:
        assert main(["status", dispatcher.target]) == 0
        assert worker.address in capsys.readouterr().out


STATUS = {
    "wanted_workers": 1,
    "workers": [{"address": "localhost:5051", "host": "x", "state": "here", "busy": 0.5}],
    "jobs": [
        {"name": "training", **{f"a_long_column_{number}": number for number in range(9)}}
        | {"advice": "Programs wait for 100% of their time. Add workers: more than 8 would help."}
    ],
    "events": [{"time": 0, "kind": "joined", "text": "worker localhost:5051 " * 5}],
}


@pytest.mark.parametrize("width", [80, 400])
def test_the_status_is_readable_at_every_width(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table that does not fit becomes a block for each row; nothing is cut."""
    monkeypatch.setattr("penstock.cli.overview._WIDTH", width)
    overview.as_tables(STATUS)
    text = capsys.readouterr().out
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= width
    assert "…" not in text
    assert "x" not in text.split("jobs:")[0].split()  # For programs only.
    is_narrow = width == 80
    assert (" training" in lines) == is_narrow
    assert ("a_long_column_1 1" in text) == is_narrow
    assert " ".join(STATUS["jobs"][0]["advice"].split()) in " ".join(text.split())  # type: ignore[index]
    assert any(line.split()[-3:] == ["localhost:5051", "here", "0.5"] for line in lines)
    assert re.search(r"19(69|70)-\d\d-\d\d \d\d:\d\d:\d\d +joined +worker", text)


def test_jobs_are_forgotten(
    dispatcher: service.DispatchServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["forget", dispatcher.target]) == 0
    assert "no named jobs" in capsys.readouterr().out
    with in_process(dispatcher):
        made = Dataset.range(5).apply(
            service.distribute("distributed_epoch", dispatcher.target, job_name="a job")
        )
        reader = iter(made)
        next(reader)
        assert main(["forget", dispatcher.target]) == 0
        assert "kept, because it has readers: a job" in capsys.readouterr().out
        assert main(["forget", dispatcher.target, "a job"]) == 1
        assert "penstock forget: 1 clients read job 'a job'" in capsys.readouterr().err
        reader.close()
    assert main(["forget", dispatcher.target, "a job"]) == 0
    assert "forgotten: a job" in capsys.readouterr().out


def test_the_page_and_the_legend_have_the_fields_of_a_real_service(
    dispatcher: service.DispatchServer, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(\w+(?:\[\]\.\w+)?)` \|", page, re.MULTILINE))
    with service.WorkerServer(service.WorkerConfig(dispatcher_address=address(dispatcher))):
        mode = service.distribute("distributed_epoch", dispatcher.target, job_name="training")
        with iter(Dataset.range(9).apply(mode)) as reading:
            next(reading)
            assert main(["status", dispatcher.target, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    tables = {name: rows for name, rows in told.items() if isinstance(rows, list)}
    fields = {f"{table}[].{name}" for table, rows in tables.items() for name in rows[0]}
    assert fields | set(told) == {name for name in documented if not name.startswith("penstock_")}
    assert tables.keys() == LEGEND.keys()
    for table, rows in tables.items():
        ids = {"worker", "job", "host", "transfers"}
        assert [name for name in rows[0] if name not in ids] == list(LEGEND[table])
    with pytest.raises(SystemExit):
        main(["status", "--help"])
    helped = capsys.readouterr().out
    assert "lag                the share of their time that programs wait" in helped


def test_status_again_and_again_until_ctrl_c(dispatcher: service.DispatchServer) -> None:
    with command("status", dispatcher.target, "--watch", "--json") as watch:
        first, second = line_of(watch), line_of(watch)
        assert set(json.loads(first)) == set(json.loads(second))
        watch.send_signal(signal.SIGINT)
        assert watch.wait() == 0


def test_tables_show_fields_of_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    overview.as_tables(
        {
            "dispatcher": "grpc://localhost:5050",
            "wanted": None,
            "workers": [
                {
                    "worker": "w/123",
                    "address": "a:1",
                    "rate": 1234.56,
                    "tags": ["x", "y"],
                    "new": True,
                }
            ],
            "jobs": {"job [1]": {"elements": 12345, "streams": {"a": 1}, "open": []}},
            "leases": [],
            "datasets": [{"cardinality": count} for count in (-2, -1, 7)],
        }
    )
    text = capsys.readouterr().out
    assert text.split("datasets: 3")[1].split() == ["cardinality", "unknown", "infinite", "7"]
    for words in ("dispatcher: grpc://localhost:5050", "wanted: -", "workers: 1", "leases: -"):
        assert words in text
    assert text.split("workers: 1")[1].split()[4:9] == ["a:1", "1,234.6", "x,", "y", "yes"]
    assert "job [1]" in text
    assert "12,345" in text
    assert "w/123" not in text


def test_certificates_for_a_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "certs")
    assert main(["certs", folder, "--host", "data1.example.org", "--days", "3"]) == 0
    assert f"are in {folder}; copy it" in capsys.readouterr().out
    assert "ca.pem" in os.listdir(folder)
    assert main(["certs", folder]) == 1
    assert "has certificates already" in capsys.readouterr().err
    with command("dispatcher", "--certificates", folder) as dispatcher:
        target = line_of(dispatcher).split()[3].rstrip(";")
        with command("worker", "--dispatcher", target, "--certificates", folder) as worker:
            assert line_of(worker).startswith("penstock worker at")


def test_a_worker_finds_modules_where_it_was_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", ["/elsewhere"])
    assert main(["dispatcher", "--port", "-5"]) == 1
    assert sys.path == [os.getcwd(), "/elsewhere"]


def test_alone_it_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "commands:" in capsys.readouterr().out


def test_a_dispatcher_without_pickles_has_no_workers_that_run_them() -> None:
    config = service.DispatcherConfig(functions="by_reference")
    with (
        service.DispatchServer(config) as server,
        command("worker", "--dispatcher", address(server)) as worker,
    ):
        assert "sends functions by reference only" in worker.communicate()[1]
    assert worker.returncode == 1


def test_status_finds_secrets_that_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_TOKEN_FILE", "")
    secret = tmp_path / "token"
    secret.write_text("a secret that is long enough")
    secret.chmod(0o600)
    config = service.DispatcherConfig(token=secret.read_text())
    with service.DispatchServer(config) as server:
        assert main(["status", server.target, "--json", "--token-file", str(secret)]) == 0
        secret.write_text("another secret, as long as it must be")
        assert main(["status", server.target, "--token-file", str(secret)]) == 1
        told = capsys.readouterr()
        assert f"(from {secret}, which --token-file or " in told.err
    assert json.loads(told.out)["workers"] == []


@pytest.mark.parametrize("buffered", [True, False])
def test_output_that_is_not_read_is_no_error(buffered: bool) -> None:
    """As in `penstock status URL --json | head -1`."""
    read, write = os.pipe()
    os.close(read)
    run = subprocess.run(
        [sys.executable, *([] if buffered else ["-u"]), "-m", "penstock", "deploy", "container"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(write)
    assert (run.returncode, run.stderr) == (141, "")
