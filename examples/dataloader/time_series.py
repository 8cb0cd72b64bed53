"""Time series with a DataLoader: windows of several series, with the next value as the label.

It prints:

    2088 windows of 24 values in 33 batches
"""

import numpy as np
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset

LENGTH = 24


def make_series(lengths):
    random = np.random.default_rng(0)
    times = [np.arange(length) for length in lengths]
    waves = [np.sin(time / (5 + number)) for number, time in enumerate(times)]
    return [(wave + random.normal(0, 0.05, len(wave))).astype(np.float32) for wave in waves]


class Windows(Dataset):
    """Each window has LENGTH values and the one after them."""

    def __init__(self, series):
        self.series = torch.from_numpy(series)

    def __len__(self):
        return len(self.series) - LENGTH

    def __getitem__(self, number):
        return self.series[number : number + LENGTH], self.series[number + LENGTH]


def make_batches(series, batch=64):
    windows = ConcatDataset([Windows(one) for one in series])
    return DataLoader(windows, batch_size=batch, shuffle=True)


if __name__ == "__main__":
    series = make_series([500, 800, 1100])
    batches = make_batches([one[: len(one) * 9 // 10] for one in series])
    count = sum(len(x) for x, y in batches)
    print(f"{count} windows of {LENGTH} values in {len(batches)} batches")
