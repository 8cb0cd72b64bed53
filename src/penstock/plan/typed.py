"""Values as JSON and raw bytes, without a pickle: all that a plan contains besides functions.

Decoding makes only plain values, arrays, specs and options. No bytes can make it run code or
import a module; it raises ValueError, TypeError or LookupError for bytes that it cannot decode.
"""

from __future__ import annotations

import enum
import json
from typing import Any, TypeVar

import numpy as np

from penstock.element import nest
from penstock.element.chunk import Chunk
from penstock.element.descriptions import (
    spec_from_json,
    spec_to_json,
    structure_from_json,
    structure_to_json,
)
from penstock.element.dtypes import DType, as_dtype, is_number, to_native
from penstock.element.ragged import Ragged
from penstock.element.spec import DatasetSpec, OptionalSpec, TensorShape, TypeSpec
from penstock.errors import InvalidArgumentError
from penstock.plan import options as option_module
from penstock.plan.array_references import (
    ArrayReference,
    FileArray,
    Refer,
    Resolve,
    SharedArray,
    is_large,
    refer_to_none,
    resolve_none,
)
from penstock.plan.nodes import Data, IterationCounter, Store
from penstock.plan.options import OptionsBase

Json = Any
Kind = TypeVar("Kind")

_PLAIN = (bool, int, float, str, type(None))


def _subclasses(base: type[Kind]) -> dict[str, type[Kind]]:
    """The classes of options that are subclasses of `base`, by name."""
    found = vars(option_module).items()
    return {name: kind for name, kind in found if isinstance(kind, type) and issubclass(kind, base)}


_OPTIONS = _subclasses(OptionsBase)
_ENUMS = _subclasses(enum.Enum)


class ValueEncoder:
    """Encodes values: `value` returns their JSON, and collects bytes that are no JSON."""

    def __init__(self, refer: Refer = refer_to_none) -> None:
        self._refer = refer
        self._blobs: list[bytes] = []
        self._size = 0

    def pack(self, value: Any) -> bytes:
        """A value as the length of its JSON, the JSON, and the bytes that were collected."""
        body = json.dumps(self.value(value), separators=(",", ":")).encode()
        return b"".join([len(body).to_bytes(8, "little"), body, *self._blobs])

    def value(self, value: Any) -> Json:
        match value:
            case _ if type(value) in _PLAIN:
                return value
            case enum.Enum() if type(value).__name__ in _ENUMS:
                return {"enum": [type(value).__name__, value.value]}
            case bytes() | bytearray():
                return {"bytes": self._blob(bytes(value))}
            case np.ndarray() | np.generic() | Ragged():
                return self._array(value)
            case DType():
                return {"dtype": value.name}
            case TensorShape():
                return {"shape": value.dims}
            case TypeSpec():
                return {"spec": self._spec(value)}
            case nest.Tree():
                return {"tree": structure_to_json(value)}
            case Data(chunk=chunk):
                columns = [self.value(column) for column in chunk.columns]
                return {"data": [structure_to_json(chunk.tree), columns, len(chunk)]}
            case Store() | IterationCounter():
                return {"new": type(value).__name__}
            case OptionsBase():
                parts = {name: self.value(getattr(value, name)) for name in value._set()}
                return {"options": [type(value).__name__, parts]}
            case list():
                return {"list": [self.value(part) for part in value]}
        return self._structure(value)

    def _structure(self, value: Any) -> Json:
        leaves, tree = nest.flatten(value)
        if tree.is_leaf():
            raise InvalidArgumentError(
                f"a {type(value).__name__} cannot be sent without a pickle; use numbers, strings, "
                "arrays, and tuples or dicts of them"
            )
        return {"in": [structure_to_json(tree), [self.value(leaf) for leaf in leaves]]}

    def _spec(self, spec: TypeSpec) -> Json:
        match spec:
            case DatasetSpec(element):
                return ["dataset", self.value(element)]
            case OptionalSpec(element):
                return ["optional", self.value(element)]
        return spec_to_json(spec)

    def _array(self, value: Any) -> Json:
        if isinstance(value, Ragged):
            return {"ragged": [self._array(value.values), self._array(value.row_splits)]}
        if isinstance(value, np.generic):
            return {"scalar": self._array(np.asarray(value))}
        if value.dtype == object:
            return {"strings": [list(value.shape), [self.value(x) for x in value.ravel().tolist()]]}
        value = to_native(value)  # `dtype.name` does not say the order of the bytes.
        if not is_number(value.dtype):
            raise InvalidArgumentError(f"an array of {value.dtype} cannot be sent without a pickle")
        if is_large(value) and (reference := self._refer(value)) is not None:
            return self._reference(reference)
        raw = np.ascontiguousarray(value).tobytes()
        return {"array": [value.dtype.name, list(value.shape), self._blob(raw)]}

    def _reference(self, found: ArrayReference) -> Json:
        if isinstance(found, SharedArray):
            return {"shared": [found.name, found.dtype.name, list(found.shape)]}
        where = [found.path, found.file_size, found.offset]
        return {"file": [*where, found.dtype.name, list(found.shape), list(found.strides)]}

    def _blob(self, data: bytes) -> list[int]:
        start, self._size = self._size, self._size + len(data)
        self._blobs.append(data)
        return [start, len(data)]


class ValueDecoder:
    """Decodes what `ValueEncoder.pack` returned: `value(text)` is the value."""

    def __init__(self, data: bytes, resolve: Resolve = resolve_none) -> None:
        self._resolve = resolve
        length = int.from_bytes(data[:8], "little")
        if len(data) < 8 or length > len(data) - 8:
            raise ValueError("the bytes are too short")
        self.text: Json = json.loads(data[8 : 8 + length])
        self._blobs = memoryview(data)[8 + length :]

    def value(self, text: Json) -> Any:
        if type(text) in _PLAIN:
            return text
        ((name, body),) = text.items()
        return self.make(name, body)

    def make(self, name: str, body: Json) -> Any:
        """The value of kind `name` that `body` describes."""
        match name:
            case "enum":
                kind, value = body
                return _ENUMS[kind](value)
            case "bytes":
                return bytes(self._blob(body))
            case "dtype":
                return as_dtype(body)
            case "shape":
                return TensorShape(body)
            case "spec":
                return self._make_spec(body)
            case "tree":
                return structure_from_json(body)
            case "data":
                return self._make_data(*body)
            case "new":
                return {"Store": Store, "IterationCounter": IterationCounter}[body]()
            case "options":
                kind, parts = body
                values = {part: self.value(value) for part, value in parts.items()}
                return _OPTIONS[kind](**values).make_frozen()
            case "list":
                return [self.value(part) for part in body]
            case "in":
                tree, leaves = body
                return nest.unflatten(structure_from_json(tree), map(self.value, leaves))
        return self._make_array(name, body)

    def _make_array(self, name: str, body: Json) -> Any:
        match name:
            case "ragged":
                values, splits = map(self.value, body)
                return Ragged.from_row_splits(values, splits)
            case "scalar":
                return self.value(body)[()]
            case "strings":
                shape, values = body
                array = np.empty(len(values), object)
                array[:] = [self.value(value) for value in values]
                return array.reshape(shape)
            case "array":
                dtype, shape, where = body
                return np.frombuffer(self._blob(where), as_dtype(dtype).dtype).reshape(shape)
            case "file":
                path, size, offset, dtype, shape, strides = body
                found = as_dtype(dtype).dtype
                return self._resolve(
                    FileArray(path, size, offset, found, tuple(shape), tuple(strides))
                )
            case "shared":
                path, dtype, shape = body
                return self._resolve(SharedArray(str(path), as_dtype(dtype).dtype, tuple(shape)))
        raise ValueError(f"{name!r:.40} is not a kind of value")

    def _make_spec(self, body: Json) -> Any:
        match body:
            case ["dataset", element]:
                return DatasetSpec(self.value(element))
            case ["optional", element]:
                return OptionalSpec(self.value(element))
        return spec_from_json(body)

    def _make_data(self, tree: Json, columns: Json, size: Json) -> Data:
        made = [self.value(column) for column in columns]
        found = structure_from_json(tree)
        if len(made) != found.num_leaves or any(len(column) != size for column in made):
            raise ValueError("the columns do not fit the structure or the size")
        return Data(Chunk(found, made, size).as_read_only())

    def _blob(self, where: Json) -> memoryview:
        start, length = where
        if not 0 <= start <= start + length <= len(self._blobs):
            raise ValueError("the bytes end too early")
        return self._blobs[start : start + length]
