"""Users' values in states, as plain values: for JSON, and for workers that continue a stream.

Operators that hold elements save them as they are. In a state that leaves the process, each list of
such elements, each single value, and each chunk of a cache, is one dict with the key `VALUE_KEY`:
its structure with a number for each leaf, and the columns (`element/buffers.py` has the format), in
text or as bytes. A value of a type that columns do not have stays as it is; such a state can only
be pickled.

Two processes that exchange several states of one stream send most elements once: `SentElements`
numbers what was sent, and in a later state a list of elements is a list of numbers.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.element import nest
from penstock.element.buffers import MALFORMED, Packing, measure, unpack
from penstock.element.chunk import Chunk
from penstock.element.ragged import Ragged
from penstock.engine.contract import State
from penstock.errors import InvalidArgumentError, OpError

VALUE_KEY = "penstock"
"""The only key of a dict that encodes another value."""

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
    if type(state) is Chunk:
        return _pack_chunk(state, as_text, chunk=len(state)) or state
    if type(state) in _PLAIN or not _is_element(state):
        return state
    return _pack([state], as_text, single=True) or state


def _encode_dict(state: dict[Any, Any], as_text: bool) -> dict[str, Any]:
    if all(type(key) is str and key != VALUE_KEY for key in state):
        return {key: encode(value, as_text) for key, value in state.items()}
    pairs = [[encode(key, as_text), encode(value, as_text)] for key, value in state.items()]
    return {VALUE_KEY: {"pairs": pairs}}


def _is_element(value: Any) -> bool:
    """Whether a value has leaves, and all of them can be columns."""
    if type(value) is list or type(value) in _PLAIN:
        return False
    leaves, _ = nest.flatten(value)
    return bool(leaves) and all(isinstance(leaf, _LEAVES) for leaf in leaves)


def _pack(elements: list[Any], as_text: bool, **more: Any) -> dict[str, Any] | None:
    """Elements of one structure as plain values; None if they differ or cannot be packed."""
    if not elements:
        return None
    try:
        chunk = Chunk.of(elements)
    except OpError:
        return None
    return _pack_chunk(chunk, as_text, **more)


def _pack_chunk(chunk: Chunk, as_text: bool, /, **more: Any) -> dict[str, Any] | None:
    """The elements of a chunk as plain values; None if they cannot be packed."""
    try:
        skeleton = nest.unflatten(chunk.tree, list(range(len(chunk.columns))))
        if type(skeleton) not in (int, tuple, dict):
            return None
        packing = Packing("saved in a state")
        columns = [_as_lists(packing.column(column)) for column in chunk.columns]
        structure = _encode_structure(skeleton)
    except OpError:
        return None
    body = b"".join(packing.parts)
    data = base64.b64encode(body).decode() if as_text else body
    return {VALUE_KEY: {"structure": structure, "columns": columns, "data": data, **more}}


def _as_lists(description: Any) -> Any:
    """A description without tuples, as it comes back from JSON."""
    if isinstance(description, tuple | list):
        return [_as_lists(part) for part in description]
    return description


def _encode_structure(skeleton: Any) -> Any:
    if type(skeleton) is tuple:
        return {VALUE_KEY: {"tuple": [_encode_structure(part) for part in skeleton]}}
    if type(skeleton) is dict:
        return {VALUE_KEY: {"pairs": [[key, _encode_structure(v)] for key, v in skeleton.items()]}}
    if type(skeleton) is not int:
        raise InvalidArgumentError(f"a {type(skeleton).__name__} cannot be saved in a state")
    return skeleton


def decode(state: State, known: Sequence[Any] = ()) -> State:
    """The state that `encode` got; InvalidArgumentError if this is not what it made.

    `known`: the elements, by the numbers that take their place in a list.
    """
    try:
        return _decode(state, known)
    except MALFORMED as error:
        raise InvalidArgumentError(f"the values in a state are damaged: {error}") from None


def _decode(state: State, known: Sequence[Any]) -> State:
    if type(state) is list:
        return [_decode(item, known) for item in state]
    if type(state) is not dict:
        return state
    if set(state) != {VALUE_KEY}:
        return {key: _decode(value, known) for key, value in state.items()}
    found = state[VALUE_KEY]
    if "numbers" in found:
        return _look_up(found["numbers"], known)
    if "pairs" in found:
        return {_decode(key, known): _decode(value, known) for key, value in found["pairs"]}
    if "tuple" in found:
        return tuple(_decode(item, known) for item in found["tuple"])
    chunk = _unpack(found)
    if "chunk" in found:
        return chunk
    elements = chunk.elements()
    return elements[0] if found.get("single") else elements


def _unpack(found: dict[str, Any]) -> Chunk:
    data = found["data"]
    body = bytearray(data if type(data) is bytes else base64.b64decode(data, validate=True))
    sizes = [measure(column) for column in found["columns"]]
    if sum(sizes) != len(body):
        raise ValueError(f"there should be {sum(sizes)} bytes, but there are {len(body)}")
    columns = unpack(found["columns"], memoryview(body))
    _, tree = nest.flatten(_decode(found["structure"], ()))
    return Chunk(tree, columns, found["chunk"] if "chunk" in found else len(columns[0]))


class SentElements:
    """Numbers the elements of the states of one stream that another process has.

    An element is known by its identity: buffers hand on the objects that they hold, and no stream
    changes an element. So only elements of lists are numbered; single values, such as the state of
    a `scan`, are part of each state.
    """

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._elements: list[Any] = []
        """Keeps the elements alive, so that no other object gets the identity of one."""

    def take_new(self, state: State) -> tuple[State, list[Any]]:
        """A state with numbers in place of elements, and the elements that have new numbers."""
        known = len(self._elements)
        return self._refer(state), self._elements[known:]

    def _refer(self, state: State) -> State:
        if type(state) is list and state and self._number(state):
            numbers = np.array([self._numbers[_identify(item)] for item in state], _NUMBER)
            return {VALUE_KEY: {"numbers": numbers.tobytes()}}
        if type(state) is list:
            return [self._refer(item) for item in state]
        if type(state) is dict and all(type(key) is str and key != VALUE_KEY for key in state):
            return {key: self._refer(value) for key, value in state.items()}
        return encode(state, as_text=False)

    def _number(self, state: list[Any]) -> bool:
        """Whether all items are elements, which then have numbers."""
        keys = list(map(_identify, state))
        new = {key: item for key, item in zip(keys, state, strict=True) if key not in self._numbers}
        if not all(map(_is_element, new.values())):
            return False
        for key, item in new.items():
            self._numbers[key] = len(self._elements)
            self._elements.append(item)
        return True


class ReceivedElements:
    """The other side of `SentElements`."""

    def __init__(self) -> None:
        self._elements: list[Any] = []

    def add(self, encoded: State) -> None:
        """Adds elements that have new numbers, as `encode` returned the list of them."""
        self._elements += decode(encoded)

    def resolve(self, state: State) -> State:
        """The state that `take_new` got."""
        return decode(state, self._elements)


_NUMBER = np.dtype("<i8")


def _identify(item: Any) -> Any:
    """What two states that hold the same element have in common; `copy_state` copies dicts."""
    if type(item) is not dict:
        return id(item)
    return (*item, *map(_identify, item.values()))


def _look_up(numbers: bytes, known: Sequence[Any]) -> list[Any]:
    found = np.frombuffer(numbers, _NUMBER)
    if found.size and found.min() < 0:
        raise ValueError("the number of an element is negative")
    return [known[number] for number in found.tolist()]
