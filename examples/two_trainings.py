"""Two trainings share one preparation: a service prepares each row once, and both get all rows.

Each training names itself in a `CrossTrainerCache`. Workers keep what they have made until both
have read it, within a bound of memory; they make it again for a training that comes too late.

It prints:

    with a rate of 0.01: 50 batches, and the loss is below 0.1: True
    with a rate of 0.05: 50 batches, and the loss is below 0.1: True
    2 trainings read 2000 rows; the service prepared about 1000
"""

import os
import tempfile
from multiprocessing import get_context
from pathlib import Path

import numpy as np

import penstock
from penstock.data import Dataset
from penstock.data.experimental import service

ROWS, FEATURES, BATCH = 1000, 8, 20


def make_batches(url, trainer, log, rows=ROWS):
    x = np.random.default_rng(0).normal(size=(rows, FEATURES)).astype(np.float32)

    def prepare(x):
        """Expensive in a real program; here it counts its calls in a file."""
        with open(log, "ab", buffering=0) as file:
            file.write(b".")
        return np.tanh(x), np.tanh(x).sum()

    dataset = Dataset.from_tensor_slices(x).map(prepare).batch(BATCH)
    cache = service.CrossTrainerCache(trainer)
    return dataset.apply(
        service.distribute("distributed_epoch", url, job_name="both", cross_trainer_cache=cache)
    )


def train(rate, url, log, both_read, results):
    batches = iter(make_batches(url, f"rate {rate}", log))
    weights, count = np.zeros(FEATURES), 0
    for x, y in batches:
        if count == 0:
            both_read.wait()  # so that none of them is much later than the other
        error = x @ weights - y
        weights -= rate * x.T @ error
        count += 1
    results.put((rate, count, np.mean(error**2)))


def main(folder, url):
    log = folder / "calls"
    context = get_context("spawn")
    both_read, results = context.Barrier(2), context.SimpleQueue()
    for rate in (0.01, 0.05):
        arguments = (rate, url, str(log), both_read, results)
        context.Process(target=train, args=arguments).start()
    for rate, count, loss in sorted([results.get(), results.get()]):
        print(f"with a rate of {rate}: {count} batches, and the loss is below 0.1: {loss < 0.1}")
    calls = os.path.getsize(log)
    print(f"2 trainings read {2 * ROWS} rows; the service prepared about {round(calls, -2)}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name, penstock.launch.local(workers=2) as launched:
        main(Path(name), launched.url)
