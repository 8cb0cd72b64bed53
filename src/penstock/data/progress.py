"""`progress`: a bar for any loop over elements, with the right total and position after a resume.

tqdm or rich draws the bar; neither is imported before a bar is needed.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from operator import length_hint
from typing import Any, TypeVar

from penstock.data.arguments import integer
from penstock.errors import InvalidArgumentError

T = TypeVar("T")

Advance = Callable[[], object]
Bar = contextlib.AbstractContextManager[Advance]

_EVERY = 1.0
"""Seconds between two lines of plain text."""


def progress(
    data: Iterable[T],
    description: str = "",
    *,
    total: int | None = None,
    unit: str = "batch",
    display: str = "auto",
) -> Iterator[T]:
    """The elements of `data`, with a progress bar on stderr, or in a notebook.

    >>> import penstock
    >>> sum(int(x) for x in penstock.progress(penstock.Dataset.range(4), display="none"))
    6

    Args:
        data: A dataset, or an iterator, which may have loaded a state: its position counts. What
            `as_torch` and strategies make of a dataset works, too, and so does any iterable.
        description: Shown before the bar.
        total: How many elements there are in all; by default what `data` says about itself.
        unit: What an element is called.
        display: "tqdm", "rich", "text" or "none"; "auto": tqdm if it is installed, else rich.
    """
    if display not in _DISPLAYS:
        raise InvalidArgumentError(
            f"penstock.progress: display must be one of {', '.join(map(repr, _DISPLAYS))}, got "
            f"{display!r}"
        )
    if total is not None:
        total = integer("penstock.progress", "total", total, at_least=0)
    return _show(iter(data), data, _DISPLAYS[display], total, (description, unit))


def _show(
    iterator: Iterator[T],
    data: Iterable[T],
    open_bar: Callable[..., Bar],
    total: int | None,
    texts: tuple[str, str],
) -> Iterator[T]:
    done = getattr(iterator, "position", None) or 0
    if total is None:
        left = length_hint(iterator, -1)
        total = done + left if left >= 0 else _length_of(data)
    with open_bar(done, total, *texts) as advance:
        for element in iterator:
            yield element
            advance()


def _length_of(data: Any) -> int | None:
    try:
        return len(data)
    except TypeError:
        return None


def _open_best(done: int, total: int | None, description: str, unit: str) -> Bar:
    bars = {"tqdm": _open_tqdm, "rich": _open_rich}
    found = [bar for name, bar in bars.items() if _is_installed(name)]
    return [*found, _open_text][0](done, total, description, unit)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # It was made unavailable: sys.modules[name] is None.
        return False


@contextlib.contextmanager
def _open_tqdm(done: int, total: int | None, description: str, unit: str) -> Iterator[Advance]:
    tqdm = _load_tqdm()
    with tqdm(total=total, initial=done, desc=description or None, unit=f" {unit}") as bar:
        yield bar.update


def _load_tqdm() -> Any:
    """The bar of tqdm: in a notebook that of notebooks, if it can be shown there."""
    shell = sys.modules.get("IPython")
    in_notebook = shell is not None and hasattr(shell.get_ipython(), "kernel")
    if in_notebook and _is_installed("ipywidgets"):
        return importlib.import_module("tqdm.notebook").tqdm
    return importlib.import_module("tqdm").tqdm


@contextlib.contextmanager
def _open_rich(done: int, total: int | None, description: str, unit: str) -> Iterator[Advance]:
    bars: Any = importlib.import_module("rich.progress")
    console = importlib.import_module("rich.console").Console(stderr=True)
    columns = (
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TextColumn(unit, markup=False),
        bars.TimeElapsedColumn(),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=console) as shown:
        task = shown.add_task(description, total=total, completed=done)
        yield lambda: shown.advance(task)


@contextlib.contextmanager
def _open_text(done: int, total: int | None, description: str, unit: str) -> Iterator[Advance]:
    """Writes a line each second: `train: 120 of 500 (batch), 40.2 per second`."""
    first = done
    started = written = time.monotonic()
    before = f"{description}: " if description else ""
    of = "" if total is None else f" of {total}"

    def advance() -> None:
        nonlocal done
        done += 1
        if time.monotonic() - written >= _EVERY:
            write()

    def write() -> None:
        nonlocal written
        written = time.monotonic()
        rate = (done - first) / max(written - started, 1e-9)
        text = f"{before}{done}{of} ({unit}), {rate:.1f} per second"
        print(text, file=sys.stderr, flush=True)

    try:
        yield advance
    finally:
        write()


_DISPLAYS: dict[str, Callable[..., Bar]] = {
    "auto": _open_best,
    "tqdm": _open_tqdm,
    "rich": _open_rich,
    "text": _open_text,
    "none": lambda *_: contextlib.nullcontext(lambda: None),
}
