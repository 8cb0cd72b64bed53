"""Datasets of ported code: functions and loops get tensors, plans stay those of plain penstock."""

import collections
import functools
import inspect
import threading
from unittest import mock

import numpy as np
import pytest

import penstock
import penstock.tf as tf
from penstock.errors import InvalidArgumentError, OutOfRangeError, UnimplementedError
from penstock.tf.drawing import draws_numbers

Pair = collections.namedtuple("Pair", "a b")


def numbers(dataset):
    return [int(x) for x in dataset]


def test_functions_and_loops_get_tensors():
    seen = []
    dataset = tf.data.Dataset.from_tensor_slices({"x": [1, 2], "s": ["a", "b"]})

    def double(row):
        seen.append((type(row["x"]), type(row["s"])))
        return {"y": row["x"] * 2, "s": row["s"] + "!"}

    rows = list(dataset.map(double))
    assert set(seen) == {(tf.Tensor, tf.Tensor)}
    assert rows[1]["y"].numpy() == 4
    assert rows[1]["s"].numpy() == b"b!"


WIDE = tf.data.Dataset.from_tensor_slices({name: np.arange(1000) for name in "abcdefgh"})


def test_an_iterator_can_be_saved_between_any_elements_of_many_leaves():
    iterator = iter(WIDE)
    for number in range(0, 1000, 41):
        resumed = iter(WIDE)
        resumed.load_state_dict(iterator.state_dict())
        assert resumed.position == iterator.position == number
        assert int(next(resumed)["h"]) == number
        for _ in range(41):
            next(iterator, None)
    assert next(iterator, None) is None


def test_threads_share_elements_of_many_leaves():
    iterator, seen = iter(WIDE.repeat(5)), []

    def read():
        for element in iterator:
            seen.append(int(element["a"]))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == sorted([*range(1000)] * 5)


def test_every_kind_of_element_is_wrapped():
    rows = tf.ragged.constant([[1], [2, 3]])
    dataset = tf.data.Dataset.from_tensors((rows, Pair(1, tf.constant([2.0])), "s"))
    ragged, pair, text = next(iter(dataset))
    assert isinstance(ragged, tf.RaggedTensor)
    assert ragged.to_list() == [[1], [2, 3]]
    assert isinstance(pair, Pair)
    assert pair.b.numpy().tolist() == [2.0]
    assert text == "s"


def test_every_method_returns_a_dataset_of_tensors():
    dataset = tf.data.Dataset.range(10)
    same = [
        dataset.shuffle(3).repeat(1).take(4).skip(1).prefetch(1).cache().enumerate(),
        dataset.batch(2).unbatch().window(2).flat_map(lambda w: w.batch(2)),
        tf.data.Dataset.zip((dataset, dataset)),
        dataset.apply(tf.data.experimental.assert_cardinality(10)),
        tf.data.Dataset.sample_from_datasets([dataset, dataset]),
        dataset[2:4],
    ]
    for one in same:
        assert isinstance(one, tf.data.Dataset)
        leaf = next(iter(one))
        leaf = leaf[0] if isinstance(leaf, tuple) else leaf
        assert isinstance(leaf, tf.Tensor)


def test_the_plan_is_that_of_plain_penstock():
    ported = tf.data.Dataset.range(5).batch(2)
    plain = penstock.Dataset.range(5).batch(2)
    assert ported.element_spec == plain.element_spec
    assert ported.__plan__ == plain.__plan__
    assert [x.tolist() for x in ported.as_numpy_iterator()] == [[0, 1], [2, 3], [4]]


def test_results_are_tensors():
    dataset = tf.data.Dataset.range(4)
    assert dataset.reduce(tf.constant(0, tf.int64), lambda s, x: s + x).numpy() == 6
    assert dataset.cardinality().numpy() == 4
    assert dataset.batch(4).get_single_element().numpy().tolist() == [0, 1, 2, 3]
    assert dataset[2].numpy() == 2
    assert [x.numpy() for x in dataset.peek(2)] == [0, 1]
    assert iter(dataset).get_next().numpy() == 0
    assert iter(dataset).get_next_as_optional().get_value().numpy() == 0


def test_the_id_of_a_registered_dataset_is_a_tensor():
    service = tf.data.experimental.service
    with service.DispatchServer() as dispatcher:
        made = service.register_dataset(dispatcher.target, tf.data.Dataset.range(3))
        assert made.dtype is tf.string
        for name in (made, made.numpy(), tf.get_static_value(made).decode()):
            found = service.from_dataset_id("distributed_epoch", dispatcher.target, name)
            assert found.element_spec == tf.TensorSpec([], tf.int64)


def test_get_next_ends():
    iterator = iter(tf.data.Dataset.range(1))
    next(iterator)
    with pytest.raises(OutOfRangeError, match="End of sequence"):
        iterator.get_next()


def test_generators_get_arrays_and_may_yield_tensors():
    def count(stop):
        assert type(stop) is np.int32
        for number in range(stop):
            yield tf.constant(number) * 2

    dataset = tf.data.Dataset.from_generator(
        count, args=[3], output_signature=tf.TensorSpec([], tf.int32)
    )
    assert numbers(dataset) == [0, 2, 4]


def test_windows_are_datasets_of_tensors():
    windows = tf.data.Dataset.range(6).window(3, drop_remainder=True)
    sums = [w.reduce(np.int64(0), lambda s, x: s + x).numpy() for w in windows]
    assert sums == [3, 12]
    assert numbers(windows.flat_map(lambda w: w.batch(3)).map(tf.reduce_sum)) == [3, 12]


def test_group_by_window_gets_keys_and_datasets_of_tensors():
    grouped = tf.data.Dataset.range(6).group_by_window(
        key_func=lambda x: x % 2,
        reduce_func=lambda key, rows: rows.batch(3).map(lambda b: b + key * 0),
        window_size=3,
    )
    assert [x.numpy().tolist() for x in grouped] == [[0, 2, 4], [1, 3, 5]]


def test_classes_are_functions(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"{name}1\n{name}2\n")
    files = tf.data.Dataset.list_files(str(tmp_path / "*"), shuffle=False)
    lines = files.interleave(tf.data.TextLineDataset, cycle_length=2)
    assert [x.numpy() for x in lines] == [b"a1", b"b1", b"a2", b"b2"]
    assert isinstance(tf.data.TextLineDataset(str(tmp_path / "a")), tf.data.Dataset)


def test_sparse_results_of_a_function_are_rows():
    record = penstock.io.serialize_example({"x": [1, 2]})

    def parse(batch):
        return tf.io.parse_example(batch, {"x": tf.io.VarLenFeature(tf.int64)})

    parsed = tf.data.Dataset.from_tensors([record, record]).map(parse)
    dense = parsed.map(lambda row: tf.sparse.to_dense(row["x"]))
    assert next(iter(parsed))["x"].to_list() == [[1, 2], [1, 2]]
    assert next(iter(dense)).numpy().tolist() == [[1, 2], [1, 2]]


def test_other_sparse_tensors_are_refused():
    dataset = tf.data.Dataset.range(1).map(lambda x: tf.sparse.from_dense([[0, 1], [2, 0]]))
    with pytest.raises(UnimplementedError, match=r"filled from the left.*use tf\.sparse\.to_dense"):
        next(iter(dataset))


def augment(image):
    return tf.image.random_brightness(tf.image.random_flip_left_right(image), 0.2)


# Equal images of floats: only what is drawn differs, and no rounding makes two results equal.
IMAGES = np.tile(np.arange(4 * 4 * 3, dtype=np.float32), 8).reshape(8, 4, 4, 3)


def pixels(elements):
    return [x.numpy().tobytes() for x in elements]


def test_random_operations_draw_by_the_element():
    dataset = tf.data.Dataset.from_tensor_slices(IMAGES).map(augment)
    first, second = pixels(dataset), pixels(dataset)
    assert len(set(first)) == 8
    assert first != second  # Every epoch draws other numbers.
    iterator = iter(dataset)
    head = pixels(next(iterator) for _ in range(3))
    state = iterator.state_dict()
    resumed = iter(tf.data.Dataset.from_tensor_slices(IMAGES).map(augment))
    resumed.load_state_dict(state)
    assert pixels(resumed) == pixels(iterator)
    assert head


def test_parallel_calls_draw_the_same():
    def make(calls):
        tf.random.set_seed(5)
        return tf.data.Dataset.from_tensor_slices(IMAGES).map(augment, num_parallel_calls=calls)

    try:
        assert pixels(make(None)) == pixels(make(4))
    finally:
        tf.random.set_seed(None)


def test_a_random_filter_draws_by_the_element():
    dataset = tf.data.Dataset.range(200).filter(lambda x: tf.random.uniform([]) < 0.5)
    iterator = iter(dataset)
    head = [int(next(iterator)) for _ in range(20)]
    resumed = iter(dataset)
    resumed.load_state_dict(iterator.state_dict())
    assert numbers(resumed) == numbers(iterator)
    assert head != list(range(20))


def draw(*_):
    return tf.random.uniform([], 0, 4, tf.int64)


DRAWING = {
    "take_while": lambda ds: ds.take_while(lambda *_: tf.random.uniform([]) < 0.99),
    "scan": lambda ds: ds.scan(tf.constant(0, tf.int64), lambda sum, _: (sum + draw(), sum)),
    "key_func": lambda ds: ds.group_by_window(draw, lambda _, window: window.batch(3), 3),
    "reduce_func": lambda ds: ds.group_by_window(
        lambda *_: tf.constant(0, tf.int64), lambda _, window: window.take(draw() + 1), 5
    ),
    "flat_map": lambda ds: ds.flat_map(lambda *_: tf.data.Dataset.range(draw() + 1)),
}


@pytest.fixture
def global_seed():
    """With a seed, `take_while` ends where it always does."""
    tf.random.set_seed(9)
    yield
    tf.random.set_seed(None)


@pytest.mark.parametrize("apply", DRAWING.values(), ids=DRAWING)
@pytest.mark.usefixtures("global_seed")
def test_what_functions_draw_is_the_same_after_a_resume(apply):
    dataset = apply(tf.data.Dataset.range(400))
    iterator = iter(dataset)
    for _ in range(50):
        next(iterator)
    resumed = iter(dataset)
    resumed.load_state_dict(iterator.state_dict())
    rest = [x.numpy().tolist() for x in iterator]
    assert [x.numpy().tolist() for x in resumed] == rest
    assert rest
    assert dataset.explain()


@pytest.mark.parametrize("element", [(3,), (3, 4), {"a": 3}, 3], ids=str)
def test_functions_that_draw_leave_the_structure_of_elements_alone(element):
    dataset = tf.data.Dataset.from_tensors(element)
    scanned = dataset.scan(tf.constant(0), lambda state, element: (state, (element, draw())))
    for kept in (
        dataset.filter(lambda *_: draw() < 5),
        dataset.take_while(lambda *_: draw() < 5),
        dataset.group_by_window(draw, lambda _, window: window, 1),
        (found for found, _ in scanned),
    ):
        assert [tf.nest.map_structure(int, found) for found in kept] == [element]


def test_generators_and_helpers_are_found():
    rng = tf.random.Generator.from_seed(1)

    def helper(x):
        return x + rng.uniform([], 0, 1000, tf.int64)

    class Layer:
        def __call__(self, x):
            return self.scale(x)

        def scale(self, x):
            return x + tf.random.uniform([], 0, 1000, tf.int64)

    for function in (lambda x: helper(x), Layer(), Layer().scale, lambda x: Layer()(x)):
        dataset = tf.data.Dataset.range(20).map(function)
        iterator = iter(dataset)
        next(iterator)
        resumed = iter(dataset)
        resumed.load_state_dict(iterator.state_dict())
        assert numbers(resumed) == numbers(iterator)


def test_stateless_operations_do_not_make_a_map_random():
    dataset = tf.data.Dataset.range(3).map(
        lambda x: tf.random.stateless_uniform([], tf.stack([x, x]))
    )
    assert dataset.__plan__.random is None
    assert [x.numpy() for x in dataset] == [x.numpy() for x in dataset]


def test_errors_name_the_users_function():
    dataset = tf.data.Dataset.range(3).map(lambda x: tf.reshape(x, [2]))
    with pytest.raises(InvalidArgumentError, match=r"map: <lambda> at test_datasets.py:\d+ failed"):
        list(dataset)
    with pytest.raises(InvalidArgumentError, match="needs a function, got 3"):
        tf.data.Dataset.range(3).map(3)
    with pytest.raises(TypeError, match=r"is called with 1 argument"):
        tf.data.Dataset.range(3).map(lambda x, y: x)


def test_a_missing_method_is_named():
    with pytest.raises(AttributeError, match=r"Dataset.shufffle: not here; did you mean shuffle"):
        tf.data.Dataset.range(3).shufffle(2)
    with pytest.raises(AttributeError, match=r"tf\.data\.Datasets: not here; did you mean Dataset"):
        tf.data.Datasets  # noqa: B018


@pytest.mark.parametrize("replicas", [1, 2])
def test_strategies_hand_out_tensors(replicas):
    strategy = tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(replicas)])
    dataset = tf.data.Dataset.from_tensor_slices({"x": [1.0, 2.0, 3.0, 4.0], "s": ["a"] * 4})
    steps = strategy.experimental_distribute_dataset(dataset.batch(4))
    context_steps = strategy.distribute_datasets_from_function(lambda _: dataset.batch(2))
    for step in (next(iter(steps)), next(iter(context_steps))):
        for part in strategy.experimental_local_results(step["x"]):
            assert part.numpy().dtype == "float32"
        assert strategy.experimental_local_results(step["s"])[0].numpy()[0] == b"a"
    step = next(iter(steps))
    total = strategy.run(lambda one: tf.reduce_sum(one["x"]), args=(step,))
    same = strategy.run(lambda one: one["x"], args=(step,))
    assert strategy.reduce("SUM", total, axis=None).numpy() == 10.0
    assert strategy.reduce("MEAN", total, axis=None).numpy() == 10.0 / replicas
    assert strategy.reduce("SUM", same, axis=0).numpy() == 10.0
    assert strategy.reduce("MEAN", same, axis=0).numpy() == 2.5
    assert strategy.gather(same, axis=0).numpy().tolist() == [1.0, 2.0, 3.0, 4.0]


def test_plain_datasets_stay_numpy_under_strategies():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    plain = penstock.data.Dataset.range(4).batch(4)
    step = next(iter(strategy.experimental_distribute_dataset(plain)))
    assert [type(part) for part in step.values] == [np.ndarray, np.ndarray]


@pytest.mark.parametrize(
    ("ported", "plain"),
    [
        (tf.data.Dataset.map, penstock.Dataset.map),
        (tf.data.Dataset.from_generator, penstock.Dataset.from_generator),
        (tf.data.TFRecordDataset, penstock.data.TFRecordDataset),
        (tf.data.TextLineDataset, penstock.data.TextLineDataset),
        (tf.data.FixedLengthRecordDataset, penstock.data.FixedLengthRecordDataset),
        (tf.data.experimental.CsvDataset, penstock.data.experimental.CsvDataset),
    ],
)
def test_help_shows_all_arguments(ported, plain) -> None:
    assert inspect.signature(ported) == inspect.signature(plain)
    assert "see `penstock." in ported.__doc__


def test_a_table_of_a_variables_values_begins_with_the_first_one():
    calls = tf.Variable(0)
    numbered = tf.data.Dataset.range(3).map(lambda _: calls.assign_add(1)).enumerate(start=1)
    pairs = tf.data.experimental.DatasetInitializer(numbered)
    table = tf.lookup.StaticHashTable(pairs, default_value=-1)
    assert table.lookup(tf.constant([1, 2, 4], tf.int64)).numpy().tolist() == [1, 2, -1]


def test_a_resampling_that_estimates_the_classes_is_that_of_the_method():
    def both(**options):
        dataset = tf.data.Dataset.from_tensor_slices([0, 1, 1, 1] * 100)
        resample = tf.data.experimental.rejection_resample
        yield dataset.apply(resample(lambda v: v, [0.5, 0.5], seed=2, **options))
        yield dataset.rejection_resample(lambda v: v, [0.5, 0.5], seed=2, **options)

    for options in ({}, {"initial_dist": [0.25, 0.75]}):
        applied, called = ([int(c) for c, _ in dataset] for dataset in both(**options))
        assert applied == called
        assert 0.4 < sum(applied) / len(applied) < 0.6


def test_transformations_draw_by_the_element():
    tf.random.set_seed(3)
    try:
        by_half = tf.data.experimental.take_while(lambda x: tf.random.uniform([]) < 0.9)
        first = list(tf.data.Dataset.range(100).apply(by_half))
        assert [int(x) for x in first] == list(range(len(first)))
        assert 0 < len(first) < 100
    finally:
        tf.random.set_seed(None)


@pytest.mark.parametrize("name", ["py_function", "numpy_function"])
def test_calls_of_python_functions_say_what_is_missing(name):
    call = getattr(tf, name)
    with pytest.raises(TypeError, match=f"tf.{name}: needs Tout; a decorator is @tf.{name}"):
        call(int, [])
    with pytest.raises(TypeError, match=f"tf.{name}: a decorator takes no inp"):
        call(inp=[], Tout=tf.int64)
    with pytest.raises(TypeError, match=f"tf.{name}: needs inp, the list of"):
        call(int, Tout=tf.int64)
    with pytest.raises(ValueError, match=f"tf.{name}: Tout has 2 dtypes, but 1 values came back"):
        call(int, [], [tf.int64, tf.int64])


def test_a_decorated_function_keeps_its_name_and_takes_ragged_rows():
    @tf.py_function(Tout=tf.RaggedTensorSpec([None, None], tf.int32))
    def double(rows):
        return rows * 2

    assert double.__name__ == "double"
    assert double(tf.ragged.constant([[1], [2, 3]])).to_list() == [[2], [4, 6]]


def test_replicas_have_numbers_that_are_tensors():
    def find():
        replica = tf.distribute.get_replica_context()
        assert isinstance(replica, tf.distribute.ReplicaContext)
        number = replica.replica_id_in_sync_group
        total = replica.all_reduce("SUM", tf.cast(number, tf.float32))
        merged = replica.merge_call(lambda strategy, x: strategy.reduce("SUM", x, None), (number,))
        return number, total, merged

    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    numbers, totals, merged = map(strategy.experimental_local_results, strategy.run(find))
    assert [(one.numpy(), one.dtype) for one in numbers] == [(0, tf.int32), (1, tf.int32)]
    assert [float(one) for one in (*totals, *merged)] == [1.0] * len((*totals, *merged))
    one = tf.distribute.OneDeviceStrategy("CPU:0")
    assert one.run(find)[0].numpy() == 0
    # Outside of a strategy the number is Python's, as in TensorFlow.
    assert tf.distribute.get_replica_context().replica_id_in_sync_group == 0
    assert type(tf.distribute.get_replica_context().replica_id_in_sync_group) is int
    with strategy.scope():
        assert tf.distribute.get_replica_context() is None


def test_optionals_answer_with_tensors():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    dataset = tf.data.Dataset.range(2).batch(2)
    steps = iter(strategy.experimental_distribute_dataset(dataset))
    first = steps.get_next_as_optional()
    assert first.has_value().numpy() == np.True_
    assert [int(x[0]) for x in strategy.experimental_local_results(first.get_value())] == [0, 1]
    assert steps.get_next_as_optional().has_value().numpy() == np.False_
    for kind in (tf.experimental.Optional, tf.data.experimental.Optional):
        made = kind.from_value({"a": tf.constant(1)})
        assert made.has_value().numpy() == np.True_
        assert made.get_value()["a"].numpy() == 1
        assert not kind.empty(tf.TensorSpec([])).has_value().numpy()
    plain = penstock.distribute.MirroredStrategy(["CPU:0"])
    steps = iter(plain.experimental_distribute_dataset(penstock.data.Dataset.range(1).batch(1)))
    assert steps.get_next_as_optional().has_value() is True


def test_arguments_of_resolvers_and_strategies():
    resolvers = tf.distribute.cluster_resolver
    cluster = resolvers.ClusterSpec({"worker": ["a:1", "b:2"]})
    options = {"environment": "prod", "num_accelerators": {"GPU": 2}, "rpc_layer": "grpc"}
    made = resolvers.SimpleClusterResolver(cluster, "m:1", "worker", 1, **options)
    assert (made.environment, made.rpc_layer) == ("prod", "grpc")
    assert made.num_accelerators() == {"GPU": 2}
    assert (made.master(), made.master("worker", 1)) == ("grpc://m:1", "grpc://b:2")
    assert made.master("worker", 0, "x") == "x://a:1"
    plain = resolvers.SimpleClusterResolver(cluster)
    assert (plain.environment, plain.num_accelerators(), plain.rpc_layer) == ("", {}, None)
    assert plain.master("worker", 1) == "b:2"
    experimental = tf.distribute.experimental
    ring = experimental.CommunicationImplementation.RING
    assert experimental.MultiWorkerMirroredStrategy(communication=ring).num_replicas_in_sync >= 1


def test_wrong_arguments_of_products():
    with pytest.raises(ValueError, match="tf.matmul: a matrix is transposed or adjoint, not both"):
        tf.matmul([[1]], [[1]], transpose_b=True, adjoint_b=True)
    with pytest.raises(ValueError, match="index_type must be int16, int32 or int64, got float32"):
        tf.math.top_k([1], index_type=tf.float32)


def test_the_text_of_a_dataset_whose_function_fails_is_that_of_plain_penstock():
    dataset = tf.data.Dataset.range(3).map(lambda x: tf.reshape(x, [7]))
    assert repr(dataset).startswith("<Dataset map(<lambda> at test_datasets.py:")


def test_resolvers_know_the_accelerators_that_they_were_given(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    resolvers = tf.distribute.cluster_resolver
    spec = tf.train.ClusterSpec({"worker": ["a:1"]})
    given = resolvers.SimpleClusterResolver(spec, num_accelerators={"GPU": 4})
    assert given.num_accelerators("worker", 0) == {"GPU": 4}
    assert resolvers.TFConfigClusterResolver().num_accelerators("worker", 0) == {}


def test_functions_may_use_objects_that_have_every_attribute():
    stand_in = mock.Mock(side_effect=lambda x: x + 1)
    dataset = tf.data.Dataset.range(3)
    assert numbers(dataset.map(lambda x: stand_in(x))) == [1, 2, 3]
    assert numbers(dataset.map(stand_in)) == [1, 2, 3]


def test_random_operations_are_found_behind_many_functions():
    function = draw = functools.partial(lambda x: x + tf.random.uniform([], 0, 1000, tf.int64))
    for _ in range(2000):
        function = _call_in_turn(function)
    assert tf.data.Dataset.range(3).map(draw).__plan__.random is not None
    assert draws_numbers(function)


def _call_in_turn(function):
    return lambda x: function(x)
