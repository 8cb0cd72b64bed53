"""A reader in a process of its own: prints its elements and sometimes saves its state.

It reads an element when it gets a byte on its standard input, so the program that counts the
elements decides when the next one is read, however long the counting takes. Started again with the
same state file, it resumes from there; what it printed after that state was saved is what a trainer
would lose with its last checkpoint, and does not count.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.integration.chaos.plans import PLANS

EVERY = 10

FEW = 16
"""The most elements requested at once. Few, so that faults come in the middle of the work."""


def main(library: str, name: str, service: str, folder: str, n: str, pace: str, file: str) -> None:
    tf = import_module(library)
    plan = PLANS[name]
    reading = tf.data.experimental.service.distribute(
        plan.mode,
        service,
        job_name=plan.job,
        max_outstanding_requests=FEW,
        data_transfer_protocol=_transfer(library),
    )
    iterator = iter(plan.make(tf, Path(folder), int(n)).apply(reading))
    states = States(iterator, Path(file)) if library == "penstock" else None
    count = states.restore() if states else 0
    print("ready", flush=True)
    while sys.stdin.buffer.read(1) and (element := next(iterator, None)) is not None:
        time.sleep(float(pace))  # This stands for the work of a trainer.
        count += 1
        print(json.dumps(_numbers(element)), flush=True)
        if states and count % EVERY == 0:
            states.save(count)
    print("end", flush=True)


class States:
    """Saves the state of an iterator in a file; a kill leaves the old state or the new one."""

    def __init__(self, iterator: Any, path: Path) -> None:
        self._iterator, self._path = iterator, path

    def restore(self) -> int:
        """How many elements were read before."""
        if not self._path.exists():
            self.save(0)
            return 0
        found = json.loads(self._path.read_text())
        self._iterator.load_state_dict(found["state"])
        return int(found["count"])

    def save(self, count: int) -> None:
        text = json.dumps({"count": count, "state": self._iterator.state_dict()})
        fresh = self._path.with_suffix(".new")
        fresh.write_text(text)
        os.replace(fresh, self._path)


def _transfer(library: str) -> str | None:
    """Makes connections use TCP, which the proxies understand."""
    return "tcp" if library == "penstock" else None


def _numbers(element: Any) -> list[int]:
    found = element.numpy() if hasattr(element, "numpy") else element
    values = found.tolist()
    return values if isinstance(values, list) else [values]


if __name__ == "__main__":
    main(*sys.argv[1:])
