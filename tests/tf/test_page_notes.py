"""The notes of docs/from-tensorflow.md on names that differ are true: one check for each."""

import numpy as np
import pyarrow.ipc
import pytest

import penstock.tf as tf
from penstock.errors import InvalidArgumentError, UnimplementedError
from scripts import from_tensorflow as page


def names_of(text):
    """The names that differ in this way."""
    return [path for path, note in page.DIFFERENT.items() if note == text]


def check_tensors():
    value = tf.constant(3)
    assert isinstance(value, np.ndarray)
    assert value.shape == ()


def check_variables():
    tutorial = page.ROOT / "docs" / "tutorial-strategy.md"
    assert "Variable" in tutorial.read_text("utf-8")


def check_sparse_results():
    sparse = tf.SparseTensor([[0, 0], [1, 0], [1, 1]], [7, 8, 9], [2, 2])
    element = next(iter(tf.data.Dataset.range(1).map(lambda x: sparse)))
    assert element.to_list() == [[7], [8, 9]]


def check_functions():
    calls = []
    signature = [tf.TensorSpec([2], tf.int32)]
    double = tf.function(lambda x: calls.append(x) or x * 2, input_signature=signature)
    assert [double(tf.constant([1, 2])).numpy().tolist() for _ in range(2)] == [[2, 4]] * 2
    assert len(calls) == 2
    with pytest.raises(TypeError, match="x must be TensorSpec"):
        double(tf.constant([1.5]))


def check_python_functions():
    assert tf.py_function(lambda x: x + 1, [1], tf.int32).numpy() == 2


def check_numpy_functions():
    assert tf.numpy_function(lambda x: np.float32(x), [1], tf.float32).dtype == tf.float32
    assert tf.numpy_function(lambda x: x, [np.arange(2)], tf.int64).numpy().tolist() == [0, 1]


def check_conditions():
    assert tf.cond(tf.constant(True), lambda: 1, lambda: 1 // 0) == 1


def check_loops():
    assert [x.numpy() for x in tf.while_loop(lambda i: i < 3, lambda i: (i + 1,), [0])] == [3]


def check_contexts():
    for context in (
        tf.control_dependencies([]),
        tf.device("/cpu:0"),
        tf.init_scope(),
        tf.name_scope("x"),
    ):
        with context:
            assert tf.constant(1).numpy() == 1


def check_gradients():
    assert tf.stop_gradient(tf.constant([1.0])).numpy().tolist() == [1.0]


def check_vectorized_map():
    rows = tf.constant([1, 2])
    assert tf.vectorized_map(lambda x: x * 2, rows).numpy().tolist() == [2, 4]
    assert tf.map_fn(lambda x: x * 2, rows).numpy().tolist() == [2, 4]


def check_autograph():
    assert tf.autograph.experimental.do_not_convert()(len) is len


def check_devices():
    assert [device.device_type for device in tf.config.list_physical_devices("CPU")] == ["CPU"]


GPU = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
SETTINGS = {
    "config.run_functions_eagerly": (True,),
    "config.experimental_run_functions_eagerly": (True,),
    "config.set_soft_device_placement": (True,),
    "config.experimental.set_memory_growth": (GPU, True),
    "config.optimizer.set_jit": (True,),
    "config.optimizer.set_experimental_options": ({},),
    "config.threading.set_inter_op_parallelism_threads": (2,),
    "config.threading.set_intra_op_parallelism_threads": (2,),
    "autograph.set_verbosity": (1,),
    "autograph.experimental.set_loop_options": (),
}


def check_settings():
    assert set(SETTINGS) == set(names_of("accepted, without effect"))
    for path, arguments in SETTINGS.items():
        assert page.find(path)(*arguments) is None


def check_visible_devices():
    for module in (tf.config, tf.config.experimental):
        module.set_visible_devices([], "GPU")
        with pytest.raises(InvalidArgumentError, match="devices must be all CPU devices"):
            module.set_visible_devices([], "CPU")


def check_logical_devices():
    with pytest.raises(UnimplementedError, match="only the CPU can be divided"):
        tf.config.set_logical_device_configuration(GPU, [tf.config.LogicalDeviceConfiguration()])


def check_masters():
    spec = tf.train.ClusterSpec({"worker": ["a:1", "b:2"]})
    resolvers = tf.distribute.cluster_resolver
    assert resolvers.SimpleClusterResolver(spec, task_type="worker", task_id=1).master() == "a:1"


def check_tpus():
    with pytest.raises(ValueError, match="TPU"):
        tf.distribute.cluster_resolver.TPUClusterResolver()


def check_unconverted_functions():
    assert tf.autograph.experimental.do_not_convert(len) is len


def check_varying_features():
    int64_list = tf.train.Int64List(value=[1, 2])
    features = tf.train.Features(feature={"x": tf.train.Feature(int64_list=int64_list)})
    record = tf.train.Example(features=features).SerializeToString()
    wanted = {"x": tf.io.VarLenFeature(tf.int64)}
    assert isinstance(tf.io.parse_example([record], wanted)["x"], tf.SparseTensor)
    records = tf.data.Dataset.from_tensor_slices([record])
    batches = records.batch(1).map(lambda batch: tf.io.parse_example(batch, wanted))
    assert next(iter(batches))["x"].to_list() == [[1, 2]]
    singles = records.map(lambda one: tf.io.parse_single_example(one, wanted))
    assert next(iter(singles))["x"].numpy().tolist() == [1, 2]


def check_random_functions():
    drawn = tf.data.Dataset.range(4).map(lambda x: tf.random.uniform([]))
    iterator = iter(drawn)
    next(iterator)
    state = iterator.state_dict()
    rest = [float(x) for x in iterator]
    resumed = iter(drawn)
    resumed.load_state_dict(state)
    assert [float(x) for x in resumed] == rest
    assert len({*rest}) == 3


def check_saved_files(folder):
    dataset = tf.data.Dataset.range(3)
    dataset.save(str(folder / "saved"))
    list(dataset.snapshot(str(folder / "snapshot")))
    files = list(folder.rglob("*.snapshot"))
    assert len(files) == 2
    for file in files:
        assert pyarrow.ipc.open_file(file).read_all().num_rows == 3
    assert list(tf.data.Dataset.load(str(folder / "saved")).as_numpy_iterator()) == [0, 1, 2]


def check_stateless_numbers():
    chosen = [tf.random.stateless_categorical([[0.0, 0.0]], 9, [1, 2]).numpy() for _ in "ab"]
    assert chosen[0].tolist() == chosen[1].tolist()


def check_generators():
    generator = tf.random.Generator.from_seed(1)
    state = generator.state.numpy().tolist()
    numbers = [float(x) for x in tf.data.Dataset.range(3).map(lambda x: generator.uniform([]))]
    assert len({*numbers}) == 3
    assert generator.state.numpy().tolist() == state


def check_jpeg_images():
    image = tf.cast(tf.fill([16, 16, 3], 100), tf.uint8)
    data = tf.io.encode_jpeg(image, quality=100)
    for module in (tf.io, tf.image):
        decoded = tf.cast(module.decode_jpeg(data), tf.int32)
        assert tf.reduce_max(tf.abs(decoded - 100)).numpy() <= 4
    assert tf.io.decode_jpeg(data, ratio=2).shape == (8, 8, 3)


def check_png_images():
    pixels = tf.constant([[[1, 2, 3]], [[200, 100, 50]]], tf.uint16)
    data = tf.io.encode_png(pixels)
    for module in (tf.io, tf.image):
        kept = module.decode_png(data, dtype=tf.uint16)
        assert kept.numpy().tolist() == pixels.numpy().tolist()


def check_any_images():
    image = tf.cast(tf.fill([4, 4, 3], 9), tf.uint8)
    for module in (tf.io, tf.image):
        for data in (tf.io.encode_png(image), tf.io.encode_jpeg(image)):
            assert module.decode_image(data).shape == (4, 4, 3)


def check_patterns():
    assert tf.strings.regex_replace("a.b", "[[:punct:]]", "").numpy() == b"ab"
    assert tf.strings.regex_full_match("é", r"\p{L}").numpy()


def check_dense_rows():
    assert tf.sparse.to_dense(tf.ragged.constant([[1], [2, 3]])).numpy().tolist() == [
        [1, 0],
        [2, 3],
    ]
    assert tf.sparse.to_dense(tf.constant([1])).numpy().tolist() == [1]


def check_checkpoints(folder):
    step = tf.Variable(1)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(step=step), str(folder), max_to_keep=1)
    path = manager.save()
    assert tf.train.latest_checkpoint(str(folder)) == path
    assert tf.train.list_variables(path) == [("step/.ATTRIBUTES/VARIABLE_VALUE", [])]


def check_urls(folder):
    for place in (str(folder), "memory://page-notes"):
        tf.io.gfile.makedirs(place)
        with tf.io.gfile.GFile(f"{place}/file", "w") as file:
            file.write("text")
        assert tf.io.gfile.exists(f"{place}/file")
        with tf.io.gfile.GFile(f"{place}/file") as file:
            assert file.read() == "text"


CHECKS = {
    "Tensor": check_tensors,
    "Variable": check_variables,
    "SparseTensor": check_sparse_results,
    "function": check_functions,
    "py_function": check_python_functions,
    "numpy_function": check_numpy_functions,
    "cond": check_conditions,
    "while_loop": check_loops,
    "device": check_contexts,
    "stop_gradient": check_gradients,
    "vectorized_map": check_vectorized_map,
    "autograph": check_autograph,
    "config": check_devices,
    "config.optimizer.set_jit": check_settings,
    "config.set_visible_devices": check_visible_devices,
    "config.set_logical_device_configuration": check_logical_devices,
    "distribute.cluster_resolver.SimpleClusterResolver": check_masters,
    "distribute.cluster_resolver.TPUClusterResolver": check_tpus,
    "autograph.experimental.do_not_convert": check_unconverted_functions,
    "io.VarLenFeature": check_varying_features,
    "data.Dataset.map": check_random_functions,
    "data.Dataset.save": check_saved_files,
    "random.uniform": check_random_functions,
    "random.stateless_categorical": check_stateless_numbers,
    "random.Generator": check_generators,
    "io.decode_jpeg": check_jpeg_images,
    "io.decode_png": check_png_images,
    "io.decode_image": check_any_images,
    "strings.regex_replace": check_patterns,
    "sparse.to_dense": check_dense_rows,
    "train.Checkpoint": check_checkpoints,
    "io.gfile.GFile": check_urls,
}
"""By a name of which the text is."""


def test_every_text_is_checked():
    assert {page.DIFFERENT[path] for path in CHECKS} == {*page.DIFFERENT.values()}


@pytest.mark.parametrize("path", CHECKS)
def test_what_is_said_to_differ_does(path, tmp_path):
    check = CHECKS[path]
    check(*[tmp_path] * check.__code__.co_argcount)
