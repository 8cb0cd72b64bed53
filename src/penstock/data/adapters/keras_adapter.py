"""Datasets for Keras 3: the argument `x` of `Model.fit`, `evaluate` and `predict`.

Keras opens an iterator per epoch, and some that it never uses: so nothing is computed before the
first batch is requested. Importing Keras fixes its backend, so it is imported as late as possible.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from collections.abc import Iterator as PythonIterator
from typing import Any

from penstock.data import element_specs
from penstock.data.adapters import missing_framework
from penstock.data.adapters.leaves import Make, convert, own_array
from penstock.data.arguments import integer
from penstock.data.dataset import Dataset
from penstock.data.iterator import Iterator
from penstock.element import nest
from penstock.element.dtypes import string
from penstock.element.spec import RaggedTensorSpec, TensorSpec
from penstock.element.values import spec_of
from penstock.engine.specs import known_spec
from penstock.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    UnimplementedError,
)
from penstock.plan.nodes import INFINITE, UNKNOWN

WHERE = "Dataset.as_keras"


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
        self._going: Iterator | None = None
        self._seen: list[Any] = []
        self._given = 0
        self._complete = True
        self._first: int | None = None

    # What Keras calls

    @property
    def num_batches(self) -> int | None:
        count: int = self._dataset.__plan__.cardinality
        return self._steps or (None if count == UNKNOWN else count)

    @property
    def batch_size(self) -> int | None:
        return None

    @property
    def has_partial_batch(self) -> bool | None:
        return None

    @property
    def partial_batch_size(self) -> int | None:
        return None

    def get_numpy_iterator(self) -> PythonIterator[Any]:
        return self._epoch(own_array)

    def get_jax_iterator(self) -> PythonIterator[Any]:
        return self._epoch(own_array)

    def get_torch_dataloader(self) -> PythonIterator[Any]:
        import keras

        # Always a copy, on the device that Keras uses.
        return self._epoch(lambda array, alone: keras.ops.convert_to_tensor(array))

    def get_tf_dataset(self) -> Any:
        raise UnimplementedError(f"{WHERE}: there is no form for Keras' tensorflow backend")

    def on_epoch_begin(self) -> None:
        pass

    def on_epoch_end(self) -> None:
        """Warns if Keras cut an epoch of unknown length where the first epoch had ended."""
        if not self._complete and self._first is not None and self._given > self._first:
            self._complete = True
            warnings.warn(
                f"{WHERE}: Keras ended an epoch after {self._given} batches though there were "
                f"more, as the first epoch had {self._first}; say how many there are in each, "
                "as_keras(steps_per_epoch=...)",
                stacklevel=2,
            )

    # Epochs

    def _epoch(self, make: Make) -> PythonIterator[Any]:
        batches = self._pass() if self._steps is None else self._next(self._steps)
        checked = False
        for batch in batches:
            if not checked:
                _check_spec(spec_of(batch))
                checked = True
            yield convert(WHERE, batch, make)
        if not checked:
            raise _empty()

    def _pass(self) -> PythonIterator[Any]:
        self._given, self._complete = 0, False
        with contextlib.closing(iter(self._dataset)) as batches:
            for batch in batches:
                self._given += 1
                if self._given == self.num_batches:
                    # Keras requests no more, but a cache is complete only after StopIteration.
                    next(batches, None)
                yield batch
        self._complete = True
        if self._first is None:
            self._first = self._given

    def _next(self, count: int) -> PythonIterator[Any]:
        """The next batches of one iteration that spans all epochs.

        Keras may take one or two batches to inspect, drop its iterator and train with another one:
        these batches are yielded again.
        """
        if self._going is None:
            self._going = iter(self._dataset.repeat())
        batches = itertools.chain(self._seen, self._going)
        self._seen = []
        for number, batch in enumerate(itertools.islice(batches, count), 1):
            self._seen = [*self._seen, batch] if number <= min(2, count - 1) else []
            yield batch


def _empty() -> InvalidArgumentError:
    return InvalidArgumentError(f"{WHERE}: the dataset has no batches")
