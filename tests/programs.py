"""Runs programs of the documentation and the examples, as their readers do."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Of torch, not of penstock: on a busy machine, the processes of a program may fail to connect.
LOST_CONNECTION = "Gloo connectFullMesh failed"


def run_program(words: list[str], folder: Path, **own: str) -> subprocess.CompletedProcess[str]:
    """Runs Python with these words, again if the processes of torch could not connect."""
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "KERAS_HOME": str(folder)} | own
    for _ in range(3):
        result = subprocess.run(
            [sys.executable, *words], cwd=folder, capture_output=True, text=True, env=environment
        )
        if LOST_CONNECTION not in result.stderr:
            break
    return result
