"""Datasets as JAX arrays on its devices; a sharding may split their axes between them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax.sharding import Sharding

from penstock.data import element_specs
from penstock.data.arguments import describe
from penstock.data.dataset import Dataset
from penstock.data.delivered import Check, DeliveredIterator, refuse_datasets
from penstock.delivery import Delivery
from penstock.delivery.jax_berths import Handle
from penstock.delivery.jax_delivery import find_default_device, open_delivery
from penstock.delivery.jax_sharded import open_sharded
from penstock.errors import InvalidTypeError
from penstock.plan.nodes import known_spec

WHERE = "Dataset.as_jax"
_AHEAD = 2


def adapt(dataset: Dataset, sharding: Any) -> DeliveredIterator:
    """Implements `Dataset.as_jax`."""
    if not isinstance(sharding, Sharding | jax.Device | None):
        raise InvalidTypeError(
            f"{WHERE}: sharding must be a jax.sharding.Sharding or a jax.Device, "
            f"got {describe(sharding)}"
        )
    element_specs.check_numpy(WHERE, known_spec(dataset.__plan__))
    check = partial(refuse_datasets, WHERE)
    return dataset._deliver(_choose_delivery(sharding), _AHEAD, check)


def deliver_to_default(dataset: Dataset, check: Check) -> DeliveredIterator:
    """Iterates over a dataset on JAX's default device; works ahead unless that is the CPU."""
    ahead = 0 if find_default_device().platform == "cpu" else _AHEAD
    return dataset._deliver(_choose_delivery(None), ahead, check)


def _choose_delivery(sharding: Sharding | jax.Device | None) -> Callable[[], Delivery]:
    """Opens deliveries to what `sharding` names; to JAX's default device if it is None."""
    if isinstance(sharding, Sharding):
        return partial(open_sharded, WHERE, sharding, _AHEAD)
    if sharding is None:
        handle = Handle(find_default_device(), is_committed=False)
    else:
        handle = Handle(sharding)
    return partial(open_delivery, [handle], None, _AHEAD)
