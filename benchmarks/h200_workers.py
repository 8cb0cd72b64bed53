"""Rows through a Python function on worker processes to a GPU: `python benchmarks/h200_workers.py`.

Images of a 20 GB array, shuffled, each turned upside down by a Python function, in batches of 512:
by worker processes of a service (`local://12`) and by processes of the reader (`Options.executor`).
Prints tables in Markdown: the first batch, how fast batches arrive in the first epoch, which copies
the array into shared memory, and after it, how much memory the processes use together, and how long
a training step of 10 ms waits. Without a GPU it runs all the same: `--gigabytes 0.3 --seconds 0.5
--workers 2`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import h200
from penstock.data import Dataset, Options
from penstock.data.experimental.service import distribute


def flip(image: Any, label: Any) -> tuple[Any, Any]:
    return image[::-1], label


def flip_batches(data: tuple[np.ndarray, np.ndarray], calls: int | None) -> Dataset:
    rows = Dataset.from_tensor_slices(data).shuffle(len(data[0])).repeat()
    return rows.map(flip, num_parallel_calls=calls).batch(h200.BATCH, drop_remainder=True)


def ways(data: tuple[np.ndarray, np.ndarray], workers: int) -> Iterator[tuple[str, Dataset]]:
    reading = distribute("distributed_epoch", f"local://{workers}")
    yield f"local://{workers}", flip_batches(data, None).apply(reading)
    own = Options(executor="processes")
    yield f"{workers} processes of the reader", flip_batches(data, workers).with_options(own)


def memory_of_workers() -> float:
    """Gigabytes of the descendants of this process; memory that they share counts once."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", encoding="ascii") as file:
            parent = int(file.read().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(name))
    tree, kilobytes = [os.getpid()], 0
    for process in tree:
        tree += children.get(process, ())
    for process in tree[1:]:
        with contextlib.suppress(OSError), open(f"/proc/{process}/smaps_rollup") as file:
            kilobytes += sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return kilobytes / 1e6


def torch_rows(data: Any, workers: int, seconds: float) -> Iterator[str]:
    import torch

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    torch.zeros(1, device=device)

    def wait(_: Any) -> None:
        if on_gpu:
            torch.cuda.synchronize()

    step = h200.make_torch_step(device)
    for name, dataset in ways(data, workers):
        iterator = lambda dataset=dataset: iter(dataset.as_torch(device=device))  # noqa: E731
        yield from measure("torch", name, data, iterator, wait, lambda x: x.cpu().numpy(), seconds)
        with iterator() as batches:
            repeats = h200._repeats(lambda b, n: wait(step(b, n)), next(batches), h200.STEPS[0])
            run = partial(step, repeats=repeats)
            yield f"| torch, {name} | {h200.waiting(run, wait, batches)} |"


def jax_rows(data: Any, workers: int, seconds: float) -> Iterator[str]:
    import jax

    jax.block_until_ready(jax.numpy.zeros(2) + 1)  # By then, JAX has started.
    for name, dataset in ways(data, workers):
        yield from measure(
            "jax", name, data, dataset.as_jax, jax.block_until_ready, np.asarray, seconds
        )


def measure(
    framework: str, name: str, data: Any, iterator: Any, wait: Any, numpy: Any, seconds: float
) -> Iterator[str]:
    started = perf_counter()
    with iterator() as batches:
        wait(next(batches))
        first = perf_counter() - started
        h200.check(batches, numpy)
        epoch = read_epoch(batches, wait, data[0].nbytes)
        found = h200.rate(batches, wait, seconds)
        memory = memory_of_workers()
    share = memory / (data[0].nbytes / 1e9)
    cells = f"{first:.2f} | {epoch:.1f} | {found:.1f} | {memory:.1f} | {share:.2f}"
    yield f"| {framework} | {name} | {cells} |"


def read_epoch(batches: Iterator[Any], wait: Any, size: int) -> float:
    """Gigabytes per second until about so many bytes have arrived."""
    started, count = perf_counter(), max(1, size // h200.NBYTES - 20)
    for _ in range(count):
        last = next(batches)
    wait(last)
    return count * h200.NBYTES / (perf_counter() - started) / 1e9


PARTS = {"torch": torch_rows, "jax": jax_rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--only", choices=PARTS)
    options = parser.parse_args()
    if not options.only:
        for part in PARTS:  # Each framework in a process that has the GPU to itself.
            subprocess.run([sys.executable, *sys.argv, f"--only={part}"], check=True)
        return
    data = h200.rows(options.gigabytes)
    print("| framework | by | first batch, s | first epoch, GB/s | then, GB/s |", end="")
    print(" memory of all workers, GB | of the array |\n|---|---|---|---|---|---|---|", flush=True)
    for line in PARTS[options.only](data, options.workers, options.seconds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
