"""Records what TensorFlow answers to `dataset_programs` and `service_programs`.

Run it from the repository's root with a Python that has TensorFlow 2.21:

    python -m tests.tf.record_datasets
"""

from __future__ import annotations

import json
import os
import pathlib
import tempfile

import tensorflow as tf

from tests.tf.dataset_programs import PROGRAMS
from tests.tf.service_programs import SERVICES

OUT = pathlib.Path(__file__).parent / "cases" / "datasets.json"


def main() -> None:
    lines = []
    for name, run in (SERVICES | PROGRAMS).items():
        print(name, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            answer = run(tf, pathlib.Path(folder))
        text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
        lines.append(f"{json.dumps(name)}: {text}")
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    os._exit(0)  # Servers that failed to start would keep the process running.


if __name__ == "__main__":
    main()
