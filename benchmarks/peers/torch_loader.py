"""The workloads in torch's DataLoader, num_workers=0 as fits data in memory, threads as by default;
those of the data service with worker processes.

Of the ordinary ways to write a dataset the fastest one is taken; gathering a whole batch by hand in
`__getitems__` and switching collation off is measured apart, as a variant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import repeat
from typing import Any

import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from benchmarks.peers import elements, material
from benchmarks.peers.elements import UnderWay
from benchmarks.peers.serve import Program, serve


class Squares(Dataset[int]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return index * index

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


class Thirds(IterableDataset[int]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        return filter(lambda x: x % 3 == 0, range(self.n))


class Pairs(Dataset[tuple[Any, Any]]):
    def __init__(self, features: NDArray[Any], labels: NDArray[Any]) -> None:
        self.features, self.labels = features, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.features[index], self.labels[index]


class GatheredDataset(TensorDataset):
    """Fetches a batch as one gather for each tensor."""

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, ...]:
        index = torch.as_tensor(indices)
        return tuple(tensor[index] for tensor in self.tensors)


class TokenLists(Dataset[torch.Tensor]):
    def __init__(self, flat: torch.Tensor, starts: list[int], ends: list[int]) -> None:
        self.flat, self.starts, self.ends = flat, starts, ends

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.flat[self.starts[index] : self.ends[index]]


class RepeatedArray(IterableDataset[Any]):
    """The same array without end; what it becomes is copied each time it is sent."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array

    def __iter__(self) -> Iterator[Any]:
        return repeat(self.array)


class Busy(Dataset[int]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return elements.busy(index)


def pad_lists(lists: list[torch.Tensor]) -> torch.Tensor:
    return pad_sequence(lists, batch_first=True)


def as_fetched(batch: Any) -> Any:
    return batch


def range_batch(n: int) -> Iterable[Any]:
    return DataLoader(range(n), batch_size=1024)


def map_(n: int) -> Iterable[Any]:
    return DataLoader(Squares(n), batch_size=1024)


def filter_(n: int) -> Iterable[Any]:
    return DataLoader(Thirds(n), batch_size=1024)


def rows(n: int) -> Iterable[Any]:
    return DataLoader(Pairs(*material.rows(n)), batch_size=256, shuffle=True)


def rows_gathered(n: int) -> Iterable[Any]:
    tensors = map(torch.from_numpy, material.rows(n))
    return DataLoader(
        GatheredDataset(*tensors), batch_size=256, shuffle=True, collate_fn=as_fetched
    )


def images(n: int) -> Iterable[Any]:
    tensor = torch.from_numpy(material.images(n))
    return DataLoader(TensorDataset(tensor), batch_size=64, shuffle=True)


def images_gathered(n: int) -> Iterable[Any]:
    tensor = torch.from_numpy(material.images(n))
    return DataLoader(GatheredDataset(tensor), batch_size=64, shuffle=True, collate_fn=as_fetched)


def one_by_one(n: int) -> Iterable[Any]:
    return DataLoader(range(n), batch_size=None)


def padded_batch(n: int) -> Iterable[Any]:
    flat, starts, ends = material.tokens(n)
    lists = TokenLists(torch.from_numpy(flat), starts.tolist(), ends.tolist())
    return DataLoader(lists, batch_size=64, collate_fn=pad_lists)


def transfer(name: str, n: int) -> Iterable[Any]:
    array = elements.PROGRAMS[name]()
    return UnderWay(DataLoader(RepeatedArray(array), batch_size=None, num_workers=1), n)


def function(n: int) -> Iterable[Any]:
    return UnderWay(DataLoader(Busy(n + 32), batch_size=16, num_workers=2), n // 16, ahead=2)


PROGRAMS: dict[str, Program] = {
    "range_batch": range_batch,
    "map": map_,
    "filter": filter_,
    "rows": rows,
    "rows_gathered": rows_gathered,
    "images": images,
    "images_gathered": images_gathered,
    "one_by_one": one_by_one,
    "padded_batch": padded_batch,
    **{name: partial(transfer, name) for name in elements.PROGRAMS},
    "function": function,
}

if __name__ == "__main__":
    serve(PROGRAMS, "torch")
