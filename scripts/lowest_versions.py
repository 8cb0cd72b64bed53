#!/usr/bin/env python3
"""Prints the lowest versions that pyproject.toml claims, as pip wants them: of the dependencies and
of all extras but frameworks, of which other packages need newer versions.

Needs nothing but the standard library.
"""

import argparse
import sys
import tomllib
from pathlib import Path

FRAMEWORKS = {"jax", "keras", "ray", "torch"}
COLLECTIONS = {"all", "docs", "test"}
"""Extras for other purposes than a feature."""

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def lowest(dependency: str) -> str:
    """The lowest version that a dependency allows.

    >>> lowest("numpy>=2.2")
    'numpy==2.2'
    """
    name, claimed, version = dependency.partition(">=")
    if not claimed or "," in version:
        raise ValueError(f"pyproject.toml: {dependency!r} is not of the form name>=version")
    return f"{name}=={version}"


def main() -> int:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    claimed = project["dependencies"]
    for extra, packages in project["optional-dependencies"].items():
        if extra not in FRAMEWORKS | COLLECTIONS:
            claimed += packages
    print(*map(lowest, claimed), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
