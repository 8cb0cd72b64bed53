"""Users' values in states, as plain values: for JSON, and for workers that continue a stream.

Operators that hold elements save them as they are. In a state that leaves the process, each list of
such elements, and each single value, is one dict with the key `MARK`: its structure with a number
for each leaf, and the columns (`element/buffers.py` has the format), in text or as bytes. A value
of a type that columns do not have stays as it is; such a state can only be pickled.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from penstock.element import nest
from penstock.element.buffers import MALFORMED, Packing, measure, unpack
from penstock.element.chunk import Chunk
from penstock.element.ragged import Ragged
from penstock.engine.contract import State
from penstock.errors import InvalidArgumentError, OpError

MARK = "penstock"
"""The only key of a dict that stands for something else."""

_LEAVES = (bytes, np.generic, np.ndarray, Ragged)
_PLAIN = (type(None), bool, int, float, str)


def encode(state: State, as_text: bool = True) -> State:
    """A state with plain values in place of users' values; bytes are one, unless `as_text`.

    >>> import json
    >>> state = {"own": [3, [np.int64(1), np.int64(2)]], "inputs": [7]}
    >>> json.loads(json.dumps(encode(state)))["inputs"]
    [7]
    >>> decode(json.loads(json.dumps(encode(state)))) == state
    True
    """
    if type(state) is list:
        packed = _pack(state, as_text) if all(map(_is_element, state)) else None
        return packed or [encode(item, as_text) for item in state]
    if type(state) is dict:
        return _encode_dict(state, as_text)
    if type(state) in _PLAIN or not _is_element(state):
        return state
    packed = _pack([state], as_text)
    return state if packed is None else {MARK: {**packed[MARK], "single": True}}


def _encode_dict(state: dict[Any, Any], as_text: bool) -> dict[str, Any]:
    if all(type(key) is str and key != MARK for key in state):
        return {key: encode(value, as_text) for key, value in state.items()}
    pairs = [[encode(key, as_text), encode(value, as_text)] for key, value in state.items()]
    return {MARK: {"pairs": pairs}}


def _is_element(value: Any) -> bool:
    """Whether a value has leaves, and all of them can be columns."""
    if type(value) is list or type(value) in _PLAIN:
        return False
    leaves, _ = nest.flatten(value)
    return bool(leaves) and all(isinstance(leaf, _LEAVES) for leaf in leaves)


def _pack(elements: list[Any], as_text: bool) -> dict[str, Any] | None:
    """Elements of one structure as plain values; None if they differ or cannot be packed."""
    if not elements:
        return None
    try:
        chunk = Chunk.of(elements)
        skeleton = nest.unflatten(chunk.tree, list(range(len(chunk.columns))))
        if type(skeleton) not in (int, tuple, dict):
            return None
        packing = Packing("saved in a state")
        columns = [_as_lists(packing.column(column)) for column in chunk.columns]
    except OpError:
        return None
    body = b"".join(packing.parts)
    data = base64.b64encode(body).decode() if as_text else body
    found = {"structure": _encode_structure(skeleton), "columns": columns, "data": data}
    return {MARK: found}


def _as_lists(description: Any) -> Any:
    """A description without tuples, as it comes back from JSON."""
    if isinstance(description, tuple | list):
        return [_as_lists(part) for part in description]
    return description


def _encode_structure(skeleton: Any) -> Any:
    if type(skeleton) is tuple:
        return {MARK: {"tuple": [_encode_structure(part) for part in skeleton]}}
    if type(skeleton) is dict:
        return {MARK: {"pairs": [[key, _encode_structure(v)] for key, v in skeleton.items()]}}
    if type(skeleton) is not int:
        raise InvalidArgumentError(f"a {type(skeleton).__name__} cannot be saved in a state")
    return skeleton


def decode(state: State) -> State:
    """The state that `encode` got; InvalidArgumentError if this is not what it made."""
    try:
        return _decode(state)
    except MALFORMED as error:
        raise InvalidArgumentError(f"the values in a state are damaged: {error}") from None


def _decode(state: State) -> State:
    if type(state) is list:
        return [_decode(item) for item in state]
    if type(state) is not dict:
        return state
    if set(state) != {MARK}:
        return {key: _decode(value) for key, value in state.items()}
    found = state[MARK]
    if "pairs" in found:
        return {_decode(key): _decode(value) for key, value in found["pairs"]}
    if "tuple" in found:
        return tuple(map(_decode, found["tuple"]))
    elements = _unpack(found)
    return elements[0] if found.get("single") else elements


def _unpack(found: dict[str, Any]) -> list[Any]:
    data = found["data"]
    body = bytearray(data if type(data) is bytes else base64.b64decode(data, validate=True))
    sizes = [measure(column) for column in found["columns"]]
    if sum(sizes) != len(body):
        raise ValueError(f"there should be {sum(sizes)} bytes, but there are {len(body)}")
    columns = unpack(found["columns"], memoryview(body))
    _, tree = nest.flatten(_decode(found["structure"]))
    return Chunk(tree, columns, len(columns[0])).elements()
