"""Other installations of penstock: copies of the sources, with another version of the protocol.

A copy sends what a later release might send: every message, every part of one and every fact
in the journal has one more field, and one operator has a new argument.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import penstock
from penstock.version import OLDEST, PROTOCOL

NOVELTY = ', kw_only=True):\n    novelty: str = "of a later release"\n'


def install(folder: Path, protocol: int) -> Path:
    """A folder with penstock that speaks `protocol`, and the one before it."""
    source = folder / f"protocol-{protocol}"
    shutil.copytree(
        Path(penstock.__file__).parent,
        source / "penstock",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    _edit(source, "version.py", f'"{penstock.__version__}"', f'"0.{protocol}.0"')
    _edit(source, "version.py", f"PROTOCOL = {PROTOCOL}", f"PROTOCOL = {protocol}")
    _edit(source, "version.py", f"OLDEST = {OLDEST}", f"OLDEST = {protocol - 1}")
    for file in ("service/protocol/messages.py", "service/logic/facts.py"):
        _edit(source, file, ", omit_defaults=True):\n", NOVELTY)
    field = "    input: Node\n    count: int\n"
    _edit(source, "plan/nodes.py", field, f"{field}    novelty: int = 0\n")
    return source


def _edit(source: Path, file: str, old: str, new: str) -> None:
    path = source / "penstock" / file
    text = path.read_text()
    assert old in text, f"{file} does not contain {old!r}"
    path.write_text(text.replace(old, new))
