"""How many megabytes a full shuffle over a huge memory-mapped file takes at the worst moment.

`anonymous` is what the process itself holds; mapped pages of the file (`file`) belong to the
system's cache, which takes them back at need, yet they count in `resident`.
"""

from __future__ import annotations

import json
import sys
from itertools import islice

import numpy as np

from penstock.data import Dataset

COLUMNS = 150_528
FIELDS = {"anonymous": "RssAnon", "file": "RssFile", "resident": "VmRSS", "high water": "VmHWM"}


def resident() -> dict[str, float]:
    """This process's memory now, in megabytes."""
    with open("/proc/self/status") as lines:
        found = dict(line.split(":", 1) for line in lines)
    return {name: int(found[field].split()[0]) / 1e3 for name, field in FIELDS.items()}


def main(path: str, rows: int, batches: int) -> None:
    array = np.memmap(path, np.uint8, "r", shape=(rows, COLUMNS))
    before = resident()
    dataset = Dataset.from_tensor_slices(array).shuffle(rows).batch(32)
    peak, count = before, 0
    for batch in islice(dataset, batches):
        count += len(batch)
        now = resident()
        peak = {name: max(peak[name], now[name]) for name in peak}
    print(json.dumps({"before": before, "peak": peak, "rows": count}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
