"""How two encoded answers differ, by the oracle's rules.

Data must be equal exactly (floats to 1e-6). Errors must have the same kind and moment, not text.
Only JSON types arrive here; a difference is named by its path, keys and indices joined by dots.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.conformance.cases import Case

TOLERANCE = 1e-6
MISSING = "<missing>"


@dataclass(frozen=True)
class Difference:
    """A path at which two answers differ, and both values there."""

    path: str
    expected: Any
    got: Any

    def under(self, path: str) -> bool:
        """Whether it lies at `path` or inside; `*` is the whole answer."""
        return path == "*" or self.path == path or self.path.startswith(path + ".")


def against(case: Case, got: Any) -> list[Difference]:
    """The differences from the nearest of the answers that TensorFlow gave."""
    unordered = case.compare == "varies"
    answers = (case.expected, *case.also_observed)
    return min((differences(answer, got, unordered) for answer in answers), key=len)


def differences(expected: Any, got: Any, unordered: bool = False) -> list[Difference]:
    """Every place where `got` is not what was expected; `unordered` takes lists as multisets."""
    return list(_differences(expected, got, unordered, ""))


def _differences(expected: Any, got: Any, unordered: bool, path: str) -> Iterator[Difference]:
    here = Difference(path, expected, got)
    if isinstance(expected, dict) and set(expected) == {"$matches"}:
        if not (isinstance(got, str) and re.fullmatch(expected["$matches"], got)):
            yield here
    elif _is_error(expected) or _is_error(got):
        if not _same_error(expected, got):
            yield here
    elif type(expected) is not type(got):
        yield here
    elif isinstance(expected, dict):
        for key in expected | got:
            pair = expected.get(key, MISSING), got.get(key, MISSING)
            yield from _differences(*pair, unordered, f"{path}.{key}" if path else key)
    elif isinstance(expected, list):
        yield from _list_differences(here, unordered)
    elif not _same_scalar(expected, got):
        yield here


def _list_differences(here: Difference, unordered: bool) -> Iterator[Difference]:
    if len(here.expected) != len(here.got):
        yield here
    elif not (unordered and _same_multiset(here.expected, here.got)):
        for index, pair in enumerate(zip(here.expected, here.got, strict=True)):
            path = f"{here.path}.{index}" if here.path else str(index)
            yield from _differences(*pair, unordered, path)


def _same_multiset(expected: list[Any], got: list[Any]) -> bool:
    left = list(got)
    for item in expected:
        match = next(
            (i for i, other in enumerate(left) if not differences(item, other, True)), None
        )
        if match is None:
            return False
        del left[match]
    return True


def _is_error(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("error"), str)


def _same_error(expected: Any, got: Any) -> bool:
    if not (_is_error(expected) and _is_error(got)):
        return False
    return expected["error"] in (got["error"], *got.get("mro", ()))


def _same_scalar(expected: Any, got: Any) -> bool:
    if isinstance(expected, float):
        return math.isclose(expected, got, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return bool(expected == got)
