"""The programs of a team's members: each takes its strategy and returns plain data."""

import os
import signal
import sys
from typing import Any

import numpy as np

import penstock as tf
from penstock.distribute.cluster_resolver import SimpleClusterResolver
from penstock.distribute.multiworker import MultiWorkerMirroredStrategy
from penstock.distribute.replica_context import get_replica_context
from penstock.distribute.values.indexed_slices import IndexedSlices
from penstock.tf.values import as_tensor

ROWS, BATCH, RATE = 52, 8, 0.05
SUM, MEAN = tf.VariableAggregation.SUM, tf.VariableAggregation.MEAN


def outcome(call: Any, *arguments: Any) -> Any:
    """What a call returned, or its error as a list of its kind and message."""
    try:
        return call(*arguments)
    except Exception as error:
        return [type(error).__name__, str(error)]


def lists(strategy: Any, value: Any) -> list[Any]:
    """The values of this process's replicas as lists."""
    numpy = strategy._replicas.backend.numpy
    return [np.asarray(numpy(one)).tolist() for one in strategy.experimental_local_results(value)]


def examples() -> tf.data.Dataset:
    generator = np.random.default_rng(7)
    inputs = generator.standard_normal((ROWS, 3)).astype(np.float32)
    targets = inputs @ np.array([[1.0], [-2.0], [3.0]], np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((inputs, targets))
    return dataset.shuffle(ROWS, seed=3).batch(BATCH)


def train(strategy: Any) -> Any:
    """A linear model by gradient descent; the batch may end up in any number of pieces."""
    with strategy.scope():
        # Every process begins with other weights; those of the first process are used.
        start = np.full((3, 1), strategy._replicas.worker, np.float32)
        weights = tf.Variable(start, aggregation=SUM)

    def step(pair: Any) -> Any:
        x, y = pair
        error = x @ weights.read_value() - y
        weights.assign_sub(RATE * 2 * (x.T @ error))
        return (error**2).sum()

    losses = []
    for _ in range(2):
        for pair in strategy.experimental_distribute_dataset(examples()):
            loss = strategy.run(step, args=(pair,))
            losses.append(float(strategy.reduce("SUM", loss, axis=None)))
    return {"weights": lists(strategy, weights), "losses": losses}


def portions(strategy: Any) -> Any:
    """Datasets that do not divide evenly: everything that each replica got."""
    dataset = tf.data.Dataset.range(13).batch(6)
    by_data = strategy.experimental_distribute_dataset(dataset)
    shuffled = tf.data.Dataset.range(24).shuffle(24).batch(8)
    by_worker = strategy.distribute_datasets_from_function(
        lambda context: tf.data.Dataset.range(4 if context.input_pipeline_id == 0 else 9).batch(2)
    )
    return {
        "data": [lists(strategy, step) for step in by_data],
        "shuffled": [
            lists(strategy, step) for step in strategy.experimental_distribute_dataset(shuffled)
        ],
        "function": [lists(strategy, step) for step in by_worker],
        "kind": type(next(iter(by_data))).__name__,
    }


def place(strategy: Any) -> Any:
    def identity() -> Any:
        context = get_replica_context()
        total = context.all_reduce("SUM", _own(strategy, [1.0 + context.replica_id_in_sync_group]))
        return context.replica_id_in_sync_group, total

    ids, totals = strategy.run(identity)
    resolver = strategy.cluster_resolver
    return {
        "replicas": strategy.num_replicas_in_sync,
        "ids": [int(one) for one in strategy.experimental_local_results(ids)],
        "totals": lists(strategy, totals),
        "task": [resolver.task_type, resolver.task_id, len(resolver.cluster_spec().as_dict())],
        "devices": list(strategy.extended.worker_devices),
    }


def _own(strategy: Any, values: Any) -> Any:
    handle = strategy._replicas.devices[0].handle
    return strategy._replicas.backend.put(np.asarray(values, np.float32), handle)


def reductions(strategy: Any) -> Any:
    """Values that differ by worker and replica; rows in different numbers."""
    first = strategy._replicas.first
    value = strategy.experimental_distribute_values_from_function(
        lambda context: np.array([1.0, 10.0], np.float32) * context.replica_id_in_sync_group
    )
    rows = strategy.experimental_distribute_values_from_function(
        lambda context: np.arange(context.replica_id_in_sync_group, dtype=np.float32)
    )
    numpy = strategy._replicas.backend.numpy
    large = _own(strategy, np.full((300, 2), first + 1.0))
    return {
        "sum": numpy(strategy.reduce("SUM", value, axis=None)).tolist(),
        "mean": numpy(strategy.reduce("MEAN", value, axis=None)).tolist(),
        "mean0": float(strategy.reduce("MEAN", rows, axis=0)),
        "gather": numpy(strategy.gather(rows, axis=0)).tolist(),
        "large": numpy(strategy._replicas.collectives.all_reduce(large)).sum().tolist(),
    }


def slices(strategy: Any) -> Any:
    """Rows with their numbers: each replica gives as many as its number, worker 0 others."""

    def rows(context: Any) -> IndexedSlices:
        number = context.replica_id_in_sync_group
        values = np.full((number, 1), number, np.float32)
        return IndexedSlices(values, np.arange(number), np.array([4, 1]))

    given = strategy.experimental_distribute_values_from_function(rows)
    found = {op: strategy.reduce(op, given, axis=None) for op in ("SUM", "MEAN")}
    return {
        "sum": [np.ravel(found["SUM"].values).tolist(), np.asarray(found["SUM"].indices).tolist()],
        "mean": np.ravel(found["MEAN"].values).tolist(),
        "first": _rows_of_first(strategy),
    }


def _rows_of_first(strategy: Any) -> Any:
    """The rows that a variable takes from the first replica of all, though every one gives some."""
    with strategy.scope():
        table = tf.Variable([0.0, 0.0, 0.0], aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    taken = []

    def step() -> None:
        context = get_replica_context()
        number = context.replica_id_in_sync_group
        rows = IndexedSlices(np.float32([number + 5]), np.array([number]))
        context.merge_call(
            lambda _, given: taken.append(table._aggregate_slices(given, "")), [rows]
        )

    strategy.run(step)
    return [np.asarray(taken[0].values).tolist(), np.asarray(taken[0].indices).tolist()]


def variables(strategy: Any) -> Any:
    worker = strategy._replicas.worker
    with strategy.scope():
        mirrored = tf.Variable(10.0 * (worker + 1), aggregation=MEAN)
        on_read = tf.Variable(
            0.0, synchronization=tf.VariableSynchronization.ON_READ, aggregation=SUM
        )
    start = float(mirrored.read_value())

    def step() -> None:
        number = get_replica_context().replica_id_in_sync_group
        mirrored.assign_add(_own(strategy, number + 1.0))
        on_read.assign_add(_own(strategy, number + 1.0))

    strategy.run(step)
    return {
        "start": start,
        "mirrored": lists(strategy, mirrored),
        "on_read": float(on_read.read_value()),
    }


def disagreements(strategy: Any) -> Any:
    """Workers that call different collectives get an error, and can continue."""
    collectives, worker = strategy._replicas.collectives, strategy._replicas.worker
    answer = {
        "shapes": outcome(collectives.all_reduce, _own(strategy, np.zeros(3 + worker))),
        "calls": outcome(
            *([collectives.barrier] if worker else [collectives.gather, np.zeros(2, np.int8)])
        ),
        "dtypes": outcome(collectives.gather, np.zeros(2, np.float32 if worker else np.int8)),
        "strings": outcome(collectives.gather, np.array([b"a"], object)),
        "many_dimensions": outcome(collectives.gather, np.zeros((1,) * 9)),
    }
    collectives.barrier()
    return answer


def arrays(strategy: Any) -> Any:
    """Arrays of all sizes and dtypes, as they arrive."""
    collectives, worker = strategy._replicas.collectives, strategy._replicas.worker
    gathered = collectives.gather(np.full((200 * worker, 2), 2**40 + worker))
    broadcast = collectives.broadcast(np.full(1000, 0.1 + worker))
    return {
        "gathered": [list(one.shape) for one in gathered],
        "value": int(gathered[1][0, 0] - 2**40),
        "small": [one.tolist() for one in collectives.gather(np.array([worker == 0, True]))],
        "broadcast": [str(broadcast.dtype), float(broadcast[-1])],
        "broadcast_small": int(collectives.broadcast(np.array(worker + 5))),
        "other_order": [
            [
                int(collectives.gather(np.full(size, 7 + worker, ">i4"))[1][-1])
                for size in (3, 2000)
            ],
            [int(collectives.broadcast(np.full(size, 7, ">i4"))[-1]) for size in (3, 2000)],
        ],
    }


def sums(strategy: Any) -> Any:
    """Sums of all dtypes, small and large, also of dtypes that the transport cannot add."""
    found = {}
    for dtype in ("int8", "int16", "float16", "bfloat16", "float64", "complex64"):
        for size in (3, 2000):
            total = strategy._replicas.collectives.all_reduce(_fill_array(strategy, dtype, size))
            name = str(total.dtype).removeprefix("torch.")
            found[f"{dtype}{size}"] = [name, complex(total[-1]).real, len(total)]
    for size in (3, 2000):
        total = strategy._replicas.collectives.all_reduce(np.full(size, 1.5, ">f4"))
        found[f"other_order{size}"] = [str(total.dtype), float(total[-1]), len(total)]
    return found


def _fill_array(strategy: Any, dtype: str, size: int) -> Any:
    array = np.full(size, strategy._replicas.worker + 1)
    if strategy._replicas.backend.name == "torch":
        return strategy._replicas.backend.put(array, "cpu").to(getattr(sys.modules["torch"], dtype))
    return array.astype(tf.as_dtype(dtype).as_numpy_dtype)


def tensors(strategy: Any) -> Any:
    """The kinds of values that collectives return for tensors."""
    if strategy._replicas.backend.name != "numpy":
        return ["Tensor"] * 4
    one = as_tensor(np.ones(1, np.float32))
    made = strategy.run(lambda: as_tensor(np.ones(1, np.float32)))
    found = strategy.run(
        lambda: (
            get_replica_context().all_reduce("SUM", one),
            get_replica_context().all_gather(one, 0),
        )
    )
    results = strategy.reduce("SUM", made, axis=None), strategy.gather(made, axis=0)
    each = [strategy.experimental_local_results(value)[0] for value in found]
    return [type(value).__name__ for value in (*results, *each)]


def again(strategy: Any) -> Any:
    """A second strategy in the same processes; one with other numbers is refused."""
    name, worker = strategy._replicas.backend.name, strategy._replicas.worker
    spec = strategy.cluster_resolver.cluster_spec().as_dict()["worker"]
    second = MultiWorkerMirroredStrategy(
        SimpleClusterResolver(spec, task_id=worker), backend=name, devices=["CPU:0"]
    )
    other = SimpleClusterResolver([*spec, "localhost:1"], task_id=worker)
    return {
        "replicas": second.num_replicas_in_sync,
        "sum": float(second.reduce("SUM", _own(second, worker + 1.0), axis=None)),
        "other": outcome(
            lambda: MultiWorkerMirroredStrategy(other, backend=name, devices=["CPU:0"])
        ),
        "counts": outcome(
            lambda: MultiWorkerMirroredStrategy(
                strategy.cluster_resolver,
                backend=name,
                devices=[f"CPU:{index}" for index in range(1 + worker)],
            )
        ),
    }


# After these, jax would block the remaining workers at their exit until the timeout.
LAST = ("die", "keep_silent")


def die(strategy: Any) -> Any:
    """The last worker is killed in the middle of training."""
    last = strategy._replicas.workers - 1
    for number, _ in enumerate(strategy.experimental_distribute_dataset(examples().repeat())):
        if number == 3 and strategy._replicas.worker == last:
            os.kill(os.getpid(), signal.SIGKILL)
        failed = outcome(strategy._replicas.collectives.barrier)
        if failed is not None:
            return _last_words(strategy, failed)
    return None


def keep_silent(strategy: Any) -> Any:
    """The last worker does nothing until its input is closed; the other workers wait briefly."""
    impatient = MultiWorkerMirroredStrategy(
        strategy.cluster_resolver,
        backend=strategy._replicas.backend.name,
        devices=["CPU:0"],
        timeout=3,
    )
    if strategy._replicas.worker == strategy._replicas.workers - 1:
        return sys.stdin.read()
    return _last_words(impatient, outcome(impatient._replicas.collectives.barrier))


def _last_words(strategy: Any, failed: Any) -> Any:
    return {"first": failed, "then": outcome(strategy._replicas.collectives.barrier)}
