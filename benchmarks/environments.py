"""One virtual environment for each peer, under `.bench/`: made when missing, else left alone.

A stamp inside the environment says what was installed; it is written last, so an interrupted
installation is taken up again, and a changed requirement is installed on the next run.
"""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import child

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".bench"
LOGS = HOME / "logs"


@dataclass(frozen=True)
class Environment:
    """What is installed where; an editable one follows this project's own pyproject.toml."""

    name: str
    requirements: tuple[str, ...]
    editable: bool = False

    @property
    def python(self) -> Path:
        return HOME / self.name / "bin" / "python"

    @property
    def stamp(self) -> Path:
        return HOME / self.name / "installed"

    def describe_requirements(self) -> str:
        text = "\n".join((sys.version, *self.requirements))
        if self.editable and (project := ROOT / "pyproject.toml").exists():
            text += "\n" + hashlib.sha256(project.read_bytes()).hexdigest()
        return text


@dataclass(frozen=True)
class Peer:
    """A program file under `peers/`, the environment it runs in and the name it is reported by."""

    name: str
    label: str
    environment: Environment

    @property
    def module(self) -> str:
        return f"benchmarks.peers.{self.name}"


PENSTOCK = Environment("penstock", ("-e", str(ROOT), "pillow"), editable=True)
TENSORFLOW = Environment("tensorflow", ("tensorflow-cpu", "pillow"))
TORCH = Environment("torch", ("torch==2.13.0", "numpy", "pillow"))
PEERS = {
    peer.name: peer
    for peer in (
        Peer("penstock", "penstock", PENSTOCK),
        Peer("tfdata", "tf.data", TENSORFLOW),
        Peer("tf_distribute", "tf.distribute", TENSORFLOW),
        Peer("tf_service", "tf.data service", TENSORFLOW),
        Peer("grain", "Grain", Environment("grain", ("grain", "numpy", "pillow"))),
        Peer("torch_loader", "DataLoader", TORCH),
        Peer("ray_data", "Ray Data", Environment("ray", ("ray[data]", "numpy", "pillow"))),
        Peer("bare", "bare NumPy", PENSTOCK),
    )
}


def install(environment: Environment) -> str | None:
    """Completes the environment; returns the reason if that failed, or None."""
    wanted = environment.describe_requirements()
    if environment.stamp.exists() and environment.stamp.read_text() == wanted:
        return None
    LOGS.mkdir(parents=True, exist_ok=True)
    if not environment.python.exists():
        print(f"making .bench/{environment.name}", flush=True)
        make = [sys.executable, "-m", "venv", str(HOME / environment.name)]
        if problem := _run_with_log(make, f"{environment.name}-venv"):
            return problem
    print(f"installing {_words(environment)} into .bench/{environment.name}", flush=True)
    pip = [str(environment.python), "-m", "pip", "install", *environment.requirements]
    if problem := _run_with_log(pip, f"{environment.name}-install"):
        return problem
    environment.stamp.write_text(wanted)
    return None


def child_variables() -> dict[str, str]:
    """The launcher's environment variables, and variables that make the peers print less.

    Compiled modules are kept, as after every installation of a package.
    """
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": ""}
    return os.environ | quiet


def last_words(log: Path) -> str:
    """The line of a log that most likely says what went wrong."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["it said nothing"])[-1]


def _words(environment: Environment) -> str:
    return "penstock (editable)" if environment.editable else ", ".join(environment.requirements)


def _run_with_log(command: list[str], name: str) -> str | None:
    log = LOGS / f"{name}.log"
    with log.open("wb") as sink, child(command, stdout=sink, stderr=sink) as process:
        code = process.wait()
    return f"{last_words(log)} (all of it: {log.relative_to(ROOT)})" if code else None
