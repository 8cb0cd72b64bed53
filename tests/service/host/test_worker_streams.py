"""States of streams on their way to another worker; tests/service/host/test_tasks.py has more."""

from typing import Any

import msgspec
import numpy as np
import pytest

from penstock.service.host.worker_streams import MOST_STATE, decode_state, encode_state


@pytest.mark.parametrize(
    "held",
    [
        7,
        [np.int64(3), np.int64(4)],
        {"a": np.arange(3.0), "b": np.bytes_(b"text")},
        (np.float32(1.5), (np.array([1, 2]),)),
    ],
)
def test_a_state_with_elements_travels(held: Any) -> None:
    state = {"own": [2, held], "inputs": [5]}
    encoded = encode_state(9, state)
    assert encoded is not None
    ordinal, found = decode_state(encoded)
    assert ordinal == 9
    np.testing.assert_equal(found, state)
    # A release that cannot decode users' values expects two parts, and passes over others.
    assert len(msgspec.msgpack.decode(encoded)) == (2 if isinstance(held, int) else 3)


@pytest.mark.parametrize(
    "held",
    [np.zeros(MOST_STATE, np.uint8), list(range(MOST_STATE + 1)), "x" * MOST_STATE, object()],
)
def test_a_large_state_or_one_of_other_objects_stays(held: Any) -> None:
    assert encode_state(9, {"own": held, "inputs": []}) is None
