"""The workload of a function on several processes in Ray Data, with two processors to work on."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

# Set before ray is loaded, so that it sends no usage reports and draws no progress bars.
os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_DATA_DISABLE_PROGRESS_BARS="1")
import ray

from benchmarks.peers.elements import UnderWay, busy
from benchmarks.peers.serve import Program, serve


class Batches:
    """The batches of a dataset, from a fresh execution each time."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        for batch in self.dataset.iter_batches(batch_size=16):
            yield batch["value"]


@cache
def start_ray() -> None:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False


def call_busy(row: dict[str, Any]) -> dict[str, Any]:
    return {"value": busy(row["id"])}


def function(n: int) -> Iterable[Any]:
    start_ray()
    # Fewer and larger blocks than ray would choose: every block costs it some milliseconds.
    numbers = ray.data.range(n + 32, override_num_blocks=16)
    return UnderWay(Batches(numbers.map(call_busy)), n // 16, ahead=2)


PROGRAMS: dict[str, Program] = {"function": function}

if __name__ == "__main__":
    serve(PROGRAMS, "ray")
