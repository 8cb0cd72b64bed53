"""Writes a small ArrayRecord file with the `array_record` package, and what that package reads.

Run it from the repository's root with a Python that has array_record:

    python -m tests.engine.formats.record_array_record
"""

from __future__ import annotations

import json
import pathlib

from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

GOLDEN = pathlib.Path(__file__).parent / "golden"


def main() -> None:
    path = str(GOLDEN / "records.array_record")
    writer = ArrayRecordWriter(path, "group_size:4")
    for number in range(23):
        writer.write(bytes(range(number)) * (number % 5) + b"%d" % number)
    writer.close()
    reader = ArrayRecordReader(path)
    records = [record.decode("latin-1") for record in reader.read_all()]
    (GOLDEN / "array_record.json").write_text(json.dumps(records) + "\n")
    reader.close()


if __name__ == "__main__":
    main()
