"""Starts a fork server of call processes as a new program, with as few imports as possible.

The modules that call processes need are imported without the rest of the package, which takes
several times as long. The package loads itself when a function uses it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

NAME = "penstock_boot"
"""The name under which this file runs as a program."""

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def load_lazily(name: str, folder: str) -> None:
    """Makes a package importable whose own module runs when an attribute of it is first used."""
    place = os.path.join(folder, "__init__.py")
    spec = importlib.util.spec_from_file_location(name, place, submodule_search_locations=[folder])
    assert spec is not None
    assert spec.loader is not None
    package, loader = importlib.util.module_from_spec(spec), spec.loader

    def load(wanted: str) -> Any:
        if wanted.startswith("__"):
            raise AttributeError(wanted)
        del package.__dict__["__getattr__"]
        loader.exec_module(package)
        return getattr(package, wanted)

    package.__dict__["__getattr__"] = load
    sys.modules[name] = package


def start(requests: int, parent: int) -> None:
    load_lazily("penstock", _PACKAGE)
    server: ModuleType = importlib.import_module("penstock.engine.processes.call_process_main")
    importlib.import_module("cloudpickle")
    server.main(requests, parent)


if __name__ == NAME:
    start(int(sys.argv[1]), int(sys.argv[2]))
