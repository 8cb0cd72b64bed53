"""Walks one dataset through penstock, and prints as JSON which files it visits on each way.

`tests/test_architecture.py` compares them with *Follow one element* in ARCHITECTURE.md. It runs
this program in a process of its own, because the profiler sees only threads that start after it.
"""

import inspect
import json
import sys
import threading
from collections import defaultdict
from pathlib import Path
from types import FrameType

import numpy as np

import penstock as tf

BASE = f"{Path(tf.__file__).parent}/"
VISITED: dict[str, set[str]] = defaultdict(set)
service = tf.data.experimental.service


class Way:
    """Notes the files whose functions are called while one dataset is built and read."""

    def __init__(self, name: str) -> None:
        self.files = VISITED[name]

    def __enter__(self) -> None:
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED  # Not a module or a class body.
        if event == "call" and is_function and file.startswith(BASE):
            self.files.add(file.removeprefix(BASE))


def add_one(x: np.ndarray) -> np.ndarray:
    return x + 1


def build_dataset() -> tf.data.Dataset:
    rows = np.arange(256.0).reshape(64, 4)
    return tf.data.Dataset.from_tensor_slices(rows).shuffle(100, seed=1).map(add_one).batch(8)


def main() -> None:
    with Way("local"):
        list(build_dataset().prefetch(2))
    with Way("replicas"):
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        list(strategy.experimental_distribute_dataset(build_dataset().prefetch(2)))
    with Way("service"), service.DispatchServer() as dispatcher:
        address = dispatcher.target.removeprefix("grpc://")
        with service.WorkerServer(service.WorkerConfig(dispatcher_address=address)):
            shared = service.distribute("distributed_epoch", dispatcher.target, job_name="walk")
            list(build_dataset().apply(shared))
    print(json.dumps({name: sorted(files) for name, files in VISITED.items()}))


if __name__ == "__main__":
    main()
