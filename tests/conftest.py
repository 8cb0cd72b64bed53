"""Settings of all tests: eight CPU devices for JAX, a token, the profiles of hypothesis.

No profile has a deadline: a slow machine must not fail a test. On a build server (CI is set) the
examples are the same every time; elsewhere each run tries new ones, and a failure prints how to
reproduce it.
"""

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# JAX reads it when it is first imported. Programs of tests run once: compiling them takes longest.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
)

# Programs of tests compute so little that threads for it only cost: each process starts them when
# it imports NumPy, and they wait for work in a loop at first, which takes 0.1 s of CPU time.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Tests use a token of their own, never that of the user. All processes of one run share it.
MAKES_STATE_HOME = "XDG_STATE_HOME" not in os.environ
if MAKES_STATE_HOME:
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="penstock-tests-")

# The same for the indexes of files.
os.environ["XDG_CACHE_HOME"] = os.path.join(os.environ["XDG_STATE_HOME"], "cache")

# And for what examples leave in temporary folders. Pytest keeps its own folders where they were.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
os.environ["TMPDIR"] = os.path.join(os.environ["XDG_STATE_HOME"], "tmp")
os.makedirs(os.environ["TMPDIR"], exist_ok=True)
tempfile.tempdir = None

# A shell starts background jobs with SIGINT ignored, and child processes inherit that. Tests that
# interrupt a child would wait without end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests start thousands of processes, which would all compile the same modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile(
    "explore", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", settings.get_profile("explore"), derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "explore")


# These programs record the answers of TensorFlow and other libraries, which tests do not install.
collect_ignore_glob = ["*/record_*.py", "tf/programs/[a-z]*.py"]

# While pytest collects tests, many objects are made and none is freed: the garbage collector would
# scan them again and again.
gc.disable()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Searches the tests for test functions only: their docstrings have no examples to run."""
    found = yield
    return [collector for collector in found if isinstance(collector, pytest.Module)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Starts the cases of Ray first: they take longest, and all other processes would wait."""
    items.sort(key=lambda item: item.path.name != "test_ray.py")


def pytest_collection_finish() -> None:
    """Exempts the million objects that are loaded by now from garbage collection."""
    freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Exempts also those of a framework that a test has imported."""
    if len(sys.modules) > MODULES[-1] + 100:
        freeze()


def freeze() -> None:
    gc.collect()
    gc.freeze()
    MODULES.append(len(sys.modules))


MODULES: list[int] = []  # How many there were each time.


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Enables garbage collection also in a process that distributes tests and collects none."""
    gc.enable()


def pytest_unconfigure() -> None:
    if MAKES_STATE_HOME:
        shutil.rmtree(os.environ["XDG_STATE_HOME"], ignore_errors=True)
