"""Time series: windows of several series, shuffled, with the next value as the label.

The dataset has the starts of the windows, which are views of the series: a batch gathers its rows
there, and neither windows nor the shuffle take memory. No window crosses from one series to the
next. The last tenth of each series is held out.

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


def find_windows(series):
    """Where each window of LENGTH values and the one after them starts, in all series together."""
    ends = np.cumsum([len(one) for one in series])
    parts = zip(series, ends, strict=True)
    return np.concatenate([np.arange(end - len(one), end - LENGTH) for one, end in parts])


def make_batches(series, batch=64):
    starts = find_windows(series)
    windows = np.lib.stride_tricks.sliding_window_view(np.concatenate(series), LENGTH + 1)
    dataset = Dataset.from_tensor_slices(starts).shuffle(len(starts), seed=1).batch(batch)
    return dataset.map(lambda rows: (windows[rows, :-1], windows[rows, -1])).prefetch(2)


def main():
    series = make_series([500, 800, 1100])
    train = [one[: len(one) * 9 // 10] for one in series]
    test = [one[len(one) * 9 // 10 - LENGTH :] for one in series]
    lengths = [str(len(one)) for one in series]
    print(f"3 series of {', '.join(lengths[:-1])} and {lengths[-1]} values")
    count, held_out = len(find_windows(train)), len(find_windows(test))
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
