"""Columns as buffers: one codec for files and connections, which trusts no description."""

from typing import Any

import numpy as np
import pytest

from penstock.element.buffers import ALIGN, MALFORMED, Packing, measure, unpack
from penstock.element.ragged import Ragged


def text(*items: bytes) -> Any:
    array = np.empty(len(items), object)
    array[:] = items
    return array


COLUMNS: dict[str, Any] = {
    "array": np.arange(6, dtype=np.int16).reshape(3, 2),
    "text": text(b"a", b"", b"longer"),
    "ragged": Ragged.from_rows([np.arange(2), np.arange(3)], "int64"),
    "shapes": [np.arange(2), np.int64(3), np.zeros((2, 0), np.int64)],
    "leaves": [None, np.float32(1), b"x", Ragged.from_rows([np.arange(2)], "int64")],
    "none": [None, None],
}


def plain(value: Any) -> Any:
    if isinstance(value, list):
        return [plain(part) for part in value]
    if isinstance(value, Ragged):
        return value.to_list()
    return value if value is None else (np.asarray(value).dtype, np.asarray(value).tolist())


@pytest.mark.parametrize("kind", COLUMNS)
def test_each_kind_comes_back_from_bytes_and_from_other_memory(kind: str) -> None:
    packing = Packing("packed")
    description = packing.column(COLUMNS[kind])
    body = b"".join(packing.parts)
    assert description[0] == kind
    assert measure(description) == len(body)
    assert len(body) % ALIGN == 0
    (behind,) = unpack([description], b"head" * 16 + body, 64)
    (viewed,) = unpack([description], memoryview(bytearray(body)))
    assert plain(behind) == plain(viewed) == plain(COLUMNS[kind])


@pytest.mark.parametrize("use", ["sent", "written"])
def test_what_has_no_bytes_is_refused(use: str) -> None:
    with pytest.raises(ValueError, match=f"a object inside an element cannot be {use}"):
        Packing(use).column([None, object()])


@pytest.mark.parametrize(
    "description",
    [
        [],
        ["spam", 1],
        ["array", "int32"],
        ["array", "string", [1]],
        ["array", ["int32"], [1]],
        ["array", "int32", 3],
        ["array", "int32", "33"],
        ["array", "int32", [1.0]],
        ["array", "int32", [-1]],
        ["array", "int32", [1 << 60]],
        ["array", "int32", [1] * 65],
        ["text", [1], -1],
        ["text", [1], None],
        ["ragged", "float32", 1, ["none", 1]],
        ["ragged", "int64", -1, ["none", 1]],
        ["ragged", "int64", 1, 3],
        ["shapes", 1, 1, ["none", 1]],
        ["shapes", 1, -1, ["array", "int8", [1]]],
        ["leaves", 3],
        ["leaves", [["spam"]]],
        ["none", 1, 2],
        ["none", "1"],
        None,
    ],
    ids=str,
)
def test_malformed_descriptions_are_refused_before_anything_is_made(description: Any) -> None:
    with pytest.raises(MALFORMED):
        measure(description)
