"""A team: real processes that make one MultiWorkerMirroredStrategy and run the same programs.

`run_team` starts them and returns their reports. A member runs this file as a program. Members are
ended by their own strategy's timeout, or by their program, never by a clock of the test.
"""

import json
import os
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from penstock.distribute.cluster_resolver import SimpleClusterResolver
from penstock.distribute.multiworker import MultiWorkerMirroredStrategy
from tests.distribute.workers import team_programs
from tests.programs import ForkedProgram


@dataclass(frozen=True)
class MemberReport:
    """The report of a member: an answer per program, and how the member ended."""

    answers: dict[str, Any]
    status: int
    errors: str

    def __getitem__(self, program: str) -> Any:
        assert program in self.answers, f"{self.answers}, status {self.status}\n{self.errors}"
        return self.answers[program]


def addresses(count: int) -> list[str]:
    """Addresses on this machine at which no process listens now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("localhost", 0))
        return [f"localhost:{one.getsockname()[1]}" for one in sockets]


def run_team(
    programs: Sequence[str],
    backend: str,
    members: Sequence[int] = (0, 1),
    workers: int = 2,
    timeout: float = 120,
    places: Sequence[str] = (),
) -> list[MemberReport]:
    """The reports of `members` of a team of `workers`; other workers are not started."""
    where = list(places) or addresses(workers)
    given = [[index, where, backend, timeout, list(programs)] for index in members]
    return run_processes([["-m", __name__, json.dumps(one)] for one in given])


def run_processes(commands: Sequence[Sequence[str]]) -> list[MemberReport]:
    """Starts Python processes together, waits for them, and returns their reports."""
    own = {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
    }
    with ExitStack() as stack:
        children = [
            stack.enter_context(ForkedProgram(command, ["penstock", "torch"], **own))
            for command in commands
        ]
        return [_heard(child) for child in children]


def _heard(child: ForkedProgram) -> MemberReport:
    # A member stays silent by reading its input, which is closed now.
    output = child.communicate()
    lines = [json.loads(line) for line in output.splitlines() if line.startswith('["said"')]
    answers = {name: answer for _, name, answer in lines}
    return MemberReport(answers, child.returncode, child.read_errors())


def say(name: str, answer: Any) -> None:
    """A member's answer, on a line of its own."""
    print("\n" + json.dumps(["said", name, answer]), flush=True)


def attempt(name: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a call; if it fails, prints the error and returns None."""
    try:
        return call(*arguments)
    except Exception as error:
        traceback.print_exc()
        say(name, {"error": type(error).__name__, "message": str(error)})
        return None


def member(index: int, where: list[str], backend: str, timeout: float, programs: list[str]) -> None:
    """Runs a process of the team."""

    def make_strategy() -> MultiWorkerMirroredStrategy:
        return MultiWorkerMirroredStrategy(
            SimpleClusterResolver(where, task_id=index),
            backend=backend,
            devices=["CPU:0", "CPU:1"],
            timeout=timeout,
        )

    strategy = attempt("strategy", make_strategy)
    for name in programs if strategy else ():
        answer = attempt(name, getattr(team_programs, name), strategy)
        if answer is not None:
            say(name, answer)
        if name in team_programs.LAST:
            os._exit(0)


if __name__ == "__main__":
    member(*json.loads(sys.argv[1]))
