"""The surroundings of a program, which its call processes share: folder, environment, modules.

The processes outlive the iteration that started them. Before another iteration uses them, they are
told what has changed in the program since then.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import Any, NamedTuple


def _find_folder() -> str:
    """The working directory; empty if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return ""


_FIRST_FOLDER = _find_folder()
"""The working directory when penstock was imported."""

_MAIN = ("__main__", "__mp_main__")
"""Functions of the main program are sent whole, so no process loads it."""


def find_search_path() -> list[str]:
    """Where another program finds the modules of this one.

    Python resolves relative entries once. So each of them is followed by the same entry in the
    working directory of the import, in case that has changed.
    """
    return [place for entry in sys.path for place in _resolve(entry)]


def _resolve(entry: str) -> tuple[str, ...]:
    if os.path.isabs(entry) or not _FIRST_FOLDER:
        return (entry,)
    return entry, os.path.join(_FIRST_FOLDER, entry)


class Surroundings(NamedTuple):
    """What a program looks like from inside a function of the user."""

    folder: str
    variables: dict[str, str]
    search_path: list[str]
    specs: dict[str, Any]
    """The `__spec__` of each module; a module that is loaded again has another one."""


class Change(NamedTuple):
    """How the surroundings differ from those that a process has; a variable may be None: deleted."""

    folder: str
    variables: dict[str, str | None]
    search_path: list[str]
    reloaded: tuple[str, ...]


def observe() -> Surroundings:
    """The present surroundings."""
    modules = list(sys.modules.items())
    specs = {name: getattr(module, "__dict__", {}).get("__spec__") for name, module in modules}
    return Surroundings(_find_folder(), dict(os.environ), find_search_path(), specs)


def find_change(before: Surroundings, now: Surroundings) -> Change | None:
    """What is different now; None if nothing is.

    Modules that were not loaded before are no difference: a process loads them when it needs them.
    """
    known = before.specs
    reloaded = tuple(
        name
        for name, spec in now.specs.items()
        if known.get(name, spec) is not spec and name not in _MAIN
    )
    if not reloaded and before[:3] == now[:3]:
        return None
    names = before.variables.keys() | now.variables.keys()
    variables = {
        name: now.variables.get(name)
        for name in names
        if before.variables.get(name) != now.variables.get(name)
    }
    return Change(now.folder, variables, now.search_path, reloaded)


def follow(change: Change) -> None:
    """Makes the surroundings of this process those of its program."""
    with contextlib.suppress(OSError):  # It was deleted, or this process must not enter it.
        os.chdir(change.folder)
    for name, value in change.variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    sys.path[:] = change.search_path
    for name in change.reloaded:
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
