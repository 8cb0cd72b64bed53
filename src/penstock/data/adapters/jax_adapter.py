"""Datasets as JAX arrays on its devices; a sharding may split their leading axis.

Transfers run in the background. JAX on the CPU uses NumPy's memory without a copy, and other
devices read it after the call has returned: so arrays must be owned before they are passed to JAX.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import Sharding

from penstock.data import element_specs
from penstock.data.adapters.adapted import AdaptedIterator
from penstock.data.adapters.leaves import Array, convert, own_array
from penstock.data.arguments import describe
from penstock.data.dataset import Dataset
from penstock.engine.specs import known_spec
from penstock.errors import InvalidArgumentError, InvalidTypeError

WHERE = "Dataset.as_jax"


def adapt(dataset: Dataset, sharding: Any) -> AdaptedIterator:
    """Implements `Dataset.as_jax`."""
    if not isinstance(sharding, Sharding | jax.Device | None):
        raise InvalidTypeError(
            f"{WHERE}: sharding must be a jax.sharding.Sharding or a jax.Device, "
            f"got {describe(sharding)}"
        )
    element_specs.check_numpy(WHERE, known_spec(dataset.__plan__))
    return AdaptedIterator(iter(dataset), JaxTransfer(sharding))


class JaxTransfer:
    """Passes arrays to JAX, which copies them in the background."""

    ahead = 2

    def __init__(self, sharding: Sharding | jax.Device | None) -> None:
        self._sharding = sharding

    def send(self, element: Any) -> Any:
        return convert(WHERE, element, self._place_array)

    def _place_array(self, array: Array, alone: bool) -> jax.Array:
        local = own_array(array, alone)
        if isinstance(self._sharding, Sharding):
            return _split(local, self._sharding)
        whole: jax.Array = jax.device_put(local, self._sharding)
        return whole

    def receive(self, sent: Any) -> Any:
        return sent


def _split(local: Array, sharding: Sharding) -> jax.Array:
    """Makes the global array; every process contributes its own rows."""
    try:
        make: Any = jax.make_array_from_process_local_data
        result: jax.Array = make(sharding, local)
    except (ValueError, AssertionError) as error:  # AssertionError: the array has too few axes.
        raise InvalidArgumentError(
            f"{WHERE}: an array of shape {local.shape} cannot be split as {sharding} says; make "
            "batches that all devices get an equal part of, batch(..., drop_remainder=True), or "
            "let a strategy fill up the last one, InputOptions(last_batch='pad')"
        ) from error
    return result
