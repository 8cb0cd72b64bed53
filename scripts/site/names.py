"""The public names, and the page of the reference that describes each of them.

A name is public if a module of `PAGES` lists it in `__all__`. The reference has a page for each
entry, and tests/test_public_names.py wants an example for each name. The names of `PORTED` are
those of TensorFlow in `penstock.tf`, whose meaning TensorFlow documents: they need no example.
"""

import inspect
import types
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

PAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "penstock": ("penstock", ("penstock",)),
    "dataset": ("Dataset", ()),
    "data": ("penstock.data", ("penstock.data",)),
    "experimental": ("penstock.data.experimental", ("penstock.data.experimental",)),
    "service": ("The data service", ("penstock.data.experimental.service",)),
    "distribute": (
        "penstock.distribute",
        ("penstock.distribute", "penstock.distribute.experimental"),
    ),
    "cluster_resolver": ("cluster_resolver", ("penstock.distribute.cluster_resolver",)),
    "io": ("penstock.io", ("penstock.io",)),
    "errors": ("penstock.errors", ("penstock.errors",)),
    "others": (
        "config, launch, random",
        ("penstock.config", "penstock.launch", "penstock.random"),
    ),
}
PORTED: dict[str, tuple[str, tuple[str, ...]]] = {
    "tf": ("penstock.tf", ("penstock.tf",)),
    "tf_math": (
        "tf.math, linalg, nn",
        ("penstock.tf.math", "penstock.tf.linalg", "penstock.tf.nn"),
    ),
    "tf_strings": (
        "tf.strings, ragged, sparse",
        ("penstock.tf.strings", "penstock.tf.ragged", "penstock.tf.sparse"),
    ),
    "tf_io": ("tf.io, train", ("penstock.tf.io", "penstock.tf.gfile", "penstock.tf.train")),
    "tf_image": ("tf.image", ("penstock.tf.image",)),
    "tf_others": (
        "tf.lookup, random, debugging",
        (
            *("penstock.tf.lookup", "penstock.tf.random", "penstock.tf.debugging"),
            *("penstock.tf.autograph", "penstock.tf.dtypes", "penstock.tf.experimental"),
            *("penstock.tf.config", "penstock.tf.distribute", "penstock.tf.errors"),
        ),
    ),
}
# `Dataset` has a page of its own, so it is described there and not where it is first listed.
DATASET = "penstock.data.Dataset"

# What the public constants mean; Python keeps no docstrings of them.
VALUES = {
    "penstock.AUTOTUNE": "For `num_parallel_calls` and `prefetch`: measures, and chooses.",
    "penstock.data.INFINITE_CARDINALITY": "The cardinality of a dataset without an end: -1.",
    "penstock.data.UNKNOWN_CARDINALITY": "The cardinality that only iterating can tell: -2.",
    "penstock.data.experimental.SHARD_HINT": (
        "For both arguments of `shard`: a strategy, or a service with `ShardingPolicy.HINT`, "
        "replaces them by its own numbers."
    ),
}

# Methods by which penstock's own modules use a public class. Users do not call them.
INTERNAL = {
    *("fits", "relax", "rows", "batch_rows", "prepend", "rest", "known", "filling"),
    *("build", "pad", "keys", "isolate", "flat", "takes_element", "find_origin"),
}


@dataclass(frozen=True)
class Name:
    """A public name: where it is listed first, and where else."""

    page: str
    path: str
    value: Any
    aliases: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        if inspect.isclass(self.value):
            return "class"
        return "function" if inspect.isfunction(self.value) else "value"


def public_names() -> list[Name]:
    """Every public name once, under the path where the pages list it first."""
    return list(_find_names(PAGES).values())


def ported_names() -> list[Name]:
    """The classes and functions that only `penstock.tf` has, each once."""
    own = _find_names(PAGES)
    ported = _find_names(PORTED).items()
    return [name for key, name in ported if key not in own and name.kind != "value"]


def _find_names(pages: dict[str, tuple[str, tuple[str, ...]]]) -> dict[Any, Name]:
    found: dict[Any, Name] = {}
    for page, module, name in _list_names(pages):
        value = getattr(import_module(module), name)
        if isinstance(value, types.ModuleType) or name.startswith("__"):
            continue
        path = f"{module}.{name}"
        key = id(value) if inspect.isclass(value) or inspect.isfunction(value) else name
        if (first := found.get(key)) is None:
            is_dataset = path == "penstock.Dataset"
            place = ("dataset", DATASET) if is_dataset else (page, path)
            found[key] = Name(*place, value)
        elif path != first.path:
            found[key] = Name(first.page, first.path, value, (*first.aliases, path))
    return found


def _list_names(
    pages: dict[str, tuple[str, tuple[str, ...]]],
) -> Iterator[tuple[str, str, str]]:
    for page, (_, modules) in pages.items():
        for module in modules:
            for name in import_module(module).__all__:
                yield page, module, name


def methods_of(value: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class defines itself, as functions."""
    for name, member in vars(value).items():
        if name.startswith("_") or name in INTERNAL:
            continue
        function = member
        if isinstance(member, classmethod | staticmethod):
            function = member.__func__
        elif isinstance(member, property):
            function = member.fget
        if inspect.isfunction(function):
            yield name, function
