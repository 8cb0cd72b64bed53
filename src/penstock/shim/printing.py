"""`print`: arrays as short text, in the form of `tf.print`."""

from __future__ import annotations

import pprint
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TextIO

import numpy as np

from penstock.element.ragged import Ragged
from penstock.element.values import BareText
from penstock.errors import InvalidArgumentError


def print(
    *inputs: Any,
    output_stream: Any = None,
    end: str = "\n",
    sep: str = " ",
    summarize: int = 3,
    name: str | None = None,
) -> None:
    """Prints arrays in the short form of TensorFlow, by default to standard error.

    Args:
        inputs: Strings, arrays, and structures of them.
        output_stream: A text file such as `sys.stdout`, or "file://" and a path to append to.
        end: The text after all inputs.
        sep: The text between two inputs.
        summarize: How many elements to show at both ends of a dimension; -1 for all.
        name: Accepted and ignored.

    >>> print("x:", np.arange(8), (np.float32(0.5), 1.0), output_stream=sys.stdout)
    x: [0 1 2 ... 5 6 7] (0.5, 1.0)
    """
    if len(inputs) == 1 and isinstance(inputs[0], bytes):
        inputs = (inputs[0].decode("utf-8", "backslashreplace"),)
    text = sep.join(_text(value, summarize) for value in inputs)
    with _open_stream(output_stream) as stream:
        stream.write(text + end)


def _open_stream(target: Any) -> AbstractContextManager[TextIO]:
    if target is None:
        return nullcontext(sys.stderr)
    if hasattr(target, "write"):
        return nullcontext(target)
    if isinstance(target, str) and target.startswith("file://"):
        return open(target.removeprefix("file://"), "a", encoding="utf-8")
    raise InvalidArgumentError(
        f'print: output_stream must be a text file or "file://" and a path, got {target!r}'
    )


def _text(value: Any, edge: int) -> str:
    shown = _replace_arrays(value, edge)
    return shown if isinstance(shown, str) else pprint.pformat(shown, width=sys.maxsize)


def _replace_arrays(value: Any, edge: int) -> Any:
    """`value` with every array in it replaced by its text."""
    if isinstance(value, np.ndarray | np.generic | bytes):
        return BareText(array_text(value, edge))
    if isinstance(value, Ragged):
        return BareText(ragged_text(value, edge))
    if isinstance(value, dict):
        return {key: _replace_arrays(item, edge) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_replace_arrays(item, edge) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def array_text(array: Any, edge: int, depth: int = 0) -> str:
    if np.ndim(array) == 0:
        return _number_text(array[()] if isinstance(array, np.ndarray) else array)
    gap = " " if array.ndim == 1 else "\n" * (array.ndim - 1) + " " * (depth + 1)
    if edge < 0 or len(array) <= 2 * edge:
        rows = [array_text(row, edge, depth + 1) for row in array]
    else:
        head, tail = array[:edge], array[len(array) - edge :]
        rows = [array_text(row, edge, depth + 1) for row in (*head, *tail)]
        rows.insert(edge, "...")
    return f"[{gap.join(rows)}]"


def ragged_text(rows: Any, edge: int) -> str:
    """Ragged rows, in TensorFlow's form for them: on one line, with commas and short floats."""
    if not isinstance(rows, Ragged | np.ndarray):
        return _ragged_item(rows)
    count = len(rows)
    hidden = 0 <= 2 * edge < count
    places = [*range(edge), *range(count - edge, count)] if hidden else range(count)
    texts = [ragged_text(rows[place], edge) for place in places]
    if hidden:
        texts.insert(edge, "...")
    return f"[{', '.join(texts)}]"


def _ragged_item(item: Any) -> str:
    if isinstance(item, bytes):
        return "'" + item.decode("utf-8", "backslashreplace") + "'"
    if isinstance(item, np.bool_):
        return str(item).lower()
    return f"{item:f}" if isinstance(item, np.floating) else str(item)


def _number_text(item: Any) -> str:
    if isinstance(item, bytes):
        text = item.decode("utf-8", "backslashreplace").replace("\\", "\\\\")
        return '"' + text.replace('"', '\\"').replace("\n", "\\n") + '"'
    if isinstance(item, bool | np.bool_):
        return str(int(item))
    if isinstance(item, np.complexfloating):
        return f"({_number_text(item.real)},{_number_text(item.imag)})"
    if isinstance(item, np.integer):
        return str(item)
    short, long = ("15", "17") if isinstance(item, float) else ("6", "9")
    text = f"{float(item):.{short}g}"
    return text if type(item)(float(text)) == item or item != item else f"{float(item):.{long}g}"
