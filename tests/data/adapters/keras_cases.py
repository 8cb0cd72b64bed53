"""`as_keras` under Keras itself. Run by `test_apart`, once per backend: Keras has one per process.

Training counts: with x one-hot, SGD at rate 1 and the sum of absolute errors below huge targets,
each weight grows by one whenever the model is trained on that element.
"""

import traceback
from typing import Any

import numpy as np
import pytest

from penstock import Ragged
from penstock.data import Dataset
from penstock.errors import InvalidArgumentError, InvalidTypeError, UnimplementedError

COUNT = 10
ROWS = (np.eye(COUNT, dtype=np.float32), np.full((COUNT, 1), 1e6, np.float32))
PAIRS = Dataset.from_tensor_slices(ROWS)
# What Keras says of itself, with NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy")
ran_out = pytest.mark.filterwarnings("ignore:Your input ran out of data")


@pytest.fixture
def keras() -> Any:
    import keras

    return keras


class Counting:
    """A model whose weights are how often it was trained on each element."""

    def __init__(self, keras: Any, built: bool = True, **options: Any) -> None:
        inputs = [keras.Input((COUNT,))] if built else []
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        self.model = keras.Sequential([*inputs, layer])
        loss = keras.losses.MeanAbsoluteError(reduction="sum")
        self.model.compile(optimizer=keras.optimizers.SGD(1.0), loss=loss, **options)
        self.steps: list[int | None] = []
        self.note = keras.callbacks.LambdaCallback(
            on_train_begin=lambda logs: self.steps.append(self.note.params["steps"]),
            on_train_batch_end=lambda batch, logs: self.batches.append(batch),
        )
        self.batches: list[int] = []

    def fit(self, x: Any, **options: Any) -> list[int]:
        self.model.fit(x=x, verbose=0, callbacks=[self.note], **options)
        return [round(float(w)) for w in np.asarray(self.model.get_weights()[0])[:, 0]]


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("shuffled", [True, False])
def test_an_epoch_is_one_pass(keras: Any, built: bool, shuffled: bool) -> None:
    counting = Counting(keras, built)
    dataset = (PAIRS.shuffle(COUNT) if shuffled else PAIRS).batch(4)
    assert counting.fit(dataset.as_keras(), epochs=3) == [3] * COUNT
    assert counting.steps == [3]
    assert len(counting.batches) == 9


def test_the_progress_bar_has_its_total(keras: Any, capsys: pytest.CaptureFixture[str]) -> None:
    counting = Counting(keras)
    adapted = PAIRS.batch(2).as_keras()
    counting.model.fit(x=adapted, epochs=2, verbose=2)
    counting.model.evaluate(x=adapted, verbose=2)
    printed = capsys.readouterr().out
    assert printed.count("5/5 - ") == 3


def test_the_loss_falls(keras: Any) -> None:
    keras.utils.set_random_seed(1)
    features = np.random.default_rng(1).normal(size=(64, 4)).astype(np.float32)
    labels = features @ np.array([1, -2, 3, 0.5], np.float32) + 1
    dataset = Dataset.from_tensor_slices((features, labels)).shuffle(64, seed=1).batch(8)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
    losses = model.fit(x=dataset.as_keras(), epochs=10, verbose=0).history["loss"]
    assert losses[-1] < losses[0] / 100
    assert model.evaluate(x=dataset.as_keras(), verbose=0) < losses[0] / 100


def test_epochs_are_shuffled_as_the_dataset_says(keras: Any) -> None:
    same = keras.Sequential([keras.Input((1,)), keras.layers.Identity()])
    rows = Dataset.range(COUNT).map(lambda x: np.float32([x])).cache()
    for again in (True, False):
        shuffled = rows.shuffle(COUNT, seed=1, reshuffle_each_iteration=again).batch(3)
        adapted = shuffled.as_keras()
        plain = rows.shuffle(COUNT, seed=1, reshuffle_each_iteration=again)
        epochs = [same.predict(x=adapted, verbose=0)[:, 0].tolist() for _ in range(2)]
        assert epochs == [[float(row[0]) for row in plain] for _ in range(2)]
        assert (epochs[0] != epochs[1]) is again


def test_predictions_come_in_order(keras: Any) -> None:
    double = keras.Sequential([keras.Input((2,)), keras.layers.Rescaling(2.0)])
    rows = np.arange(14, dtype=np.float32).reshape(7, 2)
    for dataset in (
        Dataset.from_tensor_slices(rows),
        Dataset.from_tensor_slices((rows,)),
        Dataset.from_tensor_slices((rows, rows[:, 0])),
    ):
        made = double.predict(x=dataset.batch(3).as_keras(), verbose=0)
        assert np.array_equal(made, rows * 2)


def test_a_third_component_is_the_weight(keras: Any) -> None:
    weights = np.arange(COUNT, dtype=np.float32)
    dataset = Dataset.from_tensor_slices((*ROWS, weights)).batch(4)
    assert Counting(keras).fit(dataset.as_keras(), epochs=2) == [2 * n for n in range(COUNT)]


def test_inputs_may_be_a_dict(keras: Any) -> None:
    parts = {name: keras.Input((2,), name=name) for name in ("left", "right")}
    model = keras.Model(parts, keras.layers.Subtract()([parts["left"], parts["right"]]))
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    dataset = Dataset.from_tensor_slices({"left": rows * 3, "right": rows}).batch(3)
    assert np.array_equal(model.predict(x=dataset.as_keras(), verbose=0), rows * 2)
    model.compile(optimizer="sgd", loss="mse")
    labelled = dataset.map(lambda x: (x, x["left"]))
    assert model.evaluate(x=labelled.as_keras(), verbose=0) == pytest.approx((rows**2).mean())


def test_validation_takes_another_one(keras: Any) -> None:
    counting = Counting(keras)
    adapted, held_out = PAIRS.batch(4).as_keras(), PAIRS.take(3).batch(1).as_keras()
    history = counting.model.fit(x=adapted, validation_data=held_out, epochs=2, verbose=0).history
    assert len(history["val_loss"]) == 2
    assert np.asarray(counting.model.get_weights()[0])[:, 0].tolist() == [2.0] * COUNT


@ran_out
@pytest.mark.parametrize("built", [True, False])
def test_an_unknown_number_of_batches_is_one_pass_per_epoch(keras: Any, built: bool) -> None:
    counting = Counting(keras, built)
    dataset = PAIRS.filter(lambda x, y: True).shuffle(3).batch(4)
    assert counting.fit(dataset.as_keras(), epochs=3) == [3] * COUNT
    assert counting.steps == [None]
    assert len(counting.batches) == 9
    counting.model.evaluate(x=dataset.as_keras(), verbose=0)
    assert len(counting.model.predict(x=dataset.as_keras(), verbose=0)) == COUNT


@ran_out
def test_keras_calls_the_adapter_when_it_cuts_an_epoch_short(keras: Any) -> None:
    lengths = iter(
        [1, 4, 10, 4, 2]
    )  # The first for Keras, which looks at a batch before it begins.

    def growing() -> Any:
        yield from list(zip(*ROWS, strict=True))[: next(lengths)]

    dataset = Dataset.from_generator(growing, output_signature=PAIRS.element_spec).batch(1)
    counting = Counting(keras)
    match = "Dataset.as_keras: Keras ended an epoch after 5 batches though there were more, as the "
    with pytest.warns(UserWarning, match=match + "first epoch had 4; say how many there are in"):
        counts = counting.fit(dataset.as_keras(), epochs=4)
    assert counts == [4, 4, 3, 3, 1, 0, 0, 0, 0, 0]


def test_steps_make_epochs_of_an_infinite_dataset(keras: Any) -> None:
    counting = Counting(keras)
    assert counting.fit(PAIRS.repeat().batch(2).as_keras(5), epochs=4) == [4] * COUNT
    assert counting.steps == [5]
    assert len(counting.batches) == 20


def test_steps_continue_where_the_last_epoch_ended_and_then_restart(keras: Any) -> None:
    counting = Counting(keras)
    adapted = PAIRS.filter(lambda x, y: True).batch(2).as_keras(steps_per_epoch=2)
    assert counting.fit(adapted) == [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]
    assert counting.fit(adapted) == [1] * 8 + [0, 0]
    assert counting.fit(adapted, epochs=3) == [2] * COUNT
    assert counting.steps == [2, 2, 2]
    alone = PAIRS.batch(2).as_keras(steps_per_epoch=3)
    assert Counting(keras).fit(alone, epochs=5) == [3] * COUNT


def test_a_cache_is_complete_after_one_epoch(keras: Any) -> None:
    made: list[Any] = []
    dataset = PAIRS.map(lambda x, y: made.append(1) or (x, y)).cache().batch(5)
    model = Counting(keras).model
    assert model.predict(x=dataset.as_keras(), verbose=0).shape == (COUNT, 1)
    assert len(made) == COUNT
    assert model.predict(x=dataset.as_keras(), verbose=0).shape == (COUNT, 1)
    assert len(made) == COUNT


def test_keras_may_count_the_steps_itself(keras: Any) -> None:
    counting = Counting(keras)
    assert counting.fit(PAIRS.batch(1).as_keras(), epochs=4, steps_per_epoch=5) == [2] * COUNT
    assert counting.steps == [5]


@ran_out
@pytest.mark.parametrize("dataset", [PAIRS.batch(3), PAIRS.filter(lambda x, y: True).batch(3)])
def test_several_steps_may_be_executed_at_once(keras: Any, dataset: Dataset) -> None:
    at_once = 1 if keras.config.backend() == "torch" else 2
    counting = Counting(keras, steps_per_execution=at_once)
    assert counting.fit(dataset.as_keras(), epochs=2) == [2] * COUNT


def test_batches_share_no_memory_with_the_source(keras: Any) -> None:
    source = np.zeros((8, 2), np.float32)
    adapted = Dataset.from_tensor_slices(source).batch(4).as_keras()
    torch = keras.config.backend() == "torch"
    batches = list(adapted.get_torch_dataloader() if torch else adapted.get_jax_iterator())
    source[:] = 7
    assert [np.asarray(batch).any() for batch in batches] == [False, False]


def unknown(function: Any) -> Any:
    """Adapted elements of which nothing is known before the first one is made."""
    return Dataset.range(4).map(function).as_keras()


@pytest.mark.parametrize(
    ("function", "kind", "match"),
    [
        (lambda x: x, InvalidArgumentError, "every component must have rows, got .*; use batch"),
        (
            lambda x: (np.zeros(2), np.zeros(3)),
            InvalidArgumentError,
            r"the components of an element have \[2, 3\] rows",
        ),
        (
            lambda x: (np.zeros(2),) * 4,
            InvalidArgumentError,
            r"an element has 4 components; map it to x, \(x, y\) or \(x, y, sample_weight\)",
        ),
        (lambda x: Ragged.from_rows([[1], [2, 3]]), InvalidTypeError, "ragged, .*; use padded_ba"),
        (lambda x: np.array([b"a"], object), InvalidTypeError, "holds strings, .*; map them to nu"),
    ],
)
def test_what_keras_cannot_use_is_refused_at_the_first_batch(
    keras: Any, function: Any, kind: type[Exception], match: str
) -> None:
    with pytest.raises(kind, match=f"^Dataset.as_keras: .*{match}"):
        Counting(keras).model.predict(x=unknown(function), verbose=0)


@pytest.mark.parametrize("steps", [None, 2])
def test_a_dataset_that_turns_out_empty_is_refused(keras: Any, steps: int | None) -> None:
    empty = PAIRS.filter(lambda x, y: False).batch(2).as_keras(steps)
    with pytest.raises(InvalidArgumentError, match="^Dataset.as_keras: the dataset has no batches"):
        Counting(keras).fit(empty)


def test_there_is_no_form_for_tensorflow(keras: Any) -> None:
    with pytest.raises(UnimplementedError, match="^Dataset.as_keras: there is no form for Keras' "):
        PAIRS.batch(2).as_keras().get_tf_dataset()


@pytest.mark.parametrize(("steps", "read"), [(None, 2), (3, 6)])
@ran_out
def test_the_profile_is_that_of_the_latest_iteration(
    keras: Any, steps: int | None, read: int
) -> None:
    batches = PAIRS.map(lambda x, y: (x, y)).batch(5).as_keras(steps_per_epoch=steps)
    assert batches.profile().bottleneck == "nothing has been read yet"
    Counting(keras).fit(batches, epochs=2)
    rows = {row.operator: row for row in batches.profile().operators}
    assert next(iter(rows)) == "deliver"
    assert rows["deliver"].elements >= read
    assert "<lambda> at keras_cases.py:" in rows["map"].function


def test_keras_refuses_a_plain_dataset_and_names_the_way_out(keras: Any) -> None:
    with pytest.raises(TypeError, match=r"model.fit\(dataset.as_keras\(\)\)"):
        Counting(keras).fit(PAIRS.batch(4))


def test_a_failing_function_shows_its_own_frames(keras: Any) -> None:
    def refuse(x: Any, y: Any) -> Any:
        raise ValueError("no image")

    with pytest.raises(InvalidArgumentError, match="element 0 .*no image; .* row 0") as caught:
        Counting(keras).fit(PAIRS.map(refuse).batch(4).as_keras())
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [frame.name for frame in frames][-2:] == ["_epoch", "refuse"]
