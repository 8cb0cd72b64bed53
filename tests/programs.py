"""Runs programs: those of the documentation, the examples, and the members of teams."""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = Path(__file__).with_name("program_template.py")
# Of torch, not of penstock: on a busy machine, the processes of a program may fail to connect.
LOST_CONNECTION = "Gloo connectFullMesh failed"


def run_program(words: list[str], folder: Path, **own: str) -> subprocess.CompletedProcess[str]:
    """Runs Python with these words, again if the processes of torch could not connect."""
    # The fault handler says in which calls the threads of a program were that aborts.
    environment = _environment() | {"KERAS_HOME": str(folder), "PYTHONFAULTHANDLER": "1"} | own
    for _ in range(3):
        result = subprocess.run(
            [sys.executable, *words], cwd=folder, capture_output=True, text=True, env=environment
        )
        if LOST_CONNECTION not in result.stderr:
            break
    return result


def run_text(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a program in a process of its own, with warnings as errors."""
    (folder / "program.py").write_text(program, encoding="utf-8")
    if "keras" in program:  # It reads its environment when it is imported.
        return run_program(["-W", "error", "program.py"], folder)
    modules = ["penstock", *["torch"] * ("import torch" in program)]
    with ForkedProgram(["-W", "error", "program.py"], modules, folder) as running:
        printed = running.communicate()
        return subprocess.CompletedProcess(
            ["program.py"], running.returncode, printed, running.read_errors()
        )


class ForkedProgram:
    """A program that runs in a child of a process that has imported `modules` already.

    `words` are what would follow `python`; of its options, "-W error" alone is known.
    """

    def __init__(
        self,
        words: Sequence[str],
        modules: Sequence[str],
        folder: Path = ROOT,
        **variables: str,
    ) -> None:
        self._place = Path(tempfile.mkdtemp())
        self._errors = self._place / "errors"
        self._errors.touch()
        given, printed, report = [self._place / name for name in ("input", "output", "report")]
        for fifo in (given, printed, report):
            os.mkfifo(fifo)
        template = _start_template(*modules)
        assert template.stdin is not None
        files = [str(given), str(printed), str(self._errors)]
        request = [files, str(report), list(words), str(folder), variables]
        template.stdin.write(json.dumps(request) + "\n")
        template.stdin.flush()
        # Each waits until the program, or the process that watches it, has opened its end.
        self._stdin = given.open("w")
        self.stdout = printed.open()
        self._report = report.open()
        self._pid = int(self._report.readline())
        self._status: int | None = None

    @property
    def returncode(self) -> int:
        """The exit status, when the program has ended."""
        if self._status is None:
            self._status = int(self._report.readline())
        return self._status

    def communicate(self) -> str:
        """Closes the input, and returns the output when the program has ended."""
        self._stdin.close()
        printed = self.stdout.read()
        assert self.returncode is not None
        return printed

    def read_errors(self) -> str:
        return self._errors.read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is None:
            with suppress(ProcessLookupError):  # It has ended.
                os.kill(self._pid, signal.SIGKILL)
            assert self.returncode is not None
        for file in (self._stdin, self.stdout, self._report):
            file.close()
        shutil.rmtree(self._place)


@functools.cache
def _start_template(*modules: str) -> subprocess.Popen[str]:
    """The template with these modules. It ends with this process, which holds the pipe."""
    return subprocess.Popen(
        [sys.executable, str(TEMPLATE), *modules],
        stdin=subprocess.PIPE,
        text=True,
        env=_environment(),
    )


def _environment() -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": paths}
