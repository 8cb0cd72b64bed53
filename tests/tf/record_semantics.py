"""Records what TensorFlow answers to the programs of `cases/semantics.txt`.

Run it from the repository's root with a Python that has TensorFlow 2.21 and attrs:

    python -m tests.tf.record_semantics
"""

from __future__ import annotations

import json
import pathlib

import tensorflow as tf

from tests.tf.semantics_cases import answer, names_for

FOLDER = pathlib.Path(__file__).parent / "cases"


def main() -> None:
    names = names_for(tf)
    cases = (FOLDER / "semantics.txt").read_text(encoding="utf-8").splitlines()
    lines = [
        f"{json.dumps(case)}: {json.dumps(answer(case, names), separators=(',', ':'))}"
        for case in cases
        if case and not case.startswith("#")
    ]
    (FOLDER / "semantics.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
