"""Slurm's short notations: `node[01-03,7]` for machines, `2(x3),1` for tasks on each of them."""

from __future__ import annotations

import itertools
import re

from penstock.errors import InvalidArgumentError

PART = re.compile(r"(?:[^\[\],]|\[[\d,\-]+\])+")
PIECE = re.compile(r"\[([\d,\-]+)\]|([^\[\]]+)")
RANGE = re.compile(r"(\d+)(?:-(\d+))?")
COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def expand_nodes(text: str) -> list[str]:
    """The names of the machines, in order.

    >>> expand_nodes("a[08-10,2],b")
    ['a08', 'a09', 'a10', 'a2', 'b']
    """
    if not re.fullmatch(f"{PART.pattern}(,{PART.pattern})*", text):
        raise InvalidArgumentError(
            f"SLURM_STEP_NODELIST: cannot be read: {text!r}; a list of machines is like "
            "'node[01-03,7],login'"
        )
    return [name for part in PART.findall(text) for name in _names(part)]


def _names(part: str) -> list[str]:
    choices = [
        [number for one in ranges.split(",") for number in _numbers(one)] if ranges else [fixed]
        for ranges, fixed in PIECE.findall(part)
    ]
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def _numbers(text: str) -> list[str]:
    match = RANGE.fullmatch(text)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise InvalidArgumentError(f"SLURM_STEP_NODELIST: {text!r} is no range of numbers")
    first, last = match[1], match[2] or match[1]
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]


def expand_counts(text: str) -> list[int]:
    """How many tasks each machine has, in order.

    >>> expand_counts("2(x3),1")
    [2, 2, 2, 1]
    """
    matches = [COUNT.fullmatch(part) for part in text.split(",")]
    if not all(matches):
        raise InvalidArgumentError(
            f"SLURM_STEP_TASKS_PER_NODE: cannot be read: {text!r}; counts are like '2(x3),1'"
        )
    return [int(match[1]) for match in matches if match for _ in range(int(match[2] or 1))]
