"""A training input from end to end: its plan, a run, a checkpoint in the middle, a resume.

Run it with scripts/demo --quick, or with `python examples/pipeline.py` where penstock is installed.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import penstock

FEATURES, CLASSES = 32, 10

Batch = tuple[np.ndarray, np.ndarray]


def standardize(features: np.ndarray, label: np.ndarray) -> Batch:
    """A function of a user: plain NumPy, one element at a time."""
    return (features - features.mean()) / features.std(), label


def pipeline(rows: int, batch_size: int, seed: int) -> penstock.data.Dataset:
    """Random rows, shuffled, standardised, batched and prefetched."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(rows, FEATURES)).astype(np.float32)
    labels = random.integers(CLASSES, size=rows, dtype=np.int32)
    return (
        penstock.data.Dataset.from_tensor_slices((features, labels))
        .shuffle(rows, seed=seed)
        .map(standardize, num_parallel_calls=2)
        .batch(batch_size)
        .prefetch(2)
    )


def follow(batches: Iterator[Batch], total: int, what: str, console: Console) -> list[Batch]:
    """Collects the batches and shows a progress bar."""
    label = TextColumn("{task.description}")
    columns = (label, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        return list(progress.track(batches, total=total, description=what))


def save(state: dict[str, Any], file: Path, console: Console) -> None:
    file.write_text(json.dumps(state), encoding="utf-8")
    console.print(f"checkpoint: {file.stat().st_size} bytes of JSON, the position and no data")


def equal(left: list[Batch], right: list[Batch]) -> bool:
    if len(left) != len(right):
        return False
    pairs = zip(left, right, strict=True)
    return all(np.array_equal(a, b) for pair in pairs for a, b in zip(*pair, strict=True))


def run(arguments: argparse.Namespace, file: Path, console: Console) -> bool:
    """True if the resumed run delivers what the uninterrupted one does."""
    settings = arguments.rows, arguments.batch_size, arguments.seed
    dataset = pipeline(*settings)
    steps = len(dataset)
    half = steps // 2

    console.rule("the plan")
    console.print(dataset.explain(), markup=False, highlight=False)

    console.rule("the run")
    iterator = iter(dataset)
    follow(islice(iterator, half), half, "first half ", console)
    save(iterator.state_dict(), file, console)
    rest = follow(iterator, steps - half, "second half", console)

    console.rule("the resume")
    resumed = iter(pipeline(*settings))
    resumed.load_state_dict(json.loads(file.read_text(encoding="utf-8")))
    again = follow(resumed, steps - half, "second half", console)
    same = equal(rest, again)
    verdict = "identical" if same else "DIFFERENT"
    console.print(f"{len(again)} batches after the resume, {len(rest)} without it: {verdict}")

    console.rule("where the time went")
    console.print(str(iterator.profile()), markup=False, highlight=False)
    return same


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=50_000, help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=256, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=7, help="default: %(default)s")
    return parser.parse_args(arguments)


def main() -> int:
    arguments, console = parse(), Console()
    try:
        with tempfile.TemporaryDirectory() as folder:
            return 0 if run(arguments, Path(folder) / "checkpoint.json", console) else 1
    except KeyboardInterrupt:
        console.print("stopped")
        return 130
    except (ValueError, TypeError) as error:
        console.print(str(error), style="red", markup=False)
        return 2


if __name__ == "__main__":
    sys.exit(main())
