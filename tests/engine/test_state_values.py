"""States with elements in them survive JSON, and loaders that accept plain values only."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from penstock import Dataset
from penstock.data import TextLineDataset
from penstock.element.ragged import Ragged
from penstock.engine.state_values import decode, encode
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


def shown(elements: Any) -> list[str]:
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
        assert shown(resumed) == shown(again)


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
