"""States with elements in them survive JSON, and loaders that accept plain values only."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import penstock
from penstock import Dataset
from penstock.data import TextLineDataset
from penstock.element.chunk import Chunk
from penstock.element.ragged import Ragged
from penstock.engine.contract import copy_state
from penstock.engine.state_values import ReceivedElements, SentElements, decode, encode
from penstock.errors import InvalidArgumentError

COUNT = 60


def lines(folder: Path) -> Dataset:
    path = folder / "lines.txt"
    path.write_text("".join(f"line {number}\n" for number in range(COUNT)), encoding="utf-8")
    return TextLineDataset(str(path))


def arrays(folder: Path) -> Dataset:
    return lines(folder).enumerate().map(lambda i, line: np.arange(i % 4 + 1, dtype=np.int32))


def structures(folder: Path) -> Dataset:
    def make(i: Any, line: Any) -> Any:
        return {"a": line, "b": (np.float32(i), np.full((2, 1), i)), "penstock": np.bool_(i % 2)}

    return lines(folder).enumerate().map(make)


def pairs_of(key: Any, window: Dataset) -> Dataset:
    return window.batch(4)


PLANS: dict[str, Callable[[Path], Dataset]] = {
    "shuffle, bytes": lambda folder: lines(folder).shuffle(7, seed=1),
    "shuffle, numbers": lambda folder: lines(folder).map(len).shuffle(7, seed=1),
    "shuffle, arrays": lambda folder: arrays(folder).shuffle(7, seed=1),
    "shuffle, structures": lambda folder: structures(folder).shuffle(7, seed=1),
    "shuffle, ragged": lambda folder: arrays(folder).ragged_batch(2).shuffle(7, seed=1),
    "shuffle, batch, shuffle": lambda folder: lines(folder).shuffle(7, seed=1).batch(2).shuffle(3),
    "window": lambda folder: lines(folder).window(4, shift=2).flat_map(lambda w: w.batch(4)),
    "group_by_window": lambda folder: lines(folder).group_by_window(len, pairs_of, window_size=4),
    "bucket": lambda folder: arrays(folder).bucket_by_sequence_length(len, [2, 4], [3, 3, 3]),
    "pack": lambda folder: arrays(folder).pack(9),
    "scan": lambda folder: lines(folder).scan(
        (np.zeros(2), b""), lambda state, x: ((state[0] + 1, x), state)
    ),
    "unique": lambda folder: lines(folder).unique(),
    "rebatch": lambda folder: lines(folder).batch(4).rebatch(3),
}


def by_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


def by_torch(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def as_older_releases_saved_it(state: Any) -> Any:
    return {**state, "version": 1, "at": decode(state["at"])}


def show_elements(elements: Any) -> list[str]:
    """Elements with their types as text."""
    return [penstock.nest.map_structure(lambda leaf: (type(leaf), repr(leaf)), x) for x in elements]


@pytest.mark.parametrize("keep", [by_json, by_torch, as_older_releases_saved_it])
@pytest.mark.parametrize("name", PLANS)
def test_a_state_that_was_kept_elsewhere_continues_exactly(
    name: str, keep: Callable[[Any], Any], tmp_path: Path
) -> None:
    dataset = PLANS[name](tmp_path)
    iterator = iter(dataset)
    for _ in range(3):
        for _ in range(3):
            next(iterator)
        state = keep(iterator.state_dict())
        resumed = iter(dataset)
        resumed.load_state_dict(state)
        again = iter(dataset)
        again.load_state_dict(iterator.state_dict())
        assert show_elements(resumed) == show_elements(again)


def test_a_distributed_iterator_continues_from_json(tmp_path: Path) -> None:
    strategy = penstock.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    distributed = strategy.experimental_distribute_dataset(structures(tmp_path).shuffle(5).batch(4))
    first, second = iter(distributed), iter(distributed)
    for _ in range(4):
        next(first)
    second.load_state_dict(by_json(first.state_dict()))
    assert [str(step) for step in second] == [str(step) for step in first]


VALUES = [
    np.float32(0.1),
    np.array([[1, 2], [3, 4]], np.uint8),
    np.zeros((0, 3)),
    np.array([b"a", b"bc"], object),
    b"\x00\xff",
    Ragged.from_rows([[1], [2, 3], []]),
    (np.int64(1), {"x": b"", 2: np.bool_(True)}),
    {"penstock": np.int64(1)},
    [np.int64(1), np.float32(2)],
    {"own": [1, None, 2.5, "text", [True]], "inputs": [{"skip": 3}]},
    [],
    {},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_come_back_with_their_types(value: Any) -> None:
    again = decode(by_json(encode(value)))
    assert type(again) is type(value)
    assert repr(again) == repr(value)


def test_plain_values_stay_as_they_are() -> None:
    state = {"own": [1, None], "inputs": [{"from": None, "skip": 2}]}
    assert encode(state) == state


def test_many_small_elements_take_little_room() -> None:
    packed = json.dumps(encode([np.int64(number) for number in range(10_000)]))
    assert len(packed) < 11 * 10_000


@pytest.mark.parametrize(
    "changes", [{"data": "?"}, {"data": ""}, {"columns": [["array", "int64", [1 << 40]]]}]
)
def test_a_damaged_value_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    dataset = lines(tmp_path).shuffle(7, seed=1)
    held = encode([b"a", b"b"])
    held["penstock"].update(changes)
    at = {"own": [1, held], "inputs": [None]}
    with pytest.raises(InvalidArgumentError, match="the values in a state are damaged"):
        iter(dataset).load_state_dict({**iter(dataset).state_dict(), "version": 2, "at": at})


def pass_on(sent: SentElements, received: ReceivedElements, state: Any) -> tuple[Any, int]:
    """A state as another process receives it, and how many elements were sent with it."""
    plain, new = sent.take_new(state)
    received.add(json.loads(json.dumps(encode(new))))
    return received.resolve(plain), len(new)


@pytest.mark.parametrize("plan", PLANS)
def test_several_states_of_a_stream_are_passed_on(plan: str, tmp_path: Path) -> None:
    dataset = PLANS[plan](tmp_path)
    sent, received = SentElements(), ReceivedElements()
    with iter(dataset) as iterator:
        for _ in range(4):
            next(iterator)
            state = decode(iterator.state_dict()["at"])
            assert repr(pass_on(sent, received, state)[0]) == repr(state)


@pytest.mark.parametrize(
    "elements", [[b"a", b""], [(np.int64(1), {"x": np.ones(3)})], [(), (), ()]]
)
def test_a_chunk_comes_back_as_a_chunk(elements: list[Any]) -> None:
    chunk = Chunk.of(elements)
    found = decode(json.loads(json.dumps(encode([7, [chunk, chunk]]))))
    assert found[0] == 7
    assert [repr(one.elements()) for one in found[1]] == 2 * [repr(elements)]
    assert found[1][0].tree == chunk.tree


class Point(NamedTuple):
    x: Any


@pytest.mark.parametrize("element", [Point(1), (np.int64(1), Point(b"a"))])
def test_a_chunk_of_named_tuples_stays_as_it_is(element: Any) -> None:
    chunk = Chunk.of([element])
    assert encode(chunk, as_text=False) is chunk


def test_an_element_travels_once() -> None:
    elements = [{"a": np.full(3, i), "b": (b"x", np.int64(i))} for i in range(9)]
    sent, received = SentElements(), ReceivedElements()
    state = {"own": [3, elements[:6]], "inputs": [None, [1, 2]]}
    assert pass_on(sent, received, copy_state(state))[1] == 6
    later = {"own": [5, [elements[5], *elements[1:4], *elements[6:8]]], "inputs": [7, []]}
    found, travelled = pass_on(sent, received, copy_state(later))
    assert travelled == 2
    assert repr(found) == repr(later)
    renamed = {"own": [6, [{"c": element["a"], "b": element["b"]} for element in elements[:2]]]}
    found, travelled = pass_on(sent, received, renamed)
    assert travelled == 2
    assert repr(found) == repr(renamed)


def test_an_element_that_is_gone_is_taken_for_no_other_one() -> None:
    """A new object may have the same address in memory, and thereby the same id."""
    sent, received = SentElements(), ReceivedElements()
    for number in range(50):
        state = [[np.full(4, number), np.full(4, -number)]]
        assert repr(pass_on(sent, received, state)[0]) == repr(state)


@pytest.mark.parametrize("number", [-1, 2])
def test_numbers_of_elements_that_did_not_come(number: int) -> None:
    received = ReceivedElements()
    received.add(encode([np.int64(1), np.int64(2)]))
    with pytest.raises(InvalidArgumentError, match="the values in a state are damaged"):
        received.resolve({"penstock": {"numbers": np.int64(number).tobytes()}})
