"""Lock files: which process holds one, and when it is free again."""

import json
import os
import platform
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.engine.formats import locks
from penstock.engine.formats.locks import LockFile
from penstock.errors import AlreadyExistsError, NotFoundError

SLEEPER = [sys.executable, "-c", "import sys; print('ready', flush=True); sys.stdin.read()"]


class CleanedTokens(list[str]):
    """The tokens that were given to `clean`."""


def lock_at(path: Path, cleaned: CleanedTokens | None = None) -> LockFile:
    cleaned = CleanedTokens() if cleaned is None else cleaned
    return LockFile(str(path), "the cache", "Dataset.cache", cleaned.append)


def hold(path: Path, **changes: Any) -> None:
    """Leaves a lock file as another writer would."""
    found = {"host": platform.node(), "pid": os.getpid(), "started": "0", "token": "1" * 19}
    path.write_text(json.dumps(found | changes))


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first, second = lock_at(path), lock_at(path)
    first.acquire()
    assert first.is_held()
    assert not second.is_held()
    with pytest.raises(
        AlreadyExistsError, match="'the cache' is being written by another iterator"
    ):
        second.acquire()
    second.release()
    assert first.is_held()
    for _ in range(2):
        first.release()
    assert not path.exists()
    second.acquire()
    assert second.is_held()


def test_a_lock_that_is_let_go_just_now(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first, second = lock_at(path), lock_at(path)
    first.acquire()
    thread = threading.Thread(target=first.release)
    thread.start()
    second.acquire()
    thread.join()
    assert second.is_held()


def test_a_living_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen(SLEEPER, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        hold(path, pid=process.pid, started=locks._start_of(process.pid))
        wanted = f"process {process.pid} on .*; wait for it, use another name, or delete"
        with pytest.raises(AlreadyExistsError, match=wanted):
            lock_at(path).acquire()
        process.kill()
        # A zombie: its parent has not asked for its exit status.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        lock = lock_at(path)
        lock.acquire()
        assert lock.is_held()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("changes", [{"started": "1"}, {"started": None}, {"pid": "nobody"}])
def test_the_number_of_a_dead_process(changes: Any, tmp_path: Path) -> None:
    cleaned = CleanedTokens()
    hold(tmp_path / "lock", **changes)
    lock = lock_at(tmp_path / "lock", cleaned)
    lock.acquire()
    assert lock.is_held()
    assert cleaned == ["1" * 19]


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"token": "../../etc"}'])
def test_locks_that_say_nothing(content: str, tmp_path: Path) -> None:
    cleaned = CleanedTokens()
    (tmp_path / "lock").write_text(content)
    lock = lock_at(tmp_path / "lock", cleaned)
    lock.acquire()
    assert lock.is_held()
    assert cleaned == []


def test_another_machine(tmp_path: Path) -> None:
    hold(tmp_path / "lock", host="elsewhere")
    with pytest.raises(AlreadyExistsError, match="on elsewhere; .* or delete '.*' if that process"):
        lock_at(tmp_path / "lock").acquire()


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="Dataset.cache: the folder of '.*' does not"):
        lock_at(tmp_path / "no" / "lock").acquire()


def test_a_lock_that_was_taken_over_is_left_alone(tmp_path: Path) -> None:
    lock = lock_at(tmp_path / "lock")
    lock.acquire()
    hold(tmp_path / "lock", host="elsewhere")
    assert not lock.is_held()
    lock.release()
    assert (tmp_path / "lock").exists()


def test_a_lock_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(MemoryError, match="no space is left .*; free some"):
        lock_at(tmp_path / "lock").acquire()
    assert not (tmp_path / "lock").exists()


def test_systems_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid_signal(pid: int, number: int) -> None:
        raise PermissionError

    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    assert locks._start_of(os.getpid()) == "running"
    assert locks._start_of(process.pid) is None
    monkeypatch.setattr(os, "kill", forbid_signal)
    assert locks._start_of(1) == "running"
