"""`as_jax` on eight devices. Run by `test_apart`: XLA_FLAGS must be set before JAX is used."""

import json
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from penstock.data import Dataset
from penstock.element.ragged import Ragged
from penstock.errors import InvalidArgumentError, InvalidTypeError
from tests.data.test_delivered import wait_for_the_thread

ROWS = np.arange(64, dtype=np.float32).reshape(32, 2)


def split(*axes: Any, mesh: tuple[int, ...] = (8,)) -> NamedSharding:
    names = ("batch", "model")[: len(mesh)]
    return NamedSharding(jax.make_mesh(mesh, names), PartitionSpec(*axes))


def lists(arrays: Any) -> list[Any]:
    return [array.tolist() for array in arrays]


def test_elements_are_jax_arrays() -> None:
    elements = list(Dataset.from_tensor_slices({"x": ROWS, "y": np.arange(32) % 3}).as_jax())
    assert len(elements) == 32
    assert all(isinstance(leaf, jax.Array) for element in elements for leaf in element.values())
    assert np.array_equal([element["x"] for element in elements], ROWS)
    assert elements[4]["y"].tolist() == 1
    assert elements[4]["y"].dtype == np.int32


@pytest.mark.parametrize("name", ["bool", "uint8", "int32", "float16", "float32", "bfloat16"])
def test_numbers_keep_their_dtype_and_value(name: str) -> None:
    array = np.arange(6).astype(jax.numpy.dtype(name))
    (made,) = Dataset.from_tensors(array).as_jax()
    assert made.dtype == array.dtype
    assert made.tolist() == array.tolist()


def test_strings_ragged_values_and_none_stay() -> None:
    dataset = Dataset.from_tensor_slices((["a", "b"], Ragged.from_rows([[1], [2, 3]])))
    dataset = dataset.ragged_batch(2).map(lambda names, rows: (names, rows, None, 1.5))
    names, rows, none, number = next(dataset.as_jax())
    assert names.tolist() == [b"a", b"b"]
    assert rows == Ragged.from_rows([[1], [2, 3]])
    assert none is None
    assert isinstance(number, jax.Array)


def test_without_a_sharding_jax_may_move_the_arrays() -> None:
    (array,) = Dataset.from_tensor_slices(ROWS).batch(32).as_jax()
    assert array.devices() == {jax.devices()[0]}
    elsewhere = jax.device_put(np.float32(1), jax.devices()[3])
    assert (array + elsewhere).devices() == {jax.devices()[3]}


def test_without_a_sharding_they_go_to_the_default_device_of_the_caller() -> None:
    with jax.default_device(jax.devices()[5]):
        iterator = Dataset.from_tensor_slices(ROWS).batch(32).as_jax()
    assert next(iterator).devices() == {jax.devices()[5]}


@pytest.mark.parametrize("device", range(8))
def test_a_device_gets_all_of_it(device: int) -> None:
    array = next(Dataset.from_tensor_slices(ROWS).batch(4).as_jax(jax.devices()[device]))
    assert array.devices() == {jax.devices()[device]}
    assert np.array_equal(array, ROWS[:4])


@pytest.mark.parametrize(
    ("sharding", "shape"),
    [
        (split("batch"), (2, 2)),
        (split(), (16, 2)),
        (split("batch", "model", mesh=(4, 2)), (4, 1)),
        (split(("batch", "model"), mesh=(4, 2)), (2, 2)),
    ],
)
def test_a_sharding_gives_each_device_its_part(sharding: Any, shape: tuple[int, ...]) -> None:
    arrays = list(Dataset.from_tensor_slices(ROWS).batch(16).as_jax(sharding))
    assert np.array_equal(np.concatenate(arrays), ROWS)
    for number, array in enumerate(arrays):
        assert array.shape == (16, 2)
        assert array.sharding.is_equivalent_to(sharding, 2)
        assert len(array.addressable_shards) == 8
        for part in array.addressable_shards:
            assert part.data.shape == shape
            assert part.data.devices() == {part.device}
            assert np.array_equal(part.data, ROWS[16 * number :][:16][part.index])


@pytest.mark.parametrize("sharding", [None, split("batch"), split()])
def test_no_array_shares_memory_with_the_dataset(sharding: Any) -> None:
    # The CPU uses an array without a copy if its address has the alignment that JAX needs.
    memory = np.zeros(4096 + 64, np.uint8)
    start = -memory.ctypes.data % 64
    source = memory[start : start + 4096].view(np.float32).reshape(64, 16)
    cached = Dataset.from_tensor_slices(source).map(lambda row: row + 1).batch(64).cache()
    for dataset in (Dataset.from_tensors(source), Dataset.from_tensor_slices(source).batch(64)):
        (array,) = dataset.as_jax(sharding)
        source[:] = 7
        assert not np.asarray(array).any()
        source[:] = 0
    first, second = next(cached.as_jax(sharding)), next(cached.as_jax(sharding))
    pointers = [
        {p.data.unsafe_buffer_pointer() for p in a.addressable_shards} for a in (first, second)
    ]
    assert pointers[0].isdisjoint(pointers[1])


def test_it_works_two_elements_ahead_and_the_state_does_not() -> None:
    made: list[int] = []
    dataset = Dataset.range(8).map(lambda x: made.append(int(x)) or x)
    iterator = dataset.as_jax()
    assert int(next(iterator)) == 0
    wait_for_the_thread(iterator)
    assert made == [0, 1, 2]
    state = json.loads(json.dumps(iterator.state_dict()))
    other = dataset.as_jax()
    other.load_state_dict(state)
    assert lists(other) == lists(iterator) == [1, 2, 3, 4, 5, 6, 7]


def test_every_iterator_is_an_epoch_of_the_dataset() -> None:
    plain, dataset = (Dataset.range(20).shuffle(20, seed=3) for _ in range(2))
    epochs = [lists(dataset.as_jax()) for _ in range(3)]
    assert epochs == [lists(plain) for _ in range(3)]
    assert epochs[0] != epochs[1]


def test_a_compiled_function_takes_the_arrays() -> None:
    sharding = split("batch")
    total = jax.jit(lambda x, y: x.sum() + y.sum())
    dataset = Dataset.from_tensor_slices((ROWS, np.ones(32, np.float32))).batch(8)
    sums = [float(total(*element)) for element in dataset.as_jax(sharding)]
    assert sum(sums) == ROWS.sum() + 32


@pytest.mark.parametrize(
    ("dataset", "shape"),
    [
        (Dataset.range(20).batch(8), r"\(4,\)"),
        (Dataset.range(20).batch(6), r"\(6,\)"),
        (Dataset.range(20), r"\(\)"),
    ],
)
def test_what_cannot_be_split_is_refused_in_its_turn(dataset: Dataset, shape: str) -> None:
    iterator = dataset.as_jax(split("batch"))
    match = rf"^Dataset.as_jax: an array of shape {shape} cannot be split as NamedSharding\(.* says"
    good = 2 if shape == r"\(4,\)" else 0
    assert lists(next(iterator) for _ in range(good)) == [list(range(8)), list(range(8, 16))][:good]
    with pytest.raises(InvalidArgumentError, match=match) as error:
        next(iterator)
    assert "batch(..., drop_remainder=True)" in str(error.value)
    assert "InputOptions(last_batch='pad')" in str(error.value)


@pytest.mark.parametrize("sharding", ["batch", PartitionSpec("batch"), 0])
def test_what_is_no_sharding_is_refused(sharding: Any) -> None:
    match = "^Dataset.as_jax: sharding must be a jax.sharding.Sharding or a jax.Device, got "
    with pytest.raises(InvalidTypeError, match=match):
        Dataset.range(3).as_jax(sharding)


def test_elements_that_are_datasets_are_refused() -> None:
    with pytest.raises(InvalidTypeError, match="^Dataset.as_jax: elements are datasets"):
        Dataset.range(3).window(2).as_jax()
    unknown = Dataset.range(3).map(lambda x: x).window(2)
    with pytest.raises(InvalidTypeError, match="^Dataset.as_jax: an element is a dataset"):
        next(unknown.as_jax())


@pytest.mark.parametrize("sharding", [None, split("batch")])
def test_the_profile_has_the_delivery(sharding: Any) -> None:
    iterator = Dataset.from_tensor_slices(ROWS).map(lambda x: x).batch(8).as_jax(sharding)
    assert len(list(iterator)) == 4
    rows = [(row.operator, row.elements) for row in iterator.profile().operators]
    assert rows == [("deliver", 4), ("batch", 4), ("map", 32), ("from_tensor_slices", 32)]
