"""Keras 3 `fit` from a DataLoader. A checkpoint can be resumed at the beginning of an epoch only.

It prints:

    60 steps in 3 epochs
"""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

ROWS, FEATURES, CLASSES, EPOCHS = 2000, 16, 4, 3


def make_batches(rows=ROWS):
    random = np.random.default_rng(1)
    labels = random.integers(CLASSES, size=rows).astype(np.int32)
    features = labels[:, None] + random.normal(size=(rows, FEATURES)).astype(np.float32)
    arrays = (features.astype(np.float32), labels)
    dataset = TensorDataset(*map(torch.from_numpy, arrays))
    return DataLoader(dataset, batch_size=100, shuffle=True)


def main():
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(32, "relu"), keras.layers.Dense(CLASSES, "softmax")]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers])
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy")
    model.fit(make_batches(), epochs=EPOCHS, verbose=0)
    print(f"{int(model.optimizer.iterations)} steps in {EPOCHS} epochs")


if __name__ == "__main__":
    main()
