"""`as_torch` in one process; its worker processes are in `torch_worker_cases`."""

import json
import os
import pickle
import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from penstock.data import Dataset, Options
from penstock.data.experimental import service
from penstock.element.ragged import Ragged
from penstock.errors import InvalidArgumentError, InvalidTypeError

NUMBERS = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 "
    "complex64 complex128 bfloat16"
).split()


def lists(tensors: Any) -> list[Any]:
    return [tensor.tolist() for tensor in tensors]


def test_it_is_an_iterable_dataset_of_tensors() -> None:
    made = Dataset.range(5).batch(2).as_torch()
    assert isinstance(made, IterableDataset)
    assert lists(made) == lists(made) == [[0, 1], [2, 3], [4]]
    assert repr(made).startswith("<TorchDataset of <Dataset batch(size=")


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_keeps_its_dtype_and_value(name: str) -> None:
    dtype = ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)
    array = np.array([[0, 1], [2, 3], [100, 5]]).astype(dtype)
    for dataset in (Dataset.from_tensor_slices(array), Dataset.from_tensor_slices(array).batch(2)):
        tensors = list(dataset.as_torch())
        assert {tensor.dtype for tensor in tensors} == {getattr(torch, name)}
        assert lists(tensors) == lists(dataset)


def test_scalars_are_tensors_without_axes() -> None:
    (first, *_) = Dataset.range(3).as_torch()
    assert first.shape == ()
    assert first.dtype == torch.int64


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Sample:
    features: Any
    name: Any


def test_structures_stay_and_so_does_what_torch_lacks() -> None:
    def element(x: Any) -> Any:
        return {"pair": Pair(x, np.full(2, x)), "sample": Sample(x * 2.0, f"{x}"), "none": None}

    made = list(Dataset.range(3).map(element).as_torch())[2]
    assert made["pair"] == Pair(2, made["pair"].right)
    assert lists(made["pair"]) == [2, [2, 2]]
    assert made["sample"] == Sample(torch.tensor(4.0), b"2")
    assert made["none"] is None


def test_strings_and_ragged_values_stay() -> None:
    dataset = Dataset.from_tensor_slices((["a", "b"], Ragged.from_rows([[1], [2, 3]])))
    names, rows = next(iter(dataset.ragged_batch(2).as_torch()))
    assert names.tolist() == [b"a", b"b"]
    assert rows == Ragged.from_rows([[1], [2, 3]])
    nested = torch.nested.nested_tensor_from_jagged(
        torch.from_numpy(rows.flat_values), torch.from_numpy(rows.row_splits)
    )
    assert lists(nested.unbind()) == [[1], [2, 3]]


SOURCE = np.arange(24).reshape(12, 2)
PLANS = {
    "slices": lambda: Dataset.from_tensor_slices(SOURCE),
    "batches": lambda: Dataset.from_tensor_slices(SOURCE).batch(3),
    "shuffled": lambda: Dataset.from_tensor_slices(SOURCE).shuffle(12, seed=1).batch(3),
    "reversed": lambda: Dataset.from_tensor_slices(SOURCE).map(lambda row: row[::-1]),
    "repeated": lambda: Dataset.from_tensors(SOURCE).repeat(3),
    "cached": lambda: Dataset.from_tensor_slices(SOURCE).map(lambda row: row + 1).cache().repeat(2),
    "sliding": lambda: (
        Dataset.from_tensor_slices(SOURCE).window(3, 1).flat_map(lambda rows: rows.batch(3))
    ),
    "states": lambda: Dataset.from_tensor_slices(SOURCE).scan(
        np.zeros(2, int), lambda s, x: (s + x, s)
    ),
    "stream": lambda: (
        Dataset.from_tensor_slices(SOURCE).filter(lambda row: True).shuffle(5, seed=1).prefetch(2)
    ),
    "padded": lambda: Dataset.from_tensor_slices(SOURCE).padded_batch(5, padded_shapes=[3]),
    "big-endian": lambda: Dataset.from_tensor_slices(SOURCE.astype(">i4")).batch(2),
}


@pytest.mark.parametrize("plan", PLANS)
def test_writing_to_a_tensor_changes_nothing_else(plan: str) -> None:
    untouched, dataset, before = PLANS[plan](), PLANS[plan](), SOURCE.copy()
    found, held = [], []
    for tensor in dataset.as_torch():
        found.append(tensor.tolist())
        held.append(tensor.fill_(-len(held)))
    assert found == lists(untouched)
    assert np.array_equal(SOURCE, before)
    assert all(bool((tensor == -number).all()) for number, tensor in enumerate(held))
    assert lists(dataset.as_torch()) == lists(untouched)


def test_one_array_twice_is_two_tensors() -> None:
    dataset = Dataset.range(3).map(lambda x: np.full(2, x)).map(lambda row: (row, row, row[:1]))
    for first, second, third in dataset.as_torch():
        value = int(first[0])
        first.fill_(-1)
        second[0] = -2
        assert (first.tolist(), second.tolist(), third.tolist()) == ([-1, -1], [-2, value], [value])


@pytest.mark.parametrize("plan", PLANS)
def test_tensors_can_be_written_to_with_gradients(plan: str) -> None:
    weight = torch.ones((), requires_grad=True)
    for tensor in PLANS[plan]().map(lambda row: row.astype(np.float32)).as_torch():
        tensor.add_(weight)
        assert tensor.is_contiguous()
        assert tensor.requires_grad


def address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def test_what_the_engine_made_is_not_copied() -> None:
    made: list[int] = []

    def note(leaf: Any) -> Any:
        made.append(leaf.__array_interface__["data"][0])
        return leaf

    for size in (lambda x: 2000, lambda x: 2000 + int(x)):
        rows = Dataset.range(6).map(lambda x, size=size: np.full(size(x), x))
        iterator = iter(rows.as_torch())
        original = iterator._streams

        def noting(context: Any, original: Any = original) -> Any:
            stream = original(context)
            send = stream._send
            stream._send = lambda chunk: [note(leaf) for leaf in chunk.columns[0]] and send(chunk)
            return stream

        iterator._streams = noting
        made.clear()
        assert [address(tensor) for tensor in iterator] == made


def test_changing_the_source_changes_no_tensor() -> None:
    source = np.zeros((4, 2))
    tensors = list(Dataset.from_tensor_slices(source).batch(2).as_torch())
    source[:] = 7
    assert lists(tensors) == [[[0, 0], [0, 0]]] * 2


def test_the_length_is_that_of_the_dataset() -> None:
    assert len(Dataset.range(10).batch(4).as_torch()) == 3
    assert len(DataLoader(Dataset.range(10).batch(4).as_torch(), batch_size=None)) == 3
    unknown = Dataset.range(4).filter(lambda x: x != 1).as_torch()
    assert unknown
    assert lists(unknown) == [0, 2, 3]
    with pytest.raises(InvalidTypeError, match="the length is not known before all elements"):
        len(unknown)
    with pytest.raises(InvalidTypeError, match="the dataset is infinite, so it has no length"):
        len(Dataset.range(4).repeat().as_torch())


def test_every_epoch_is_one_of_the_dataset() -> None:
    plain, other = (Dataset.range(20).shuffle(20, seed=3) for _ in range(2))
    made = other.as_torch()
    epochs = [lists(made) for _ in range(3)]
    assert epochs == [lists(plain) for _ in range(3)]
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("taken", [0, 3, 7, 8])
def test_an_iterator_resumes_exactly(taken: int) -> None:
    made = Dataset.range(15).shuffle(15, seed=1).batch(2).as_torch()
    iterator = iter(made)
    for _ in range(taken):
        next(iterator)
    other = iter(made)
    other.load_state_dict(json.loads(json.dumps(iterator.state_dict())))
    assert lists(other) == lists(iterator)


def in_epochs(made: Any, count: int) -> list[Any]:
    return [lists(made) for _ in range(count)]


EPOCHS = {
    "known length": lambda: Dataset.range(9).shuffle(9, seed=1).batch(2),
    "unknown length": lambda: Dataset.range(9).filter(lambda x: True).shuffle(9, seed=1).batch(2),
}


@pytest.mark.parametrize("kind", EPOCHS)
@pytest.mark.parametrize("taken", [0, 1, 3, 5])
def test_the_dataset_resumes_the_epoch_of_a_trainer_that_iterates_by_itself(
    kind: str, taken: int
) -> None:
    expected = in_epochs(EPOCHS[kind]().as_torch(), 4)
    made, resumed = EPOCHS[kind]().as_torch(), EPOCHS[kind]().as_torch()
    assert in_epochs(made, 1) == expected[:1]
    iterator = iter(made)
    seen = lists(next(iterator) for _ in range(taken))
    if taken == 5 and kind == "unknown length":
        assert next(iterator, None) is None
    resumed.load_state_dict(json.loads(json.dumps(made.state_dict())))
    rest = [expected[1][taken:], *expected[2:]]
    assert seen == expected[1][:taken]
    assert in_epochs(resumed, 2) == (rest if taken < 5 else rest[1:])[:2]


def test_the_position_between_two_epochs_is_the_beginning_of_the_next_one() -> None:
    expected = in_epochs(EPOCHS["known length"]().as_torch(), 3)
    made, resumed = (EPOCHS["known length"]().as_torch() for _ in range(2))
    assert made.state_dict() == made.state_dict()
    assert in_epochs(made, 1) == expected[:1]
    resumed.load_state_dict(made.state_dict())
    assert resumed.state_dict() == made.state_dict()
    assert in_epochs(made, 2) == in_epochs(resumed, 2) == expected[1:]


def test_a_dataset_with_a_position_can_be_pickled_and_drops_iterators() -> None:
    made = EPOCHS["known length"]().as_torch()
    iterator = iter(made)
    next(iterator)
    copied = pickle.loads(pickle.dumps(made))
    assert len(lists(copied)) == 5
    dropped = weakref.ref(iterator)
    del iterator
    assert dropped() is None


def test_a_wrong_state_is_refused_at_the_call() -> None:
    state = Dataset.range(9).as_torch().state_dict()
    with pytest.raises(InvalidArgumentError, match="Iterator.load_state_dict: "):
        EPOCHS["known length"]().as_torch().load_state_dict(state)


def test_a_loader_without_workers_gives_the_same_elements() -> None:
    made = Dataset.range(6).map(lambda x: {"a": x, "b": np.full(2, x)}).batch(2).as_torch()
    for plain, loaded in zip(made, DataLoader(made, batch_size=None), strict=True):
        assert lists(plain.values()) == lists(loaded.values())
    rows = Dataset.range(6).as_torch()
    assert lists(DataLoader(rows, batch_size=4)) == [[0, 1, 2, 3], [4, 5]]


def with_process(x: Any) -> Any:
    return x, os.getpid()


@pytest.mark.parametrize("workers", [None, 0])
def test_each_epoch_has_its_order_also_if_it_is_adapted_anew(workers):
    dataset = Dataset.range(64).shuffle(64, seed=1).batch(64)
    orders = [next(iter(dataset.as_torch(num_workers=workers))).tolist() for _ in range(3)]
    again = Dataset.range(64).shuffle(64, seed=1).batch(64).as_torch()
    assert orders == [next(iter(again)).tolist() for _ in range(3)]
    assert orders[0] != orders[1]


def test_workers_call_the_functions_and_everything_else_stays() -> None:
    dataset = Dataset.range(40).shuffle(40, seed=1).map(with_process).batch(4)
    made = dataset.as_torch(num_workers=2)
    iterator = iter(made)
    batches = [next(iterator) for _ in range(4)]
    state = json.loads(json.dumps(iterator.state_dict()))
    batches += iterator
    numbers, processes = zip(*batches, strict=True)
    alike = Dataset.range(40).shuffle(40, seed=1).map(with_process).batch(4)
    plain = [numbers for numbers, _ in alike.as_torch(num_workers=0)]
    assert lists(numbers) == lists(plain)
    assert os.getpid() not in torch.cat(processes).tolist()
    assert 1 <= len(torch.cat(processes).unique()) <= 2
    assert len(made) == 10
    for workers in (0, 3):
        resumed = iter(dataset.as_torch(num_workers=workers))
        resumed.load_state_dict(state)
        assert lists(numbers for numbers, _ in resumed) == lists(plain[4:])


def test_without_workers_functions_are_called_here() -> None:
    options = Options()
    options.executor = "processes"
    dataset = Dataset.range(8).map(with_process, num_parallel_calls=2).with_options(options)
    assert {int(process) for _, process in dataset.as_torch(num_workers=0)} == {os.getpid()}
    assert os.getpid() not in {int(process) for _, process in dataset.as_torch()}


def test_workers_call_every_map_but_vectorized_ones_and_those_of_a_service() -> None:
    remote = service.distribute("parallel_epochs", "local://1")
    dataset = Dataset.range(8).map(with_process).apply(remote).map(lambda x, p: x).batch(2)
    dataset = dataset.map(lambda x: x, vectorized=True).map(lambda x: x, num_parallel_calls=9)
    text = dataset.as_torch(num_workers=3)._dataset.explain()
    assert text.partition("as it is run")[0].count("parallel=3") == 2


@pytest.mark.parametrize("count", [-1, 1.5])
def test_what_is_no_number_of_workers_is_refused(count: Any) -> None:
    with pytest.raises(
        (InvalidArgumentError, InvalidTypeError), match=r"^Dataset.as_torch: num_workers must be"
    ):
        Dataset.range(3).as_torch(num_workers=count)


@pytest.mark.parametrize("device", ["meta", torch.device("meta")])
def test_tensors_are_moved_to_the_device(device: Any) -> None:
    dataset = Dataset.from_tensor_slices((np.zeros((4, 2)), ["a"] * 4)).batch(2)
    for tensor, names in dataset.as_torch(device=device):
        assert tensor.device.type == "meta"
        assert tensor.shape == (2, 2)
        assert names.tolist() == [b"a", b"a"]


def test_the_cpu_is_a_device() -> None:
    source = np.zeros((4, 2))
    (tensor,) = Dataset.from_tensors(source).as_torch(device="cpu", pin_memory=False)
    tensor.fill_(1)
    assert not source.any()


@pytest.mark.parametrize("device", ["gpu:0", "cuda:x", 1.5, object()])
def test_what_is_no_device_is_refused(device: Any) -> None:
    match = r"^Dataset.as_torch: device must be one of torch's, such as 'cuda:0', got "
    with pytest.raises(InvalidArgumentError, match=match):
        Dataset.range(3).as_torch(device=device)


def test_a_gpu_that_is_not_there_is_refused() -> None:
    match = r"^Dataset.as_torch: 'cuda:99' is not there; torch finds \d+ GPUs on this machine"
    with pytest.raises(InvalidArgumentError, match=match):
        Dataset.range(3).as_torch(device="cuda:99")


def test_pinned_memory_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    match = "^Dataset.as_torch: pin_memory=True needs a GPU that torch can use; leave it out"
    with pytest.raises(InvalidArgumentError, match=match):
        Dataset.range(3).as_torch(pin_memory=True)
    with pytest.raises(InvalidTypeError, match="^Dataset.as_torch: pin_memory must be True or"):
        Dataset.range(3).as_torch(pin_memory="yes")  # type: ignore[arg-type]


def test_elements_that_are_datasets_are_refused() -> None:
    with pytest.raises(InvalidTypeError, match="^Dataset.as_torch: elements are datasets"):
        Dataset.range(3).window(2).as_torch()
    unknown = Dataset.range(3).map(lambda x: x).window(2)
    with pytest.raises(InvalidTypeError, match="^Dataset.as_torch: an element is a dataset"):
        next(iter(unknown.as_torch()))
