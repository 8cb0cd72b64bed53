"""Plans as bytes, for another process, and as fingerprints, to compare plans.

The bytes contain code: `decode` them only if their sender may run code in this process. A
fingerprint depends on the plan alone, not on the process, memory addresses or the hash seed.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import os
import pickle
from typing import Any

import numpy as np

from penstock.element.chunk import Chunk
from penstock.element.datasets import Datasets
from penstock.element.ragged import Ragged
from penstock.errors import DataLossError, InvalidArgumentError, OpError
from penstock.plan import functions
from penstock.plan.array_references import (
    ArrayReference,
    Refer,
    Resolve,
    is_large,
    refer_to_none,
    resolve_none,
)
from penstock.plan.functions import Function, load_cloudpickle
from penstock.plan.joined_data import join_strings
from penstock.plan.nodes import Data, IterationCounter, Node, Store

VERSION = 1
_HEADER = b"penstock plan %d\n"


def encode(node: Node, refer: Refer = refer_to_none) -> bytes:
    """A plan with its functions and data, for `decode` in another process.

    `refer` returns what is sent instead of a large array.

    >>> from penstock.plan.nodes import Random, Take
    >>> plan = Take(Random(seed=1), 3)
    >>> decode(encode(plan)) == plan
    True
    """

    class Encoder(load_cloudpickle().Pickler):  # type: ignore[misc]
        def persistent_id(self, value: Any) -> ArrayReference | None:
            return refer(value) if isinstance(value, np.ndarray) and is_large(value) else None

        def reducer_override(self, value: Any) -> Any:
            joined = join_strings(value) if isinstance(value, Data) else None
            return super().reducer_override(value) if joined is None else joined.__reduce__()

    body = io.BytesIO()
    Encoder(body).dump(node)
    return _HEADER % VERSION + body.getvalue()


def decode(data: bytes, resolve: Resolve = resolve_none) -> Node:
    """Decodes what `encode` returned; `resolve` returns the arrays of references."""
    header, line, body = data.partition(b"\n")
    if header + line != _HEADER % VERSION:
        raise InvalidArgumentError(
            f"decode: not a plan of version {VERSION}, it begins with {bytes(data[:24])!r}; "
            "use the same version of penstock on both sides"
        )
    try:
        node = _Decoder(io.BytesIO(body), resolve).load()
    except OpError:
        raise
    except Exception as error:
        raise DataLossError(f"decode: the plan cannot be read: {error}") from error
    if not isinstance(node, Node):
        raise InvalidArgumentError(f"decode: this is not a plan but a {type(node).__name__}")
    return node


MOVED = {
    "penstock.tf.csv_records": "penstock.tf.io",
    "penstock.tf.elementwise": "penstock.tf.math",
    "penstock.tf.tensor_messages": "penstock.tf.io",
}
"""Modules whose functions plans of version 0.2.0 may refer to, and where these are now."""


class _Decoder(pickle.Unpickler):
    def __init__(self, body: io.BytesIO, resolve: Resolve) -> None:
        super().__init__(body)
        self._resolve = resolve

    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(MOVED.get(module, module), name)

    def persistent_load(self, pid: ArrayReference) -> Any:
        return self._resolve(pid)


def fingerprint(node: Node) -> int:
    """64 bits that are equal for equal plans, in every process.

    Seeds that the user did not choose are left out: they differ each time the plan is built.

    >>> from penstock.plan.nodes import Random
    >>> fingerprint(Random(1)) == fingerprint(Random(1)) != fingerprint(Random(2))
    True
    """
    return int.from_bytes(_digest(node), "big")


def _digest(value: Any) -> bytes:
    """A digest of a value's type and content.

    Members enter as digests of a fixed size, so that it matters where one member ends.
    """
    # Data in another form, or that was sent in another form, is the same data.
    kind = Data if isinstance(value, Data) else type(value)
    digest = hashlib.blake2b(kind.__qualname__.encode(), digest_size=8)
    for member in _members(value):
        digest.update(member if isinstance(member, bytes) else _digest(member))
    return digest.digest()


def _members(value: Any) -> list[Any]:
    match value:
        case Node():
            drawn = value.seed_field if value.has_drawn_seed else None
            names = [field.name for field in dataclasses.fields(value)]
            return [getattr(value, name) for name in names if name != drawn]
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
        case list() | tuple() | Datasets():
            return list(value)
        case bytes() | bytearray():
            return [bytes(value)]
        case Store() | IterationCounter():
            return []
        case os.PathLike():
            return [os.fsencode(value)]
        case _ if hasattr(type(value), "__plan__"):
            return [value.__plan__]
        case _:
            return [repr(value).encode()]
