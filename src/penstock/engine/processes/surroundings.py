"""The surroundings of a program, which its call processes share: folder, environment, modules.

The processes outlive the iteration that started them. Before another iteration uses them, they are
told what has changed in the program since then.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from penstock.engine.processes.boot import PACKAGE


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


class _Module(NamedTuple):
    """A module as the program has it, to see whether it was loaded again."""

    spec: Any
    """Its `__spec__`: `importlib.reload` makes another one."""
    stamp: tuple[int, int] | None
    """The time and the size of its file; None for a module of a library."""
    parts: list[int]
    """The ids of its values and codes: `%autoreload` changes functions in place."""


_FOLDERS = PACKAGE, os.path.dirname(os.__file__), os.path.dirname(np.__path__[0])
_LIBRARIES = tuple(os.path.join(folder, "") for folder in _FOLDERS)
"""The folders of penstock, Python and installed packages, which users do not edit."""


def _describe(module: Any, known: _Module | None) -> _Module:
    """The module now; `known` is returned if it is one of a library and was not loaded again."""
    spec = getattr(module, "__dict__", {}).get("__spec__")
    if known is not None and known.stamp is None and known.spec is spec:
        return known
    file = getattr(spec, "origin", None)
    if isinstance(file, str) and not file.startswith(_LIBRARIES):
        with contextlib.suppress(OSError):
            found = os.stat(file)
            return _Module(spec, (found.st_mtime_ns, found.st_size), _find_parts(vars(module)))
    return _Module(spec, None, [])


def _find_parts(names: Mapping[str, Any]) -> list[int]:
    parts = []
    for value in list(names.values()):
        members = list(vars(value).values()) if isinstance(value, type) else [value]
        parts += [id(getattr(member, "__code__", member)) for member in members]
    return parts


class Surroundings(NamedTuple):
    """What a program looks like from inside a function of the user."""

    folder: str
    variables: dict[str, str]
    search_path: list[str]
    modules: dict[str, _Module]


class Change(NamedTuple):
    """How surroundings differ from those before; the value of a deleted variable is None."""

    folder: str
    variables: dict[str, str | None]
    search_path: list[str]
    reloaded: tuple[str, ...]


def observe(before: Surroundings | None = None) -> Surroundings:
    """The present surroundings; those before make it faster."""
    known = {} if before is None else before.modules
    loaded = list(sys.modules.items())
    modules = {name: _describe(module, known.get(name)) for name, module in loaded}
    return Surroundings(_find_folder(), dict(os.environ), find_search_path(), modules)


def find_change(before: Surroundings, now: Surroundings) -> tuple[Surroundings, Change | None]:
    """What to compare with the next time, and what has changed, if anything has.

    Modules that were not loaded before are no change: a process loads them when it needs them.
    Neither is a file that was edited and not loaded again.
    """
    reloaded, modules = [], before.modules | now.modules
    for name, new in now.modules.items():
        old = before.modules.get(name, new)
        if old is new:
            continue
        changed_in_place = old.stamp != new.stamp and old.parts != new.parts
        if (old.spec is not new.spec or changed_in_place) and name not in _MAIN:
            reloaded.append(name)
        elif old.stamp != new.stamp:
            modules[name] = old
    latest = now._replace(modules=modules)
    if not reloaded and before[:3] == now[:3]:
        return latest, None
    names = before.variables.keys() | now.variables.keys()
    variables = {
        name: now.variables.get(name)
        for name in names
        if before.variables.get(name) != now.variables.get(name)
    }
    return latest, Change(now.folder, variables, now.search_path, tuple(reloaded))


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
