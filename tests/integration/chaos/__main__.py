"""The command line of `scripts/chaos`: runs scenarios, prints lost and repeated elements."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.environments import TENSORFLOW, install
from tests.integration.chaos.plans import PLANS
from tests.integration.chaos.programs import PENSTOCK, Programs
from tests.integration.chaos.scenario import Outcome, Scenario
from tests.integration.chaos.schedule import KINDS, schedule

HEADINGS = f"{'service':<11}{'plan':<16}{'seed':>5}  {'elements':>8}{'lost':>6}{'twice':>6}  "


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/chaos",
        description="Reads datasets from a service of real processes while a schedule, which "
        "follows from a seed, kills (-9), freezes and cuts them off; prints how many elements "
        "were lost and how many came twice.",
        epilog="The exit status is 1 when penstock lost or doubled anything, or did not end.",
    )
    add = parser.add_argument
    add("plans", nargs="*", metavar="plan", help=f"of {', '.join(PLANS)} (default: all)")
    add("--seed", type=int, default=1, metavar="N", help="of the first schedule (default: 1)")
    add("--runs", type=int, default=3, metavar="N", help="schedules for each plan (default: 3)")
    add("--events", type=int, default=5, metavar="N", help="in each schedule (default: 5)")
    add("--elements", type=int, default=1500, metavar="N", help="in each plan (default: 1500)")
    add("--pace", type=float, default=0.004, metavar="SECONDS", help="work on each (default: .004)")
    add("--kinds", default=",".join(KINDS), help=f"what happens, by comma, of {', '.join(KINDS)}")
    add("--patience", type=float, default=60.0, metavar="SECONDS", help="without any element, "
        "after which a run has failed (default: 60)")  # fmt: skip
    add("--tensorflow", action="store_true", help="the same schedules on TensorFlow's service, too")
    add("--keep", metavar="FOLDER", help="where logs and journals stay (default: nowhere)")
    chosen = parser.parse_args(words)
    for name in chosen.plans:
        if name not in PLANS:
            parser.error(f"no plan {name!r}; there are {', '.join(PLANS)}")
    for kind in chosen.kinds.split(","):
        if kind not in KINDS:
            parser.error(f"--kinds: no kind {kind!r}; there are {', '.join(KINDS)}")
    return chosen


def services(chosen: argparse.Namespace) -> list[Programs]:
    found = [PENSTOCK]
    if chosen.tensorflow:
        if problem := install(TENSORFLOW):
            sys.exit(f"scripts/chaos: TensorFlow cannot be had: {problem}")
        found.append(Programs("tensorflow", str(TENSORFLOW.python)))
    return found


def run(programs: Programs, name: str, seed: int, chosen: argparse.Namespace) -> Outcome:
    kinds = chosen.kinds.split(",")
    n, plan = chosen.elements, PLANS[name]
    items = len(list(plan.expected(n))) // (4 if "batches" in plan.make.__name__ else 1)
    events = schedule(seed, items, chosen.events, kinds)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(chosen.keep or temporary) / f"{programs.name}-{name}-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        patience = chosen.patience if programs is PENSTOCK else min(chosen.patience, 30.0)
        scenario = Scenario(programs, folder, plan, events, n, chosen.pace, patience)
        outcome = scenario.run()
    told = " ".join(f"{event.kind}@{event.at}" for event in events[: outcome.happened])
    end = f"{outcome.seconds:5.1f} s" if outcome.ended else "not seen"
    print(
        f"{programs.name:<11}{name:<16}{seed:>5}  {outcome.expected:>8,}{outcome.lost:>6,}"
        f"{outcome.duplicated:>6,}  {end:<9} {told} {outcome.problem}",
        flush=True,
    )
    return outcome


def main() -> int:
    chosen = arguments()
    print(f"{HEADINGS}{'end':<9} events", flush=True)
    well = True
    for programs in services(chosen):
        for name in chosen.plans or PLANS:
            for seed in range(chosen.seed, chosen.seed + chosen.runs):
                outcome = run(programs, name, seed, chosen)
                well &= programs is not PENSTOCK or (outcome.flawless and outcome.in_order)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
