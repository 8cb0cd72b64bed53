"""Writes a small Lance dataset with the `lance` package (pylance), in two fragments.

Run it from the repository's root with a Python that has pylance:

    python -m tests.engine.formats.record_lance
"""

from __future__ import annotations

import json
import pathlib
import shutil

import lance
import pyarrow as pa

GOLDEN = pathlib.Path(__file__).parent / "golden"


def main() -> None:
    rows = range(11)
    table = pa.table(
        {
            "id": pa.array(rows, pa.int64()),
            "score": pa.array([i / 4 for i in rows], pa.float32()),
            "name": [f"name {i} é" for i in rows],
            "ids": [list(range(i % 4)) for i in rows],
            "pair": pa.array([[i, -i] for i in rows], pa.list_(pa.int16(), 2)),
            "place": [{"city": "Rome", "at": i} for i in rows],
        }
    )
    path = GOLDEN / "people.lance"
    shutil.rmtree(path, ignore_errors=True)
    dataset = lance.write_dataset(table, str(path), max_rows_per_file=6)
    dataset.delete("id = 4")
    answers = lance.dataset(str(path)).to_table().to_pylist()
    (GOLDEN / "lance.json").write_text(json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
