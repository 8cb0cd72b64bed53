"""The input of each example beside that of its DataLoader version: lines, and rows per second.

Runs with this Python, which needs what the examples need: `PYTHON=.venv/bin/python scripts/bench
examples`. Both versions read the same number of rows, in turns; the first turn does not count.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import itertools
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ.setdefault("KERAS_BACKEND", "torch")

FOLDER = Path(__file__).resolve().parent.parent / "examples"

Batches = Iterable[Any]


class Case(NamedTuple):
    """How to read the input of one example in both versions."""

    rows: int
    penstock: Callable[[Any, int, Path], contextlib.AbstractContextManager[Batches]]
    usual: Callable[[Any, int, Path], Batches]


def plain(read: Callable[[Any, int, Path], Batches]) -> Any:
    return lambda module, rows, folder: contextlib.nullcontext(read(module, rows, folder))


@contextlib.contextmanager
def read_served(
    read: Callable[[Any, int, str, Path], Batches], module: Any, rows: int, folder: Path
) -> Iterator[Batches]:
    """From a service whose worker runs before the clock does."""
    import penstock
    from penstock.data.experimental import service

    with penstock.launch.local(workers=1) as launched:
        one = penstock.data.Dataset.range(1)
        list(one.apply(service.distribute("distributed_epoch", launched.url)))
        yield read(module, rows, launched.url, folder)


def on_service(read: Callable[[Any, int, str, Path], Batches]) -> Any:
    return lambda module, rows, folder: read_served(read, module, rows, folder)


def with_rows(module: Any, rows: int) -> Any:
    module.ROWS = rows
    return module


def sharding() -> Any:
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((jax.device_count(),), ("batch",))
    return NamedSharding(mesh, PartitionSpec("batch"))


def in_threads(readers: list[Batches]) -> Batches:
    """Reads all of them at once."""
    threads = [threading.Thread(target=lambda r=reader: list(r)) for reader in readers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return []


def both(make: Callable[[str], Batches]) -> Batches:
    """Two trainings; nothing is read before it is iterated over."""
    yield from in_threads([make("a"), make("b")])


def series(module: Any, rows: int) -> Any:
    return module.make_series([rows // 4, rows // 4, rows // 2])


CASES = {
    "torch_ddp": Case(
        20_000,
        on_service(lambda m, rows, url, _: with_rows(m, rows).make_batches(url)),
        lambda m, rows, _: m.make_batches(0, 1, rows),
    ),
    "jax_sharded": Case(
        32_000,
        plain(lambda m, rows, _: m.make_batches(sharding(), rows)),
        lambda m, rows, _: m.make_batches(sharding(), rows),
    ),
    "keras_fit": Case(
        100_000,
        on_service(lambda m, rows, url, _: m.make_batches(rows, url).get_torch_dataloader()),
        lambda m, rows, _: m.make_batches(rows),
    ),
    "lightning_fit": Case(
        200_000,
        plain(lambda m, rows, _: m.make_batches(rows)),
        lambda m, rows, _: m.make_batches(rows),
    ),
    "huggingface_trainer": Case(
        50_000,
        plain(lambda m, rows, _: m.make_batches(rows)),
        lambda m, rows, _: m.make_batches(rows),
    ),
    "language_model": Case(
        20_000,
        plain(lambda m, rows, folder: m.make_batches(folder)),
        lambda m, rows, folder: m.make_batches(folder),
    ),
    "images": Case(
        400,
        plain(lambda m, rows, folder: m.make_batches(folder)),
        lambda m, rows, folder: m.make_batches(folder),
    ),
    "time_series": Case(
        100_000,
        plain(lambda m, rows, _: m.make_batches(series(m, rows))),
        lambda m, rows, _: m.make_batches(series(m, rows)),
    ),
    "replay_buffer": Case(
        64_000,
        plain(lambda m, rows, _: m.make_batches().take(rows // 32)),
        lambda m, rows, _: itertools.islice(m.make_batches(), rows // 32),
    ),
    "two_trainings": Case(
        5_000,
        on_service(
            lambda m, rows, url, folder: both(
                lambda name: m.make_batches(url, name, str(folder / "calls"), rows)
            )
        ),
        lambda m, rows, folder: both(lambda _: m.make_batches(str(folder / "calls"), rows)),
    ),
}


def load(path: Path) -> Any:
    name = "_".join(path.relative_to(FOLDER).with_suffix("").parts)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def count_lines(path: Path) -> int:
    """Lines of code and comments, without the docstring of the file and blank lines."""
    text = path.read_text(encoding="utf-8")
    first = ast.parse(text).body[0]
    return sum(1 for line in text.splitlines()[first.end_lineno :] if line.strip())


def seconds_to_read(batches: Batches) -> float:
    began = time.perf_counter()
    for _ in batches:
        pass
    return time.perf_counter() - began


def write_input(name: str, module: Any, rows: int, folder: Path) -> None:
    if name == "images":
        module.write_images(str(folder), rows, 256, 320)
    if name == "language_model":
        module.write_documents(folder, rows)


def measure(name: str, rounds: int, scale: float) -> tuple[float, float, float]:
    """Rows per second of both versions, and the median of the ratios of the rounds."""
    case = CASES[name]
    rows = max(int(case.rows * scale) // 64 * 64, 128)
    ours, usual = load(FOLDER / f"{name}.py"), load(FOLDER / "dataloader" / f"{name}.py")
    times = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_input(name, ours, rows, folder)
        for _ in range(rounds + 1):
            with case.penstock(ours, rows, folder) as batches:
                first = seconds_to_read(batches)
            times.append((first, seconds_to_read(case.usual(usual, rows, folder))))
    times = times[1:]
    rates = [rows / statistics.median(column) for column in zip(*times, strict=True)]
    ratio = statistics.median(second / first for first, second in times)
    return rates[0], rates[1], ratio


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workloads", nargs="*", help=f"of {', '.join(CASES)}")
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    rounds, scale = (1, 0.05) if chosen.quick else (3, 1.0)
    print("| example | lines | DataLoader's | rows/s | DataLoader's | ratio |")
    print("|---|---|---|---|---|---|")
    for name in chosen.workloads or CASES:
        lines = [count_lines(FOLDER / part / f"{name}.py") for part in ("", "dataloader")]
        first, second, ratio = measure(name, rounds, scale)
        print(
            f"| {name} | {lines[0]} | {lines[1]} | {first:,.0f} | {second:,.0f} | {ratio:.1f} |",
            flush=True,
        )
    print(f"load of the machine: {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores")
    return 0


if __name__ == "__main__":
    sys.exit(main())
