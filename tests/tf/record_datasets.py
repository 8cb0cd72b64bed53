"""Records what TensorFlow answers to the programs about datasets, services and strategies.

Run it from the repository's root with a Python that has TensorFlow 2.21:

    python -m tests.tf.record_datasets

With names of programs, it records these again and keeps the other answers.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import tempfile

import tensorflow as tf

from tests.tf.dataset_programs import PROGRAMS
from tests.tf.service_programs import SERVICES
from tests.tf.strategy_programs import STRATEGIES

OUT = pathlib.Path(__file__).parent / "cases" / "datasets.json"


def main() -> None:
    cpus = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
    programs = STRATEGIES | SERVICES | PROGRAMS
    answers = json.loads(OUT.read_text(encoding="utf-8")) if sys.argv[1:] else {}
    for name in sys.argv[1:] or programs:
        print(name, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            answers[name] = programs[name](tf, pathlib.Path(folder))
    lines = [
        f"{json.dumps(name)}: "
        f"{json.dumps(answers[name], ensure_ascii=False, separators=(',', ':'))}"
        for name in programs
    ]
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    os._exit(0)  # Servers that failed to start would keep the process running.


if __name__ == "__main__":
    main()
