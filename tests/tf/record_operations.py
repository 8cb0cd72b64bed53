"""Records what TensorFlow returns for the expressions of `operation_cases`.

Run it from the repository's root with a Python that has TensorFlow 2.21:

    python -m tests.tf.record_operations
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import tensorflow as tf

from tests.tf.describe import describe
from tests.tf.operation_cases import CASES, names_for

OUT = pathlib.Path(__file__).parent / "cases" / "operations.json"


def answer(expression: str, names: dict[str, Any]) -> Any:
    try:
        return describe(eval(expression, names))
    except Exception as error:
        return {"error": type(error).__name__}


def main() -> None:
    names = names_for(tf)
    lines = [
        f"{json.dumps(case, ensure_ascii=False)}: "
        f"{json.dumps(answer(case, names), ensure_ascii=False, separators=(',', ':'))}"
        for case in CASES
    ]
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
