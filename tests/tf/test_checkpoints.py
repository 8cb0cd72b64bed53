"""Checkpoints of iterators and variables, in penstock's own files."""

import numpy as np
import pytest

import penstock.tf as tf
from penstock.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    NotFoundError,
)


def numbers(iterator, count):
    return [int(next(iterator)) for _ in range(count)]


def open_shuffled():
    return iter(tf.data.Dataset.range(100).shuffle(20, seed=1).map(lambda x: x * 2))


def test_iterators_and_variables_continue(tmp_path):
    iterator, step = open_shuffled(), tf.Variable([1.0, 2.0])
    checkpoint = tf.train.Checkpoint(iterator=iterator, step=step)
    numbers(iterator, 7)
    path = checkpoint.save(tmp_path / "ckpt")
    rest = numbers(iterator, 5)
    step.assign([3.0, 4.0])
    other = tf.train.Checkpoint(iterator=open_shuffled(), step=tf.Variable([0.0, 0.0]))
    status = other.restore(path)
    status.assert_consumed().assert_existing_objects_matched().expect_partial()
    assert numbers(other.iterator, 5) == rest
    assert other.step.numpy().tolist() == [1.0, 2.0]
    assert other.save_counter == 1


def test_generators_continue(tmp_path):
    generator = tf.random.Generator.from_seed(3)
    checkpoint = tf.train.Checkpoint(generator=generator)
    generator.uniform([5])
    path = checkpoint.save(tmp_path / "ckpt")
    numbers = generator.uniform([2]).numpy().tolist()
    checkpoint.restore(path).assert_consumed()
    assert generator.uniform([2]).numpy().tolist() == numbers


def test_buffered_elements_are_saved(tmp_path):
    def strings():
        dataset = tf.data.Dataset.range(30).map(tf.strings.as_string)
        return iter(dataset.filter(lambda x: x != "3").shuffle(10, seed=2).batch(3))

    iterator = strings()
    next(iterator)
    path = tf.train.Checkpoint(iterator).write(str(tmp_path / "it"))
    again = strings()
    tf.train.Checkpoint(again).read(path)
    assert [x.numpy().tolist() for x in again] == [x.numpy().tolist() for x in iterator]


def test_iterators_of_plain_values_continue(tmp_path):
    dataset = tf.data.Dataset.range(10)
    iterator = dataset.as_numpy_iterator()
    numbers(iterator, 5)
    checkpoint = tf.train.Checkpoint(iterator=iterator)
    path = checkpoint.save(tmp_path / "ckpt")
    checkpoint.sync()
    assert numbers(iterator, 2) == [5, 6]
    again = dataset.as_numpy_iterator()
    tf.train.Checkpoint(iterator=again).restore(path)
    assert numbers(again, 5) == [5, 6, 7, 8, 9]


def test_structures_and_checkpoints_are_objects(tmp_path):
    inner = tf.train.Checkpoint(a=tf.Variable(1))
    outer = tf.train.Checkpoint(inner=inner, many=[tf.Variable(2), tf.Variable(3)])
    path = outer.save(tmp_path / "ckpt")
    inner.a.assign(5)
    outer.many[1].assign(6)
    outer.restore(path)
    assert (int(inner.a), int(outer.many[1])) == (1, 3)
    assert tf.train.list_variables(path) == [
        ("inner/a/.ATTRIBUTES/VARIABLE_VALUE", []),
        ("many/0/.ATTRIBUTES/VARIABLE_VALUE", []),
        ("many/1/.ATTRIBUTES/VARIABLE_VALUE", []),
    ]


def test_the_manager_keeps_the_newest(tmp_path):
    step = tf.Variable(0)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(step=step), tmp_path, max_to_keep=2)
    assert manager.restore_or_initialize() is None
    for number in range(4):
        step.assign(number)
        manager.save()
    names = [path.rsplit("/", 1)[1] for path in manager.checkpoints]
    assert names == ["ckpt-3", "ckpt-4"]
    assert len(list(tmp_path.glob("*.penstock"))) == 2
    assert tf.train.latest_checkpoint(tmp_path) == manager.latest_checkpoint
    assert tf.train.list_variables(tmp_path)[0][1] == []
    later = tf.Variable(0)
    again = tf.train.CheckpointManager(tf.train.Checkpoint(step=later), tmp_path, max_to_keep=2)
    assert again.checkpoints == manager.checkpoints
    assert again.restore_or_initialize() == manager.latest_checkpoint
    assert int(later) == 3


def test_the_manager_waits_for_its_interval(tmp_path):
    step, calls = tf.Variable(0), []
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(step=step),
        tmp_path,
        max_to_keep=None,
        step_counter=step,
        checkpoint_interval=2,
        init_fn=lambda: calls.append(1),
    )
    manager.restore_or_initialize()
    saved = []
    for number in range(5):
        step.assign(number)
        saved.append(manager.save() is not None)
    assert saved == [True, False, True, False, True]
    assert manager.save(checkpoint_number=9, check_interval=False).endswith("ckpt-9")
    assert (calls, manager.checkpoint_interval) == ([1], 2)


def test_a_save_counts_its_steps_in_a_variable(tmp_path):
    counter = tf.Variable(0, trainable=False)
    arguments = {
        "directory": str(tmp_path / "checkpoints"),
        "max_to_keep": tf.constant(10),
        "step_counter": counter,
        "checkpoint_interval": 5,
    }
    numbers = tf.data.Dataset.range(12)
    numbers.save(str(tmp_path / "saved"), checkpoint_args=arguments)
    assert int(counter) == 12
    assert len(list((tmp_path / "checkpoints").glob("*.penstock"))) == 3
    arguments["directory"] = str(tmp_path / "more_checkpoints")
    tf.data.experimental.save(numbers, str(tmp_path / "more"), checkpoint_args=arguments)
    assert int(counter) == 24


def test_what_does_not_fit_is_said(tmp_path):
    path = tf.train.Checkpoint(a=tf.Variable(1), b=tf.Variable(2)).save(tmp_path / "c")
    status = tf.train.Checkpoint(a=tf.Variable(0), c=tf.Variable(0)).restore(path)
    with pytest.raises(AssertionError, match=r"not used: \['b'\], not saved: \['c'\]"):
        status.assert_consumed()
    with pytest.raises(AssertionError, match=r"not saved: \['c'\]"):
        status.assert_existing_objects_matched()
    with pytest.raises(InvalidArgumentError, match="a was saved as a variable"):
        tf.train.Checkpoint(a=open_shuffled()).restore(path)
    assert status.assert_nontrivial_match() is status
    other = tf.train.Checkpoint(c=tf.Variable(0)).restore(path)
    with pytest.raises(AssertionError, match=r"not saved: \['c'\]"):
        other.assert_nontrivial_match()


ASSERTIONS = [
    "assert_consumed",
    "assert_existing_objects_matched",
    "assert_nontrivial_match",
    "run_restore_ops",
]


@pytest.mark.parametrize("name", ASSERTIONS)
def test_without_a_path_nothing_is_restored(name, tmp_path):
    checkpoint = tf.train.Checkpoint(a=tf.Variable(0))
    with pytest.raises(AssertionError, match=r"restore\(None\) has restored nothing"):
        getattr(checkpoint.restore(None), name)()
    checkpoint.restore(None).expect_partial().initialize_or_restore()
    status = checkpoint.restore(checkpoint.save(tmp_path / "c"))
    getattr(status, name)()
    status.initialize_or_restore()


def test_the_state_of_another_dataset_is_not_found(tmp_path):
    path = tf.train.Checkpoint(it=iter(tf.data.Dataset.range(10))).save(tmp_path / "c")
    other = iter(tf.data.Dataset.from_tensor_slices([1, 2, 3]))
    with pytest.raises(NotFoundError, match=r"restore: it: .* saved by another pipeline"):
        tf.train.Checkpoint(it=other).restore(path)
    assert numbers(other, 3) == [1, 2, 3]


def test_callbacks_are_called_after_each_save(tmp_path):
    calls = []
    options = tf.train.CheckpointOptions(
        experimental_write_callbacks=[calls.append, lambda: calls.append("saved")],
        enable_async=True,
    )
    checkpoint = tf.train.Checkpoint(step=tf.Variable(0))
    first = checkpoint.save(tmp_path / "c", options=options)
    second = checkpoint.write(tmp_path / "d", options)
    manager = tf.train.CheckpointManager(checkpoint, tmp_path / "m", max_to_keep=1)
    third = manager.save(options=options)
    assert calls == [first, "saved", second, "saved", third, "saved"]


def test_a_checkpoint_is_one_file():
    with pytest.raises(InvalidArgumentError, match="experimental_sharding_callback must be None"):
        tf.train.CheckpointOptions(experimental_sharding_callback=print)


def test_errors(tmp_path):
    with pytest.raises(InvalidTypeError, match="x must be an iterator, a variable or an object"):
        tf.train.Checkpoint(x=np.zeros(3))
    with pytest.raises(NotFoundError, match="there is no checkpoint"):
        tf.train.Checkpoint(a=tf.Variable(1)).restore(str(tmp_path / "none"))
    with pytest.raises(NotFoundError, match="there is no checkpoint in"):
        tf.train.list_variables(tmp_path)
    with pytest.raises(InvalidArgumentError, match="max_to_keep must be at least 1, got 0"):
        tf.train.CheckpointManager(tf.train.Checkpoint(), tmp_path, 0)
    (tmp_path / "bad.penstock").write_bytes(b"\0" * 20)
    with pytest.raises(DataLossError, match="bad is damaged"):
        tf.train.Checkpoint(a=tf.Variable(1)).restore(str(tmp_path / "bad"))
    with pytest.raises(AttributeError, match=r"Checkpoint has no object z"):
        tf.train.Checkpoint().z  # noqa: B018


def test_a_folder_of_tensorflow_is_refused_in_words(tmp_path):
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "ckpt-1"\n', encoding="utf-8")
    with pytest.raises(FailedPreconditionError, match="TensorFlow may have written it; choose"):
        tf.train.latest_checkpoint(str(tmp_path))


def test_checkpoints_lie_behind_urls(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url = f"memory://{tmp_path.name}-checkpoints"
    step = tf.Variable(0)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(step=step), url, max_to_keep=2)
    for _ in range(3):
        step.assign_add(1)
        manager.save()
    assert manager.latest_checkpoint == tf.train.latest_checkpoint(url) == f"{url}/ckpt-3"
    assert tf.io.gfile.listdir(url) == ["checkpoint", "ckpt-2.penstock", "ckpt-3.penstock"]
    again = tf.Variable(0)
    tf.train.Checkpoint(step=again).restore(tf.train.latest_checkpoint(url))
    assert int(again) == 3
    assert list(tmp_path.iterdir()) == []


def test_the_counter_counts_every_save(tmp_path):
    checkpoint = tf.train.Checkpoint(step=tf.Variable(0))
    manager = tf.train.CheckpointManager(checkpoint, tmp_path / "m", max_to_keep=5)
    names = [manager.save(), manager.save(checkpoint_number=7), manager.save()]
    assert [name.rpartition("-")[2] for name in names] == ["1", "7", "3"]
    assert checkpoint.save_counter.numpy() == 3


def test_values_in_the_other_byte_order_are_restored(tmp_path):
    value = np.array([1, 2], np.dtype(np.int32).newbyteorder())
    path = tf.train.Checkpoint(step=tf.Variable(value)).save(tmp_path / "c")
    again = tf.Variable([0, 0])
    tf.train.Checkpoint(step=again).restore(path)
    assert again.numpy().tolist() == [1, 2]
