"""Findings of `penstock doctor`: what was checked, what is wrong with it, and what to change."""

from __future__ import annotations

from typing import NamedTuple

FINE, DOUBTFUL, WRONG = "ok", "warning", "wrong"


class Finding(NamedTuple):
    """One thing that was checked. `change` says what to do, unless the state is `FINE`."""

    state: str
    subject: str
    text: str
    change: str = ""


def split_error(message: str) -> tuple[str, str]:
    """What is wrong and what to do, from the message of an error, which has both."""
    text, _, change = message.partition("; ")
    return text, change or "see docs/operations.md"
