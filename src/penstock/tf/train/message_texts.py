"""Messages as text, in protobuf's text format: one line for each value, blocks for messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


def block(name: str, text: str) -> str:
    """A message in a field.

    >>> print(block("int64_list", "value: 1\\n"), end="")
    int64_list {
      value: 1
    }
    """
    inner = "".join(f"  {line}\n" for line in text.split("\n")[:-1])
    return f"{name} {{\n{inner}}}\n"


def entries(name: str, messages: Mapping[str, Any]) -> str:
    """The entries of a map, in its order."""
    return "".join(
        block(name, f"key: {_quote(key, keeps=True)}\n{block('value', repr(message))}")
        for key, message in messages.items()
    )


def values(listed: Iterable[Any]) -> str:
    """One line for each value of a list."""
    return "".join(f"value: {_value(one)}\n" for one in listed)


def _value(value: Any) -> str:
    if isinstance(value, bytes):
        return _quote(value.decode("latin-1"), keeps=False)
    return _float(value) if isinstance(value, float) else str(int(value))


def _float(value: float) -> str:
    """A float of 32 bits: with six digits, or with nine if six do not tell it from others."""
    short = f"{value:.6g}"
    return short if np.float32(short) == np.float32(value) or value != value else f"{value:.9g}"


_ESCAPED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "'": "\\'", "\\": "\\\\"}


def _quote(text: str, keeps: bool) -> str:
    """Characters in quotes; those outside of ASCII are octal numbers unless `keeps` is set."""
    return '"' + "".join(_escape(one, keeps) for one in text) + '"'


def _escape(character: str, keeps: bool) -> str:
    code = ord(character)
    if 32 <= code < 127 or (keeps and code > 127):
        return _ESCAPED.get(character, character)
    return _ESCAPED.get(character, f"\\{code:03o}")
