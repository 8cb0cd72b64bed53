"""`penstock doctor`: prints what was found, one line for each check, and what to change."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from penstock.cli.findings import DOUBTFUL, FINE, WRONG, Finding
from penstock.cli.machine_checkups import check_machine
from penstock.cli.service_checkups import check_service

_COLORS = {FINE: "\x1b[32m", DOUBTFUL: "\x1b[33m", WRONG: "\x1b[31m"}


def run(service: str | None, certificates: str | None) -> int:
    """Checks this machine, and the service if one is given; returns 1 if something is wrong."""
    found = print_findings(check_machine(certificates))
    if service is not None:
        found += print_findings(check_service(service))
    wrong = sum(finding.state == WRONG for finding in found)
    doubtful = sum(finding.state == DOUBTFUL for finding in found)
    print(f"{len(found)} checks: {wrong} wrong, {_count_warnings(doubtful)}")
    return 1 if wrong else 0


def print_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Prints each finding as soon as it is known; returns all of them."""
    found = []
    for finding in findings:
        found.append(finding)
        print(f"{_mark(finding.state)}  {finding.subject}: {finding.text}", flush=True)
        if finding.change:
            print(f"         to do: {finding.change}", flush=True)
    return found


def _mark(state: str) -> str:
    padded = f"{state:<7}"
    return f"{_COLORS[state]}{padded}\x1b[0m" if sys.stdout.isatty() else padded


def _count_warnings(count: int) -> str:
    return "1 warning" if count == 1 else f"{count} warnings"
