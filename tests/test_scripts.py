"""The scripts: each has a help that works in any folder, and the demo does what it says."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted([*(ROOT / "scripts").iterdir(), ROOT / ".ci" / "run"])
COMMANDS = [file for file in FILES if file.is_file() and os.access(file, os.X_OK)]
QUICK = [sys.executable, str(ROOT / "examples" / "pipeline.py")]
DEMO = [sys.executable, str(ROOT / "examples" / "demo.py"), "--workers", "2", "--steps", "40"]


def run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda file: file.name)
def test_help(command: Path, tmp_path: Path) -> None:
    result = run(str(command), "--help", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.lower().startswith("usage: ")


def test_check_refuses_unknown_arguments(tmp_path: Path) -> None:
    result = run(str(ROOT / "scripts" / "check"), "--fxi", folder=tmp_path)
    assert result.returncode == 2
    assert result.stderr == "scripts/check: unknown argument --fxi; see scripts/check --help\n"


def test_quick_demo_resumes_identically(tmp_path: Path) -> None:
    result = run(*QUICK, "--rows", "1000", "--batch-size", "64", folder=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "8 batches after the resume, 8 without it: identical" in result.stdout


def test_quick_demo_reports_a_bad_argument_in_one_line(tmp_path: Path) -> None:
    result = run(*QUICK, "--batch-size", "0", folder=tmp_path)
    assert result.returncode == 2
    assert result.stdout.startswith("Dataset.batch: batch_size must be at least 1, got 0")


def test_demo_loses_nothing(tmp_path: Path) -> None:
    result = run(*DEMO, "--pace", "0.03", folder=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    told = [line[9:] for line in result.stdout.splitlines() if " s  " in line[:9]]
    assert [line.partition(" of ")[0] for line in told if line.startswith("kill")] == [
        "kill -9"
    ] * 2
    assert "the trainer resumes from its checkpoint" in told
    values = re.findall(r"^ (.+?)  +(\S+) +$", result.stdout, re.MULTILINE)
    assert dict(values) == {
        "elements expected": "2,560",
        "elements delivered": "2,560",
        "lost": "0",
        "twice": "0",
        "weights equal to the undisturbed run's, to the bit": "yes",
    }


def find_processes(mark: str) -> list[str]:
    """The processes that have `mark` in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (process / "environ").read_bytes():
                found.append(process.name)
    return found


def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    environment = os.environ | {"TMPDIR": str(tmp_path), "MARK": mark}
    command = [*DEMO, "--pace", "60"]  # Without the signal, it would take an hour.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as demo:
        assert demo.stdout is not None
        said = next(line for line in demo.stdout if "the first of 40 steps is done" in line)
        assert len(find_processes(mark)) > 4, said
        demo.send_signal(signal.SIGINT)
        assert demo.stdout.read() == "stopped; nothing is left\n"
    assert demo.returncode == 130
    assert find_processes(mark) == []
    assert list(tmp_path.iterdir()) == []


# Replaces python3: `-m venv` copies it into the new environment, every call is recorded.
FAKE_PYTHON = """#!/usr/bin/env bash
echo "$*" >>"$CALLS"
case "$*" in "-m venv"*) mkdir -p "${@: -1}/bin" && cp "$0" "${@: -1}/bin/python" ;; esac
"""


def run_demo_in_a_fresh_checkout(folder: Path) -> list[str]:
    """The arguments of every call of Python by `scripts/demo`."""
    shutil.copytree(ROOT / "scripts", folder / "scripts", dirs_exist_ok=True)
    shutil.copy(ROOT / "pyproject.toml", folder)
    fake, calls = folder / "python3", folder / "calls"
    fake.write_text(FAKE_PYTHON)
    fake.chmod(0o755)
    calls.unlink(missing_ok=True)
    environment = os.environ | {"PYTHON": str(fake), "CALLS": str(calls)}
    subprocess.run([folder / "scripts" / "demo"], check=True, env=environment, capture_output=True)
    return calls.read_text().splitlines()


def test_demo_installs_penstock_without_extras_and_once(tmp_path: Path) -> None:
    installs = [call for call in run_demo_in_a_fresh_checkout(tmp_path) if " install " in call]
    assert [call.split()[-1] for call in installs] == [str(tmp_path)]
    again = run_demo_in_a_fresh_checkout(tmp_path)
    assert [call for call in again if "pip" in call] == []
    assert again[-1] == str(tmp_path / "examples" / "demo.py")
