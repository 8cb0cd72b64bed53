"""`as_keras` under Keras itself. Run by `test_apart`, once per backend: Keras has one per process.

Training counts: with x one-hot, SGD at rate 1 and the sum of absolute errors below huge targets,
each weight grows by one whenever the model is trained on that element.
"""

import json
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
# Warnings of Keras about its own code, with NumPy 2.
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
    )  # The first one is for Keras, which reads a batch before it begins.

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


def adapt_unknown_elements(function: Any) -> Any:
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
        Counting(keras).model.predict(x=adapt_unknown_elements(function), verbose=0)


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


class Saving:
    """Trains, and saves the position after each batch, as a callback would."""

    def __init__(self, keras: Any, batches: Any, stop_after: int | None = None) -> None:
        self.states: list[Any] = []
        self.steps: list[int] = []
        self.callback = keras.callbacks.LambdaCallback(on_train_batch_end=self._save)
        self._batches, self._stop = batches, stop_after

    def _save(self, batch: int, logs: Any) -> None:
        self.states.append(json.loads(json.dumps(self._batches.state_dict(batch))))
        self.steps.append(batch)
        self.callback.model.stop_training = len(self.states) == self._stop


def rows_of(keras: Any, batches: Any, state: Any, epochs: int, built: bool = True) -> list[int]:
    """How often `fit` trains on each element, from a state on."""
    counting = Counting(keras, built)
    if state is not None:
        batches.load_state_dict(state)
    return counting.fit(batches, epochs=epochs)


def saved_states(keras: Any, batches: Any, epochs: int) -> list[Any]:
    saving = Saving(keras, batches)
    Counting(keras).model.fit(x=batches, epochs=epochs, verbose=0, callbacks=[saving.callback])
    return saving.states


@pytest.mark.parametrize("built", [True, False])
def test_fit_resumes_in_the_middle_of_an_epoch(keras: Any, built: bool) -> None:
    def make() -> Any:
        return PAIRS.shuffle(COUNT, seed=1).batch(2).as_keras()

    states = saved_states(keras, make(), epochs=2)
    assert len(states) == 10
    for number in (2, 4, 5, 7, 9):
        # With the epoch that is resumed, `fit` makes two epochs; none is left of the fifth batch.
        trained = rows_of(keras, make(), states[number - 1], epochs=2, built=built)
        assert sum(trained) == COUNT + (COUNT - number % 5 * 2)
        assert set(trained) <= {1, 2}


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("taken", [3, 5])
def test_the_epochs_after_a_resumed_one_have_their_own_orders(
    keras: Any, built: bool, taken: int
) -> None:
    def make() -> Any:
        return PAIRS.shuffle(COUNT, seed=1).batch(2).as_keras()

    expected = saved_states(keras, make(), epochs=3)
    resumed = make()
    resumed.load_state_dict(expected[taken - 1])
    saving = Saving(keras, resumed)
    model = Counting(keras, built).model
    model.fit(x=resumed, epochs=2, verbose=0, callbacks=[saving.callback])
    places = [(state["input"]["iteration"], state["input"]["count"]) for state in saving.states]
    assert places == [
        (state["input"]["iteration"], state["input"]["count"])
        for state in expected[taken : 10 if taken < 5 else 15]
    ]


def test_a_resumed_fit_trains_on_what_the_interrupted_one_left(keras: Any) -> None:
    def make() -> Any:
        return PAIRS.shuffle(COUNT, seed=1).batch(2).as_keras()

    first = Counting(keras)
    interrupted = Saving(keras, batches := make(), stop_after=3)
    first.model.fit(x=batches, epochs=1, verbose=0, callbacks=[interrupted.callback])
    resumed = make()
    resumed.load_state_dict(interrupted.states[-1])
    assert first.fit(resumed, epochs=1) == [1] * COUNT
    assert resumed.position == 5


@ran_out
def test_an_unknown_number_of_batches_resumes(keras: Any) -> None:
    def make() -> Any:
        return PAIRS.filter(lambda x, y: True).batch(2).as_keras()

    states = saved_states(keras, make(), epochs=1)
    assert rows_of(keras, make(), states[2], epochs=1) == [0] * 6 + [1] * 4
    # Saved after the last batch: nothing is left, so that a new epoch begins.
    assert rows_of(keras, make(), states[4], epochs=1) == [1] * COUNT


def test_epochs_of_some_steps_resume(keras: Any) -> None:
    def make() -> Any:
        return PAIRS.batch(2).as_keras(steps_per_epoch=4)

    states = saved_states(keras, make(), epochs=2)
    assert [state["batches"] for state in states] == [1, 2, 3, 4] * 2
    # After the fifth batch, three steps of the second epoch are left: batches 0, 1 and 2.
    assert rows_of(keras, make(), states[4], epochs=1) == [1] * 6 + [0] * 4
    # After the fourth, a whole epoch comes: batches 4, 0, 1 and 2.
    assert rows_of(keras, make(), states[3], epochs=1) == [1] * 6 + [0, 0, 1, 1]


def test_a_resumed_epoch_can_be_saved_again(keras: Any) -> None:
    def make() -> Any:
        return PAIRS.batch(2).as_keras(steps_per_epoch=4)

    second = saved_states(keras, make(), epochs=2)
    resumed = make()
    resumed.load_state_dict(second[4])
    states = saved_states(keras, resumed, epochs=2)
    assert [state["batches"] for state in states] == [2, 3, 4, 1, 2, 3, 4]
    assert states[0]["input"] == second[5]["input"]


def test_keras_may_read_ahead_of_the_batch_that_is_saved(keras: Any) -> None:
    adapted = PAIRS.batch(1).as_keras()
    batches = adapted.get_numpy_iterator()
    for _ in range(3):
        next(batches)
    ahead, here = adapted.state_dict(1), adapted.state_dict(2)
    assert [ahead["batches"], here["batches"]] == [2, 3]
    assert [ahead["input"]["count"], here["input"]["count"]] == [2, 3]
    match = "^KerasBatches.state_dict: batch 3 is not one of the last that Keras got; call it in"
    with pytest.raises(InvalidArgumentError, match=match):
        adapted.state_dict(3)


def test_a_state_of_something_else_is_refused(keras: Any) -> None:
    adapted = PAIRS.batch(1).as_keras()
    match = "^KerasBatches.load_state_dict: needs what KerasBatches.state_dict returned, got "
    with pytest.raises(InvalidArgumentError, match=match):
        adapted.load_state_dict(iter(PAIRS).state_dict())
    with pytest.raises(InvalidArgumentError, match=r"^Iterator.load_state_dict: "):
        adapted.load_state_dict({"input": iter(PAIRS).state_dict(), "batches": 1})
