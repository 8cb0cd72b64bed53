"""Records what the programs print with TensorFlow.

Run it from the repository's root with a Python that has TensorFlow 2.21:

    python -m tests.tf.record_programs
"""

from __future__ import annotations

import pathlib
import tempfile

from tests.tf import programs

OUT = pathlib.Path(__file__).parent / "cases"


def main() -> None:
    for name in programs.NAMES:
        with tempfile.TemporaryDirectory() as folder:
            printed = programs.run(name, programs.IMPORT, pathlib.Path(folder))
        (OUT / f"{name}.txt").write_text(printed, encoding="utf-8")


if __name__ == "__main__":
    main()
