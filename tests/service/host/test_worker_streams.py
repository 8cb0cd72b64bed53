"""States of streams on their way to another worker; tests/service/host/test_tasks.py has more."""

from typing import Any

import msgspec
import numpy as np
import pytest

from penstock.service.host.worker_streams import decode_state, encode_state
from penstock.service.protocol.data_messages import LARGE_STATE


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
    # A release that cannot decode users' values expects two parts, and ignores a state with three.
    assert len(msgspec.msgpack.decode(encoded)) == (2 if isinstance(held, int) else 3)


@pytest.mark.parametrize(
    "held",
    [np.zeros(LARGE_STATE, np.uint8), list(range(LARGE_STATE + 1)), "x" * LARGE_STATE],
)
def test_a_large_state_travels_only_if_it_may(held: Any) -> None:
    state = {"own": held, "inputs": []}
    assert encode_state(9, state) is None
    encoded = encode_state(9, state, most=1 << 20)
    assert encoded is not None
    np.testing.assert_equal(decode_state(encoded), (9, state))


def test_a_state_with_other_objects_stays() -> None:
    assert encode_state(9, {"own": object(), "inputs": []}, most=1 << 20) is None
