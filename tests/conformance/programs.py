"""Runs one program with penstock as `tf` and encodes what it leaves in `out`.

Every program gives an `Outcome`: an exception that it does not catch is an answer, too.
"""

import collections
import itertools
import json
import linecache
import math
import os
import re
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.distribute.devices import LogicalCpus
from tests.conformance import oracle_helpers, tensorflow_names
from tests.conformance.cases import Case

MODULES = (collections, itertools, json, math, os, re, sys, tempfile, threading, time)


@dataclass(frozen=True)
class Outcome:
    """The encoded answer; `trace` is the traceback of a program that did not reach its end."""

    answer: Any
    trace: str = ""

    @property
    def failed(self) -> bool:
        """Whether the program did not reach its end."""
        return bool(self.trace)


def run(case: Case, **given: Any) -> Outcome:
    """Executes the program of `case` in this process; it can use the names in `given`."""
    file = f"<{case.id}>"
    linecache.cache[file] = (len(case.source), None, case.source.splitlines(True), file)
    with _quiet(), _own_temporary_folder(), _logical_cpus(8):
        try:
            names = _names() | given
            exec(compile(case.source, file, "exec"), names)
            return Outcome(_plain(oracle_helpers.J(names["out"])))
        except Exception as error:
            raised = {"raised": oracle_helpers.E(error)}
            return Outcome(_plain(raised), traceback.format_exc())


def _names() -> dict[str, Any]:
    helpers = {name: item for name, item in vars(oracle_helpers).items() if name[0] != "_"}
    modules = {module.__name__: module for module in MODULES}
    own = {"np": np, "tf": tensorflow_names.namespace(), "__name__": "oracle_program"}
    return modules | helpers | own


def _plain(answer: Any) -> Any:
    return json.loads(json.dumps(answer, default=repr))


@contextmanager
def _quiet() -> Iterator[None]:
    """Turns warnings off. Answers have none: programs divide by zero and leave files open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _logical_cpus(count: int) -> Iterator[None]:
    """Makes as many logical CPUs as TensorFlow had when it answered."""
    before, LogicalCpus.count = LogicalCpus.count, count
    try:
        yield
    finally:
        LogicalCpus.count = before


@contextmanager
def _own_temporary_folder() -> Iterator[None]:
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = before
