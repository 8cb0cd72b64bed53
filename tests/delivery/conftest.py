"""Fixtures for the tests of deliveries."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from penstock.delivery import jax_berths, jax_delivery, row_fetch
from penstock.delivery.jax_berths import Handle
from penstock.delivery.locked_memory import LockedArrays
from tests.delivery.simulated_cuda import Library


@pytest.fixture
def library(monkeypatch) -> Library:
    locked = LockedArrays()
    monkeypatch.setattr(row_fetch, "LOCKED", locked)
    monkeypatch.setattr(jax_berths, "LOCKED", locked)
    monkeypatch.setattr(row_fetch, "_WORTH_FETCHING", 16)
    return Library()


@pytest.fixture
def devices(monkeypatch) -> list[Any]:
    """Two devices of JAX with memory that the simulated driver can write to, and small berths."""
    monkeypatch.setattr(jax_delivery, "_LARGE", 64)
    return list(map(Handle, jax.devices("cpu")[:2]))
