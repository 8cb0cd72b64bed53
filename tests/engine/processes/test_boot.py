"""A package that runs its own module only when an attribute of it is used."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.engine.processes import boot
from penstock.engine.processes.fork_server import ForkServer


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "lazy_package_of_a_test"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text("__version__ = '7'\nfrom . import inner\nother = 3\n")
    (folder / "inner.py").write_text("value = 5\n")
    boot.load_lazily(name, str(folder))
    yield name
    for module in [module for module in sys.modules if module.startswith(name)]:
        del sys.modules[module]


def test_a_module_inside_is_imported_without_the_package(package: str) -> None:
    inner = importlib.import_module(f"{package}.inner")
    assert inner.value == 5
    assert "other" not in vars(sys.modules[package])


@pytest.mark.parametrize(("name", "value"), [("other", 3), ("__version__", "7")])
def test_the_package_runs_when_it_is_used(package: str, name: str, value: object) -> None:
    assert getattr(importlib.import_module(package), name) == value
    assert importlib.import_module(package).inner.value == 5


def test_what_is_missing_is_still_an_error(package: str) -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = importlib.import_module(package).no_such_name


@pytest.mark.parametrize("name", [boot.CALLS, boot.WORKERS])
def test_fork_servers_run_without_the_rest_of_the_package(name: str) -> None:
    ours, theirs = ForkServer.socketpair()
    with ours, theirs:
        ours.close()  # So the fork server ends when it has imported everything.
        probe = "import os, sys; os._exit = lambda _: print('penstock.shim' in sys.modules);"
        arguments = [str(theirs.fileno()), str(os.getpid())]
        done = subprocess.run(
            [sys.executable, "-c", probe + boot.program(name), *arguments],
            pass_fds=[theirs.fileno()],
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "False"
