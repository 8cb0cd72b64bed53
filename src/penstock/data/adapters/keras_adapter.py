"""Datasets for Keras 3: the argument `x` of `Model.fit`, `evaluate` and `predict`.

Keras opens an iterator per epoch, and some that it never uses: so nothing is computed before the
first batch is requested. Importing Keras fixes its backend, so it is imported as late as possible.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from collections import deque
from collections.abc import Callable
from collections.abc import Iterator as PythonIterator
from typing import Any

from penstock.data import element_specs
from penstock.data.adapters import load, missing_framework
from penstock.data.arguments import describe, integer
from penstock.data.dataset import Dataset
from penstock.data.delivered import Check, DeliveredIterator
from penstock.data.iterator import Bookmark
from penstock.delivery.moving import ColumnDelivery, own_rows
from penstock.element import nest
from penstock.element.chunk import Chunk
from penstock.element.dtypes import string
from penstock.element.spec import RaggedTensorSpec, TensorSpec
from penstock.element.values import spec_of
from penstock.engine.profiles import Profile
from penstock.engine.tracebacks import show_frames_of_cause
from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    OpError,
    UnimplementedError,
)
from penstock.plan.nodes import INFINITE, UNKNOWN, known_spec

WHERE = "Dataset.as_keras"

_INSPECTED = 2
"""How many batches Keras may take to inspect, before it drops its iterator."""

_LOOK_AHEAD = 2
"""By how many batches Keras may read ahead of the model."""

Bookmarked = tuple[Any, Bookmark]
"""A batch, and the place after it."""

Deliver = Callable[[Dataset], DeliveredIterator]
"""Begins an iteration over a dataset whose batches arrive where Keras uses them."""


def adapt(dataset: Dataset, steps_per_epoch: int | None) -> KerasBatches:
    """Implements `Dataset.as_keras`."""
    plan = dataset.__plan__
    spec = known_spec(plan)
    if spec is not None:
        _check_spec(spec)
    if steps_per_epoch is not None:
        steps_per_epoch = integer(WHERE, "steps_per_epoch", steps_per_epoch, at_least=1)
    elif plan.cardinality == INFINITE:
        raise InvalidArgumentError(
            f"{WHERE}: the dataset is infinite; say how many batches make an epoch, "
            "as_keras(steps_per_epoch=...), or end it with take"
        )
    if plan.cardinality == 0:
        raise _empty()
    adapted: KerasBatches = _adapter()(dataset, steps_per_epoch)
    return adapted


def _check_spec(spec: Any) -> None:
    if isinstance(spec, tuple) and not 1 <= len(spec) <= 3:
        raise InvalidArgumentError(
            f"{WHERE}: an element has {len(spec)} components; map it to x, (x, y) or "
            "(x, y, sample_weight)"
        )
    element_specs.leading_dimension(WHERE, spec)
    for leaf in nest.flatten(spec)[0]:
        if isinstance(leaf, RaggedTensorSpec):
            raise InvalidTypeError(f"{WHERE}: a component is ragged, {leaf}; use padded_batch")
        if isinstance(leaf, TensorSpec) and leaf.dtype == string:
            raise InvalidTypeError(
                f"{WHERE}: a component holds strings, {leaf}; map them to numbers"
            )


@functools.cache
def _adapter() -> Any:
    """`KerasBatches` as a subclass of Keras' `DataAdapter`."""
    if _backend() == "tensorflow":
        raise FailedPreconditionError(
            f"{WHERE}: Keras is set to its tensorflow backend; set the environment variable "
            "KERAS_BACKEND to jax or torch before keras is imported"
        )
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter

    return type("KerasDataset", (KerasBatches, DataAdapter), {})


def _backend() -> str:
    try:
        import keras
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "tensorflow":
            raise missing_framework(WHERE, "keras", error) from error
        return "tensorflow"
    name: str = keras.config.backend()
    return name


class KerasBatches:
    """A dataset for `Model.fit(x=...)`: one pass per epoch, or `steps_per_epoch` batches."""

    def __init__(self, dataset: Dataset, steps_per_epoch: int | None) -> None:
        self._dataset = dataset
        self._steps = steps_per_epoch
        self._going: DeliveredIterator | None = None
        self._seen: list[Bookmarked] = []
        self._given = 0
        self._complete = True
        self._first: int | None = None
        self._latest: DeliveredIterator | None = None
        self._bookmarks: deque[Bookmark] = deque(maxlen=_LOOK_AHEAD + 1)
        """The places after the last batches that Keras got."""
        self._loaded: dict[str, Any] | None = None
        """The state of the epoch that begins next, until Keras trains in it."""
        self._before = 0
        """How many batches of the current epoch came before the state that was loaded."""
        self._silence: warnings.catch_warnings[None] | None = None

    def state_dict(self, batch: int) -> dict[str, Any]:
        """The position after a batch of the current epoch, as plain values for JSON.

        Args:
            batch: The number that Keras passes to `Callback.on_train_batch_end`. Keras may have
                read further ahead than the model was trained.
        """
        call = "KerasBatches.state_dict"
        behind = self._given - integer(call, "batch", batch, at_least=0) - 1
        if not 0 <= behind < len(self._bookmarks) or self._latest is None:
            raise InvalidArgumentError(
                f"{call}: batch {batch} is not one of the last that Keras got; call it in "
                "on_train_batch_end, with its batch"
            )
        input_state = self._latest._describe(self._bookmarks[-1 - behind])
        return {"input": input_state, "batches": self._before + batch + 1}

    def load_state_dict(self, state: Any) -> None:
        """Makes the next epoch of `fit` the rest of the epoch that `state` was saved in."""
        if not isinstance(state, dict) or not {"input", "batches"} <= state.keys():
            raise InvalidArgumentError(
                "KerasBatches.load_state_dict: needs what KerasBatches.state_dict returned, got "
                f"{describe(state)}"
            )
        dataset = self._dataset if self._steps is None else self._dataset.repeat()
        _resume(_on_host, dataset, state["input"])  # Raises if the state does not fit.
        self._loaded, self._before = state["input"], state["batches"] % (self._steps or 1)
        self._going, self._seen = None, []

    @property
    def position(self) -> int | None:
        """How many batches of the latest epoch came before the next one.

        With `steps_per_epoch`, all epochs are one iteration.
        """
        return 0 if self._latest is None else self._latest.position

    def profile(self) -> Profile:
        """The time and the elements of each operator in the latest epoch; see `Iterator.profile`.

        With `steps_per_epoch`, all epochs are one iteration.
        """
        return Profile((), 0.0) if self._latest is None else self._latest.profile()

    # What Keras calls

    @property
    def num_batches(self) -> int | None:
        count: int = self._dataset.__plan__.cardinality
        return self._steps or (None if count == UNKNOWN else count)

    batch_size = has_partial_batch = partial_batch_size = None

    def get_numpy_iterator(self) -> PythonIterator[Any]:
        return self._epoch(_on_host)

    def get_jax_iterator(self) -> PythonIterator[Any]:
        import keras

        # A distribution of Keras splits arrays of the host between its devices by itself.
        is_split = keras.distribution.distribution() is not None
        return self._epoch(_on_host if is_split else _on_jax_device)

    def get_torch_dataloader(self) -> PythonIterator[Any]:
        return map(_convert_types, self._epoch(_on_torch_device))

    def get_tf_dataset(self) -> Any:
        raise UnimplementedError(f"{WHERE}: there is no form for Keras' tensorflow backend")

    def on_epoch_begin(self) -> None:
        pass

    def on_epoch_end(self) -> None:
        """Warns if Keras cut an epoch of unknown length where the first epoch had ended."""
        if self._silence is not None:
            self._silence.__exit__(None, None, None)
            self._silence = None
        if not self._complete and self._first is not None and self._given > self._first:
            self._complete = True
            warnings.warn(
                f"{WHERE}: Keras ended an epoch after {self._given} batches though there were "
                f"more, as the first epoch had {self._first}; say how many there are in each, "
                "as_keras(steps_per_epoch=...)",
                stacklevel=2,
            )

    # Epochs

    def _epoch(self, deliver: Deliver) -> PythonIterator[Any]:
        batches = self._pass(deliver) if self._steps is None else self._next(deliver, self._steps)
        is_resumed = self._loaded is not None
        self._given, self._complete = 0, False
        self._bookmarks.clear()
        try:
            for batch, bookmark in batches:
                self._given += 1
                self._bookmarks.append(bookmark)
                if self._given > _INSPECTED:
                    self._loaded = None
                yield batch
        except OpError as error:
            raise show_frames_of_cause(error) from error.__cause__  # Keras drops the cause.
        if not self._given:
            raise _empty()
        self._loaded, self._before, self._complete = None, 0, True
        if self.num_batches is None:
            self._first = self._first or self._given
        elif is_resumed and self._given < self.num_batches:
            self._silence_short_epoch()

    def _silence_short_epoch(self) -> None:
        """Keeps Keras from a warning that the input ran out, until `on_epoch_end`."""
        self._silence = warnings.catch_warnings()
        self._silence.__enter__()
        warnings.filterwarnings("ignore", "Your input ran out of data")

    def _pass(self, deliver: Deliver) -> PythonIterator[Bookmarked]:
        """The batches of one iteration, or of the rest of the one whose state was loaded."""
        is_empty = True
        for bookmarked in self._read(self._open_pass(deliver)):
            is_empty = False
            yield bookmarked
        if is_empty and self._loaded is not None:
            yield from self._read(self._open_next_pass(deliver))

    def _open_pass(self, deliver: Deliver) -> DeliveredIterator:
        if self._loaded is None:
            return deliver(self._dataset)
        batches = _resume(deliver, self._dataset, self._loaded)
        return self._open_next_pass(deliver) if batches._is_at_end else batches

    def _open_next_pass(self, deliver: Deliver) -> DeliveredIterator:
        """Begins an iteration after the one whose state was loaded, which had ended."""
        batches = deliver(self._dataset)
        self._loaded = batches.state_dict()
        return batches

    def _read(self, batches: DeliveredIterator) -> PythonIterator[Bookmarked]:
        with contextlib.closing(batches):
            self._latest = batches
            for batch in batches:
                bookmark = batches._bookmark()
                if batches._is_at_end:
                    # Keras requests no more, but a cache is complete only after StopIteration.
                    next(batches, None)
                yield batch, bookmark

    def _next(self, deliver: Deliver, count: int) -> PythonIterator[Bookmarked]:
        """The next batches of one iteration that spans all epochs.

        Keras may take one or two batches to inspect, drop its iterator and train with another one:
        these batches are yielded again.
        """
        if self._going is None:
            self._going = self._latest = deliver(self._dataset.repeat())
            if self._loaded is not None:
                self._going.load_state_dict(self._loaded)
        count -= self._before
        going = self._going
        batches = itertools.chain(self._seen, ((batch, going._bookmark()) for batch in going))
        self._seen = []
        for number, bookmarked in enumerate(itertools.islice(batches, count), 1):
            self._seen = [*self._seen, bookmarked] if number <= min(_INSPECTED, count - 1) else []
            yield bookmarked


def _resume(deliver: Deliver, dataset: Dataset, state: dict[str, Any]) -> DeliveredIterator:
    """Continues an iteration of a dataset; the next one gets the next number.

    Keras may drop what this returns and call for it again, so that it must not take a number.
    """
    batches = deliver(Dataset(dataset.__plan__))
    batches.load_state_dict(state)
    dataset._iterations.resume(state["iteration"])
    return batches


def _on_host(dataset: Dataset) -> DeliveredIterator:
    """Iterates over the batches as arrays that share no memory."""
    open_delivery = functools.partial(ColumnDelivery, [None], None, own_rows)
    return dataset._deliver(open_delivery, 0, _choose_check(dataset))


def _on_jax_device(dataset: Dataset) -> DeliveredIterator:
    """Iterates over the batches as arrays on JAX's default device."""
    adapter = load(WHERE, "jax")
    made: DeliveredIterator = adapter.deliver_to_default(dataset, _choose_check(dataset))
    return made


def _on_torch_device(dataset: Dataset) -> DeliveredIterator:
    """Iterates over the batches as tensors on the device that Keras uses."""
    import keras

    device = keras.ops.convert_to_tensor(0).device
    adapter = load(WHERE, "torch")
    made: DeliveredIterator = adapter.deliver_to_device(dataset, device, _choose_check(dataset))
    return made


def _convert_types(batch: Any) -> Any:
    """The batch with types that Keras uses on torch: it has no unsigned ones but uint8."""
    import keras
    import torch

    def convert(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return keras.ops.convert_to_tensor(leaf, dtype=str(leaf.dtype).removeprefix("torch."))

    return nest.map_structure(convert, batch)


def _choose_check(dataset: Dataset) -> Check:
    """Checks the first batch, unless the spec of all batches was checked before."""
    is_checked = known_spec(dataset.__plan__) is not None

    def check(chunk: Chunk) -> None:
        nonlocal is_checked
        if not is_checked:
            _check_spec(spec_of(chunk.rows(0, 1).elements()[0]))
            is_checked = True

    return check


def _empty() -> InvalidArgumentError:
    return InvalidArgumentError(f"{WHERE}: the dataset has no batches")
