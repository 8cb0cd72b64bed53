"""Keras 3 `fit` from a service, with a callback that saves the model and the position in the data.

A training is interrupted in the middle of its second epoch and resumed from its last checkpoint.
It ends with the same weights as a training that was never interrupted. Set KERAS_BACKEND to jax
(the default here) or torch.

It prints:

    interrupted in step 27 of 60; the last checkpoint is of step 24
    resumed with 16 batches of epoch 2, then 20 of epoch 3
    the weights are those of a training without interruption: True
"""

import json
import os
import tempfile
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

from penstock.data import Dataset
from penstock.data.experimental import service

ROWS, FEATURES, CLASSES, EPOCHS = 2000, 16, 4, 3


def make_batches(rows=ROWS, url="local://2"):
    random = np.random.default_rng(1)
    labels = random.integers(CLASSES, size=rows).astype(np.int32)
    features = labels[:, None] + random.normal(size=(rows, FEATURES)).astype(np.float32)
    dataset = Dataset.from_tensor_slices((features.astype(np.float32), labels))
    dataset = dataset.shuffle(rows, seed=1).batch(100)
    return dataset.apply(service.distribute("distributed_epoch", url)).as_keras()


def make_model():
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(32, "relu"), keras.layers.Dense(CLASSES, "softmax")]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers])
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy")
    return model


class Checkpoints(keras.callbacks.Callback):
    """Saves the model and the position every 8 steps, in one folder that appears at once."""

    def __init__(self, folder, batches, stop_at=None):
        super().__init__()
        self.folder, self.batches, self.stop_at = folder, batches, stop_at
        self.trained = []

    def on_epoch_begin(self, epoch, logs=None):
        self.trained.append((epoch + 1, 0))

    def on_train_batch_end(self, batch, logs=None):
        self.trained[-1] = (self.trained[-1][0], batch + 1)
        step = int(self.model.optimizer.iterations)
        if step % 8 == 0:
            new = self.folder / "new"
            new.mkdir()
            self.model.save(new / "model.keras")
            (new / "input.json").write_text(json.dumps(self.batches.state_dict(batch)))
            new.rename(self.folder / f"step-{step:06}")
        self.model.stop_training = step == self.stop_at  # in the place of a crash


def train(folder, stop_at=None):
    batches, model = make_batches(), make_model()
    if saved := sorted(folder.glob("step-*")):
        model = keras.saving.load_model(saved[-1] / "model.keras")
        batches.load_state_dict(json.loads((saved[-1] / "input.json").read_text()))
    begun = int(model.optimizer.iterations) // batches.num_batches
    callback = Checkpoints(folder, batches, stop_at)
    model.fit(batches, initial_epoch=begun, epochs=EPOCHS, callbacks=[callback], verbose=0)
    return model, callback


def main(folder):
    train(folder / "interrupted", stop_at=27)
    last = max((folder / "interrupted").glob("step-*")).name
    print(f"interrupted in step 27 of 60; the last checkpoint is of step {int(last[5:])}")
    resumed, callback = train(folder / "interrupted")
    (second, rest), (third, whole) = callback.trained
    print(f"resumed with {rest} batches of epoch {second}, then {whole} of epoch {third}")
    other, _ = train(folder / "not interrupted")
    pairs = zip(resumed.get_weights(), other.get_weights(), strict=True)
    same = all(np.array_equal(a, b) for a, b in pairs)
    print(f"the weights are those of a training without interruption: {same}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        for part in ("interrupted", "not interrupted"):
            Path(name, part).mkdir()
        main(Path(name))
