"""Records the public names of TensorFlow around input.

Run it from the repository's root with a Python that has TensorFlow 2.21:

    python -m tests.tf.record_names
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import tensorflow as tf

OUT = pathlib.Path(__file__).parent / "cases" / "names.json"
PLACES = (
    *("data", "data.Dataset", "data.Iterator", "data.experimental", "data.experimental.service"),
    *("distribute", "distribute.Strategy", "distribute.experimental", "", "math", "strings", "io"),
    *("io.gfile", "image", "random", "lookup", "ragged", "RaggedTensor", "sparse", "train"),
    *("debugging", "nest", "linalg", "nn", "dtypes", "errors", "random.experimental"),
    *("config", "config.experimental", "config.optimizer", "config.threading", "autograph"),
    *("autograph.experimental", "experimental", "distribute.cluster_resolver"),
)


def find(path: str) -> Any:
    found = tf
    for name in filter(None, path.split(".")):
        found = getattr(found, name)
    return found


def main() -> None:
    names = {path: [name for name in dir(find(path)) if name[0] != "_"] for path in PLACES}
    lines = [f"{json.dumps(path)}: {json.dumps(' '.join(found))}" for path, found in names.items()]
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
