"""Writes a small TFRecord file with TensorFlow, and what TensorFlow reads of it.

Run it from the repository's root with a Python that has TensorFlow:

    python -m tests.engine.formats.record_tfrecord
"""

from __future__ import annotations

import json
import pathlib

import tensorflow as tf

GOLDEN = pathlib.Path(__file__).parent / "golden"


def main() -> None:
    path = str(GOLDEN / "records.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for number in range(23):
            writer.write(bytes(range(number)) * (number % 5) + b"%d" % number)
    records = [
        record.decode("latin-1") for record in tf.data.TFRecordDataset(path).as_numpy_iterator()
    ]
    (GOLDEN / "records.json").write_text(json.dumps(records) + "\n")


if __name__ == "__main__":
    main()
