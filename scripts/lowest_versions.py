#!/usr/bin/env python3
"""Prints the lowest versions that pyproject.toml claims, as pip wants them.

These are those of the dependencies, and of the extras without frameworks: other packages need newer
versions of a framework. Needs nothing but the standard library.
"""

import argparse
import sys
import tomllib
from itertools import chain
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


def claimed_dependencies() -> list[str]:
    """The dependencies whose lowest versions are tested."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    chosen = [extras[name] for name in extras if name not in FRAMEWORKS | COLLECTIONS]
    return [*project["dependencies"], *chain.from_iterable(chosen)]


def main() -> int:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    print(*map(lowest, claimed_dependencies()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
