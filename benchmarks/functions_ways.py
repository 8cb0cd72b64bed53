"""The ways of `scripts/bench workloads`: one function on many items, in several libraries' words.

Each way runs in a process of its own, in the environment of its library, on the cores that the
process may use. A way returns what can be iterated over several times, and yields batches.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.functions_work import WORKS, Work

LIMIT = "bare pool"


class NotOfferedError(Exception):
    """The library has no way of its own for this work."""


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


class BarePool:
    """A pool of processes that returns results in order; each batch is stacked here."""

    def __init__(self, work: Work, items: Any) -> None:
        self.work, self.items = work, items
        self.pool = multiprocessing.get_context("fork").Pool(cores())

    def __iter__(self) -> Iterator[Any]:
        batch: list[Any] = []
        share = max(1, self.work.batch // 8)
        for result in self.pool.imap(self.work.function, self.items, share):
            batch.append(result)
            if len(batch) == self.work.batch:
                yield np.stack(batch)
                batch = []
        if batch:
            yield np.stack(batch)


class BareLoops:
    """A process on each core that only calls the function and sends nothing: the upper limit."""

    def __init__(self, work: Work, items: Any) -> None:
        self.work, self.items = work, items

    def __iter__(self) -> Iterator[Any]:
        context = multiprocessing.get_context("fork")
        taken = context.Value("l", 0)
        running = [context.Process(target=self._call, args=(taken,)) for _ in range(cores())]
        for process in running:
            process.start()
        for process in running:
            process.join()
        yield range(len(self.items))

    def _call(self, taken: Any) -> None:
        share = max(1, self.work.batch // 8)
        first = 0
        while first < len(self.items):
            with taken.get_lock():
                first = taken.value
                taken.value += share
            for index in range(first, min(first + share, len(self.items))):
                self.work.function(self.items[index])


def threads(work: Work, items: Any) -> Iterable[Any]:
    return _penstock(work, items, "threads", cores())


def processes(work: Work, items: Any) -> Iterable[Any]:
    return _penstock(work, items, "processes", cores())


def autotune(work: Work, items: Any) -> Iterable[Any]:
    return _penstock(work, items, "auto", -1)


def local_workers(work: Work, items: Any) -> Iterable[Any]:
    """Worker processes of a data service on this machine."""
    from penstock.data import Dataset
    from penstock.data.experimental.service import distribute

    batches = Dataset.from_tensor_slices(items).map(work.function).batch(work.batch)
    return batches.apply(distribute("distributed_epoch", f"local://{cores()}"))


def _penstock(work: Work, items: Any, executor: Any, calls: int) -> Iterable[Any]:
    from penstock.data import AUTOTUNE, Dataset, Options

    dataset = Dataset.from_tensor_slices(items).map(work.function, num_parallel_calls=calls)
    return dataset.batch(work.batch).prefetch(AUTOTUNE).with_options(Options(executor=executor))


class _MappedItems:
    """A map-style dataset: a function of each item."""

    def __init__(self, function: Callable[[Any], Any], items: Any) -> None:
        self.function, self.items = function, items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.function(self.items[index])


def loader(work: Work, items: Any) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    return DataLoader(
        _MappedItems(work.function, items),  # type: ignore[arg-type]
        batch_size=work.batch,
        num_workers=cores(),
        persistent_workers=True,
    )


def grain_processes(work: Work, items: Any) -> Iterable[Any]:
    import grain
    from absl import flags

    sys.argv = sys.argv[:1]  # Its processes parse the arguments of this program.
    flags.FLAGS(sys.argv)
    mapped = grain.MapDataset.source(items).map(work.function).batch(work.batch)
    options = grain.MultiprocessingOptions(num_workers=cores(), per_worker_buffer_size=4)
    return mapped.to_iter_dataset().mp_prefetch(options)  # type: ignore[no-any-return]


def tf_py_function(work: Work, items: Any) -> Iterable[Any]:
    import tensorflow as tf

    made = np.asarray(work.function(items[0]))

    def call(item: Any) -> Any:
        result = tf.py_function(lambda x: work.function(x.numpy()), [item], made.dtype)
        return tf.ensure_shape(result, made.shape)

    return _tf_data(work, items, call)


def tf_own_operations(work: Work, items: Any) -> Iterable[Any]:
    import tensorflow as tf

    def decode(data: Any) -> Any:
        image = tf.image.resize(tf.io.decode_jpeg(data, channels=3), (256, 256))
        return tf.cast(image[16:240, 16:240], tf.uint8)

    def augment(image: Any) -> Any:
        moved = tf.cast(tf.roll(image[:, ::-1], 5, axis=0), tf.float32)
        return (moved - tf.reduce_mean(moved)) / (tf.math.reduce_std(moved) + 1.0)

    own = {"decode": decode, "augment": augment, "double": lambda row: row * 2}
    if work.function.__name__ not in own:
        raise NotOfferedError(f"tf.data has no operation for {work.text}")
    return _tf_data(work, items, own[work.function.__name__])


def _tf_data(work: Work, items: Any, call: Callable[[Any], Any]) -> Iterable[Any]:
    import tensorflow as tf

    options = tf.data.Options()
    options.threading.private_threadpool_size = cores()
    dataset = tf.data.Dataset.from_tensor_slices(items).map(call, tf.data.AUTOTUNE)
    return dataset.batch(work.batch).prefetch(tf.data.AUTOTUNE).with_options(options)


class RayData:
    """Ray Data, from a fresh execution in each pass."""

    def __init__(self, work: Work, items: Any) -> None:
        os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_DATA_DISABLE_PROGRESS_BARS="1")
        import ray

        ray.init(
            num_cpus=cores(),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": {"PYTHONPATH": os.getcwd()}},
        )
        ray.data.DataContext.get_current().enable_progress_bars = False
        source = ray.data.from_items(list(items), override_num_blocks=8 * cores())
        function = work.function
        self.batch = work.batch
        self.dataset = source.map(lambda row: {"value": function(row["item"])})

    def __iter__(self) -> Iterator[Any]:
        for batch in self.dataset.iter_batches(batch_size=self.batch):
            yield batch["value"]


WAYS: dict[str, Callable[[Work, Any], Iterable[Any]]] = {
    "bare loops": BareLoops,
    LIMIT: BarePool,
    "penstock, threads": threads,
    "penstock, processes": processes,
    "penstock, AUTOTUNE": autotune,
    "penstock, local://": local_workers,
    "DataLoader": loader,
    "Grain, processes": grain_processes,
    "tf.data, py_function": tf_py_function,
    "tf.data, own operations": tf_own_operations,
    "Ray Data": RayData,
}


def processor_seconds() -> float:
    """The processor time of this process and of all its descendants, also of ended ones."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(name))
            ticks[int(name)] = sum(map(int, fields[11:15]))
    tree = [os.getpid()]
    for process in tree:
        tree += children.get(process, ())
    return sum(ticks.get(process, 0) for process in tree) / os.sysconf("SC_CLK_TCK")


def measure(work: Work, way: str, count: int) -> tuple[float, float]:
    """Elements per second of a second pass, when all processes run: by the clock, and by CPU."""
    pipeline = WAYS[way](work, work.items(count))
    for _ in pipeline:
        pass
    started, cpu, elements = perf_counter(), processor_seconds(), 0
    for batch in pipeline:
        elements += len(batch)
    assert elements == count, f"{way}: {elements} elements of {count}"
    seconds = perf_counter() - started
    return elements / seconds, elements / max(processor_seconds() - cpu, 0.01)


def main(name: str, way: str, count: str, most_cores: str) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(most_cores)])
    try:
        print(*measure(WORKS[name], way, int(count)), flush=True)
    except NotOfferedError as error:
        print(error, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # Some libraries' processes and threads end slowly.
