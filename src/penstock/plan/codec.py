"""Plans as bytes and as numbers: what another process runs, and how two plans are told apart.

Bytes hold code: `decode` only what comes from somebody who may run code here. A fingerprint is a
function of the plan alone, never of the process, of addresses in memory or of the hash seed.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import pickle
from typing import Any

import numpy as np

from penstock.element.chunk import Chunk
from penstock.element.ragged import Ragged
from penstock.errors import DataLossError, InvalidArgumentError
from penstock.plan import functions
from penstock.plan.functions import Function
from penstock.plan.nodes import Data, Node, Repetitions, Store

VERSION = 1
_HEADER = b"penstock plan %d\n"


def encode(node: Node) -> bytes:
    """A plan with its functions and data, for `decode` in another process.

    >>> from penstock.plan.nodes import Random, Take
    >>> plan = Take(Random(seed=1), 3)
    >>> decode(encode(plan)) == plan
    True
    """
    import cloudpickle

    return _HEADER % VERSION + bytes(cloudpickle.dumps(node))


def decode(data: bytes) -> Node:
    """The plan that `encode` was given."""
    header, line, body = data.partition(b"\n")
    if header + line != _HEADER % VERSION:
        raise InvalidArgumentError(
            f"decode: not a plan of version {VERSION}, it begins with {bytes(data[:24])!r}; "
            "use the same version of penstock on both sides"
        )
    try:
        node = pickle.loads(body)
    except Exception as error:
        raise DataLossError(f"decode: the plan cannot be read: {error}") from error
    if not isinstance(node, Node):
        raise InvalidArgumentError(f"decode: this is not a plan but a {type(node).__name__}")
    return node


def fingerprint(node: Node) -> int:
    """64 bits that are equal for equal plans, in every process.

    Seeds count only where the user gave them.

    >>> from penstock.plan.nodes import Random
    >>> fingerprint(Random(1)) == fingerprint(Random(1)) != fingerprint(Random(2))
    True
    """
    return int.from_bytes(_digest(node), "big")


def _drawn(node: Node) -> tuple[str, ...]:
    """The fields of a seed that nobody gave: it is another one each time a plan is written."""
    return (node.seed_field,) if node.seed_field and node.has_drawn_seed else ()


def _digest(value: Any) -> bytes:
    """The kind of a value and what it consists of; parts go in as digests, so none can run over."""
    digest = hashlib.blake2b(type(value).__qualname__.encode(), digest_size=8)
    for part in _parts(value):
        digest.update(part if isinstance(part, bytes) else _digest(part))
    return digest.digest()


def _parts(value: Any) -> list[Any]:
    match value:
        case Node():
            names = [field.name for field in dataclasses.fields(value)]
            return [getattr(value, name) for name in names if name not in _drawn(value)]
        case Data(chunk=chunk):
            return [chunk]
        case Chunk():
            return [str(value.tree), value.size, *value.columns]
        case Ragged():
            return [value.flat, value.row_lengths]
        case Function(functools.partial() as call):
            return [Function(call.func), call.args, sorted(call.keywords.items())]
        case Function(call):
            return [functions.fingerprint(call)]
        case np.ndarray() if value.dtype == object:
            return [str(value.shape), *value.ravel().tolist()]
        case np.ndarray():
            return [str(value.shape), value.dtype.str, np.ascontiguousarray(value).tobytes()]
        case list() | tuple():
            return list(value)
        case bytes() | bytearray():
            return [bytes(value)]
        case Store() | Repetitions():
            return []
        case os.PathLike():
            return [os.fsencode(value)]
        case _ if hasattr(type(value), "__plan__"):
            return [value.__plan__]
        case _:
            return [repr(value).encode()]
