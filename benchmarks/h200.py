"""Batches from the host's memory to a GPU: `python benchmarks/h200.py`, on a machine with one.

512 images (224x224x3 bytes) and their labels, shuffled, out of a 20 GB array. Prints a table in
Markdown: how fast batches arrive, and how long a training step waits for them. Without a GPU it
runs all the same, on the CPU; `--gigabytes 0.2 --seconds 0.2` is then enough to see that it works.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice, repeat
from typing import Any

import numpy as np

import penstock as tf

SHAPE, BATCH = (224, 224, 3), 512
NBYTES = BATCH * int(np.prod(SHAPE))
STEPS = (0.010, 0.020, 0.050)


def rows(gigabytes: float) -> tuple[np.ndarray, np.ndarray]:
    """Images of which every byte says which label they have."""
    count = max(int(gigabytes * 1e9) // int(np.prod(SHAPE)), 2 * BATCH)
    images, labels = np.empty((count, *SHAPE), np.uint8), np.arange(count, dtype=np.int32)

    def fill(part: np.ndarray) -> None:
        images[part[0] : part[-1] + 1] = (part % 251).astype(np.uint8)[:, None, None, None]

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(fill, np.array_split(np.arange(count), 64)))
    return images, labels


def shuffle_batches(data: tuple[np.ndarray, np.ndarray]) -> Any:
    dataset = tf.data.Dataset.from_tensor_slices(data)
    return dataset.shuffle(len(data[0])).batch(BATCH, drop_remainder=True).repeat()


def distribute_batches(strategy: Any, data: tuple[np.ndarray, np.ndarray]) -> Any:
    return strategy.experimental_distribute_dataset(shuffle_batches(data))


def rate(batches: Iterable[Any], wait: Callable[[Any], None], seconds: float) -> float:
    """Gigabytes per second over so many seconds, after a warm-up."""
    source = iter(batches)
    wait(list(islice(source, 10)))
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        last = next(source)
        count += 1
    wait(last)
    return count * NBYTES / (time.perf_counter() - started) / 1e9


def waiting(step: Callable[[Any], Any], wait: Callable[[Any], None], batches: Iterator[Any]) -> str:
    """The seconds of a step that always has the same batch, and of one with new batches.

    Both are measured in turns, because a GPU that gets warmer gets slower.
    """
    batch = next(batches)
    wait(step(batch))
    count = max(5, int(0.5 / _time_call(lambda: wait(step(batch)))))
    alone, fed = [], []
    for _ in range(7):
        alone.append(_time_call(lambda: _steps(step, wait, repeat(batch, count))))
        fed.append(_time_call(lambda: _steps(step, wait, islice(batches, count))))
    each = [float(np.median(times)) / count * 1e3 for times in (alone, fed)]
    return f"{each[0]:.2f} | {each[1]:.2f} | {each[1] / each[0] - 1:.1%}"


def _steps(step: Callable[[Any], Any], wait: Callable[[Any], None], batches: Iterable[Any]) -> None:
    for batch in batches:
        result = step(batch)
    wait(result)


def _time_call(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def check(batches: Iterator[Any], numpy: Callable[[Any], np.ndarray]) -> None:
    """Every image has its own label, in all of its corners."""
    for images, labels in islice(batches, 20):
        expected = numpy(labels) % 251
        for corner in (images[:, 0, 0, 0], images[:, -1, -1, -1], images[:, 100, 0, 2]):
            np.testing.assert_array_equal(numpy(corner), expected)


def torch_rows(data: tuple[np.ndarray, np.ndarray], seconds: float) -> Iterator[str]:
    import torch

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")

    def wait(_: Any) -> None:
        if on_gpu:
            torch.cuda.synchronize()

    pinned = torch.empty((BATCH, *SHAPE), dtype=torch.uint8, pin_memory=on_gpu)
    copies = (pinned.to(device, non_blocking=True, copy=True) for _ in iter(int, 1))
    yield f"| torch | copy of one pinned batch | {rate(copies, wait, min(seconds, 2)):.1f} |"

    strategy = tf.distribute.OneDeviceStrategy(device)
    with iter(distribute_batches(strategy, data)) as batches:
        check(batches, lambda tensor: tensor.cpu().numpy())
        yield f"| torch | penstock | {rate(batches, wait, seconds):.1f} |"
    with iter(shuffle_batches(data).as_torch(device=device)) as batches:
        check(batches, lambda tensor: tensor.cpu().numpy())
        yield f"| torch | penstock, as_torch | {rate(batches, wait, seconds):.1f} |"
    yield f"| torch | DataLoader, 16 workers, pinned | {_loader(data, device, wait, seconds):.1f} |"
    yield f"| torch | plain loop | {rate(_plain(data, device), wait, min(seconds, 3)):.1f} |"

    step = make_torch_step(device)
    for seconds_each in STEPS:
        with iter(distribute_batches(strategy, data)) as batches:
            repeats = _repeats(lambda b, n: wait(step(b, n)), next(batches), seconds_each)
            yield f"| torch | {waiting(lambda b, n=repeats: step(b, n), wait, batches)} |"


def make_torch_step(device: Any) -> Callable[..., Any]:
    """A training step: products of matrices, `repeats` of them, that use a batch."""
    import torch

    on_gpu = device.type == "cuda"
    size, kind = (8192, torch.bfloat16) if on_gpu else (128, torch.float32)
    weights = torch.randn(size, size, device=device, dtype=kind)

    def step(batch: Any, repeats: int) -> Any:
        result = weights + batch[0].float().mean().to(kind) + batch[1].sum().to(kind)
        for _ in range(repeats):
            result = result @ weights
        return result

    return step


def _repeats(run: Callable[[Any, int], None], batch: Any, seconds: float) -> int:
    """How many products of matrices a step needs to take so long."""
    run(batch, 20)
    return max(1, round(seconds / (_time_call(lambda: run(batch, 20)) / 20)))


class Images:
    """The same rows for torch's DataLoader."""

    def __init__(self, data: tuple[np.ndarray, np.ndarray]) -> None:
        import torch

        self.images, self.labels = map(torch.from_numpy, data)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> Any:
        return self.images[i], self.labels[i]


def _loader(data: Any, device: Any, wait: Callable[[Any], None], seconds: float) -> float:
    from torch.utils.data import DataLoader

    workers = min(16, os.cpu_count() or 1)
    pinned = device.type == "cuda"
    loader: Any = DataLoader(
        Images(data),  # type: ignore[arg-type]
        BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        pin_memory=pinned,
        persistent_workers=True,
    )
    moved = (
        [leaf.to(device, non_blocking=True) for leaf in batch]
        for _ in iter(int, 1)
        for batch in loader
    )
    return rate(moved, wait, seconds)


def _plain(data: Any, device: Any) -> Iterator[Any]:
    import torch

    random = np.random.default_rng(0)
    while True:
        order = random.permutation(len(data[0]))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            picked = order[start : start + BATCH]
            yield [torch.from_numpy(leaf[picked]).to(device) for leaf in data]


def jax_rows(data: tuple[np.ndarray, np.ndarray], seconds: float) -> Iterator[str]:
    import jax
    import jax.numpy as jnp

    device = jax.devices()[0]
    wait = jax.block_until_ready

    def plain() -> Iterator[Any]:
        random = np.random.default_rng(0)
        while True:
            picked = random.integers(0, len(data[0]), BATCH)
            yield [jax.device_put(leaf[picked], device) for leaf in data]

    strategy = tf.distribute.OneDeviceStrategy(device)
    with iter(distribute_batches(strategy, data)) as batches:
        check(batches, np.asarray)
        yield f"| jax | penstock | {rate(batches, wait, seconds):.1f} |"
    with shuffle_batches(data).as_jax() as batches:
        check(batches, np.asarray)
        yield f"| jax | penstock, as_jax | {rate(batches, wait, seconds):.1f} |"
    yield f"| jax | plain loop | {rate(plain(), wait, min(seconds, 3)):.1f} |"

    on_gpu = device.platform != "cpu"
    size, kind = (8192, jnp.bfloat16) if on_gpu else (128, jnp.float32)
    weights = jax.device_put(np.random.default_rng(0).standard_normal((size, size)), device)
    weights = weights.astype(kind)

    @partial(jax.jit, static_argnums=2)
    def step(weights: Any, batch: Any, repeats: int) -> Any:
        # Unrolled: with a loop of unknown length, the call would block until the step has ended.
        result = (weights + batch[0].astype(jnp.float32).mean() + batch[1].sum()).astype(kind)
        for _ in range(repeats):
            result = result @ weights
        return result

    for seconds_each in STEPS:
        with iter(distribute_batches(strategy, data)) as batches:
            repeats = _repeats(lambda b, n: wait(step(weights, b, n)), next(batches), seconds_each)
            run = lambda b, n=repeats: step(weights, b, n)  # noqa: E731
            yield f"| jax | {waiting(run, wait, batches)} |"


PARTS = {"torch": torch_rows, "jax": jax_rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--only", choices=PARTS)
    options = parser.parse_args()
    if options.only:
        data = rows(options.gigabytes)
        for line in PARTS[options.only](data, options.seconds):
            print(line, flush=True)
        return
    # Each framework in a process of its own, which has the GPU to itself.
    lines = [line for part in PARTS for line in _in_process(part, options)]
    print("| framework | batches of 77 MB to the GPU by | GB/s |\n|---|---|---|")
    print("\n".join(line for line in lines if line.count("|") == 4))
    print("\n| framework | step alone, ms | with input, ms | longer by |\n|---|---|---|---|")
    print("\n".join(line for line in lines if line.count("|") == 5))


def _in_process(part: str, options: argparse.Namespace) -> list[str]:
    sizes = [f"--gigabytes={options.gigabytes}", f"--seconds={options.seconds}"]
    command = [sys.executable, __file__, f"--only={part}", *sizes]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [line for line in found.stdout.splitlines() if line.startswith("|")]


if __name__ == "__main__":
    main()
