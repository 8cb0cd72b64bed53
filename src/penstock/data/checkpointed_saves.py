"""Saves with checkpoints: `Dataset.save(checkpoint_args=)` continues where it was interrupted.

A checkpoint holds the state of the iterator, and how many elements the files then had. A save that
continues copies so many elements from the files of the interrupted one, and computes the rest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from penstock.data.arguments import describe
from penstock.data.checkpoints import Checkpoint, CheckpointManager
from penstock.data.iterator import Iterator
from penstock.element.chunk import Chunk
from penstock.engine.formats import saved
from penstock.engine.formats.runs import Mark, RunWriter, commit_save
from penstock.errors import InvalidArgumentError, InvalidTypeError

_WHERE = "Dataset.save"

OpenRun = Callable[[Mark | None], RunWriter]
"""Begins to write; with the mark of an interrupted run, with the elements of that run."""


def check_arguments(path: str, arguments: Any) -> dict[str, Any]:
    """The arguments of the `CheckpointManager`."""
    if not isinstance(arguments, dict):
        raise InvalidTypeError(
            f"{_WHERE}: checkpoint_args must be a dict of the arguments of a CheckpointManager, "
            f"got {describe(arguments)}"
        )
    if "checkpoint" in arguments:
        raise InvalidArgumentError(
            f"{_WHERE}: checkpoint_args must not have the key 'checkpoint'; save makes it itself"
        )
    if "://" in path:
        raise InvalidArgumentError(
            f"{_WHERE}: checkpoint_args needs a folder of this machine, got {path!r}: unfinished "
            "files behind a URL cannot be read again; save without checkpoint_args"
        )
    return arguments


class _Progress:
    """How far a save has come: the object whose state the checkpoints hold."""

    def __init__(self, iterator: Iterator) -> None:
        self._iterator = iterator
        self.before: Mark | None = None
        self.run: RunWriter | None = None

    def state_dict(self) -> dict[str, Any]:
        mark = None if self.run is None else self.run.mark()
        return {"written": mark, "iterator": self._iterator.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.before = state["written"]
        self._iterator.load_state_dict(state["iterator"])


def save(path: str, iterator: Iterator, open_run: OpenRun, arguments: dict[str, Any]) -> None:
    """Saves the elements of an iterator, with a checkpoint after each of them.

    With a `step_counter`, which counts the elements, and a `checkpoint_interval`, a checkpoint is
    written only after so many elements.
    """
    progress = _Progress(iterator)
    checkpoint = Checkpoint(iterator=progress)
    manager = CheckpointManager(checkpoint, **arguments)
    checkpoint.restore(manager.latest_checkpoint)
    if progress.before is not None and _is_complete(path, progress.before):
        return
    run = progress.run = open_run(progress.before)
    try:
        with contextlib.closing(iterator) as elements:
            for element in elements:
                run.write(Chunk.of([element], _WHERE))
                if (counter := arguments.get("step_counter")) is not None:
                    counter.assign_add(1)
                if manager.save() is not None:
                    run.drop_continued()
        commit_save(run, path)
        run.drop_continued()
    finally:
        run.leave()


def _is_complete(path: str, mark: Mark) -> bool:
    found = saved.find(path, _WHERE)
    return found is not None and found.run == mark["run"]
