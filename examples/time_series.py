"""Time series: windows of several series, shuffled, with the next value as the label.

Windows are views of the series, so that they take no memory, and none of them crosses from one
series to the next. The last tenth of each series is held out. `shuffle` holds nothing either: a
batch gathers its rows from the series.

It prints:

    3 series of 500, 800 and 1100 values
    2088 windows of 24 values to train on, 240 to test
    the forecast is better than the last value: True
"""

import numpy as np

from penstock.data import Dataset

LENGTH = 24


def make_series(lengths):
    random = np.random.default_rng(0)
    times = [np.arange(length) for length in lengths]
    waves = [np.sin(time / (5 + number)) for number, time in enumerate(times)]
    return [(wave + random.normal(0, 0.05, len(wave))).astype(np.float32) for wave in waves]


def windows_of(series):
    """Each window has LENGTH values and the one after them."""
    views = [np.lib.stride_tricks.sliding_window_view(one, LENGTH + 1) for one in series]
    dataset = Dataset.from_tensor_slices(views[0])
    for view in views[1:]:
        dataset = dataset.concatenate(Dataset.from_tensor_slices(view))
    return dataset


def make_batches(series, batch=64):
    windows = windows_of(series)
    batches = windows.shuffle(len(windows), seed=1).batch(batch)
    return batches.map(lambda rows: (rows[:, :-1], rows[:, -1])).prefetch(2)


def main():
    series = make_series([500, 800, 1100])
    train = [one[: len(one) * 9 // 10] for one in series]
    test = [one[len(one) * 9 // 10 - LENGTH :] for one in series]
    lengths = [str(len(one)) for one in series]
    print(f"3 series of {', '.join(lengths[:-1])} and {lengths[-1]} values")
    count, held_out = len(windows_of(train)), len(windows_of(test))
    print(f"{count} windows of {LENGTH} values to train on, {held_out} to test")

    weights = np.zeros(LENGTH, np.float32)
    for _ in range(10):
        for x, y in make_batches(train):
            weights -= 0.02 * x.T @ (x @ weights - y) / len(y)
    x, y = next(iter(make_batches(test, batch=held_out)))
    forecast, last = np.mean((x @ weights - y) ** 2), np.mean((x[:, -1] - y) ** 2)
    print(f"the forecast is better than the last value: {forecast < last}")


if __name__ == "__main__":
    main()
