"""Programs about datasets, as text: TensorFlow and `penstock.tf` evaluate the same expressions.

`tf` is the module; the other names are those of `names_for`. The answers of TensorFlow are in
`cases/semantics.json`.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import attr
import numpy as np

Pair = collections.namedtuple("Pair", "a b")

LONGEST = 12
"""How many elements of a dataset an answer has, at most."""


@attr.s
class Attrs:
    x = attr.ib()
    y = attr.ib()


@dataclasses.dataclass
class Masked:
    """A value, and a flag that is part of the structure."""

    mask: bool
    value: Any

    def __tf_flatten__(self) -> Any:
        return (self.mask,), (self.value,)

    @classmethod
    def __tf_unflatten__(cls, metadata: Any, components: Any) -> Masked:
        return cls(metadata[0], components[0])


def names_for(tf: Any) -> dict[str, Any]:
    """What expressions may use."""
    dataset = tf.data.Dataset

    def save(one: Any, **options: Any) -> str:
        path = tempfile.mkdtemp() + "/saved"
        one.save(path, **options)
        return path

    def make_options(**values: Any) -> Any:
        made = tf.data.Options()
        for name, value in values.items():
            *parts, last = name.split("__")
            target = made
            for part in parts:
                target = getattr(target, part)
            setattr(target, last, value)
        return made

    return {
        "tf": tf,
        "np": np,
        "D": dataset,
        "X": tf.data.experimental,
        "r": dataset.range,
        "Pair": Pair,
        "Attrs": Attrs,
        "Masked": Masked,
        "collections": collections,
        "boom": raiser(ValueError("boom")),
        "raiser": raiser,
        "gen": generator_of,
        "opts": make_options,
        "tmp": tempfile.mkdtemp,
        "files": write_files,
        "save": save,
        "each": each,
    }


def raiser(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any) -> None:
        raise error

    return fail


def generator_of(*values: Any) -> Callable[[], Iterator[Any]]:
    def generate() -> Iterator[Any]:
        yield from values

    return generate


def write_files(*texts: str) -> list[str]:
    folder = pathlib.Path(tempfile.mkdtemp())
    paths = [folder / f"{number}.txt" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return [str(path) for path in paths]


def each(function: Callable[[Any], Any], *values: Any) -> list[Any]:
    """Describes the result, or the error, for each value."""
    return [_try(lambda value=value: describe(function(value))) for value in values]


def answer(case: str, names: dict[str, Any]) -> Any:
    """What a case gives: a description of its value, or the kinds of its error."""
    return _try(lambda: describe(eval(case, dict(names))))


def _try(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except Exception as error:
        return {"error": [kind.__name__ for kind in type(error).__mro__[:-2]]}


def describe(value: Any) -> Any:
    """A value as JSON; of a dataset the spec, the cardinality and the first elements."""
    if hasattr(value, "element_spec") and hasattr(value, "cardinality"):
        return _describe_dataset(value)
    if hasattr(value, "element_spec") and not hasattr(value, "get_next"):
        return {"spec": _text(value)}
    if hasattr(value, "to_list") and hasattr(value, "row_splits"):
        return {"ragged": _plain(value.to_list())}
    if isinstance(value, Attrs):
        return {"Attrs": [describe(value.x), describe(value.y)]}
    if isinstance(value, Masked):
        return {"Masked": [value.mask, describe(value.value)]}
    if isinstance(value, tuple):
        kind = type(value).__name__ if hasattr(value, "_fields") else "tuple"
        return {kind: [describe(one) for one in value]}
    if isinstance(value, list):
        return [describe(one) for one in value]
    if isinstance(value, dict):
        return {str(key): describe(one) for key, one in value.items()}
    return _plain(value.numpy().tolist() if hasattr(value, "numpy") else value)


def _describe_dataset(dataset: Any) -> Any:
    elements: list[Any] = []
    try:
        for element in itertools.islice(dataset, LONGEST):
            elements.append(describe(element))
    except Exception as error:
        elements.append({"error": [kind.__name__ for kind in type(error).__mro__[:-2]]})
    return {
        "spec": _try(lambda: _text(dataset.element_spec)),
        "cardinality": int(dataset.cardinality()),
        "elements": elements,
    }


def _text(spec: Any) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", repr(spec))


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, complex):
        return [value.real, value.imag]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    return value if isinstance(value, bool | int | str | None) else None


def is_same(found: Any, expected: Any) -> bool:
    """Whether two answers are equal; the first kind of an error counts, and ours has more."""
    if isinstance(expected, dict) and isinstance(found, dict) and "error" in expected:
        return expected["error"][0] in found.get("error", ())
    if isinstance(expected, dict) and isinstance(found, dict):
        return found.keys() == expected.keys() and all(
            is_same(found[key], expected[key]) for key in expected
        )
    if isinstance(expected, list) and isinstance(found, list):
        return len(found) == len(expected) and all(map(is_same, found, expected))
    if isinstance(expected, str) and isinstance(found, str) and "OrderedDict(" in expected:
        return _without_brackets(found) == _without_brackets(expected)
    return type(found) is type(expected) and bool(found == expected)


def _without_brackets(text: str) -> str:
    """The text of an OrderedDict has pairs before Python 3.12, and `name: value` since."""
    return re.sub(r"[\[\](){}:,' ]", "", text)
