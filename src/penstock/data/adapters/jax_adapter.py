"""Datasets as JAX sees them: arrays on its devices, whose leading axis a sharding may split.

Transfers run while the caller goes on. A device of the CPU takes over NumPy's memory as it is, and
others read it later than they were told to, so nothing may be handed in that somebody else may
write to.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import Sharding

from penstock.data import element_specs
from penstock.data.adapters.adapted import AdaptedIterator
from penstock.data.adapters.leaves import Array, convert, owned
from penstock.data.arguments import typed
from penstock.data.dataset import Dataset
from penstock.engine.specs import known_spec
from penstock.errors import InvalidArgumentError, InvalidTypeError

WHERE = "Dataset.as_jax"


def adapt(dataset: Dataset, sharding: Any) -> AdaptedIterator:
    """What `Dataset.as_jax` gives."""
    if not isinstance(sharding, Sharding | jax.Device | None):
        raise InvalidTypeError(
            f"{WHERE}: sharding must be a jax.sharding.Sharding or a jax.Device, "
            f"got {typed(sharding)}"
        )
    element_specs.check_numpy(WHERE, known_spec(dataset.__plan__))
    return AdaptedIterator(iter(dataset), JaxTransfer(sharding))


class JaxTransfer:
    """Arrays handed to JAX, which moves them in the background."""

    ahead = 2

    def __init__(self, sharding: Sharding | jax.Device | None) -> None:
        self._sharding = sharding

    def send(self, element: Any) -> Any:
        return convert(WHERE, element, self._placed)

    def _placed(self, array: Array, alone: bool) -> jax.Array:
        local = owned(array, alone)
        if isinstance(self._sharding, Sharding):
            return _split(local, self._sharding)
        whole: jax.Array = jax.device_put(local, self._sharding)
        return whole

    def receive(self, sent: Any) -> Any:
        return sent


def _split(local: Array, sharding: Sharding) -> jax.Array:
    """The global array that every process gives its own rows of."""
    try:
        make: Any = jax.make_array_from_process_local_data
        result: jax.Array = make(sharding, local)
    except (ValueError, AssertionError) as error:  # The latter where it has too few axes.
        raise InvalidArgumentError(
            f"{WHERE}: an array of shape {local.shape} cannot be split as {sharding} says; make "
            "batches that all devices get an equal part of, batch(..., drop_remainder=True), or "
            "let a strategy fill up the last one, InputOptions(last_batch='pad')"
        ) from error
    return result
