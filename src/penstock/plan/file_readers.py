"""File readers: operators that read the files that their input names.

To find out whether an `interleave` reads files, its function is called once, on a first element.
Nothing else in `plan` calls a user's function, and no file is opened.
"""

from __future__ import annotations

from typing import Any

from penstock.element import nest
from penstock.element.values import as_element, zeros
from penstock.plan import nodes
from penstock.plan.functions import Function
from penstock.plan.nodes import Node
from penstock.plan.seeds import seed_scope
from penstock.plan.traits import Trait

_FORMATS = ("text", "tfrecord", "fixed")
"""Formats that TensorFlow shards by file. It shards all other formats by element."""


def is_file_reader(node: Node) -> bool:
    """Whether this operator reads files; False if that cannot be found out."""
    match node:
        case nodes.Records(format=format):
            return format in _FORMATS
        case nodes.Interleave(source, function):
            try:
                with seed_scope(0):
                    made = _call(function, _sample(source))
            except Exception:  # Iterating over the dataset raises it again, with its context.
                return False
            return _reads_files(getattr(made, "__plan__", None))
    return False


def _reads_files(plan: Node | None) -> bool:
    return plan is not None and (is_file_reader(plan) or any(map(_reads_files, plan.inputs)))


def _call(function: Function, element: Any) -> Any:
    return function.call(*element) if type(element) is tuple else function.call(element)


def _sample(node: Node) -> Any:
    """The first element, or one like it; LookupError if finding it would need iteration."""
    match node:
        case nodes.Slices(data) if len(data) > 0:
            return data.chunk.rows(0, 1).elements()[0]
        case nodes.Slices(data):
            return nest.map_structure(zeros, data.spec)
        case nodes.Range(start, dtype=dtype):
            return dtype.as_numpy_dtype(start)
        case nodes.Map(source, function):
            return as_element(_call(function, _sample(source)))
        case nodes.Zip(parts, tree):
            return nest.unflatten(tree, [_sample(part) for part in parts])
        case _ if Trait.SAMPLED_BY_INPUT in node.traits:
            return _sample(node.inputs[0])
    raise LookupError(f"{node.label} has no sample")
