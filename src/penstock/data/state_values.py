"""Users' values in states, as plain values: for JSON, and for loaders that accept nothing else.

Operators that hold elements save them as they are. In the state that the user gets, each list of
such elements, and each single value, is one dict with the key `MARK`: its structure with a number
for each leaf, and the columns in text (`element/buffers.py` has the format). A value of a type that
columns do not have stays as it is; such a state can only be pickled.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from penstock.data.states import VERSION
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


_ENCODED = VERSION + 1
"""The version of a state with encoded values: a release that cannot decode them refuses it."""


def with_plain_values(state: dict[str, Any]) -> dict[str, Any]:
    """The state of an iterator, with plain values in place of users' values."""
    at = encode(state["at"])
    return {**state, "version": _ENCODED if _is_encoded(at) else VERSION, "at": at}


def with_users_values(state: Any) -> Any:
    """The state that `with_plain_values` got. States of other forms stay as they are."""
    if not isinstance(state, dict) or state.get("version") != _ENCODED or "at" not in state:
        return state
    return {**state, "version": VERSION, "at": decode(state["at"])}


def _is_encoded(state: State) -> bool:
    if type(state) is dict:
        return MARK in state or any(map(_is_encoded, state.values()))
    return type(state) is list and any(map(_is_encoded, state))


def encode(state: State) -> State:
    """A state with plain values in place of users' values.

    >>> import json
    >>> state = {"own": [3, [np.int64(1), np.int64(2)]], "inputs": [7]}
    >>> json.loads(json.dumps(encode(state)))["inputs"]
    [7]
    >>> decode(json.loads(json.dumps(encode(state)))) == state
    True
    """
    if type(state) is list:
        packed = _pack(state) if all(map(_is_element, state)) else None
        return packed or [encode(item) for item in state]
    if type(state) is dict:
        return _encode_dict(state)
    if type(state) in _PLAIN or not _is_element(state):
        return state
    packed = _pack([state])
    return state if packed is None else {MARK: {**packed[MARK], "single": True}}


def _encode_dict(state: dict[Any, Any]) -> dict[str, Any]:
    if all(type(key) is str and key != MARK for key in state):
        return {key: encode(value) for key, value in state.items()}
    return {MARK: {"pairs": [[encode(key), encode(value)] for key, value in state.items()]}}


def _is_element(value: Any) -> bool:
    """Whether a value has leaves, and all of them can be columns."""
    if type(value) is list or type(value) in _PLAIN:
        return False
    leaves, _ = nest.flatten(value)
    return bool(leaves) and all(isinstance(leaf, _LEAVES) for leaf in leaves)


def _pack(elements: list[Any]) -> dict[str, Any] | None:
    """Elements of one structure as plain values; None if they differ or cannot be packed."""
    if not elements:
        return None
    try:
        chunk = Chunk.of(elements)
        skeleton = nest.unflatten(chunk.tree, list(range(len(chunk.columns))))
        if type(skeleton) not in (int, tuple, dict):
            return None
        packing = Packing("saved in a state")
        columns = [packing.column(column) for column in chunk.columns]
    except OpError:
        return None
    data = base64.b64encode(b"".join(packing.parts)).decode()
    found = {"structure": _encode_structure(skeleton), "columns": columns, "data": data}
    return {MARK: found}


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
    body = bytearray(base64.b64decode(found["data"], validate=True))
    sizes = [measure(column) for column in found["columns"]]
    if sum(sizes) != len(body):
        raise ValueError(f"there should be {sum(sizes)} bytes, but there are {len(body)}")
    columns = unpack(found["columns"], memoryview(body))
    _, tree = nest.flatten(_decode(found["structure"]))
    return Chunk(tree, columns, len(columns[0])).elements()
