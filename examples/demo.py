"""Training that survives: a data service whose processes are killed while a model trains.

A dispatcher, three workers and a training program with two replicas run on this machine. Meanwhile
a worker is killed, the dispatcher is killed and started again, and the training program is stopped
and resumed. An audit at the end counts every element, and compares the weights with those of a run
without any of this. Run it with scripts/demo, or with `python examples/demo.py`.
"""

import argparse
import contextlib
import ctypes
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Before NumPy is loaded: it must add in the same order as in the training program.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
from demo_trainer import BATCH, Trainer
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from penstock.cli.top import View
from penstock.data.experimental.service import status
from penstock.errors import OpError

PENSTOCK = [sys.executable, "-m", "penstock"]
TRAINER = [sys.executable, str(Path(__file__).with_name("demo_trainer.py"))]
REFRESH = 0.2
PATIENCE = 60.0
"""Seconds after which a process that does not report anything is an error."""


class InterruptedByUserError(Exception):
    """The user pressed Ctrl-C."""


LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """In a new process, on Linux: the kernel kills it if the demo is killed."""
    if sys.platform == "linux":
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """A process of the demo; a thread reads the lines that it prints."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name = name
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # Ctrl-C reaches the demo alone, which ends all others.
                preexec_fn=end_with_parent,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.put(line)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def is_silent(self) -> bool:
        """Whether it has ended and all that it printed was read."""
        return not self.is_running and not self._reader.is_alive() and self.lines.empty()

    def stop(self) -> None:
        """Asks it to end."""
        self._process.terminate()

    def kill(self) -> None:
        """Ends it at once, with the processes that it has started."""
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()


class Stage:
    """All processes of the demo, what happened to them, and what the trainer reported."""

    def __init__(self, given: argparse.Namespace, folder: Path, console: Console) -> None:
        self.rows, self.steps = BATCH * given.steps, given.steps
        self.story: list[str] = []
        self.seen: list[int] = []
        self.step, self.loss = 0, float("nan")
        self.stopping = threading.Event()
        self.console = console
        self._pace, self._count = given.pace, given.workers
        self._folder = folder
        self.checkpoint = folder / "checkpoint.json"
        self._port = self._dashboard_port = 0
        self._processes: dict[str, Process] = {}
        self._started = time.monotonic()
        self._look: Callable[[], None] = lambda: None
        self.view = View("")

    # Processes

    def start(self, name: str, *command: str) -> Process:
        self.check()
        found = self._processes[name] = Process(name, list(command), self._folder / f"{name}.log")
        return found

    def start_dispatcher(self) -> None:
        process = self.start(
            "dispatcher", *PENSTOCK, "dispatcher", "--port", str(self._port),
            "--work-dir", str(self._folder / "journal"), "--worker-timeout", "2",
            "--dashboard-port", str(self._dashboard_port),
        )  # fmt: skip
        target = self.wait_for_line(process).split()[3].rstrip(";")
        self._port, self.view.service = int(target.rpartition(":")[2]), target
        link = self.wait_for_line(process).split()[2]
        if not self._dashboard_port:
            self.tell(f"dashboard: {link}")
            self._dashboard_port = int(link.partition("/?")[0].rpartition(":")[2])

    def start_worker(self, number: int) -> None:
        process = self.start(
            f"worker {number}", *PENSTOCK, "worker", "--dispatcher", f"localhost:{self._port}",
            "--tag", f"worker-{number}",
        )  # fmt: skip
        self.wait_for_line(process)

    def start_trainer(self) -> None:
        self.start(
            "trainer", *TRAINER, "--service", self.view.service, "--rows", str(self.rows),
            "--checkpoint", str(self.checkpoint), "--pace", str(self._pace),
        )  # fmt: skip

    def close(self) -> None:
        """Ends all processes; nothing of them is left."""
        for process in self._processes.values():
            process.kill()

    # Waiting

    def check(self) -> None:
        if self.stopping.is_set():
            raise InterruptedByUserError

    def wait_until(self, condition: Callable[[], Any], what: str) -> Any:
        """Shows what happens until `condition()` is true, and returns its value."""
        deadline = time.monotonic() + PATIENCE
        step = self.step
        while not (found := condition()):
            self._look()
            if self.stopping.wait(REFRESH):
                raise InterruptedByUserError
            if self.step > step:
                step, deadline = self.step, time.monotonic() + PATIENCE
            if time.monotonic() > deadline:
                raise RuntimeError(f"waited {PATIENCE:.0f} s for {what}")
        return found

    def wait_for_line(self, process: Process) -> str:
        def next_line() -> str:
            if process.is_silent():
                raise RuntimeError(f"{process.name} has ended: {self.read_log(process.name)}")
            with contextlib.suppress(queue.Empty):
                return process.lines.get(timeout=REFRESH)
            return ""

        return str(self.wait_until(next_line, f"{process.name} to start"))

    def wait_for_step(self, step: int) -> None:
        self.wait_until(lambda: self.read_steps() >= step, f"step {step}")

    def wait_for_trainer(self) -> None:
        """Waits until the trainer has ended, and every step that it reported was read."""
        trainer = self._processes["trainer"]

        def has_ended() -> bool:
            silent = trainer.is_silent()
            self.read_steps()
            return silent

        self.wait_until(has_ended, "the trainer to end")

    def read_steps(self) -> int:
        """Reads what the trainer has reported, and returns its step."""
        trainer = self._processes["trainer"]
        if trainer.is_silent() and not self.checkpoint.exists():
            raise RuntimeError(f"the trainer has ended: {self.read_log('trainer')}")
        with contextlib.suppress(queue.Empty):
            while True:
                line = json.loads(trainer.lines.get_nowait())
                if "step" in line:
                    self.step, self.loss = line["step"], line["loss"]
                    self.seen += line["rows"]
        return self.step

    def read_log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")[-2000:]

    # The story

    def tell(self, text: str) -> None:
        self.story.append(f"{time.monotonic() - self._started:5.1f} s  {text}")
        if not self.console.is_terminal:
            self.console.print(Text(self.story[-1]), soft_wrap=True)

    def kill_worker(self) -> None:
        self._processes["worker 2"].kill()
        self.tell("kill -9 of worker 2; other workers compute what it had begun")
        self.start_worker(self._count + 1)
        self.tell(f"worker {self._count + 1} joins")

    def restart_dispatcher(self) -> None:
        self._processes["dispatcher"].kill()
        self.tell("kill -9 of the dispatcher; the trainer continues with what it has leased")
        self.start_dispatcher()
        self.tell("the dispatcher is back, from its journal")

    def restart_trainer(self) -> None:
        self._processes["trainer"].stop()
        self.wait_for_trainer()
        size = self.checkpoint.stat().st_size
        self.tell(f"the trainer was stopped after step {self.step}; checkpoint: {size:,} bytes")
        self.start_trainer()
        self.tell("the trainer resumes from its checkpoint")

    def run(self) -> None:
        self.start_dispatcher()
        for number in range(1, self._count + 1):
            self.start_worker(number)
        self.start_trainer()
        self.wait_for_step(1)
        self.tell(f"{self._count} workers, two replicas: the first of {self.steps} steps is done")
        for share, happen in (
            (0.2, self.kill_worker),
            (0.45, self.restart_dispatcher),
            (0.7, self.restart_trainer),
        ):
            self.wait_for_step(int(share * self.steps))
            happen()
        self.wait_for_trainer()
        self.tell("the trainer has read all data")

    # The view

    @contextlib.contextmanager
    def show(self) -> Iterator[None]:
        """Shows the stage on a terminal, while it runs."""
        if not self.console.is_terminal:
            yield
            return
        with Live(console=self.console, screen=True, auto_refresh=False) as live:
            self._look = lambda: live.update(self.draw(), refresh=True)
            yield

    def draw(self) -> Group:
        self.read_status()
        bar = Table.grid(padding=(0, 2))
        progress = ProgressBar(total=self.steps, completed=self.step, width=40)
        bar.add_row("training", progress, f"step {self.step}/{self.steps}", f"loss {self.loss:.4f}")
        told = [Text(line, overflow="fold") for line in self.story]
        return Group(bar, Text(), *told, Text(), Rule(style="dim"), self.view.draw())

    def read_status(self) -> None:
        if not self.view.service:
            return
        try:
            self.view.add(status(self.view.service))
        except OpError as error:
            self.view.problem = error.message


def audit(stage: Stage, console: Console) -> bool:
    """Prints what became of every element; returns whether all is as it should be."""
    counts = Counter(stage.seen)
    lost = stage.rows - len(counts)
    twice = sum(count > 1 for count in counts.values())
    undisturbed = Trainer(stage.rows, None)
    undisturbed.run(lambda line: None, 0.0, stage.stopping)
    stage.check()
    saved = json.loads(stage.checkpoint.read_text(encoding="utf-8"))
    same = undisturbed.weights.numpy().tobytes() == np.array(saved["weights"], "f4").tobytes()
    table = Table(title="the audit", title_justify="left", box=None, show_header=False)
    for name, value in (
        ("elements expected", f"{stage.rows:,}"),
        ("elements delivered", f"{len(stage.seen):,}"),
        ("lost", str(lost)),
        ("twice", str(twice)),
        ("weights equal to the undisturbed run's, to the bit", "yes" if same else "NO"),
    ):
        table.add_row(name, value)
    console.print(table)
    return not lost and not twice and same


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=500, help="of training; default: %(default)s")
    parser.add_argument("--workers", type=int, default=3, help="at least 2; default: %(default)s")
    parser.add_argument(
        "--pace", type=float, default=0.05, help="seconds of a step; default: %(default)s"
    )
    given = parser.parse_args(arguments)
    if given.workers < 2 or given.steps < 10:
        parser.error("there must be at least 2 workers and 10 steps")
    return given


def main() -> int:
    given, console = parse(), Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        stage = Stage(given, Path(folder), console)
        # Not KeyboardInterrupt, which could come between the start of a process and its record.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: stage.stopping.set())
        try:
            with contextlib.closing(stage), stage.show():
                stage.run()
            if console.is_terminal:
                console.print(*map(Text, stage.story), sep="\n")
            return 0 if audit(stage, console) else 1
        except InterruptedByUserError:
            console.print("stopped; nothing is left")
            return 130
        except RuntimeError as error:
            console.print(f"the demo failed: {error}", markup=False)
            return 1


if __name__ == "__main__":
    sys.exit(main())
