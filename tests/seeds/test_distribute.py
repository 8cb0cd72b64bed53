"""The code of the reference pages on distributed input, as printed there, with penstock as `tf`.

The output in the pages is not always right; these tests expect what TensorFlow really printed.
"""

import ast
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import penstock as tf

SNIPPETS = Path(__file__).parent / "snippets"
SPEC = (
    "(PerReplicaSpec(TensorSpec(shape=(None, 1), dtype=tf.float32, name=None), "
    "TensorSpec(shape=(None, 1), dtype=tf.float32, name=None)), "
    "PerReplicaSpec(TensorSpec(shape=(None, 1), dtype=tf.int32, name=None), "
    "TensorSpec(shape=(None, 1), dtype=tf.int32, name=None)))"
)


def run(name: str, monkeypatch: pytest.MonkeyPatch, **names: Any) -> Any:
    """Runs a snippet; gives the value of its last line if that is an expression, as a console."""
    monkeypatch.setitem(sys.modules, "tensorflow", tf)
    tree = ast.parse((SNIPPETS / f"{name}.txt").read_text())
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    names |= {"tf": tf}
    with warnings.catch_warnings():
        # The pages name GPUs; a warning says that this machine has none.
        warnings.filterwarnings("ignore", "MirroredStrategy")
        exec(compile(tree, name, "exec"), names)
        value = (
            None if last is None else eval(compile(ast.Expression(last.value), name, "eval"), names)
        )
    return names if last is None else value


def read_printed(capsys: pytest.CaptureFixture[str]) -> str:
    streams = capsys.readouterr()
    return streams.out + streams.err


def block(*values: str) -> str:
    rows = ",\n".join(f"  {i}: {value}" for i, value in enumerate(values))
    return f"PerReplica:{{\n{rows}\n}}\n"


@pytest.fixture
def two_cpus() -> Iterator[None]:
    """Makes the strategy see two devices."""
    cpu, one = tf.config.list_physical_devices("CPU")[0], tf.config.LogicalDeviceConfiguration()
    tf.config.set_logical_device_configuration(cpu, [one, one])
    yield
    tf.config.set_logical_device_configuration(cpu, [one])


@pytest.mark.usefixtures("two_cpus")
def test_iterator_basics(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("iterator_basics", monkeypatch)
    first = block(
        "tf.Tensor([0 1 2 3 4], shape=(5,), dtype=int64)",
        "tf.Tensor([5 6 7 8 9], shape=(5,), dtype=int64)",
    )
    text = read_printed(capsys)
    assert text.startswith(first)
    assert text.count("PerReplica") == 10


def test_iterator_element_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    assert repr(run("iterator_element_spec", monkeypatch)) == SPEC


def test_dataset_element_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    assert repr(run("dataset_element_spec", monkeypatch)) == SPEC


def test_iterator_get_next(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = run("iterator_get_next", monkeypatch)
    assert (first.tolist(), second.tolist()) == ([10], [11])
    assert first.dtype == second.dtype == np.int64


def test_iterator_get_next_as_optional(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("iterator_get_next_as_optional", monkeypatch)
    assert read_printed(capsys) == "([0], [1])\n([2], [3])\n"


def test_dataset_loop(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run("dataset_loop", monkeypatch)
    value = "tf.Tensor(\n[[0.7]\n [0.7]], shape=(2, 1), dtype=float32)"
    assert read_printed(capsys) == "Loss is " + block(value, value)


def test_dataset_explicit_iterator(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("dataset_explicit_iterator", monkeypatch)
    assert read_printed(capsys) == "Epoch 1, Loss: 0.2000\nEpoch 2, Loss: 0.2000\n"


def test_dataset_input_signature(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("dataset_input_signature", monkeypatch)
    value = "tf.Tensor(\n[[4.]\n [4.]], shape=(2, 1), dtype=float32)"
    assert read_printed(capsys) == block(value, value)


def test_dataset_iter(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run("dataset_iter", monkeypatch)
    assert read_printed(capsys) == block(
        "tf.Tensor([1 2], shape=(2,), dtype=int32)", "tf.Tensor([3 4], shape=(2,), dtype=int32)"
    )


def test_values_train_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page leaves the model to the reader: here one weight, fitted to y = 3 x."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        weight = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN)

    def compute_gradients(inputs: Any) -> list[Any]:
        x, y = inputs
        return [np.mean(2 * x * (weight * x - y), dtype=np.float32)]

    def apply_gradients(pairs: Any) -> None:
        for gradient, variable in pairs:
            variable.assign_sub(0.1 * gradient)

    names = run(
        "values_train_step",
        monkeypatch,
        strategy=strategy,
        compute_gradients=compute_gradients,
        optimizer=SimpleNamespace(apply_gradients=apply_gradients),
        model=SimpleNamespace(trainable_variables=[weight]),
    )
    x = np.linspace(-1, 1, 8, dtype=np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((x, 3 * x)).repeat(120).batch(8)
    for step in strategy.experimental_distribute_dataset(dataset):
        names["distributed_train_step"](step)
    copies = [float(np.asarray(copy)) for copy in strategy.experimental_local_results(weight)]
    assert copies[0] == copies[1] == pytest.approx(3, abs=0.01)
