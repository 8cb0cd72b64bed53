"""`penstock doctor`: what it finds on this machine and in the connection to a service."""

import datetime
import importlib.util
import logging
import resource
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import certificates, doctor, main
from penstock.cli.doctor import DOUBTFUL, FINE, WRONG, split_error
from penstock.data.experimental import service
from penstock.engine.processes import chunk_memory
from penstock.errors import InvalidArgumentError, UnavailableError
from penstock.service.host.security import Security
from tests.integration.clusters import Cluster


def examine(*arguments: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CERTIFICATES", "")  # The command sets it.
        patch.setenv("PENSTOCK_TOKEN_FILE", "")
        return main(["doctor", *arguments])


def test_a_machine_without_problems(capsys: pytest.CaptureFixture[str]) -> None:
    assert examine() == 0
    lines = capsys.readouterr().out.splitlines()
    subjects = [line[9:].partition(":")[0] for line in lines if not line.startswith("  ")]
    assert subjects[:4] == ["versions", "open files", "shared memory", "ports"]
    assert "0 wrong" in lines[-1]


def test_a_service_without_problems(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with Cluster(2) as cluster:
        assert examine(cluster.target) == 0
        assert not [each for each in caplog.records if each.levelno >= logging.WARNING]
        shown = capsys.readouterr().out
        for worker in service.status(cluster.target)["workers"]:
            assert f"worker {worker['address']}: reached by shm" in shown
    assert f"ok       way to {cluster.address}: connected in" in shown
    assert "takes functions by_value" in shown
    assert "reading: one element through the service in" in shown


def test_a_dispatcher_without_workers(capsys: pytest.CaptureFixture[str]) -> None:
    with Cluster(0) as cluster:
        assert examine(cluster.target) == 1
    shown = capsys.readouterr().out
    assert "wrong    workers: the dispatcher has none" in shown
    assert f"to do: start one: penstock worker --dispatcher {cluster.address}" in shown
    assert "1 wrong" in shown


def test_another_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "token"
    file.write_text("the token of another service")
    file.chmod(0o600)
    with Cluster(1) as cluster:
        assert examine(cluster.target, "--token-file", str(file)) == 1
    shown = capsys.readouterr().out
    assert "wrong    dispatcher: " in shown
    assert "token" in shown.partition("wrong    dispatcher: ")[2]
    assert "worker " not in shown


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("grpc://localhost:1", "nothing answers there"),
        ("grpc://no-such-name.invalid:5050", "this machine knows no address of the name"),
        ("grpc://localhost", "localhost"),
        ("local://2", "names no dispatcher that runs already"),
    ],
)
def test_a_way_that_leads_nowhere(url: str, words: str) -> None:
    (found,) = doctor.check_service(url)
    assert found.state == WRONG
    assert words in found.text + found.change
    assert found.change


def test_an_unknown_scheme(capsys: pytest.CaptureFixture[str]) -> None:
    assert examine("http://localhost:1") == 1
    assert "the scheme http:// is not registered" in capsys.readouterr().err


def test_workers_that_cannot_be_reached_or_differ() -> None:
    with Cluster(1) as cluster:
        (worker,) = service.status(cluster.target)["workers"]
        security, here = Security.of_client(cluster.address), worker["host"]

        def check(**changes: Any) -> tuple[str, str]:
            return doctor.check_worker({**worker, **changes}, security, here)[0::2]

        assert check() == (FINE, "reached by shm")
        assert check(transfers={}) == (FINE, "reached by tcp")
        state, text = check(version="0.0.1")
        assert (state, text.startswith("runs penstock 0.0.1, and this is")) == (DOUBTFUL, True)
        assert check(state="suspected") == (DOUBTFUL, "is suspected")
        state, text = check(transfers={"tcp": "localhost:1"})
        assert (state, "no data from tcp localhost:1" in text) == (WRONG, True)


def test_reading_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = threading.Event()
    monkeypatch.setattr(doctor, "_read_element", lambda url: hanging.wait())
    monkeypatch.setattr(doctor, "_LONGEST_READ", 0.01)
    finding = doctor.check_reading("grpc://x:1")
    hanging.set()
    assert "no element came within" in finding.text
    assert "penstock top grpc://x:1" in finding.change


def test_reading_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise UnavailableError("distribute: no worker answers; start one")

    monkeypatch.setattr(doctor, "distribute", fail)
    assert doctor.check_reading("grpc://x:1")[2:] == (
        "distribute: no worker answers",
        "start one",
    )
    monkeypatch.setattr(doctor, "distribute", lambda *_: lambda dataset: [7])
    assert "got [7]" in doctor.check_reading("grpc://x:1").text


@pytest.mark.parametrize(
    ("hard", "state"),
    [(512, WRONG), (4096, DOUBTFUL), (8192, FINE), (resource.RLIM_INFINITY, FINE)],
)
def test_open_files(hard: int, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (hard, hard))
    found = doctor.check_files()
    assert found.state == state
    assert bool(found.change) == (state != FINE)


def test_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.find_free_memory() > 0
    sizes = {"/sys/fs/cgroup/memory.max": 10**6, "/sys/fs/cgroup/memory.current": 10**5}
    monkeypatch.setattr(doctor, "_read_number", sizes.__getitem__)
    assert doctor.find_free_memory() == 900_000
    assert doctor.check_shared_memory().state == WRONG
    monkeypatch.setattr(chunk_memory, "AVAILABLE", False)
    assert doctor.check_shared_memory().state == DOUBTFUL


def test_a_limit_that_is_no_number(tmp_path: Path) -> None:
    (tmp_path / "max").write_text("max\n")
    assert doctor._read_number(str(tmp_path / "max")) is None
    assert doctor._read_number(str(tmp_path / "other")) is None


def test_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(host: str, port: int) -> Any:
        raise InvalidArgumentError("localhost cannot be listened on; add it to /etc/hosts")

    monkeypatch.setattr(doctor, "listen_tcp", refuse)
    found = doctor.check_ports()
    assert (found.state, found.change) == (WRONG, "add it to /etc/hosts")


def test_a_secret_that_others_can_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("a token of this service")
    file.chmod(0o644)
    monkeypatch.setenv("PENSTOCK_TOKEN_FILE", str(file))
    (found,) = doctor.check_secrets(None)
    assert (found.state, "open to other users" in found.text) == (WRONG, True)
    assert found.change == f"chmod 600 {file}"


def test_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "certificates"
    certificates.make_certificates(str(folder), [], 60)

    def states() -> list[str]:
        return [finding.state for finding in doctor.check_secrets(str(folder))]

    assert states() == [FINE, FINE]
    now = datetime.datetime.now(datetime.UTC)
    for days, state in ((5, DOUBTFUL), (-5, WRONG)):
        end = now + datetime.timedelta(days=days)
        monkeypatch.setattr(certificates, "read_end", lambda path, end=end: end)
        assert states() == [FINE, state]
    (folder / "ca.pem").unlink()
    assert states() == [FINE, WRONG]


def fake_torch(has_cuda: bool, can_pin: bool) -> types.ModuleType:
    torch: Any = types.ModuleType("torch")
    torch.__version__ = "2.0"
    torch.cuda = types.SimpleNamespace(is_available=lambda: has_cuda, device_count=lambda: 2)

    def empty(size: int, pin_memory: bool) -> None:
        if not can_pin:
            raise RuntimeError("out of locked memory")

    torch.empty = empty
    return torch


@pytest.mark.parametrize(
    ("has_cuda", "can_pin", "state", "words"),
    [
        (False, False, WRONG, "sees no GPU, but the machine has one"),
        (True, False, WRONG, "cannot be pinned (out of locked memory)"),
        (True, True, FINE, "torch sees 2 of them, and memory can be pinned"),
    ],
)
def test_torch(
    has_cuda: bool, can_pin: bool, state: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch(has_cuda, can_pin))
    found = doctor.check_torch()
    assert (found.state, words in found.text) == (state, True)


@pytest.mark.parametrize(("backend", "state"), [("cpu", WRONG), ("gpu", FINE)])
def test_jax(backend: str, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jax: Any = types.ModuleType("jax")
    jax.__version__, jax.default_backend, jax.device_count = "1", lambda: backend, lambda: 1
    monkeypatch.setitem(sys.modules, "jax", jax)
    assert doctor.check_jax().state == state


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [found.state for found in doctor.check_devices(lambda: False)] == [FINE]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (found,) = doctor.check_devices(lambda: True)
    assert found.state == DOUBTFUL
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "torch" or None)
    monkeypatch.setitem(doctor._CHECKS, "torch", lambda: "the finding of torch")
    assert list(doctor.check_devices(lambda: True)) == ["the finding of torch"]


def test_an_error_names_what_to_do() -> None:
    assert split_error("port 1: it is taken; use another; or none") == (
        "port 1: it is taken",
        "use another; or none",
    )
    assert split_error("it is broken") == ("it is broken", "see docs/operations.md")
