"""Judges an answer: a difference must be listed and equal its pin; listed paths must differ.

`docs/deviations.md` is for people and says why; `cases/deviations.json` holds penstock's own answer
at each listed path, so that a deviation cannot change unnoticed.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conformance.cases import PINS, Case, dumps
from tests.conformance.compare import MISSING, against, differences
from tests.conformance.programs import Outcome

LIST = Path(__file__).parents[2] / "docs" / "deviations.md"
_ROW = re.compile(r"^\| `([^`]+)` \| `([^`]+)` \| (.+) \| (.+) \|$")

Pins = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Deviation:
    """A row of the list: at `path` inside the answer of `case`, penstock differs on purpose."""

    case: str
    path: str
    instead: str
    reason: str


def read_deviations(text: str | None = None) -> list[Deviation]:
    """The rows of docs/deviations.md (or of `text`)."""
    lines = (LIST.read_text() if text is None else text).splitlines()
    return [Deviation(*row.groups()) for line in lines if (row := _ROW.match(line))]


def read_pins() -> Pins:
    """Case id -> path -> penstock's answer there."""
    pins: Pins = json.loads(PINS.read_text())
    return pins


def faults(case: Case, outcome: Outcome, rows: list[Deviation], pins: Pins) -> list[str]:
    """What is wrong with an answer, one line each; an empty list is a pass."""
    paths = [row.path for row in rows if row.case == case.id]
    if outcome.failed and "*" not in paths:
        return [f"*: the program did not reach its end: {_short(outcome.answer)}"]
    found = against(case, outcome.answer)
    wrong = [
        f"{one.path or '*'}: expected {_short(one.expected)}, got {_short(one.got)}"
        for one in found
        if case.compare != "informative" and not any(one.under(path) for path in paths)
    ]
    for path in paths:
        if not any(one.under(path) for one in found):
            wrong.append(f"{path}: listed in docs/deviations.md, but the answer is TensorFlow's")
        else:
            wrong += _drift(path, outcome.answer, pins.get(case.id, {}))
    return wrong


def _drift(path: str, answer: Any, pins: dict[str, Any]) -> list[str]:
    got = value_at(answer, path)
    if path not in pins:
        return [f"{path}: listed but not pinned in cases/deviations.json, got {_short(got)}"]
    if not differences(pins[path], got):
        return []
    return [f"{path}: deviates otherwise than pinned, {_short(pins[path])}, got {_short(got)}"]


def value_at(answer: Any, path: str) -> Any:
    """The part of an answer at `path`; a key may itself contain dots."""
    if path in ("", "*"):
        return answer
    parts = answer if isinstance(answer, dict) else {}
    if isinstance(answer, list):
        parts = {str(index): item for index, item in enumerate(answer)}
    for key in parts:
        if path == key or path.startswith(key + "."):
            found = value_at(parts[key], path[len(key) + 1 :])
            if found != MISSING:
                return found
    return MISSING


def pin_missing(answers: dict[str, Any], rows: list[Deviation], pins: Pins) -> list[str]:
    """Pins penstock's present answer for listed paths without a pin; returns these paths."""
    new = [row for row in rows if row.case in answers and row.path not in pins.get(row.case, {})]
    for row in new:
        value = without_words(value_at(answers[row.case], row.path))
        pins.setdefault(row.case, {})[row.path] = value
    PINS.write_text(dumps({case: pins[case] for case in sorted(pins)}) + "\n")
    return [f"{row.case} {row.path}" for row in new]


def without_words(value: Any) -> Any:
    """An answer with every error reduced to its kind."""
    if isinstance(value, list):
        return [without_words(item) for item in value]
    if not isinstance(value, dict):
        return value
    if isinstance(value.get("error"), str):
        return {"error": value["error"]}
    return {key: without_words(item) for key, item in value.items()}


def _short(value: Any, limit: int = 400) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else text[:limit] + " ..."
