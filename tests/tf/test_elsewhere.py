"""Functions of ported code in other processes: those of a service, and of parallel calls."""

import penstock.tf as tf


def label(x):
    noise = tf.random.uniform([], 0, 1000, tf.int64)
    return {"x": x * 1000 + noise, "name": tf.strings.as_string(x) + "!"}


def label_range(**options):
    tf.random.set_seed(3)
    try:
        return tf.data.Dataset.range(20).map(label, **options)
    finally:
        tf.random.set_seed(None)


def plain(dataset):
    return [(int(row["x"]), row["name"].numpy()) for row in dataset]


def test_workers_of_a_service_draw_the_same():
    service = tf.data.experimental.service
    with service.DispatchServer() as dispatcher:
        config = service.WorkerConfig(dispatcher_address=dispatcher.target.split("://")[1])
        with service.WorkerServer(config):
            remote = label_range().apply(service.distribute("distributed_epoch", dispatcher.target))
            assert sorted(plain(remote)) == sorted(plain(label_range()))


def test_processes_draw_the_same():
    options = tf.data.Options()
    options.executor = "processes"
    parallel = label_range(num_parallel_calls=2).with_options(options)
    assert plain(parallel) == plain(label_range())


def test_strategies_and_torch_take_the_elements():
    dataset = tf.data.Dataset.range(4).map(lambda x: tf.cast(x, tf.float32)).batch(4)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    for step in strategy.experimental_distribute_dataset(dataset):
        total = strategy.run(lambda part: tf.reduce_sum(part), args=(step,))
        assert float(strategy.reduce("SUM", total, axis=None)) == 6.0
    assert [batch.tolist() for batch in dataset.as_torch()] == [[0.0, 1.0, 2.0, 3.0]]


def test_variables_are_operands():
    variable = tf.Variable(2.0)
    assert (tf.constant([1.0, 2.0]) * variable).numpy().tolist() == [2.0, 4.0]
    assert float(tf.add(variable, 1.0)) == 3.0
