"""The datasets that are read during faults, written so that TensorFlow runs them, too.

Every value is a number, so that lost and repeated elements can be named.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILES = 12
CRASH = "crash"
"""The file that makes the next call of a `fragile` function end its process."""


@dataclass(frozen=True)
class Plan:
    """A dataset of about `n` numbers; `make` gets the module `tf`, a folder and `n`.

    `ordered`: one reader gets the numbers in their local order.
    """

    name: str
    make: Callable[[Any, Path, int], Any]
    expected: Callable[[int], Iterable[int]]
    mode: str = "distributed_epoch"
    readers: int = 1
    ordered: bool = True

    @property
    def job(self) -> str | None:
        return "shared" if self.readers > 1 else None

    def copies(self, workers: int) -> int:
        return workers if self.mode == "parallel_epochs" else 1

    def counts(self, n: int, workers: int) -> Counter[int]:
        """How often each number must come."""
        return Counter(list(self.expected(n)) * self.copies(workers))


def fragile(tf: Any, folder: Path) -> Callable[[Any], Any]:
    """Returns its number; or ends the process, if the file exists and it is not the reader's."""
    reader, crash = os.getpid(), str(folder / CRASH)

    def call(x: Any) -> Any:
        if os.getpid() != reader:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(crash)  # Only one call deletes the file.
                os.kill(os.getpid(), signal.SIGSEGV)
        return x

    return (lambda x: x) if hasattr(tf, "strings") else call


def batches(tf: Any, folder: Path, n: int) -> Any:
    return tf.data.Dataset.range(n).map(fragile(tf, folder)).map(lambda x: x * 3).batch(4)


def shuffle_range(tf: Any, folder: Path, n: int) -> Any:
    made = tf.data.Dataset.range(n).shuffle(64, seed=1).map(fragile(tf, folder))
    return made.map(lambda x: x * 3)


def shuffle_without_seed(tf: Any, folder: Path, n: int) -> Any:
    """Each process draws its own seeds, but all of them read in the order of the first one."""
    return tf.data.Dataset.range(n).shuffle(n).map(fragile(tf, folder)).map(lambda x: x * 3)


def files(tf: Any, folder: Path, n: int) -> Any:
    """Lines of files, of which a third is filtered out."""
    for number in range(FILES):
        numbers = range(n * number // FILES, n * (number + 1) // FILES)
        text = "".join(f"{value}\n" for value in numbers)
        path = folder / f"{number:02}.txt"
        if not path.exists():
            path.write_text(text)
    names = sorted(str(path) for path in folder.glob("*.txt"))
    lines = tf.data.Dataset.from_tensor_slices(names).interleave(
        tf.data.TextLineDataset, cycle_length=4, block_length=2
    )
    return lines.map(_number_in(tf)).map(fragile(tf, folder)).filter(lambda x: x % 3 != 0)


def _number_in(tf: Any) -> Callable[[Any], Any]:
    """From text to a number: in a graph, TensorFlow has a function for it."""
    if hasattr(tf, "strings"):
        return lambda line: tf.strings.to_number(line, tf.int64)
    return int


def generator(tf: Any, folder: Path, n: int) -> Any:
    def numbers() -> Iterable[int]:
        yield from range(0, 2 * n, 2)

    spec = tf.TensorSpec((), tf.int64)
    made = tf.data.Dataset.from_generator(numbers, output_signature=spec)
    return made.map(fragile(tf, folder)).map(lambda x: x + 1)


def map_range(tf: Any, folder: Path, n: int) -> Any:
    return tf.data.Dataset.range(n).map(fragile(tf, folder))


PLANS = {
    plan.name: plan
    for plan in (
        Plan("batches", batches, lambda n: range(0, 3 * n, 3)),
        Plan("shuffled", shuffle_range, lambda n: range(0, 3 * n, 3), ordered=False),
        Plan("files", files, lambda n: (x for x in range(n) if x % 3), ordered=False),
        Plan("generator", generator, lambda n: range(1, 2 * n + 1, 2)),
        Plan("parallel_epochs", map_range, range, "parallel_epochs", ordered=False),
        Plan("shared", batches, lambda n: range(0, 3 * n, 3), readers=2, ordered=False),
        Plan("shared_unseeded", shuffle_without_seed, lambda n: range(0, 3 * n, 3), readers=2,
             ordered=False),
        Plan("shared_files", files, lambda n: (x for x in range(n) if x % 3), readers=2,
             ordered=False),
    )
}  # fmt: skip
