"""The workloads of `scripts/bench data`, each declared once: size, rivals and the ratios owed.

A rival's program of the same name does the same work in the rival's own words; `peers/` holds them.
The bare NumPy loop does every workload: its answer at a given size is the truth for all others.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

TRUTH = "bare"
SUBJECT = "penstock"
GATHERED = "a gather in __getitems__, no collate"


@dataclass(frozen=True)
class Rival:
    """One program that penstock is measured against.

    `at_least` is the ratio owed: penstock must be that many times as fast (below 1: it may be
    slower by so much). `share` is the part of the workload's elements given to a slow peer, whose
    time is then compared per element. `variant` names another program for the same work.
    """

    peer: str
    at_least: float | None = None
    share: float = 1.0
    variant: str = ""
    note: str = ""

    def program(self, workload: str) -> str:
        return f"{workload}_{self.variant}" if self.variant else workload

    def size(self, elements: int) -> int:
        return max(1, int(elements * self.share))


@dataclass(frozen=True)
class Workload:
    """A pipeline, `elements` long (`quick` for a look), and the rivals it is measured against."""

    name: str
    pipeline: str
    elements: int
    quick: int
    rivals: tuple[Rival, ...]

    def only(self, peers: Collection[str]) -> Workload:
        """The same with no other rivals than these peers."""
        return replace(self, rivals=tuple(rival for rival in self.rivals if rival.peer in peers))


def within(factor: float) -> float:
    """The ratio owed to a limit that penstock may miss by `factor`."""
    return 1 / factor


WORKLOADS = (
    Workload(
        "range_batch",
        "range(n).batch(1024)",
        1_000_000,
        200_000,
        (
            Rival("tfdata", 50),
            Rival("grain", 200, share=0.2),
            Rival("torch_loader", share=0.5),
            Rival("bare"),
        ),
    ),
    Workload(
        "map",
        "range(n).map(lambda x: x * x).batch(1024)",
        1_000_000,
        200_000,
        (
            Rival("tfdata", 20, share=0.05),
            Rival("grain", 10, share=0.2),
            Rival("torch_loader", 1, note="__getitem__ called from __getitems__"),
            Rival("bare", within(1.5), note="Python loop over NumPy scalars"),
        ),
    ),
    Workload(
        "map_vectorized",
        "range(n).map(lambda x: x * x, vectorized=True).batch(1024)",
        1_000_000,
        200_000,
        (
            Rival("tfdata", 500, share=0.05, note="map of elements"),
            Rival("tfdata", variant="batched", note="batch first, then map of batches"),
            Rival("bare"),
        ),
    ),
    Workload(
        "filter",
        "range(n).filter(lambda x: x % 3 == 0).batch(1024)",
        1_000_000,
        200_000,
        (
            Rival("tfdata", 20, share=0.05),
            Rival("grain", share=0.2),
            Rival("torch_loader", note="IterableDataset"),
            Rival("bare", note="Python loop over NumPy scalars"),
        ),
    ),
    Workload(
        "shuffle",
        "range(n).shuffle(10_000).batch(1024)",
        1_000_000,
        200_000,
        (
            Rival("tfdata", 3),
            Rival("grain", share=0.2, note="shuffles within blocks of 10,000"),
            Rival("bare", note="Python loop over a list of 10,000"),
        ),
    ),
    Workload(
        "rows",
        "from_tensor_slices((n x 128 float32, n int64)).shuffle(n).batch(256)",
        100_000,
        50_000,
        (
            Rival("tfdata", 30),
            Rival("grain", 100, share=0.5),
            Rival("torch_loader", 30, note="map dataset over NumPy, default collate"),
            Rival("torch_loader", variant="gathered", note=GATHERED),
            Rival("bare", within(1.3), note="permutation and take"),
        ),
    ),
    Workload(
        "images",
        "from_tensor_slices(n x 224 x 224 x 3 uint8).shuffle(n).batch(64)",
        3_000,
        3_000,
        (
            Rival("tfdata", 4),
            Rival("grain", 4),
            Rival("torch_loader", 1.3, note="TensorDataset, default collate"),
            Rival("torch_loader", variant="gathered", note=GATHERED),
            Rival("bare", within(1.1), note="permutation and take"),
        ),
    ),
    Workload(
        "one_by_one",
        "for x in range(n)",
        100_000,
        50_000,
        (
            Rival("tfdata", 100, share=0.2),
            Rival("grain", 20, share=0.5),
            Rival("torch_loader", share=0.5),
            Rival("bare", note="for x in numpy.arange(n)"),
        ),
    ),
    Workload(
        "padded_batch",
        "range(n).map(lambda i: flat[starts[i]:ends[i]]).padded_batch(64)",
        100_000,
        20_000,
        (
            Rival("tfdata", 3, share=0.2),
            Rival("torch_loader", note="pad_sequence as collate"),
            Rival("bare", note="zeros, filled row by row"),
        ),
    ),
)
