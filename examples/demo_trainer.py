"""The training program of the demo: a small model on two replicas, fed by a data service.

It prints one line of JSON for each step, with the ids of the rows that the step used. SIGTERM stops
it after the current step, with a checkpoint from which the next run continues.
"""

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

# One thread for each product: with several, sums could be added in another order.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

import penstock as tf

FEATURES, BATCH = 32, 64
JOB = "training"

Report = Callable[[dict[str, Any]], None]


def augment(row: np.ndarray, features: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, ...]:
    """A function of a user, which workers run: plain NumPy, one element at a time."""
    scaled = (features - features.mean()) / features.std()
    return row, np.tanh(scaled), label


def make_dataset(rows: int, service: str | None) -> Any:
    """Rows in a shuffled order, computed here, or by the workers of `service`."""
    random = np.random.default_rng(7)
    features = random.normal(size=(rows, FEATURES)).astype(np.float32)
    labels = (features @ np.linspace(-1, 1, FEATURES, dtype=np.float32)).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((np.arange(rows), features, labels))
    dataset = dataset.shuffle(rows, seed=7).map(augment).batch(BATCH)
    if service is None:
        return dataset
    distribute = tf.data.experimental.service.distribute
    return dataset.apply(distribute("distributed_epoch", service, job_name=JOB))


class Trainer:
    """Weights on two replicas, and the iterator that feeds them."""

    def __init__(self, rows: int, service: str | None, checkpoint: Path | None = None) -> None:
        self.strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        self.step, weights = 0, np.zeros(FEATURES, np.float32)
        self.batches = iter(
            self.strategy.experimental_distribute_dataset(make_dataset(rows, service))
        )
        if checkpoint is not None and checkpoint.exists():
            saved = json.loads(checkpoint.read_text(encoding="utf-8"))
            self.step, weights = saved["step"], np.array(saved["weights"], np.float32)
            self.batches.load_state_dict(saved["input"])
        with self.strategy.scope():
            self.weights = tf.Variable(weights, aggregation=tf.VariableAggregation.SUM)

    def train_step(self, row: Any, features: Any, label: Any) -> Any:
        """Runs on each replica, with its portion of the batch."""
        error = features @ self.weights - label
        self.weights.assign_sub(0.05 * (features.T @ error) / BATCH)
        return row, (error**2).mean()

    def run(self, report: Report, pace: float, stop: threading.Event) -> None:
        """Trains to the end of the data, or until `stop` is set."""
        for batch in self.batches:
            rows, losses = self.strategy.run(self.train_step, args=batch)
            self.step += 1
            ids = np.concatenate(self.strategy.experimental_local_results(rows))
            loss = np.mean(self.strategy.experimental_local_results(losses))
            report({"step": self.step, "loss": float(loss), "rows": ids.tolist()})
            if stop.wait(pace) or stop.is_set():
                return

    def save(self, checkpoint: Path) -> None:
        """Writes the model and the position in the data into one file."""
        # A float32 is exactly a float64, which JSON keeps exactly.
        saved = {
            "step": self.step,
            "weights": self.weights.numpy().tolist(),
            "input": self.batches.state_dict(),
        }
        written = checkpoint.with_suffix(".new")
        written.write_text(json.dumps(saved), encoding="utf-8")
        written.replace(checkpoint)


def report(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--service", required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--pace", type=float, required=True, help="seconds between two steps")
    given = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The demo decides when it ends.
    trainer = Trainer(given.rows, given.service, given.checkpoint)
    trainer.run(report, given.pace, stop)
    trainer.save(given.checkpoint)
    report({"saved": trainer.step})
    return 0


if __name__ == "__main__":
    sys.exit(main())
