"""The results of a suite as JSON: `docs/benchmarks/SUITE.json`, from which figures are drawn."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.environments import PEERS, ROOT
from benchmarks.report import ratio, verdict
from benchmarks.rounds import Result
from benchmarks.workloads import Suite, Workload

FOLDER = ROOT / "docs" / "benchmarks"


def record(
    suite: Suite, measured: Iterable[tuple[Workload, list[Result]]], around: str
) -> dict[str, Any]:
    """Everything that a suite measured; `around` says when and where."""
    return {
        "suite": suite.name,
        "heading": suite.heading,
        "unit": suite.unit,
        "circumstances": [line.removeprefix("- ") for line in around.splitlines()],
        "workloads": [
            {
                "name": workload.name,
                "pipeline": workload.pipeline,
                "elements": results[0].elements,
                "results": [_result(result, results[0]) for result in results],
            }
            for workload, results in measured
        ],
    }


def _result(result: Result, subject: Result) -> dict[str, Any]:
    rounds = sorted(result.rounds) if result.nanoseconds else []
    times = ratio(result, subject)
    return {
        "peer": PEERS[result.rival.peer].label,
        "note": result.rival.note,
        "elements": result.elements,
        "nanoseconds": round(result.nanoseconds, 1) if rounds else None,
        "least": round(rounds[0], 1) if rounds else None,
        "most": round(rounds[-1], 1) if rounds else None,
        "first": round(result.first, 1) if rounds else None,
        "ratio": None if times is None else round(times, 2),
        "at_least": result.rival.at_least,
        "verdict": verdict(result, subject),
        "problem": result.problem,
    }


def write_record(found: dict[str, Any], folder: Path = FOLDER) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{found['suite']}.json"
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return path
