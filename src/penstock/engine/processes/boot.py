"""Starts call processes and local workers as new programs, with as few imports as possible.

The modules that they need are imported without the rest of the package, which takes several times
as long. The package loads itself when a function uses it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

CALLS, WORKERS = "penstock_calls", "penstock_workers"
"""The names under which this file runs: as a fork server of call processes, or of workers."""

_MAIN = {
    CALLS: "penstock.engine.processes.call_process_main",
    WORKERS: "penstock.cli.local_worker_main",
}

_NAMES_OF_PYTHON = {"__wrapped__", "__bases__", "__isabstractmethod__", "__set_name__"}
"""What Python looks for in a module, and does not use if it is missing."""

PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def load_lazily(name: str, folder: str) -> None:
    """Makes a package importable whose own module runs when an attribute of it is first used."""
    place = os.path.join(folder, "__init__.py")
    spec = importlib.util.spec_from_file_location(name, place, submodule_search_locations=[folder])
    assert spec is not None
    assert spec.loader is not None
    package, loader = importlib.util.module_from_spec(spec), spec.loader

    def load(wanted: str) -> Any:
        if wanted in _NAMES_OF_PYTHON:
            raise AttributeError(wanted)
        del package.__dict__["__getattr__"]
        loader.exec_module(package)
        return getattr(package, wanted)

    package.__dict__["__getattr__"] = load
    sys.modules[name] = package


def program(name: str) -> str:
    """The code that `python -c` runs to start this file under a name."""
    return f"import runpy; runpy.run_path({os.path.abspath(__file__)!r}, run_name={name!r})"


if __name__ in _MAIN:
    load_lazily("penstock", PACKAGE)
    server: ModuleType = importlib.import_module(_MAIN[__name__])
    importlib.import_module("cloudpickle")
    server.main(int(sys.argv[1]), int(sys.argv[2]))
