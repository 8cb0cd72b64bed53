"""Arrays between machines: clients send the parts that workers ask for, each part once."""

import hashlib
import os

import numpy as np
import pytest

from penstock.errors import InvalidArgumentError, NotFoundError, UnavailableError
from penstock.service.host.plan_store import (
    PART,
    ArrayStore,
    PlanStore,
    fetch_array,
    join_array_names,
    split_array_names,
)
from penstock.service.protocol import timing
from penstock.service.protocol.messages import GetArrayReply

NAME = "ab" * 16
DATA = np.random.default_rng(0).bytes(2 * PART + 100)


def digest_of(data):
    return hashlib.sha256(data).hexdigest()


class Clock:
    time = 0.0

    def __call__(self):
        return self.time


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(clock):
    made = ArrayStore(lambda name: name == NAME, clock)
    yield made
    made.close()


def put(store, offset):
    return store.put(NAME, len(DATA), offset, DATA[offset : offset + PART])


def test_parts_are_sent_in_the_order_in_which_workers_ask_for_them(store):
    assert store.put(NAME, len(DATA), 0, b"") == -1
    assert store.get(NAME, 2 * PART) == store.get(NAME, 0) == b""
    assert store.put(NAME, len(DATA), 0, b"") == 2 * PART
    assert put(store, 2 * PART) == 0
    assert store.get(NAME, 2 * PART) == DATA[2 * PART :]
    assert put(store, 0) == -1
    assert store.get(NAME, 0) == DATA[:PART]


def test_parts_behind_the_last_one_are_sent_too(store):
    store.get(NAME, 0)
    assert store.put(NAME, len(DATA), 0, b"") == 0
    assert put(store, 0) == PART
    assert put(store, PART) == 2 * PART
    assert put(store, 2 * PART) == -1


def test_everything_is_sent_if_the_client_says_so(store):
    store.get(NAME, PART)
    offsets = [store.put(NAME, len(DATA), 0, b"", everything=True)]
    while offsets[-1] >= 0:
        part = DATA[offsets[-1] : offsets[-1] + PART]
        offsets.append(store.put(NAME, len(DATA), offsets[-1], part, everything=True))
    assert offsets == [PART, 2 * PART, 0, -1]


def test_complete_arrays_survive_a_restart(clock, tmp_path):
    names = {NAME, "cd" * 16}
    folder = str(tmp_path / "arrays")
    store = ArrayStore(names.__contains__, clock, folder)
    for offset in range(0, len(DATA), PART):
        put(store, offset)
    store.put("cd" * 16, len(DATA), 0, DATA[:PART])
    store.close()
    store = ArrayStore(names.__contains__, clock, folder)
    assert store.get(NAME, PART) == DATA[PART : 2 * PART]
    assert store.put(NAME, len(DATA), 0, b"", everything=True) == -1
    assert store.get("cd" * 16, 0) == b""
    names.remove(NAME)
    store.tidy()
    assert os.listdir(folder) == ["cd" * 16 + ".part"]
    store.close()


def test_two_clients_send_different_parts(store):
    store.get(NAME, PART)
    store.get(NAME, 0)
    assert [store.put(NAME, len(DATA), 0, b"") for _ in range(3)] == [PART, 0, PART]


def test_a_worker_may_ask_before_any_client(store):
    assert store.get(NAME, PART) == b""
    assert store.put(NAME, len(DATA), 0, b"") == PART


def test_bytes_that_are_no_part_are_refused(store):
    with pytest.raises(InvalidArgumentError, match="9 bytes at 0 are not a part"):
        store.put(NAME, len(DATA), 0, bytes(9))
    with pytest.raises(InvalidArgumentError, match="at 5 are not a part"):
        put(store, 5)
    with pytest.raises(InvalidArgumentError, match=f"has {len(DATA)} bytes, not 7"):
        store.put(NAME, 7, 0, b"")


@pytest.mark.parametrize("name", ["cd" * 16, "../secret", ""])
def test_an_array_of_no_dataset_is_unknown(store, name):
    with pytest.raises(NotFoundError, match="in no dataset of this dispatcher"):
        store.get(name, 0)


def test_a_worker_waits_for_a_client_only_for_a_while(store, clock):
    assert store.get(NAME, 0) == b""
    clock.time = timing.ARRAY_SILENCE - 1
    store.put(NAME, len(DATA), 0, b"")
    clock.time = 2 * timing.ARRAY_SILENCE - 2
    assert store.get(NAME, 0) == b""
    clock.time += 2
    with pytest.raises(UnavailableError, match=r"array abababababab .* heard of for 21 s"):
        store.get(NAME, 0)


def test_arrays_are_forgotten_with_their_plans(clock):
    names = {NAME}
    store = ArrayStore(names.__contains__, clock)
    put(store, PART)
    store.tidy()
    assert store.get(NAME, PART) == DATA[PART : 2 * PART]
    names.clear()
    store.tidy()
    with pytest.raises(NotFoundError, match="in no dataset"):
        store.get(NAME, PART)
    store.close()


def test_the_plan_store_knows_the_arrays_of_its_plans(tmp_path):
    for folder in (None, str(tmp_path)):
        plans = PlanStore(folder)
        for names in ([], [NAME]):
            data = join_array_names(names, b"a plan")
            assert split_array_names(data) == (names, b"a plan")
            plans.put(digest_of(data), 0, len(data), data)
        assert plans.has_array(NAME)
        assert not plans.has_array("cd" * 16)
        plans.forget(digest_of(join_array_names([NAME], b"a plan")))
        assert not plans.has_array(NAME)
        plans.close()


def test_a_worker_joins_the_parts_that_it_needs():
    asked = []

    def call(request):
        asked.append(request.offset)
        late = asked.count(request.offset) == 1 and request.offset == PART
        return GetArrayReply(b"" if late else DATA[request.offset : request.offset + PART])

    fetched = fetch_array(call, NAME, PART - 10, PART + 10)
    assert fetched == DATA[PART - 10 : PART + 10]
    assert asked == [0, PART, PART]
