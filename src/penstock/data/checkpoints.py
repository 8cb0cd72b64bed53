"""`Checkpoint` and `CheckpointManager`: positions of iterators and values of variables in files.

The files are penstock's own: one for each checkpoint, written under another name and then renamed,
and a file `checkpoint` that names the newest one. They hold plain values and no pickles.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.data.arguments import describe
from penstock.data.iterator import Iterator
from penstock.element.chunk import Chunk
from penstock.element.values import short_repr
from penstock.engine.formats import saved as saved_files
from penstock.engine.formats.files import read_small, write_file
from penstock.engine.formats.remote_files import connect
from penstock.engine.formats.saved import RunProgress, RunWriter, commit_save
from penstock.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    NotFoundError,
)
from penstock.plan.typed import ValueDecoder, ValueEncoder

_ENDING = ".penstock"
_LATEST = "checkpoint"


def _path(value: Any) -> str:
    return os.fsdecode(value.numpy() if hasattr(value, "numpy") else value)


def _replace(path: str, content: bytes) -> None:
    """Writes a file, which appears when it is complete, and the folders on its path."""
    if "://" in path:
        write_file(path, content)
        return
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    unfinished = f"{path}.{os.getpid()}"
    with open(unfinished, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def _exists(path: str) -> bool:
    if "://" not in path:
        return os.path.exists(path)
    system, inside = connect(path)
    return bool(system.exists(inside))


def _remove(path: str) -> None:
    if "://" not in path:
        os.remove(path)
        return
    system, inside = connect(path)
    system.rm_file(inside)


def _is_variable(value: Any) -> bool:
    """Whether a value is a variable, of penstock's or of a framework's."""
    return hasattr(value, "assign") and hasattr(value, "numpy")


class Checkpoint:
    """Saves and restores iterators, variables and other checkpoints, by the names they are given.

    >>> import tempfile
    >>> from penstock import tf
    >>> iterator = iter(tf.data.Dataset.range(5))
    >>> checkpoint = Checkpoint(step=tf.Variable(0), iterator=iterator)
    >>> _ = next(iterator), next(iterator)
    >>> path = checkpoint.save(f"{tempfile.mkdtemp()}/ckpt")
    >>> _ = next(iterator)
    >>> status = checkpoint.restore(path)
    >>> int(next(iterator))
    2
    """

    def __init__(self, root: Any = None, **kwargs: Any) -> None:
        self._objects = dict(kwargs) if root is None else {"root": root, **kwargs}
        for name, value in self._objects.items():
            _check_kind(name, value)
        self._saves = 0

    def __getattr__(self, name: str) -> Any:
        objects = self.__dict__.get("_objects", {})
        if name not in objects:
            raise AttributeError(f"tf.train.Checkpoint has no object {name}")
        return objects[name]

    @property
    def save_counter(self) -> Any:
        """How often `save` was called."""
        return self._saves

    def save(self, file_prefix: Any, options: Any = None) -> str:
        """Writes a checkpoint with the next number, and returns its path."""
        self._saves += 1
        path = self._write(f"{_path(file_prefix)}-{self._saves}")
        _note_latest(path, [path])
        _call_back(options, path)
        return path

    def write(self, file_prefix: Any, options: Any = None) -> str:
        """Writes a checkpoint without a number, and returns its path."""
        path = self._write(_path(file_prefix))
        _call_back(options, path)
        return path

    def _write(self, path: str) -> str:
        content = ValueEncoder().pack({"saves": self._saves, "objects": self._state()})
        _replace(path + _ENDING, content)
        return path

    def restore(self, save_path: Any, options: Any = None) -> CheckpointStatus:
        """Gives every object the state that it had; None restores nothing."""
        if save_path is None:
            return CheckpointStatus(None, set(), set(self._objects))
        saved = _read(_path(save_path))
        self._saves = saved["saves"]
        return self._load(saved["objects"])

    read = restore

    def sync(self) -> None:
        """Returns at once: a checkpoint is on the disk when `save` or `write` returns."""

    def _state(self) -> dict[str, Any]:
        return {name: _state_of(value) for name, value in self._objects.items()}

    def _load(self, saved: dict[str, Any]) -> CheckpointStatus:
        for name, value in self._objects.items():
            if name in saved:
                _load_into(name, value, saved[name])
        names, given = set(saved), set(self._objects)
        return CheckpointStatus(names & given, names - given, given - names)


def _call_back(options: Any, path: str) -> None:
    """Calls the `experimental_write_callbacks` of `tf.train.CheckpointOptions`."""
    for callback in getattr(options, "experimental_write_callbacks", None) or ():
        if inspect.signature(callback).parameters:
            callback(path)
        else:
            callback()


class CheckpointStatus:
    """What a restored checkpoint did not use, and which objects it did not have.

    Args:
        used: The names of the restored objects; None if no path was given to `restore`.
        unused: The names in the checkpoint that no object has.
        missing: The names of objects that are not in the checkpoint.
    """

    def __init__(self, used: set[str] | None, unused: set[str], missing: set[str]) -> None:
        self._used, self._unused, self._missing = used, unused, missing

    def _check_path(self) -> None:
        if self._used is None:
            raise AssertionError("tf.train.Checkpoint: restore(None) has restored nothing")

    def assert_consumed(self) -> CheckpointStatus:
        """Raises AssertionError unless every object and every saved value has a partner."""
        self._check_path()
        if self._unused or self._missing:
            raise AssertionError(
                f"tf.train.Checkpoint: not used: {sorted(self._unused)}, "
                f"not saved: {sorted(self._missing)}"
            )
        return self

    def assert_existing_objects_matched(self) -> CheckpointStatus:
        """Raises AssertionError unless every object was saved."""
        self._check_path()
        if self._missing:
            raise AssertionError(f"tf.train.Checkpoint: not saved: {sorted(self._missing)}")
        return self

    def assert_nontrivial_match(self) -> CheckpointStatus:
        """Raises AssertionError unless at least one object was saved."""
        self._check_path()
        if not self._used:
            raise AssertionError(f"tf.train.Checkpoint: not saved: {sorted(self._missing)}")
        return self

    def expect_partial(self) -> CheckpointStatus:
        return self

    def run_restore_ops(self, session: Any = None) -> None:
        """Raises AssertionError if no path was given; `restore` itself has restored the objects."""
        self._check_path()

    def initialize_or_restore(self, session: Any = None) -> None:
        """Does nothing: the objects have their first values, or `restore` has restored them."""


def _check_kind(name: str, value: Any) -> None:
    has_state = hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
    is_known = _is_variable(value) or has_state or hasattr(value, "_checkpoint_parts")
    if not is_known and not isinstance(value, Checkpoint | dict | list):
        raise InvalidTypeError(
            f"tf.train.Checkpoint: {name} must be an iterator, a variable or an object with "
            f"state_dict and load_state_dict, got {short_repr(value)}"
        )


def _parts_of(value: Any) -> Any:
    """An object that consists of several, such as a `tf.Module`, as a dict of its parts."""
    return value._checkpoint_parts() if hasattr(value, "_checkpoint_parts") else value


def _state_of(value: Any) -> Any:
    value = _parts_of(value)
    if _is_variable(value):
        return {"variable": value.numpy()}
    if isinstance(value, Checkpoint):
        return {"checkpoint": value._state()}
    if isinstance(value, dict):
        return {"checkpoint": {str(key): _state_of(one) for key, one in value.items()}}
    if isinstance(value, list):
        return _state_of({str(number): one for number, one in enumerate(value)})
    return {"state": value.state_dict()}


def _load_into(name: str, value: Any, saved: Any) -> None:
    ((kind, state),) = saved.items()
    value = _parts_of(value)
    if isinstance(value, Checkpoint):
        value._load(state)
    elif isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, one in items:
            _load_into(f"{name}.{key}", one, state[str(key)])
    elif _is_variable(value) is not (kind == "variable"):
        raise InvalidArgumentError(f"tf.train.Checkpoint: {name} was saved as a {kind}")
    elif kind == "variable":
        value.assign(state)
    else:
        _load_state(name, value, state)


def _load_state(name: str, value: Any, state: Any) -> None:
    try:
        value.load_state_dict(state)
    except InvalidArgumentError as error:
        # TensorFlow says so if the checkpoint has no state for one of the dataset's operators.
        raise NotFoundError(f"tf.train.Checkpoint.restore: {name}: {error}") from None


def _read(path: str) -> Any:
    data = read_small(path + _ENDING, "tf.train.Checkpoint.restore")
    if data is None:
        raise NotFoundError(f"tf.train.Checkpoint.restore: there is no checkpoint {path}")
    try:
        decoder = ValueDecoder(data)
        return decoder.value(decoder.text)
    except (ValueError, TypeError, LookupError) as error:
        raise DataLossError(f"tf.train.Checkpoint.restore: {path} is damaged: {error}") from None


def list_variables(ckpt_dir_or_file: Any) -> list[tuple[str, list[int]]]:
    """The names and shapes of the variables in a checkpoint, or in the newest one of a folder."""
    path = _path(ckpt_dir_or_file)
    if os.path.isdir(path):
        found = latest_checkpoint(path)
        if found is None:
            raise NotFoundError(f"tf.train.list_variables: there is no checkpoint in {path}")
        path = found
    return sorted(_variables(_read(path)["objects"], ""))


def _variables(saved: dict[str, Any], prefix: str) -> list[tuple[str, list[int]]]:
    listed: list[tuple[str, list[int]]] = []
    for name, one in saved.items():
        ((kind, state),) = one.items()
        if kind == "variable":
            listed.append((f"{prefix}{name}/.ATTRIBUTES/VARIABLE_VALUE", list(np.shape(state))))
        elif kind == "checkpoint":
            listed += _variables(state, f"{prefix}{name}/")
    return listed


def _note_latest(path: str, all_paths: list[str]) -> None:
    """Writes the file that names the newest checkpoint of a folder."""
    content = {
        "latest": os.path.basename(path),
        "all": [os.path.basename(one) for one in all_paths],
    }
    _replace(os.path.join(os.path.dirname(path), _LATEST), json.dumps(content).encode())


def _read_latest(folder: str) -> dict[str, Any]:
    data = read_small(os.path.join(folder, _LATEST), "tf.train.latest_checkpoint")
    if data is None:
        return {"latest": None, "all": []}
    try:
        found: dict[str, Any] = json.loads(data)
        return found
    except ValueError:
        raise FailedPreconditionError(
            f"tf.train: {os.path.join(folder, _LATEST)!r} is not a file of penstock's; TensorFlow "
            "may have written it; choose another folder for checkpoints"
        ) from None


def latest_checkpoint(checkpoint_dir: Any, latest_filename: str | None = None) -> str | None:
    """The path of the newest checkpoint in a folder; None if there is none."""
    folder = _path(checkpoint_dir)
    name = _read_latest(folder)["latest"]
    path = None if name is None else os.path.join(folder, name)
    return path if path is not None and _exists(path + _ENDING) else None


class CheckpointManager:
    """Keeps the newest checkpoints of a folder, and deletes older ones.

    Args:
        checkpoint: What to save.
        directory: The folder.
        max_to_keep: How many checkpoints to keep; None for all.
        checkpoint_name: How the names of the files begin.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        directory: Any,
        max_to_keep: int | None,
        keep_checkpoint_every_n_hours: float | None = None,
        checkpoint_name: str = "ckpt",
        step_counter: Any = None,
        checkpoint_interval: int | None = None,
        init_fn: Any = None,
    ) -> None:
        if max_to_keep is not None and max_to_keep < 1:
            raise InvalidArgumentError(
                f"tf.train.CheckpointManager: max_to_keep must be at least 1, got {max_to_keep}"
            )
        self.checkpoint, self.directory = checkpoint, _path(directory)
        self._keep, self._name = max_to_keep, checkpoint_name
        self._hours = keep_checkpoint_every_n_hours
        self._step, self._interval, self._init = step_counter, checkpoint_interval, init_fn
        self._last_step: int | None = None
        self._last_kept = time.time()
        found = [os.path.join(self.directory, name) for name in _read_latest(self.directory)["all"]]
        self._paths = [path for path in found if _exists(path + _ENDING)]

    @property
    def checkpoints(self) -> list[str]:
        """The paths that are kept, the newest last."""
        return list(self._paths)

    @property
    def latest_checkpoint(self) -> str | None:
        return self._paths[-1] if self._paths else None

    @property
    def checkpoint_interval(self) -> int | None:
        return self._interval

    def save(
        self, checkpoint_number: Any = None, check_interval: bool = True, options: Any = None
    ) -> str | None:
        """Writes a checkpoint, and deletes the oldest ones if there are too many."""
        if check_interval and self._is_too_early():
            return None
        self.checkpoint._saves += 1  # Also if the number is given, as in TensorFlow.
        number = self.checkpoint._saves if checkpoint_number is None else int(checkpoint_number)
        path = self.checkpoint._write(os.path.join(self.directory, f"{self._name}-{number}"))
        self._paths = [one for one in self._paths if one != path] + [path]
        self._sweep()
        _note_latest(path, self._paths)
        _call_back(options, path)
        return path

    def _is_too_early(self) -> bool:
        if self._step is None or self._interval is None:
            return False
        step = int(self._step.numpy())
        if self._last_step is not None and step - self._last_step < self._interval:
            return True
        self._last_step = step
        return False

    def _sweep(self) -> None:
        while self._keep is not None and len(self._paths) > self._keep:
            oldest = self._paths.pop(0)
            if self._hours is not None and time.time() - self._last_kept >= self._hours * 3600:
                self._last_kept = time.time()
                continue
            _remove(oldest + _ENDING)

    def restore_or_initialize(self) -> str | None:
        """Restores the newest checkpoint, or calls `init_fn` if there is none."""
        if self.latest_checkpoint is not None:
            self.checkpoint.restore(self.latest_checkpoint)
            return self.latest_checkpoint
        if self._init is not None:
            self._init()
        return None


# Saves with checkpoints: `Dataset.save(checkpoint_args=)` continues where it was interrupted. A
# checkpoint holds the state of the iterator, and how many elements the files then had. A save that
# continues copies that many elements from the files of the interrupted one, and computes the rest.

_SAVE = "Dataset.save"

OpenRun = Callable[[RunProgress | None], RunWriter]
"""Begins to write; with the progress of an interrupted run, with the elements of that run."""


def check_save_arguments(path: str, arguments: Any) -> dict[str, Any]:
    """The arguments of the `CheckpointManager`."""
    if not isinstance(arguments, dict):
        raise InvalidTypeError(
            f"{_SAVE}: checkpoint_args must be a dict of the arguments of a CheckpointManager, "
            f"got {describe(arguments)}"
        )
    if "checkpoint" in arguments:
        raise InvalidArgumentError(
            f"{_SAVE}: checkpoint_args must not have the key 'checkpoint'; save makes it itself"
        )
    if "://" in path:
        raise InvalidArgumentError(
            f"{_SAVE}: checkpoint_args needs a folder of this machine, got {path!r}: unfinished "
            "files behind a URL cannot be read again; save without checkpoint_args"
        )
    return arguments


class _SaveProgress:
    """How far a save has come: the object whose state the checkpoints hold."""

    def __init__(self, iterator: Iterator) -> None:
        self._iterator = iterator
        self.before: RunProgress | None = None
        self.run: RunWriter | None = None

    def state_dict(self) -> dict[str, Any]:
        progress = None if self.run is None else self.run.save_progress()
        return {"written": progress, "iterator": self._iterator.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.before = state["written"]
        self._iterator.load_state_dict(state["iterator"])


def save_elements(
    path: str, iterator: Iterator, open_run: OpenRun, arguments: dict[str, Any]
) -> None:
    """Saves the elements of an iterator, with a checkpoint after each of them.

    With a `step_counter`, which counts the elements, a checkpoint is written only after every
    `checkpoint_interval` elements.
    """
    progress = _SaveProgress(iterator)
    checkpoint = Checkpoint(iterator=progress)
    manager = CheckpointManager(checkpoint, **arguments)
    checkpoint.restore(manager.latest_checkpoint)
    if progress.before is not None and _is_complete(path, progress.before):
        return
    run = progress.run = open_run(progress.before)
    try:
        with contextlib.closing(iterator) as elements:
            for element in elements:
                run.write(Chunk.of([element], _SAVE))
                if (counter := arguments.get("step_counter")) is not None:
                    counter.assign_add(1)
                if manager.save() is not None:
                    run.drop_continued()
        commit_save(run, path)
        run.drop_continued()
    finally:
        run.leave()


def _is_complete(path: str, progress: RunProgress) -> bool:
    found = saved_files.find(path, _SAVE)
    return found is not None and found.run == progress["run"]
