"""The child's side of the protocol: it reads one line of words and prints one line of JSON.

`check PROGRAM N` iterates once and prints a summary; `run PROGRAM N SECONDS` iterates, whole
passes at a time, for at least so long, and prints the mean seconds of a pass. The output of
libraries goes to stderr: standard output is only for answers.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from time import perf_counter
from typing import Any

import numpy as np

Program = Callable[[int], Iterable[Any]]
WIDE = {"i": np.int64, "u": np.int64, "f": np.float64}


class Server:
    """Holds the one pipeline in use, and releases its data when the next program starts."""

    def __init__(self, programs: Mapping[str, Program]) -> None:
        self.programs = programs
        self.current: tuple[str, int] | None = None
        self.pipeline: Iterable[Any] = ()

    def answer(self, words: list[str]) -> dict[str, Any]:
        match words:
            case ["check", name, n]:
                return contents(self.build(name, int(n)))
            case ["run", name, n, seconds]:
                return time_passes(self.build(name, int(n)), float(seconds))
        raise ValueError(f"serve: expected check PROGRAM N or run PROGRAM N SECONDS, got {words}")

    def build(self, name: str, n: int) -> Iterable[Any]:
        if self.current != (name, n):
            self.current, self.pipeline = None, ()
            self.pipeline = self.programs[name](n)
            self.current = (name, n)
        return self.pipeline


def time_passes(pipeline: Iterable[Any], seconds: float) -> dict[str, Any]:
    """Whole passes over the pipeline, each with a fresh iterator, until `seconds` have passed.

    What a pipeline does to `begin` a pass, if anything, is not timed.
    """
    passes, items, elapsed = 0, 0, 0.0
    begin = getattr(pipeline, "begin", None)
    while elapsed < seconds or not passes:
        if begin is not None:
            begin()
        start = perf_counter()
        for _ in pipeline:
            items += 1
        elapsed += perf_counter() - start
        passes += 1
    return {"seconds": elapsed / passes, "items": items / passes}


def contents(pipeline: Iterable[Any]) -> dict[str, Any]:
    """A summary of one pass, in numbers that do not depend on the order of the elements."""
    items = elements = cells = total = 0
    for item in pipeline:
        leaves = [np.asarray(leaf) for leaf in leaves_of(item)]
        items += 1
        elements += len(leaves[0]) if leaves[0].ndim else 1
        cells += sum(leaf.size for leaf in leaves)
        total += sum(map(sum_of, leaves))
    return {"items": items, "elements": elements, "cells": cells, "sum": total}


def sum_of(leaf: Any) -> int:
    """The sum of numbers; for strings, that of their lengths and first bytes."""
    if leaf.dtype.kind == "O":
        return sum(len(text) + int.from_bytes(text[:8]) for text in leaf.ravel())
    return int(leaf.sum(dtype=WIDE[leaf.dtype.kind]))


def leaves_of(item: Any) -> list[Any]:
    """Arrays in tuples and lists; a distributed value has a tuple of `values`, one per replica."""
    values = getattr(item, "values", None)  # A method of torch's tensors.
    item = values if isinstance(values, tuple) else item
    if not isinstance(item, tuple | list):
        return [item]
    return [leaf for part in item for leaf in leaves_of(part)]


def serve(programs: Mapping[str, Program], *distributions: str) -> None:
    """Answers until standard input ends; first it prints the versions of `distributions`."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    server = Server(programs)
    versions = {name: version(name) for name in (*distributions, "numpy")}
    print(json.dumps({"versions": {"python": platform.python_version()} | versions}), file=answers)
    for line in sys.stdin:
        try:
            reply = server.answer(line.split())
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(reply), file=answers)
