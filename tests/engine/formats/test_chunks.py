"""Chunk files: what goes in comes out, and damage never goes unseen."""

import dataclasses
import errno
import io
import itertools
import json
import sys
import types
from collections import OrderedDict, defaultdict, namedtuple
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from penstock.element import descriptions, nest
from penstock.element.buffers import MALFORMED, measure
from penstock.element.chunk import Chunk
from penstock.element.ragged import Ragged
from penstock.element.spec import DatasetSpec, NoneTensorSpec, RaggedTensorSpec, TensorSpec
from penstock.engine.formats import blocks, chunks
from penstock.engine.formats.blocks import BlocksOut, Head
from penstock.engine.formats.chunks import ChunkWriter, read_chunks
from penstock.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    NotFoundError,
    ResourceExhaustedError,
)

DTYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float16 float32 float64 complex64 complex128"
).split()
PACKINGS = [None, "GZIP", "ZLIB"]


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Sample:
    image: Any
    label: Any

    def __post_init__(self) -> None:
        assert isinstance(self.label, np.int32 | TensorSpec), "a constructor that looks"


class Outer:
    @dataclasses.dataclass
    class Inner:
        value: Any


def write(path: Path, *parts: Chunk, compression: str | None = None) -> str:
    writer = ChunkWriter(str(path), compression)
    try:
        for part in parts:
            writer.write(part)
        writer.close()
    except Exception:
        writer.abandon()
        raise
    return str(path)


def elements_of(path: str, compression: str | None = None, skip: int = 0) -> list[Any]:
    found = read_chunks(path, compression, skip=skip)
    return [element for chunk in found for element in chunk.elements()]


def exact(leaf: Any) -> Any:
    """A leaf as something that `==` compares to the last bit."""
    if isinstance(leaf, Ragged):
        return "ragged", leaf.row_splits.dtype, leaf.row_lengths.tolist(), exact(leaf.flat)
    if isinstance(leaf, np.ndarray | np.generic):
        data = leaf.ravel().tolist() if leaf.dtype == object else leaf.tobytes()
        return type(leaf), leaf.dtype, leaf.shape, data
    return leaf


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        leaves, tree = nest.flatten(one)
        other_leaves, other_tree = nest.flatten(other)
        assert tree == other_tree
        assert [exact(leaf) for leaf in leaves] == [exact(leaf) for leaf in other_leaves]


# Round trips


SHAPES = arrays.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3)
LONG_SHAPES = arrays.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=3)


def numbers(dtype: str, shape: Any) -> st.SearchStrategy[Any]:
    return arrays.arrays(dtype, shape).map(lambda array: array if array.ndim else array[()])


def texts(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    def array(items: list[bytes]) -> Any:
        made = np.empty(len(items), object)
        made[:] = items
        return made.reshape(shape) if shape else items[0]

    size = int(np.prod(shape))
    return st.lists(st.binary(max_size=5), min_size=size, max_size=size).map(array)


def raggeds(dtype: str, depth: int) -> st.SearchStrategy[Any]:
    rows = st.lists(arrays.arrays(dtype, st.integers(0, 3)), min_size=1, max_size=3)
    made = rows.map(lambda parts: Ragged.from_rows(parts, dtype))
    for _ in range(depth):
        made = st.lists(made, min_size=1, max_size=3).map(Ragged.from_rows)
    return made


@st.composite
def leaf_strategies(draw: st.DrawFn) -> Any:
    """How the leaves at one place of all elements are drawn: of one kind and dtype."""
    dtype = draw(st.sampled_from(DTYPES))
    kind = draw(st.sampled_from(["none", "fixed", "varied", "text", "texts", "ragged"]))
    if kind == "none":
        return st.none()
    if kind == "ragged":
        return raggeds(dtype, draw(st.integers(0, 2)))
    if kind == "fixed":
        return numbers(dtype, draw(SHAPES))
    if kind == "varied":
        return numbers(dtype, LONG_SHAPES)
    return texts(draw(SHAPES)) if kind == "text" else LONG_SHAPES.flatmap(texts)


STRUCTURES = st.recursive(
    leaf_strategies().map(lambda leaf: ("leaf", leaf)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: ("tuple", parts)),
        st.dictionaries(st.sampled_from(["b", "a", "c"]), inner, max_size=3).map(
            lambda parts: ("dict", parts)
        ),
        st.tuples(inner, inner).map(lambda parts: ("point", parts)),
    ),
    max_leaves=4,
)


@st.composite
def element_lists(draw: st.DrawFn) -> list[Any]:
    structure = draw(STRUCTURES)

    def element(part: Any) -> Any:
        kind, inner = part
        if kind == "leaf":
            return draw(inner)
        if kind == "dict":
            return {key: element(value) for key, value in inner.items()}
        made = [element(value) for value in inner]
        return Point(*made) if kind == "point" else tuple(made)

    return [element(structure) for _ in range(draw(st.integers(1, 5)))]


@given(
    elements=element_lists(), packing=st.sampled_from(PACKINGS), cuts=st.lists(st.integers(0, 5))
)
def test_elements_come_back(
    elements: list[Any], packing: str | None, cuts: list[int], tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "round_trip"
    whole, size = Chunk.of(elements), len(elements)
    bounds = sorted({0, *(cut % size for cut in cuts), size})
    parts = [whole.rows(a, b) for a, b in itertools.pairwise(bounds)]
    write(path, *parts, compression=packing)
    assert_same(elements_of(str(path), packing), elements)
    for skip in range(len(elements) + 2):
        assert_same(elements_of(str(path), packing, skip), elements[skip:])


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("dtype", [*DTYPES, ml_dtypes.bfloat16])
def test_every_dtype(dtype: Any, packing: str | None, tmp_path: Path) -> None:
    column = np.arange(6).astype(dtype).reshape(3, 2)
    path = write(tmp_path / "f", Chunk(nest.LEAF, [column], 3), compression=packing)
    assert_same(elements_of(path, packing), list(column))


def test_ragged_columns_and_their_slices(tmp_path: Path) -> None:
    inner = Ragged(np.arange(6, dtype=np.int16), np.array([0, 1, 1, 4, 6], np.int32))
    column = Ragged(inner, [0, 1, 3, 4])
    parts = [Chunk(nest.LEAF, [column[1:3]], 2), Chunk(nest.LEAF, [column], 3)]
    found = elements_of(write(tmp_path / "f", *parts))
    assert [row.to_list() for row in found] == [
        row.to_list() for p in parts for row in p.columns[0]
    ]
    assert {row.row_splits.dtype for row in found} == {np.dtype(np.int32)}
    flat = Chunk(nest.LEAF, [Ragged.from_rows([[b"a"], [], [b"b", b"cd"]], object)], 3)
    found = elements_of(write(tmp_path / "g", flat, flat.rows(1, 3)))
    assert [row.tolist() for row in found] == [[b"a"], [], [b"b", b"cd"], [], [b"b", b"cd"]]


def test_other_byte_orders_and_strides(tmp_path: Path) -> None:
    column = np.arange(12, dtype=">i4").reshape(3, 4).T
    (chunk,) = read_chunks(write(tmp_path / "f", Chunk(nest.LEAF, [column], 4)))
    assert chunk.columns[0].tolist() == column.tolist()
    assert chunk.columns[0].dtype == np.dtype("int32")


def test_lists_that_mix_kinds(tmp_path: Path) -> None:
    leaves = [None, np.int32(3), b"x", np.arange(2.0), Ragged.from_rows([[1], []])]
    assert_same(elements_of(write(tmp_path / "f", Chunk(nest.LEAF, [leaves], 5))), leaves)


def test_arrays_are_read_only_views(tmp_path: Path) -> None:
    path = write(tmp_path / "f", Chunk.of([(np.zeros(3), np.int64(1))] * 2))
    (chunk,) = read_chunks(path)
    for column in chunk.columns:
        assert not column.flags.writeable
        assert column.flags.aligned
        assert not column.flags.owndata


def test_no_elements(tmp_path: Path) -> None:
    path = write(tmp_path / "f", Chunk(nest.LEAF, [np.zeros(0)], 0))
    assert elements_of(path) == []
    assert elements_of(path, skip=3) == []


def test_elements_without_leaves(tmp_path: Path) -> None:
    assert elements_of(write(tmp_path / "f", Chunk.of([()] * 3), Chunk.of([()]))) == [()] * 4


def test_small_chunks_are_joined_and_big_ones_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "BLOCK_BYTES", 80)
    tens = [Chunk(nest.LEAF, [np.arange(i, i + 1)], 1) for i in range(10)]
    found = list(read_chunks(write(tmp_path / "f", *tens, Chunk.join(tens * 3))))
    assert [len(chunk) for chunk in found] == [10] * 4
    monkeypatch.setattr(chunks, "BLOCK_ROWS", 4)
    found = list(read_chunks(write(tmp_path / "g", Chunk.join(tens))))
    assert [len(chunk) for chunk in found] == [4, 4, 2]


def test_structures_and_dtypes_that_change(tmp_path: Path) -> None:
    elements = [np.int32(1), np.int64(2), (np.int64(2),), np.int32(1)]
    path = write(tmp_path / "f", *(Chunk.of([element]) for element in elements))
    assert_same(elements_of(path), elements)


# Structures and specs


def test_dicts_keep_their_order(tmp_path: Path) -> None:
    element = {"b": np.int32(1), "a": OrderedDict(z=np.int32(2), y=np.int32(3))}
    (found,) = elements_of(write(tmp_path / "f", Chunk.of([element])))
    assert json.dumps(found, default=int) == json.dumps(element, default=int)
    assert type(found["a"]) is OrderedDict


@pytest.mark.parametrize("key", ["a", 3, True, 1.5, b"\xff", None])
def test_keys(key: Any, tmp_path: Path) -> None:
    (found,) = elements_of(write(tmp_path / "f", Chunk.of([{key: np.int32(1)}])))
    assert list(found) == [key]
    assert type(next(iter(found))) is type(key)


def test_keys_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"ChunkWriter: the dict key \(1, 2\) cannot"):
        write(tmp_path / "f", Chunk.of([{(1, 2): np.int32(1)}]))


def test_dataclasses(tmp_path: Path) -> None:
    element = Sample(np.zeros(2), np.int32(1)), Outer.Inner(b"x")
    (found,) = elements_of(write(tmp_path / "f", Chunk.of([element])))
    assert type(found[0]) is Sample
    assert found[1] == Outer.Inner(b"x")


def test_classes_of_a_function_are_not_written(tmp_path: Path) -> None:
    @dataclasses.dataclass
    class Local:
        value: Any

    with pytest.raises(InvalidArgumentError, match="elements of type .*Local cannot be written"):
        write(tmp_path / "f", Chunk.of([Local(1)]))
    with pytest.raises(
        InvalidArgumentError, match="elements of type defaultdict cannot be written"
    ):
        write(tmp_path / "f", Chunk.of([defaultdict(int, a=1)]))


def test_a_dataclass_that_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "f", Chunk.of([Outer.Inner(1)]))
    monkeypatch.setattr(Outer, "Inner", None)
    with pytest.raises(FailedPreconditionError, match=r"cannot be read: .*dataclass Outer.Inner"):
        elements_of(path)


def test_reading_imports_nothing(tmp_path: Path) -> None:
    module = types.ModuleType("only_while_writing")
    exec("import dataclasses\n@dataclasses.dataclass\nclass Gone:\n    value: object", vars(module))
    sys.modules[module.__name__] = module
    path = write(tmp_path / "f", Chunk.of([module.Gone(1)]))
    del sys.modules[module.__name__]
    with pytest.raises(FailedPreconditionError, match="import that module first"):
        elements_of(path)


def test_named_tuples_that_are_not_loaded_are_made_anew(tmp_path: Path) -> None:
    local = namedtuple("local", "a b")
    path = write(tmp_path / "f", Chunk.of([local(1, (local(2, 3), 4))]))
    (found,) = elements_of(path)
    assert repr(found) == repr(local(np.int32(1), (local(np.int32(2), np.int32(3)), np.int32(4))))
    assert type(elements_of(path)[0]) is type(found)


def test_same_structure() -> None:
    def tree(element: Any) -> Any:
        return nest.flatten(element)[1]

    local, other = namedtuple("local", "a b"), namedtuple("local", "a c")
    again = namedtuple("local", "a b")
    assert descriptions.same_structure(tree(local(1, {"a": 2})), tree(again(1, {"a": 2})))
    assert descriptions.same_structure(
        tree({"a": 1, "b": local(1, 2)}), tree({"b": again(1, 2), "a": 1})
    )
    assert not descriptions.same_structure(tree(local(1, 2)), tree(other(1, 2)))
    assert not descriptions.same_structure(tree(local(1, 2)), tree((1, 2)))
    assert not descriptions.same_structure(tree((1, 2)), tree((1, (2,))))


@pytest.mark.parametrize(
    "spec",
    [
        TensorSpec((None, 2), np.float32, "x"),
        {"a": TensorSpec(None, ml_dtypes.bfloat16), "b": (NoneTensorSpec(),)},
        Point(RaggedTensorSpec((2, None), str, 1, np.int32), RaggedTensorSpec(None, int, 2)),
        (),
        Sample(TensorSpec((), int), TensorSpec((), int)),
    ],
)
def test_specs(spec: Any) -> None:
    written = json.dumps(descriptions.spec_to_json(spec))
    assert descriptions.spec_from_json(json.loads(written)) == spec


def test_specs_that_cannot_be_written() -> None:
    with pytest.raises(InvalidArgumentError, match="with a DatasetSpec cannot be written"):
        descriptions.spec_to_json(DatasetSpec(TensorSpec(())))


# What cannot be written


class Opaque:
    def __leaf_spec__(self) -> Any:
        return NoneTensorSpec()


def test_values_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="ChunkWriter: a Opaque inside an element"):
        write(tmp_path / "f", Chunk.of([Opaque()]))
    with pytest.raises(InvalidArgumentError, match="a Opaque inside an element cannot be written"):
        write(tmp_path / "f", Chunk(nest.LEAF, [[None, Opaque()]], 2))
    with pytest.raises(InvalidTypeError, match=r"ChunkWriter: .*'<M8\[s\]'.* is not a data"):
        write(tmp_path / "f", Chunk(nest.LEAF, [np.zeros(1, "M8[s]")], 1))


def test_compressions(tmp_path: Path) -> None:
    chunk = Chunk.of([np.int32(1)])
    for name, packing in [("AUTO", None), ("NONE", ""), ("", "AUTO")]:
        assert elements_of(write(tmp_path / "f", chunk, compression=name), packing) == [1]
    with pytest.raises(InvalidArgumentError, match="compression must be .*, got 'SNAPPY'"):
        ChunkWriter(str(tmp_path / "g"), "SNAPPY")
    assert not (tmp_path / "g").exists()


def test_wrong_compression(tmp_path: Path) -> None:
    path = write(tmp_path / "f", Chunk.of([np.int32(1)]), compression="GZIP")
    with pytest.raises(DataLossError, match="written with compression 'GZIP', not 'ZLIB'; read it"):
        elements_of(path, "ZLIB")


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="read_chunks: '.*nope' does not exist"):
        elements_of(str(tmp_path / "nope"))
    with pytest.raises(NotFoundError, match="ChunkWriter: '.*' does not exist"):
        ChunkWriter(str(tmp_path / "no" / "folder"))


class FullDisk(io.BytesIO):
    """Takes some bytes."""

    left = 100

    def write(self, data: Any) -> int:
        self.left -= len(data)
        if self.left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "create_bytes", lambda path, call: FullDisk())
    with pytest.raises(ResourceExhaustedError, match="ChunkWriter: no space is left .*; free some"):
        write(tmp_path / "f", Chunk.of([np.zeros(100)]))


def test_pause_and_abandon(tmp_path: Path) -> None:
    path, chunk = tmp_path / "f", Chunk.of([np.int32(1)])
    writer = ChunkWriter(str(path))
    for _ in range(3):
        writer.write(chunk)
        writer.pause()
    writer.close()
    assert elements_of(str(path)) == [1, 1, 1]
    for _ in range(2):
        writer.abandon()
    assert not path.exists()


# Damage


@pytest.fixture(params=PACKINGS, ids=str)
def small(request: Any, tmp_path: Path) -> tuple[Path, str | None, list[Any]]:
    """A file of two blocks of elements."""
    elements = [(np.int32(i), b"x" * i) for i in range(4)]
    writer = ChunkWriter(str(tmp_path / "small"), request.param)
    for i in (0, 2):
        writer.write(Chunk.of(elements[i : i + 2]))
        writer.pause()
    writer.close()
    return tmp_path / "small", request.param, elements


def assert_damaged(path: Path, packing: str | None, elements: list[Any]) -> None:
    found: list[Chunk] = []
    with pytest.raises(DataLossError, match=f"read_chunks: '{path}' (is damaged at byte|was)"):
        found.extend(read_chunks(str(path), packing))
    before = [element for chunk in found for element in chunk.elements()]
    assert_same(before, elements[: len(before)])


def test_cut_anywhere(small: tuple[Path, str | None, list[Any]]) -> None:
    path, packing, elements = small
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        assert_damaged(path, packing, elements)
    path.write_bytes(data + b"\0")
    assert_damaged(path, packing, elements)


def test_flipped_anywhere(small: tuple[Path, str | None, list[Any]]) -> None:
    path, packing, elements = small
    data = path.read_bytes()
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        assert_damaged(path, packing, elements)


def test_damage_is_located(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"something else")
    with pytest.raises(DataLossError, match="at byte 0: it does not begin as a file of this kind"):
        elements_of(str(path))
    data = Path(write(path, Chunk.of([np.int32(1)]))).read_bytes()
    path.write_bytes(data[:-36])
    with pytest.raises(DataLossError, match=rf"at byte {len(data) - 36}: the file ends here"):
        elements_of(str(path))
    path.write_bytes(data[:-37])
    with pytest.raises(DataLossError, match="the file ends within the block; delete it and write"):
        elements_of(str(path))
    flipped = bytearray(data)
    flipped[-37] ^= 1
    path.write_bytes(flipped)
    with pytest.raises(DataLossError, match="the checksum of the block is wrong"):
        elements_of(str(path))
    flipped = bytearray(data)
    flipped[-1] ^= 1
    path.write_bytes(flipped)
    with pytest.raises(DataLossError, match="the checksum of the head is wrong"):
        elements_of(str(path))
    path.write_bytes(data + b"!")
    with pytest.raises(DataLossError, match="something follows the end"):
        elements_of(str(path))


TUPLE = ["tuple", ["*"]]
WITHOUT_SENSE: list[tuple[Any, Any]] = [
    (["tuple"], []),
    ("x", []),
    ({"a": 1}, []),
    (["namedtuple", "m", "a b", ["x"], ["*"]], []),
    (["dataclass", "m", "a", ["x"]], []),
    (["dict", [["a"]]], []),
    (["dict", [[{"bytes": "xy"}, "*"]]], [["none", 1]]),
    ("*", []),
    ("*", {}),
    ("*", 3),
    ("*", ["none", 1]),
    ("*", [["array", "int99", [1]]]),
    ("*", [["array", "string", [1]]]),
    ("*", [["array", "int32", [2]]]),
    ("*", [["array", "int32", [1 << 62]]]),
    ("*", [["array", "int32", [-1]]]),
    ("*", [["array", "int32", ["1"]]]),
    ("*", [["array", "int32", 1]]),
    ("*", [["array", "int64", [1, 1 << 62]]]),
    ("*", [["array", "int64", []]]),
    ("*", [["text", [1], 1 << 62]]),
    ("*", [["text", [1], 5]]),
    ("*", [["ragged", "int64", 1, ["array", "int64", [0]]]]),
    ("*", [["ragged", "float32", 1, ["array", "int64", [0]]]]),
    ("*", [["ragged", "int64", -1, ["array", "int64", [0]]]]),
    ("*", [["shapes", 1, 1, ["array", "int64", [1]]]]),
    ("*", [["shapes", 1, 0, ["array", "int64", [3]]]]),
    ("*", [["shapes", -1, 0, ["array", "int64", [0]]]]),
    ("*", [["leaves", [["none", 0], ["none", 0]]]]),
    ("*", [["leaves", [[]]]]),
    ("*", [["none", 1 << 62]]),
    ("*", [["none", 2]]),
    ("*", [["none", 1], ["none", 1]]),
    ("*", [["spam", 1]]),
    (TUPLE, [["none", 1], ["none", 1]]),
]


def described_size(columns: Any) -> int:
    """How many bytes the columns claim, if that is a number of bytes that a test can write."""
    try:
        return min(sum(map(measure, columns)), 1024)
    except MALFORMED:
        return 64


@pytest.mark.parametrize(("tree", "columns"), WITHOUT_SENSE)
def test_sound_blocks_without_sense(tree: Any, columns: Any, tmp_path: Path) -> None:
    out = BlocksOut(str(tmp_path / "f"), None, "test")
    out.add(b"TREE", 0, tree)
    out.add(b"ROWS", 1, columns, [bytes(range(1, 65)) * (described_size(columns) // 64)])
    out.finish(1)
    with pytest.raises(DataLossError, match="is damaged at byte .*: it makes no sense"):
        elements_of(str(tmp_path / "f"))


@pytest.mark.parametrize(
    ("kinds", "problem"),
    [
        ([(b"ROWS", 1)], "the columns do not fit the structure"),
        ([(b"WHAT", 0)], "a block of kind b'WHAT'"),
        ([(b"TREE", 0), (b"ROWS", 2)], r"columns of \[1, 2\] rows"),
        ([(b"TREE", 0)], "it counts 1 elements, but there are 0"),
    ],
)
def test_blocks_out_of_place(kinds: list[Any], problem: str, tmp_path: Path) -> None:
    out = BlocksOut(str(tmp_path / "f"), None, "test")
    for kind, rows in kinds:
        body = [] if kind == b"TREE" else [bytes(64)]
        out.add(kind, rows, "*" if kind == b"TREE" else [["none", 1]], body)
    out.finish(1)
    with pytest.raises(DataLossError, match=problem):
        elements_of(str(tmp_path / "f"))


def test_sizes_must_fill_the_block(tmp_path: Path) -> None:
    out = BlocksOut(str(tmp_path / "f"), None, "test")
    out.add(b"TREE", 0, "*")
    out.add(b"ROWS", 1, [["array", "int32", [1]]], [bytes(128)])
    out.finish(1)
    with pytest.raises(DataLossError, match="128 bytes, described as 64"):
        elements_of(str(tmp_path / "f"))


@pytest.mark.parametrize("packing", PACKINGS)
def test_files_of_another_version_are_refused_in_words(packing: Any, tmp_path: Path) -> None:
    path = Path(write(tmp_path / "f", Chunk.of([np.int32(1)]), compression=packing))
    data = path.read_bytes()
    assert data.startswith(b"penstock chunks 2 ")
    path.write_bytes(b"penstock chunks 1 " + data[18:])
    problem = r"another version of penstock \(format 1, this one reads 2\); delete it"
    with pytest.raises(DataLossError, match=problem):
        elements_of(str(path), packing)


def test_deep_nesting_is_damage(tmp_path: Path) -> None:
    out = BlocksOut(str(tmp_path / "f"), None, "test")
    out._put(Head(b"TREE", 0, 60_000, 60_000, 60_000, blocks.crc32c(b"[" * 60_000)), b"[" * 60_000)
    out.finish(0)
    with pytest.raises(DataLossError, match="it makes no sense"):
        elements_of(str(tmp_path / "f"))


@pytest.mark.parametrize(
    ("packing", "size", "stored", "problem"),
    [
        (None, 1 << 60, 1 << 60, "the file ends within the block"),
        (None, 1 << 60, 4, r"the block has 4 bytes instead of \d+"),
        ("GZIP", 1 << 60, 4, r"4 bytes cannot be inflated to \d+"),
        ("GZIP", 100, 4, "incorrect header check"),
    ],
)
def test_lengths_are_not_believed(
    packing: str | None, size: int, stored: int, problem: str, tmp_path: Path
) -> None:
    out = BlocksOut(str(tmp_path / "f"), packing, "test")
    out._put(Head(b"TREE", 0, 4, size, stored, blocks.crc32c(b'"*" ')), b'"*" ')
    out.pause()
    with pytest.raises(DataLossError, match=problem):
        elements_of(str(tmp_path / "f"), packing)
