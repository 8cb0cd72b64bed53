"""How long `import penstock` takes in a process with NumPy, and which frameworks come along."""

from __future__ import annotations

import json
import sys
from time import perf_counter

FRAMEWORKS = ("torch", "jax", "pyarrow", "tensorflow")


def main() -> None:
    import numpy  # noqa: F401

    start = perf_counter()
    import penstock  # noqa: F401

    seconds = perf_counter() - start
    uninvited = [name for name in FRAMEWORKS if name in sys.modules]
    print(json.dumps({"seconds": seconds, "uninvited": uninvited}))


if __name__ == "__main__":
    main()
