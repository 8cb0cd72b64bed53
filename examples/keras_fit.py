"""Keras trains on a dataset: progress bar totals, validation, a new order in every epoch.

Run it with `python examples/keras_fit.py`, where penstock, Keras and JAX are installed; set
KERAS_BACKEND=torch to train with torch instead.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

from penstock.data import Dataset

FEATURES, CLASSES = 16, 4


def rows(count: int, seed: int) -> Dataset:
    """Points around the center of their class."""
    random = np.random.default_rng(seed)
    centers = np.random.default_rng(0).normal(size=(CLASSES, FEATURES))
    labels = random.integers(CLASSES, size=count)
    features = centers[labels] + random.normal(size=(count, FEATURES))
    return Dataset.from_tensor_slices((features.astype(np.float32), labels.astype(np.int32)))


def main() -> None:
    keras.utils.set_random_seed(1)
    train = rows(2000, seed=1).shuffle(2000, seed=1).batch(100).prefetch(2)
    test = rows(500, seed=2).batch(100)
    model = keras.Sequential([keras.layers.Dense(32, "relu"), keras.layers.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss=loss, metrics=["accuracy"])
    model.fit(x=train.as_keras(), validation_data=test.as_keras(), epochs=3, verbose=2)
    print(f"{model.evaluate(x=test.as_keras(), verbose=0)[1]:.0%} of the test rows are right")


if __name__ == "__main__":
    main()
