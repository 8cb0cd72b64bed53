"""The commands: each explains itself from anywhere, and the demo does what it says."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted([*(ROOT / "scripts").iterdir(), ROOT / ".ci" / "run"])
COMMANDS = [file for file in FILES if file.is_file() and os.access(file, os.X_OK)]
DEMO = [sys.executable, str(ROOT / "examples" / "demo.py")]


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


def test_demo_resumes_identically(tmp_path: Path) -> None:
    result = run(*DEMO, "--rows", "1000", "--batch-size", "64", folder=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "8 batches after the resume, 8 without it: identical" in result.stdout


def test_demo_reports_a_bad_argument_in_one_line(tmp_path: Path) -> None:
    result = run(*DEMO, "--batch-size", "0", folder=tmp_path)
    assert result.returncode == 2
    assert result.stdout.startswith("Dataset.batch: batch_size must be at least 1, got 0")


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
    installs = [call for call in run_demo_in_a_fresh_checkout(tmp_path) if "pip install" in call]
    assert [call.split()[-1] for call in installs] == [str(tmp_path)]
    again = run_demo_in_a_fresh_checkout(tmp_path)
    assert [call for call in again if "pip" in call] == []
    assert again[-1] == str(tmp_path / "examples" / "demo.py")
