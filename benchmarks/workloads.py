"""What is measured, as declarations: workloads with their sizes, rivals and the ratios owed.

A rival's program of the same name does the same work in the rival's own words; `peers/` holds them.
The bare NumPy loop does every workload: its answer at a given size is the truth for all others.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

TRUTH = "bare"
SUBJECT = "penstock"


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


@dataclass(frozen=True)
class Suite:
    """Workloads that are measured in one go; `heading` is theirs in the page, `method` says how.

    `unit` is the word for what a workload's elements are: what the times are given by. `then` is a
    measurement of penstock alone that belongs to the suite.
    """

    name: str
    heading: str
    unit: str
    method: str
    workloads: tuple[Workload, ...]
    then: str = ""

    @property
    def names(self) -> list[str]:
        return [workload.name for workload in self.workloads]

    @property
    def peers(self) -> list[str]:
        """Who takes part, penstock first."""
        rivals = (rival.peer for workload in self.workloads for rival in workload.rivals)
        return list(dict.fromkeys((SUBJECT, *rivals, TRUTH)))


def within(factor: float) -> float:
    """The ratio owed to a limit that penstock may miss by `factor`."""
    return 1 / factor
