"""A service on a real Ray: all cases in one process, so that there is one cluster, and no JAX."""

import faulthandler
import os
import subprocess
import sys
from pathlib import Path

CASES = Path(__file__).with_name("ray_cases.py")


def test_cases_pass() -> None:
    faulthandler.cancel_dump_traceback_later()  # Each case has this limit, not all of them.
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(CASES)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert run.returncode == 0, run.stdout
    assert " passed" in run.stdout
