"""Columns in frames: unpacked as they were packed, in place; damaged ones raise DataLossError."""

import contextlib
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from penstock.data.dataset import Dataset
from penstock.element import nest
from penstock.element.buffers import ALIGN
from penstock.element.chunk import Chunk
from penstock.element.ragged import Ragged
from penstock.errors import DataLossError, InvalidArgumentError
from penstock.service.protocol.data_messages import body_size, pack_columns, unpack_columns
from tests.engine.formats.comparing import exact

DTYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float16 float32 float64 complex64 complex128 bfloat16"
).split()


def align_parts(parts: list[memoryview] | list[bytes]) -> memoryview:
    """The parts one after the other, as they would be received."""
    data = b"".join(parts)
    raw = np.empty(len(data) + ALIGN, np.uint8)
    start = -raw.ctypes.data % ALIGN
    raw[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return raw[start : start + len(data)].data


def there_and_back(*columns: Any) -> list[Any]:
    size = len(columns[0]) if columns else 1
    description, parts = pack_columns(Chunk(nest.tuple_of(len(columns)), list(columns), size))
    assert body_size(description) == sum(map(len, parts))
    return unpack_columns(description, align_parts(parts))


def text(items: list[bytes], shape: tuple[int, ...] | None = None) -> Any:
    array = np.empty(len(items), object)
    array[:] = items
    return array if shape is None else array.reshape(shape)


def dense(dtype: str) -> st.SearchStrategy[Any]:
    shapes = arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4)
    if dtype == "bfloat16":
        return shapes.map(lambda shape: np.ones(shape, ml_dtypes.bfloat16))
    return arrays.arrays(dtype, shapes)


DENSE = st.sampled_from(DTYPES).flatmap(dense)
TEXT = st.lists(st.binary(max_size=9), max_size=5).map(text)
RAGGED = st.lists(arrays.arrays("int16", st.integers(0, 3)), min_size=1, max_size=4).map(
    lambda rows: Ragged.from_rows(rows, "int16")
)
LISTS = st.sampled_from(DTYPES).flatmap(lambda dtype: st.lists(dense(dtype), max_size=4))
ODD = st.lists(st.one_of(st.none(), st.binary(max_size=3), RAGGED, DENSE), max_size=4)
COLUMNS = st.one_of(DENSE, TEXT, RAGGED, LISTS, ODD, st.lists(st.none(), max_size=5))


@given(st.lists(COLUMNS, max_size=3))
def test_columns_come_back(columns: list[Any]) -> None:
    assert [exact(c) for c in there_and_back(*columns)] == [exact(c) for c in columns]


@pytest.mark.parametrize("dtype", DTYPES)
def test_dense_columns_are_read_in_place(dtype: str) -> None:
    made = np.arange(12).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    description, parts = pack_columns(Chunk(nest.LEAF, [made.reshape(3, 4)], 3))
    assert np.shares_memory(np.frombuffer(parts[0], np.uint8), made)
    body = align_parts(parts)
    (found,) = unpack_columns(description, body)
    assert isinstance(found, np.ndarray)
    assert found.dtype == made.dtype
    assert found.ctypes.data % ALIGN == 0
    assert np.shares_memory(found, np.frombuffer(body, np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 0


def test_views_and_foreign_byte_orders_are_made_plain() -> None:
    made = np.arange(24, dtype=">i4").reshape(4, 6)[::2, ::3]
    (found,) = there_and_back(made)
    assert found.dtype == np.int32
    assert found.tolist() == made.tolist()


def test_large_leaves_of_different_shapes_are_sent_from_where_they_are() -> None:
    leaves = [np.full((100 + i, 300), i, np.uint8) for i in range(3)]
    _, parts = pack_columns(Chunk(nest.LEAF, [leaves], 3))
    sent = [np.frombuffer(part, np.uint8) for part in parts]
    assert all(any(np.shares_memory(part, leaf) for part in sent) for leaf in leaves)
    assert exact(there_and_back(leaves)) == [exact(leaves)]


def test_large_strings_are_sent_from_where_they_are() -> None:
    items = [bytes([i]) * 20_000 for i in range(3)]
    _, parts = pack_columns(Chunk(nest.LEAF, [text(items)], 3))
    assert all(any(part.obj is item for part in parts) for item in items)
    (found,) = there_and_back(text(items))
    assert found.tolist() == items


def test_strings_of_several_dimensions() -> None:
    (found,) = there_and_back(text([b"a", b"", b"\0", b"long"], (2, 2)))
    assert found.tolist() == [[b"a", b""], [b"\0", b"long"]]


def test_slices_of_ragged_columns_send_only_their_values() -> None:
    inner = Ragged(np.arange(6, dtype=np.int16), np.array([0, 1, 1, 4, 6], np.int32))
    whole = Ragged(inner, np.array([0, 2, 3, 4], np.int64))
    _, parts = pack_columns(Chunk(nest.LEAF, [whole[2:]], 1))
    assert sum(map(len, parts)) == 3 * ALIGN
    assert there_and_back(whole[1:])[0].to_list() == [[[1, 2, 3]], [[4, 5]]]


def test_numpy_scalars_and_arrays_in_one_column() -> None:
    leaves = [np.int64(3), np.arange(4), np.int64(5)]
    (found,) = there_and_back(leaves)
    assert exact(found) == exact(leaves)


def test_scalars_among_leaves_of_other_kinds() -> None:
    leaves = [None, np.int32(3), b"x", np.float64(0.5), np.arange(2)]
    (found,) = there_and_back(leaves)
    assert exact(found) == exact(leaves)


def test_elements_without_leaves() -> None:
    assert there_and_back() == []


def test_datasets_cannot_be_sent() -> None:
    leaves = [Dataset.range(3)]
    with pytest.raises(InvalidArgumentError, match="a Dataset inside an element cannot be sent"):
        pack_columns(Chunk(nest.LEAF, [leaves], 1))


# Garbage

SMALL = np.array([1, 2], np.int64).tobytes() + bytes(48)
BROKEN = {
    "no type of numbers": ([["array", "string", [2]]], b"", "not a type of numbers"),
    "no type at all": ([["array", "spam", [2]]], b"", "not a data type"),
    "an alias": ([["array", "half", [2]]], b"", "not a type of numbers"),
    "too many bytes": ([["array", "int8", [2]]], bytes(128), "128 bytes .*, described as 64"),
    "too few bytes": ([["array", "int8", [1 << 40]]], bytes(64), "64 bytes of elements"),
    "a negative size": ([["array", "int8", [-1]]], b"", "not a description"),
    "a size that is no number": ([["array", "int8", ["1"]]], b"", "not a description"),
    "too many axes": ([["array", "int8", [1] * 65]], b"", "not a description"),
    "a huge size": ([["array", "int8", [1 << 60]]], b"", "not a description"),
    "a huge text": ([["text", [0], 1 << 60]], b"", "not a description"),
    "an unknown kind": ([["spam", 1]], b"", "not a description"),
    "no kind": ([[]], b"", "not a description"),
    "no list": ([{"array": 1}], b"", "not a description"),
    "one field too many": ([["none", 1, 1]], bytes(64), "not a description"),
    "long strings": ([["text", [2], 2]], SMALL + bytes(64), "lengths of strings do not add up"),
    "a longer string": ([["text", [2], 1]], SMALL + bytes(64), "impossible lengths"),
    "wrong splits": (
        [["ragged", "int64", 1, ["array", "int8", [2]]]],
        SMALL + bytes(64),
        "row_splits must rise",
    ),
    "splits of floats": (
        [["ragged", "float64", 1, ["array", "int8", [2]]]],
        SMALL + bytes(64),
        "not a description",
    ),
    "too many ranks": (
        [["shapes", 2, 1, ["array", "int8", [1]]]],
        SMALL + bytes(128),
        "shapes do not add up",
    ),
    "unused values": (
        [["shapes", 0, 0, ["array", "int8", [1]]]],
        bytes(64),
        "do not use up the values",
    ),
    "values without shapes": ([["shapes", 1, 0, ["none", 1]]], bytes(128), "not a description"),
    "missing values": ([["shapes", 1, 0, ["array", "int8", [0]]]], bytes(64), "damaged"),
    "a leaf too long": ([["leaves", [["array", "int8", [3]]]]], b"", "described as 64"),
    "uncounted nothings": ([["none", 1 << 40]], b"", "described as 1099511627776"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_described_must_be_there(case: str) -> None:
    described, body, message = BROKEN[case]
    with pytest.raises(DataLossError, match=message):
        unpack_columns(msgspec.msgpack.encode(described), memoryview(body))


def test_endless_nesting_is_refused() -> None:
    level = msgspec.msgpack.encode(["ragged", "int64", 0, None])[:-1]
    with pytest.raises(DataLossError, match="not a description"):
        unpack_columns(b"\x91" + level * 100_000, memoryview(b""))


@given(st.binary(max_size=60), st.binary(max_size=300))
def test_random_bytes_are_no_columns(description: bytes, body: bytes) -> None:
    with contextlib.suppress(DataLossError):
        unpack_columns(description, memoryview(body))


@given(st.lists(COLUMNS, min_size=1, max_size=3), st.data())
def test_damaged_columns_do_no_harm(columns: list[Any], data: st.DataObject) -> None:
    description, parts = pack_columns(Chunk(nest.tuple_of(len(columns)), columns, len(columns[0])))
    body = b"".join(parts)
    for name, whole in (("description", description), ("body", body)):
        if not whole:
            continue
        at = data.draw(st.integers(0, len(whole) - 1), f"where in the {name}")
        byte = data.draw(st.integers(0, 255), "what")
        damaged = whole[:at] + bytes([byte]) + whole[at + 1 :]
        pair = (damaged, body) if name == "description" else (description, damaged)
        with contextlib.suppress(DataLossError):
            unpack_columns(pair[0], memoryview(pair[1]))
