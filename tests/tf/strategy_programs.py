"""Small programs about values on replicas, which TensorFlow and `penstock.tf` run alike.

They are like those of `dataset_programs`, with a strategy of two logical devices.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

from tests.tf.dataset_programs import Program, error_of
from tests.tf.describe import describe

STRATEGIES: dict[str, Program] = {}


def strategy_program(function: Callable[[Any, Any], Any]) -> None:
    def run(tf: Any, folder: pathlib.Path) -> Any:
        return function(tf, tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))

    STRATEGIES[function.__name__] = run


def parts(value: Any) -> Any:
    """A result, with the values of each replica."""
    if isinstance(value, dict):
        return {key: parts(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [parts(one) for one in value]
    if hasattr(value, "values") and not hasattr(value, "row_splits"):
        return {type(value).__name__: [parts(one) for one in value.values]}
    if hasattr(value, "tolist"):  # A NumPy value, which is a tensor in TensorFlow.
        return value.tolist()
    if hasattr(value, "numpy"):
        return value.numpy().tolist()
    return describe(value)


def attempt(call: Callable[[], Any]) -> Any:
    try:
        return parts(call())
    except Exception as error:
        return error_of(error)


@strategy_program
def distribute_values(tf: Any, strategy: Any) -> Any:
    make = strategy.experimental_distribute_values_from_function
    local = strategy.experimental_local_results
    values = make(lambda context: tf.constant(float(context.replica_id_in_sync_group)))
    return {
        "tensors": attempt(lambda: values),
        "kind": isinstance(values, tf.distribute.DistributedValues),
        "python": attempt(lambda: make(lambda context: context.replica_id_in_sync_group)),
        "replicas": attempt(lambda: make(lambda context: context.num_replicas_in_sync)),
        "pairs": attempt(lambda: make(lambda c: (tf.constant(1), c.replica_id_in_sync_group))),
        "dicts": attempt(lambda: make(lambda c: {"a": c.replica_id_in_sync_group})),
        "text": attempt(lambda: make(lambda context: "x")),
        "ragged": attempt(lambda: make(lambda c: tf.ragged.constant([[1], [2, 3]]).to_tensor())),
        "no function": attempt(lambda: make(3)),
        "no argument": attempt(lambda: make(lambda: 3)),
        "dataset": attempt(lambda: type(make(lambda c: tf.data.Dataset.range(2))).__name__),
        "iterator": attempt(lambda: type(make(lambda c: iter(tf.data.Dataset.range(2)))).__name__),
        "generator": attempt(lambda: type(make(lambda c: iter([1, 2]))).__name__),
        "local": attempt(lambda: local(values)),
        "local tuple": type(local(values)).__name__,
        "local of a number": attempt(lambda: local(3)),
        "local of a list": attempt(lambda: local([1, 2])),
        "local of a dict": attempt(lambda: local({"a": values})),
        "run": attempt(lambda: strategy.run(lambda x: x + 1.0, args=(values,))),
        "sum": attempt(lambda: strategy.reduce("SUM", values, axis=None)),
        "mean": attempt(lambda: strategy.reduce("mean", values, axis=None)),
    }


@strategy_program
def reduce_values(tf: Any, strategy: Any) -> Any:
    make = strategy.experimental_distribute_values_from_function
    op = tf.distribute.ReduceOp
    scalars = make(lambda c: tf.constant(float(c.replica_id_in_sync_group + 1)))
    rows = make(lambda c: tf.constant([[1.0, 2.0], [3.0, 4.0]]) * (c.replica_id_in_sync_group + 1))
    uneven = make(lambda c: tf.ones([c.replica_id_in_sync_group + 1, 2]))
    integers = make(lambda c: tf.constant([c.replica_id_in_sync_group + 1] * 2))

    def run(how: Any, value: Any, axis: Any = None) -> Any:
        return attempt(lambda: strategy.reduce(how, value, axis=axis))

    return {
        "sum": run(op.SUM, scalars),
        "mean": run(op.MEAN, scalars),
        "by name": run("SUM", scalars),
        "small letters": run("mean", scalars),
        "other name": run("MAX", scalars),
        "rows": run(op.SUM, rows),
        "rows axis 0": run(op.SUM, rows, 0),
        "rows axis 1": run(op.SUM, rows, 1),
        "rows axis -1": run(op.SUM, rows, -1),
        "rows mean axis 0": run(op.MEAN, rows, 0),
        "rows mean axis 1": run(op.MEAN, rows, 1),
        "axis too large": run(op.SUM, rows, 2),
        "axes": run(op.SUM, rows, (0, 1)),
        "mean of axes": run(op.MEAN, rows, (0, 1)),
        "axis of scalars": run(op.SUM, scalars, 0),
        "mean axis of scalars": run(op.MEAN, scalars, 0),
        "uneven sum": run(op.SUM, uneven, 0),
        "uneven mean": run(op.MEAN, uneven, 0),
        "integers": run(op.SUM, integers),
        "mean of integers": run(op.MEAN, integers, 0),
        "plain tensor": run(op.SUM, tf.constant([1.0, 2.0]), 0),
        "plain number": run(op.SUM, 3.0),
        "none": run(op.SUM, None),
        "dict": run(op.SUM, {"a": scalars, "b": rows}),
        "text": run(op.SUM, "x"),
    }


@strategy_program
def gather_values(tf: Any, strategy: Any) -> Any:
    make = strategy.experimental_distribute_values_from_function
    rows = make(lambda c: tf.constant([[1.0, 2.0], [3.0, 4.0]]) * (c.replica_id_in_sync_group + 1))
    uneven = make(lambda c: tf.ones([c.replica_id_in_sync_group + 1, 2]))

    def run(value: Any, axis: Any) -> Any:
        return attempt(lambda: strategy.gather(value, axis=axis))

    def inside(value: Any, axis: Any) -> Any:
        def step(one: Any) -> Any:
            return tf.distribute.get_replica_context().all_gather(one, axis)

        return attempt(lambda: strategy.run(step, args=(value,)))

    def sum_replicas(value: Any) -> Any:
        def step(one: Any) -> Any:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, one)

        return attempt(lambda: strategy.run(step, args=(value,)))

    return {
        "axis 0": run(rows, 0),
        "axis 1": run(rows, 1),
        "uneven": run(uneven, 0),
        "inside": inside(rows, 0),
        "inside axis 1": inside(rows, 1),
        "inside uneven": inside(uneven, 0),
        "inside dict": attempt(
            lambda: strategy.run(
                lambda x: tf.distribute.get_replica_context().all_gather({"a": x}, 0), args=(rows,)
            )
        ),
        "all_reduce": sum_replicas(rows),
        "all_reduce of dicts": attempt(
            lambda: strategy.run(
                lambda x: tf.distribute.get_replica_context().all_reduce("SUM", {"a": x}),
                args=(rows,),
            )
        ),
        "gather in run": attempt(
            lambda: strategy.run(lambda x: strategy.gather(x, 0), args=(rows,))
        ),
        "reduce in run": attempt(
            lambda: strategy.run(lambda x: strategy.reduce("SUM", x, None), args=(rows,))
        ),
    }


@strategy_program
def gather_errors(tf: Any, strategy: Any) -> Any:
    make = strategy.experimental_distribute_values_from_function
    scalars = make(lambda c: tf.constant(float(c.replica_id_in_sync_group + 1)))
    uneven = make(lambda c: tf.ones([c.replica_id_in_sync_group + 1, 2]))

    def run(value: Any, axis: Any) -> Any:
        return attempt(lambda: strategy.gather(value, axis=axis))

    return {
        "tensor": run(tf.constant([1.0]), 0),
        "no axis": run(uneven, None),
        "scalars": run(scalars, 0),
        "axis 2": run(uneven, 2),
        "uneven axis 1": run(uneven, 1),
    }


@strategy_program
def run_functions(tf: Any, strategy: Any) -> Any:
    make = strategy.experimental_distribute_values_from_function
    value = make(lambda c: tf.constant(c.replica_id_in_sync_group + 1))
    options = tf.distribute.RunOptions
    return {
        "none": attempt(lambda: strategy.run(lambda: None)),
        "constant": attempt(lambda: strategy.run(lambda: tf.constant(3))),
        "args": attempt(lambda: strategy.run(lambda x, y: x + y, args=(value, 10))),
        "args list": attempt(lambda: strategy.run(lambda x, y: x + y, args=[value, 10])),
        "kwargs": attempt(lambda: strategy.run(lambda x, y: x + y, (value,), {"y": value})),
        "args value": attempt(lambda: strategy.run(lambda x: x, args=value)),
        "no function": attempt(lambda: strategy.run(3)),
        "wrong args": attempt(lambda: strategy.run(lambda: 1, args=(value,))),
        "pair": attempt(lambda: strategy.run(lambda x: (x, 2 * x), args=(value,))),
        "dict": attempt(lambda: strategy.run(lambda x: {"a": x}, args=(value,))),
        "nested args": attempt(
            lambda: strategy.run(lambda d: d["a"] + d["b"][0], args=({"a": value, "b": [value]},))
        ),
        "options": attempt(lambda: strategy.run(lambda: tf.constant(1), options=options())),
        "raises": attempt(lambda: strategy.run(lambda: [][1])),
        "replica id": attempt(
            lambda: strategy.run(
                lambda: tf.constant(
                    int(tf.distribute.get_replica_context().replica_id_in_sync_group)
                )
            )
        ),
        "replicas": attempt(
            lambda: strategy.run(lambda: tf.distribute.get_replica_context().num_replicas_in_sync)
        ),
        "in a run": attempt(lambda: strategy.run(lambda: strategy.run(lambda: 1))),
        "cross": [tf.distribute.in_cross_replica_context(), tf.distribute.has_strategy()],
        "merge": attempt(
            lambda: strategy.run(
                lambda x: tf.distribute.get_replica_context().merge_call(
                    lambda s, y: s.reduce("SUM", y, None), args=(x,)
                ),
                args=(value,),
            )
        ),
    }


@strategy_program
def distributed_specs(tf: Any, strategy: Any) -> Any:
    rows = tf.data.Dataset.from_tensor_slices({"x": tf.ones([6, 2]), "y": tf.range(6)})
    even = strategy.experimental_distribute_dataset(rows.batch(4, drop_remainder=True))
    uneven = strategy.experimental_distribute_dataset(rows.batch(4))
    made = strategy.distribute_datasets_from_function(lambda context: rows.batch(2))

    def shape(spec: Any) -> Any:
        if isinstance(spec, dict):
            return {key: shape(spec[key]) for key in sorted(spec)}
        if type(spec).__name__ == "PerReplicaSpec":
            specs = getattr(spec, "specs", None) or spec._value_specs
            return {"PerReplicaSpec": [shape(one) for one in specs]}
        return [spec.dtype.name, list(spec.shape.as_list())]

    result = {}
    for name, dataset in (("even", even), ("uneven", uneven), ("function", made)):
        iterator = iter(dataset)
        result[name] = {
            "spec": shape(dataset.element_spec),
            "iterator spec": shape(iterator.element_spec),
            "kind": isinstance(dataset, tf.distribute.DistributedDataset),
            "iterator kind": isinstance(iterator, tf.distribute.DistributedIterator),
            "steps": [parts(one) for one in dataset],
            "next": attempt(lambda iterator=iterator: next(iterator)),
            "get_next": attempt(lambda iterator=iterator: iterator.get_next()),
            "end": attempt(lambda iterator=iterator: [next(iterator) for _ in range(9)]),
            "optional": attempt(
                lambda iterator=iterator: bool(iterator.get_next_as_optional().has_value())
            ),
        }
    context: list[Any] = []

    def note(one: Any) -> Any:
        context.append(
            [
                one.num_input_pipelines,
                one.input_pipeline_id,
                one.num_replicas_in_sync,
                one.get_per_replica_batch_size(8),
            ]
        )
        return rows.batch(1)

    strategy.distribute_datasets_from_function(note)
    return result | {
        "context": context,
        "odd batch": attempt(
            lambda: tf.distribute.InputContext(1, 0, 2).get_per_replica_batch_size(3)
        ),
        "no dataset": attempt(lambda: strategy.distribute_datasets_from_function(lambda c: 3)),
        "no function": attempt(lambda: strategy.distribute_datasets_from_function(3)),
        "distribute a list": attempt(lambda: strategy.experimental_distribute_dataset([1, 2])),
        "unbatched": attempt(
            lambda: [
                parts(x) for x in strategy.experimental_distribute_dataset(tf.data.Dataset.range(3))
            ]
        ),
        "option": attempt(
            lambda: (
                strategy.experimental_distribute_dataset(
                    rows.batch(2),
                    options=tf.distribute.InputOptions(experimental_fetch_to_device=False),
                )
                is not None
            )
        ),
        "per replica": attempt(
            lambda: strategy.experimental_distribute_dataset(
                rows.batch(2),
                options=tf.distribute.InputOptions(
                    experimental_fetch_to_device=False,
                    experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
                ),
            )
        ),
    }


@strategy_program
def variables_are_read_as_tensors(tf: Any, strategy: Any) -> Any:
    on_read, summed = tf.VariableSynchronization.ON_READ, tf.VariableAggregation.SUM
    with strategy.scope():
        weights = tf.Variable([1.0, 2.0])
        total = tf.Variable(0.0, aggregation=summed)
        count = tf.Variable(0, synchronization=on_read, aggregation=summed)
    batches = tf.data.Dataset.range(8).map(lambda x: tf.cast(x, tf.float32)).batch(4)

    def step(x: Any) -> Any:
        loss = tf.reduce_sum(x) * weights[0]
        total.assign_add(loss)
        count.assign_add(1)
        return loss

    def train() -> Any:
        for batch in strategy.experimental_distribute_dataset(batches):
            losses = strategy.run(step, (batch,))
            yield describe(strategy.reduce("SUM", losses, axis=None))

    return {
        "losses": list(train()),
        "total": describe(total / 2),
        "count": describe(count.read_value()),
        "weights": describe(weights * 2),
        "first": describe(weights.values[0] + 1),
        "shape": weights.shape.as_list(),
        "dtype": count.dtype.name,
        "assigned": weights.assign([3.0, 4.0]).numpy().tolist(),
        "summed": describe(strategy.reduce("SUM", strategy.run(lambda: weights + 1), axis=None)),
        "values": [describe(one) for one in strategy.run(lambda: weights.value()).values],
        "kinds": [isinstance(one, tf.Variable) for one in (weights, count)],
    }


@strategy_program
def variables_change_in_part(tf: Any, strategy: Any) -> Any:
    rows = tf.IndexedSlices

    def change_variable(how: str, *given: Any, start: Any = (1.0, 2.0, 3.0)) -> Any:
        return parts(getattr(tf.Variable(list(start)), how)(*given))

    def assign_slice(key: Any, value: Any, start: Any = ((1, 2), (3, 4), (5, 6))) -> Any:
        v = tf.Variable([list(row) for row in start])
        v[key].assign(value)
        return parts(v)

    row = tf.Variable([1.0, 2.0])[0]
    return {
        "update": attempt(lambda: change_variable("scatter_update", rows([5.0, 6.0], [0, 2]))),
        "add twice": attempt(lambda: change_variable("scatter_add", rows([5.0, 6.0], [0, 0]))),
        "update twice": attempt(
            lambda: change_variable("scatter_update", rows([5.0, 6.0], [0, 0]))
        ),
        "sub": attempt(lambda: change_variable("scatter_sub", rows([5.0], [1]))),
        "mul": attempt(lambda: change_variable("scatter_mul", rows([5.0], [1]))),
        "div": attempt(lambda: change_variable("scatter_div", rows([2, 2], [0, 1]), start=(7, -7))),
        "min": attempt(lambda: change_variable("scatter_min", rows([0.0, 9.0], [0, 1]))),
        "max": attempt(lambda: change_variable("scatter_max", rows([0.0, 9.0], [0, 1]))),
        "no slices": attempt(lambda: change_variable("scatter_update", [1.0, 2.0])),
        "behind": attempt(lambda: change_variable("scatter_update", rows([5.0], [3]))),
        "before": attempt(lambda: change_variable("scatter_update", rows([5.0], [-1]))),
        "other dtype": attempt(
            lambda: change_variable("scatter_update", rows(tf.constant([5]), tf.constant([0])))
        ),
        "entries": attempt(lambda: change_variable("scatter_nd_update", [[2], [0]], [5.0, 6.0])),
        "entries added": attempt(lambda: change_variable("scatter_nd_add", [[2], [2]], [5.0, 6.0])),
        "entries less": attempt(lambda: change_variable("scatter_nd_sub", [[2]], [5.0])),
        "entry behind": attempt(lambda: change_variable("scatter_nd_update", [[3]], [5.0])),
        "entry of wrong shape": attempt(
            lambda: change_variable("scatter_nd_update", [[0]], [[5.0]])
        ),
        "gathered": attempt(lambda: tf.Variable([[1, 2], [3, 4]]).gather_nd([[0, 1], [1, 0]])),
        "read": attempt(lambda: tf.Variable([[1, 2], [3, 4]]).sparse_read([1, 1])),
        "dense": attempt(
            lambda: tf.convert_to_tensor(
                rows(tf.constant([1.0, 2.0]), tf.constant([0, 0]), tf.constant([3]))
            )
        ),
        "not dense": attempt(
            lambda: tf.convert_to_tensor(rows(tf.constant([1.0]), tf.constant([0])))
        ),
        "row": attempt(lambda: assign_slice(0, [8, 9])),
        "broadcast": attempt(lambda: assign_slice(0, 9)),
        "entry": attempt(lambda: assign_slice((1, 0), 9)),
        "last": attempt(lambda: assign_slice(-1, [8, 9])),
        "column": attempt(lambda: assign_slice((slice(None), 1), [7, 8, 9])),
        "ellipsis": attempt(lambda: assign_slice((..., 0), [7, 8, 9])),
        "every other": attempt(lambda: assign_slice(slice(None, None, 2), [[7, 7], [8, 8]])),
        "by a tensor": attempt(lambda: assign_slice(tf.constant(1), [8, 9])),
        "row behind": attempt(lambda: assign_slice(3, [8, 9])),
        "of wrong shape": attempt(lambda: assign_slice(0, [7, 8, 9])),
        "of wrong dtype": attempt(lambda: assign_slice(0, 1.5)),
        "a slice is a tensor": [isinstance(row, tf.Tensor), parts(row + 1), parts(row)],
    }


@strategy_program
def mirrored_variables_change_in_part(tf: Any, strategy: Any) -> Any:
    rows, kinds = tf.IndexedSlices, tf.VariableAggregation
    context = tf.distribute.get_replica_context

    def make(aggregation: Any, **more: Any) -> Any:
        with strategy.scope():
            return tf.Variable([1.0, 2.0, 6.0], aggregation=aggregation, **more)

    def by_replica() -> Any:
        number = context().replica_id_in_sync_group
        value = tf.reshape(tf.cast(number + 2, tf.float32), [1])
        return rows(value, tf.reshape(number, [1]), tf.constant([3]))

    def scatter_rows(how: str, aggregation: Any) -> Any:
        v = make(aggregation)
        strategy.run(lambda: getattr(v, how)(by_replica()))
        return parts([value.read_value() for value in v.values])

    def together(how: str) -> Any:
        v = make(kinds.NONE)
        getattr(v, how)(rows(tf.constant([5.0]), tf.constant([0])))
        return parts([value.read_value() for value in v.values])

    def combine_replicas(how: str, *given: Any) -> Any:
        made = strategy.run(lambda: getattr(context(), how)(*given, by_replica()))
        return [parts(tf.convert_to_tensor(one)) for one in made.values]

    on_read = tf.VariableSynchronization.ON_READ
    mirrored = make(kinds.SUM)
    return {
        "sum": attempt(lambda: scatter_rows("scatter_add", kinds.SUM)),
        "mean": attempt(lambda: scatter_rows("scatter_mul", kinds.MEAN)),
        "first": attempt(lambda: scatter_rows("scatter_update", kinds.ONLY_FIRST_REPLICA)),
        "each": attempt(lambda: scatter_rows("scatter_update", kinds.NONE)),
        "update is no sum": attempt(lambda: scatter_rows("scatter_update", kinds.SUM)),
        "max is no mean": attempt(lambda: scatter_rows("scatter_max", kinds.MEAN)),
        "together": attempt(lambda: together("scatter_sub")),
        "on read": attempt(
            lambda: make(kinds.SUM, synchronization=on_read).scatter_add(
                rows(tf.constant([5.0]), tf.constant([0]))
            )
        ),
        "all_reduce": attempt(lambda: combine_replicas("all_reduce", "SUM")),
        "mean of all": attempt(lambda: combine_replicas("all_reduce", "MEAN")),
        "gather": attempt(
            lambda: strategy.gather(rows(tf.constant([5.0]), tf.constant([0])), axis=0)
        ),
        "numpy": attempt(
            lambda: strategy.extended.reduce_to(
                "SUM", strategy.run(lambda: tf.identity([1.0])), mirrored
            ).numpy()
        ),
        "strategy": mirrored.distribute_strategy is strategy,
        "trainable": make(kinds.SUM, synchronization=on_read, trainable=True).trainable,
    }


@strategy_program
def scopes_are_entered_again(tf: Any, strategy: Any) -> Any:
    distribute = tf.distribute
    default = distribute.get_strategy()

    def where() -> Any:
        return [
            distribute.get_strategy() is strategy,
            distribute.has_strategy(),
            distribute.in_cross_replica_context(),
            distribute.get_replica_context() is None,
        ]

    def again() -> Any:
        outer, inner = strategy.scope(), strategy.scope()
        with outer, inner, outer:
            inside = where()
        with inner:
            return [inside, where()]

    def mix_scopes() -> Any:
        other = distribute.OneDeviceStrategy("CPU:0").scope()
        with strategy.scope(), other:
            return where()

    def under_the_default() -> Any:
        with default.scope(), default.scope():
            return where()

    def made_under_both() -> Any:
        with default.scope(), strategy.scope():
            return tf.Variable(1.0)

    def set_inside() -> Any:
        with strategy.scope():
            distribute.experimental_set_strategy(None)

    def share_variable() -> Any:
        with strategy.scope():
            v = tf.Variable(
                [0.0],
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )

        def step() -> Any:
            replica = distribute.get_replica_context()
            v.assign([tf.cast(replica.replica_id_in_sync_group, tf.float32) * 3.0])
            return replica.all_reduce("SUM", v), replica.all_gather(v, axis=0)

        return strategy.run(step)

    return {
        "again": attempt(again),
        "mixed": attempt(mix_scopes),
        "default": attempt(under_the_default),
        "made under both": attempt(made_under_both),
        "set inside": attempt(set_inside),
        "after": where(),
        "all_reduce": attempt(share_variable),
    }
