"""A state that cannot be right is refused at the call, and the iterator continues as it was."""

import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from penstock.data import Dataset, TextLineDataset
from penstock.data.iterator import Iterator
from penstock.errors import InvalidArgumentError, InvalidTypeError

TEN = Dataset.range(10)
SHUFFLED = TEN.shuffle(10, seed=1)
STREAM = TEN.filter(lambda n: n % 2 == 0)
GENERATED = Dataset.from_generator(lambda: iter(range(10)), int)


def ints(elements: Any) -> list[int]:
    return [int(element) for element in elements]


def texts(elements: Any) -> list[str]:
    return [str(element) for element in elements]


def begin_reading(dataset: Dataset, count: int = 3) -> Iterator:
    iterator = iter(dataset)
    for _ in range(count):
        next(iterator)
    return iterator


def without(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda state: {key: value for key, value in state.items() if key != name}


def with_(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda state: state | changes


WRONG: list[tuple[Dataset, Callable[[dict[str, Any]], Any], str]] = [
    (TEN, lambda _: None, "not a state that state_dict.. of this version made: None"),
    (TEN, lambda _: [1], r"not a state that .*: \[1\]"),
    (TEN, json.dumps, r"a state is a dict, got text; pass json.loads\(text\) if it is JSON"),
    (TEN, with_(version=0), "not a state that state_dict.. of this version made"),
    (TEN, without("version"), "not a state that state_dict.. of this version made"),
    (TEN, without("at"), "the state is not complete, 'at' is missing"),
    (TEN, lambda state: {"version": state["version"]}, "'plan', 'iteration', 'key', 'seeds', 'at'"),
    (
        TEN,
        with_(plan="zip:0"),
        r"another pipeline: 'zip:0' became 'range:.*; build the dataset as",
    ),
    (TEN, with_(plan=5), "saved by another pipeline"),
    (TEN, with_(at="junk"), "'at' is not what state_dict.. makes, 'junk'"),
    (TEN, with_(at=True), "'at' is not what state_dict.. makes, True"),
    (TEN, with_(at=2.0), "'at' is not what state_dict.. makes, 2.0"),
    (TEN, with_(at=-1), "'at' is not what state_dict.. makes, -1"),
    (TEN, with_(at={}), "'at' is not what state_dict.. makes, {}"),
    (TEN, with_(at=11), "'at' must be from 0 to 10, the number of elements, got 11"),
    (TEN.batch(4), with_(at=4), "'at' must be from 0 to 3, the number of elements, got 4"),
    (TEN, with_(iteration="0"), "'iteration' must be an int from 0 on, got '0'"),
    (TEN, with_(iteration=-1), "'iteration' must be an int from 0 on, got -1"),
    (TEN, with_(key=None), "'key' must be an int from 0 on, got None"),
    (TEN, with_(key=False), "'key' must be an int from 0 on, got False"),
    (TEN, with_(seeds=[1]), r"'seeds' must be a list of 0 ints, got \[1\]"),
    (SHUFFLED, with_(seeds=[]), r"'seeds' must be a list of 1 ints, got \[\]"),
    (SHUFFLED, with_(seeds=["1"]), r"'seeds' must be a list of 1 ints, got \['1'\]"),
    (SHUFFLED, with_(seeds=1), "'seeds' must be a list of 1 ints, got 1"),
    (STREAM, with_(at=2), "'at' must hold what the operators saved, got the position 2"),
    (GENERATED, with_(at={"own": 1, "inputs": 5}), "'at' is not what state_dict.. makes"),
    (GENERATED, with_(at={"own": 1, "inputs": ["x"]}), "'at' is not what state_dict.. makes"),
    (GENERATED, with_(at={"from": None, "skip": "1"}), "'at' is not what state_dict.. makes"),
    (GENERATED, with_(at={"from": [], "skip": 1}), "'at' is not what state_dict.. makes"),
]


def names_of(*names: str) -> Dataset:
    return TextLineDataset([f"/data/{name}" for name in names])


OTHER: list[tuple[Dataset, Dataset, str]] = [
    (Dataset.range(10), Dataset.range(11), "saved by another pipeline"),
    (TEN.batch(2), TEN.batch(3), "saved by another pipeline"),
    (
        Dataset.from_tensor_slices([1, 2, 3]),
        Dataset.from_tensor_slices([1.0, 2.0, 3.0]),
        "saved by another pipeline",
    ),
    (
        Dataset.from_tensor_slices({"a": [1, 2]}),
        Dataset.from_tensor_slices({"b": [1, 2]}),
        "saved by another pipeline",
    ),
    (names_of("a", "b"), names_of("a", "c"), "saved by another pipeline"),
    (
        TEN.shuffle(10, seed=1),
        TEN.shuffle(10, seed=2),
        "saved with the seed 1, but this pipeline has 2; give it the seed of the state, or none",
    ),
]


@pytest.mark.parametrize(("saved", "loaded", "match"), OTHER)
def test_the_state_of_another_pipeline_is_refused(
    saved: Dataset, loaded: Dataset, match: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=match):
        iter(loaded).load_state_dict(iter(saved).state_dict())


def test_a_pipeline_without_a_seed_takes_that_of_the_state() -> None:
    saved = begin_reading(TEN.shuffle(10, seed=1))
    loaded = iter(TEN.shuffle(10))
    loaded.load_state_dict(saved.state_dict())
    assert ints(loaded) == ints(saved)


def test_files_may_move_to_another_folder() -> None:
    moved = TextLineDataset(["/other/a", "/other/b"])
    iter(moved).load_state_dict(iter(names_of("a", "b")).state_dict())


@pytest.mark.parametrize(("dataset", "spoil", "match"), WRONG, ids=[case[2] for case in WRONG])
def test_a_wrong_state_is_refused(
    dataset: Dataset, spoil: Callable[[dict[str, Any]], Any], match: str
) -> None:
    iterator = begin_reading(dataset, 2)
    state = iterator.state_dict()
    with pytest.raises(InvalidArgumentError, match=f"^Iterator.load_state_dict: .*{match}"):
        iterator.load_state_dict(spoil(state))
    assert iterator.state_dict() == state
    assert texts(iterator) == texts(rest(dataset, state))


def rest(dataset: Dataset, state: dict[str, Any]) -> Any:
    other = iter(dataset)
    other.load_state_dict(state)
    return other


@pytest.mark.parametrize("at", [0, 3, 10])
def test_every_position_up_to_the_end_is_right(at: int) -> None:
    iterator = iter(TEN)
    iterator.load_state_dict(iterator.state_dict() | {"at": at})
    assert ints(iterator) == list(range(at, 10))


@pytest.mark.filterwarnings("ignore:.*the same order as the one before")
@pytest.mark.parametrize(
    "dataset", [TEN, SHUFFLED, STREAM, GENERATED, TEN.cache(), TEN.repeat(), STREAM.repeat()]
)
@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_state_that_was_made_is_right(dataset: Dataset, count: int) -> None:
    iterator = begin_reading(dataset.take(6), count)
    state = json.loads(json.dumps(iterator.state_dict()))
    assert ints(rest(dataset.take(6), state)) == ints(iterator)


@pytest.mark.parametrize("iterator", [begin_reading(TEN), TEN.as_numpy_iterator()])
def test_an_iterator_is_not_pickled_but_its_state(iterator: Any) -> None:
    match = r"Iterator: cannot be pickled; save iterator.state_dict\(\) and load it into iter\(data"
    with pytest.raises(InvalidTypeError, match=match):
        pickle.dumps(iterator)


def test_the_epoch_after_a_resumed_one_does_not_change():
    def build():
        return Dataset.range(10).shuffle(10, seed=3).batch(2)

    whole = build()
    epochs = [[b.tolist() for b in whole] for _ in range(4)]
    first = build()
    list(first), list(first)
    iterator = iter(first)
    head = next(iterator).tolist()
    resumed = build()
    again = iter(resumed)
    again.load_state_dict(iterator.state_dict())
    assert [head, *(b.tolist() for b in again)] == epochs[2]
    assert [b.tolist() for b in resumed] == epochs[3]
