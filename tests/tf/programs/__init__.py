"""Ordinary programs of TensorFlow, run as they are written: only the import is another."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib

HERE = pathlib.Path(__file__).parent
NAMES = (
    *("images", "text", "windows", "rebalancing", "mixture", "tables"),
    *("folders", "series", "pictures", "columns", "ragged_rows", "training"),
)
IMPORT = "import tensorflow as tf\n"


def run(name: str, import_line: str, folder: pathlib.Path) -> str:
    """What a program prints when it runs in a folder."""
    source = (HERE / f"{name}.py").read_text(encoding="utf-8")
    assert source.count(IMPORT) == 1
    code = compile(source.replace(IMPORT, import_line), f"{name}.py", "exec")
    printed = io.StringIO()
    before = os.getcwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(printed):
            exec(code, {"__name__": "program"})
    finally:
        os.chdir(before)
    return printed.getvalue()
