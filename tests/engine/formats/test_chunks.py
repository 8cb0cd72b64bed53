"""Chunk files: elements come back as they were written, and damage is always found."""

import contextlib
import dataclasses
import errno
import gzip
import io
import itertools
import json
import sys
import types
import zlib
from collections import OrderedDict, defaultdict, namedtuple
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import polars
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from pyarrow import feather

from penstock.element import descriptions, nest
from penstock.element.chunk import Chunk
from penstock.element.ragged import Ragged
from penstock.element.spec import DatasetSpec, NoneTensorSpec, RaggedTensorSpec, TensorSpec
from penstock.engine.formats import chunks
from penstock.engine.formats.arrow_layouts import BatchBuffers, key_values
from penstock.engine.formats.chunks import ArrowOut, ChunkWriter, Schema, read_chunks
from penstock.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    NotFoundError,
    ResourceExhaustedError,
)
from tests.effort import spread
from tests.engine.formats.comparing import assert_damaged, assert_same, elements_of, flips_of

DTYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float16 float32 float64 complex64 complex128"
).split()
PACKINGS = [None, "GZIP"]


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


# Other libraries read the files


KINDS: dict[str, tuple[list[Any], Any]] = {
    "scalars": ([np.int16(i) for i in range(3)], pa.int16()),
    "unsigned": ([np.uint64(2**64 - 1)], pa.uint64()),
    "halves": ([np.float16(i / 2) for i in range(3)], pa.float16()),
    "flags": ([np.bool_(i % 3) for i in range(11)], pa.bool_()),
    "strings": ([b"", b"abc", b"\0\xff"], pa.large_binary()),
    "rows": ([np.arange(3.0) + i for i in range(3)], pa.list_(pa.float64(), 3)),
    "grids": ([np.eye(2, 3, i) for i in range(3)], pa.fixed_shape_tensor(pa.float64(), [2, 3])),
    "rows of flags": (
        [np.array([True, False, bool(i)]) for i in range(5)],
        pa.list_(pa.bool_(), 3),
    ),
    "rows of strings": (
        [np.array([[b"a", b""], [b"bc", b"d"]], object)] * 2,
        pa.list_(pa.list_(pa.large_binary(), 2), 2),
    ),
    "varied rows": ([np.arange(i) for i in range(4)], pa.large_list(pa.int64())),
    "ragged rows": ([Ragged.from_rows([[1] * i, [2]]) for i in range(3)], None),
    "nothing": ([None] * 3, pa.null()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_pyarrow_and_polars_read_the_values(kind: str, tmp_path: Path) -> None:
    elements, arrow_type = KINDS[kind]
    path = write(tmp_path / "f", Chunk.of([(each, np.int8(1)) for each in elements]))
    table = pa.ipc.open_file(path).read_all()
    table.validate(full=True)
    assert table.column_names == ["0", "1"]
    assert arrow_type is None or table.schema.field("0").type == arrow_type
    expected = [_plain(each, kind) for each in elements]
    assert [_plain(each, kind) for each in table["0"].to_pylist()] == expected
    assert feather.read_table(path).equals(table)
    frame = polars.read_ipc(path)
    assert [_plain(each, kind) for each in frame["0"].to_list()] == expected


def _plain(value: Any, kind: str) -> Any:
    """A leaf as lists; tensors as one flat list."""
    if isinstance(value, Ragged):
        return value.to_list()
    if kind == "grids":
        return np.ravel(value).tolist()
    return value.tolist() if hasattr(value, "tolist") else value


def test_columns_have_the_names_and_the_order_of_the_structure(tmp_path: Path) -> None:
    element = {"image": np.zeros(2), "box": Point(1, (2, Sample(b"x", np.int32(3)))), b"a\xff": 4}
    path = write(tmp_path / "f", Chunk.of([element]))
    names = ["image", "box.x", "box.y.0", "box.y.1.image", "box.y.1.label", "a\\xff"]
    assert pa.ipc.open_file(path).schema.names == names
    (found,) = elements_of(path)
    assert list(found) == list(element)
    path = write(tmp_path / "g", Chunk.of([{"a": (1,), "a.0": 2, "a.0_": 3}]))
    assert pa.ipc.open_file(path).read_all().to_pylist() == [{"a.0": 1, "a.0_": 2, "a.0__": 3}]
    assert pa.ipc.open_file(write(tmp_path / "h", Chunk.of([1]))).schema.names == ["value"]


def test_dtypes_that_arrow_lacks_are_named(tmp_path: Path) -> None:
    element = {"small": np.arange(3).astype(ml_dtypes.bfloat16), "wave": np.complex64(1 + 2j)}
    path = write(tmp_path / "f", Chunk.of([element]))
    table = pa.ipc.open_file(path).read_all()
    item = table.schema.field("small").type.value_field
    assert item.metadata == {b"penstock.dtype": b"bfloat16"}
    bits = table["small"].combine_chunks().flatten().to_numpy()
    assert bits.view(ml_dtypes.bfloat16).tolist() == [0, 1, 2]
    assert table.schema.field("wave").metadata == {b"penstock.dtype": b"complex64"}
    assert table["wave"].to_pylist() == [[1, 2]]


def test_arrays_of_different_shapes_are_variable_shape_tensors(tmp_path: Path) -> None:
    elements = [np.arange(6).reshape(2, 3), np.zeros((0, 1), np.int64)]
    table = pa.ipc.open_file(write(tmp_path / "f", Chunk.of(elements))).read_all()
    field = table.schema.field("value")
    if pa.types.is_struct(field.type):  # pyarrow before 24 does not know the type.
        assert field.metadata[b"ARROW:extension:name"] == b"arrow.variable_shape_tensor"
    else:
        assert field.type.extension_name == "arrow.variable_shape_tensor"
    assert table["value"].to_pylist() == [
        {"data": [0, 1, 2, 3, 4, 5], "shape": [2, 3]},
        {"data": [], "shape": [0, 1]},
    ]
    mixed = [np.arange(2), np.int64(5), np.zeros((1, 2), np.int64)]
    path = write(tmp_path / "g", Chunk(nest.LEAF, [mixed], 3))
    assert pa.ipc.open_file(path).read_all()["value"].to_pylist() == [
        {"data": [0, 1], "shape": [2]},
        {"data": [5], "shape": []},
        {"data": [0, 0], "shape": [1, 2]},
    ]
    assert_same(elements_of(path), mixed)


def test_gzip_files_are_arrow_files_inside(tmp_path: Path) -> None:
    path = write(tmp_path / "f", Chunk.of([{"a": np.int32(7)}]), compression="GZIP")
    with gzip.open(path) as file:
        assert pa.ipc.open_file(file.read()).read_all().to_pylist() == [{"a": 7}]


def test_no_elements_are_an_empty_table(tmp_path: Path) -> None:
    assert pa.ipc.open_file(write(tmp_path / "f")).read_all().num_rows == 0
    path = write(tmp_path / "g", Chunk.of([()] * 3))
    assert pa.ipc.open_file(path).get_batch(0).num_rows == 3


@pytest.mark.parametrize(
    ("element", "spec"),
    [
        (np.int32(1), TensorSpec((), np.int32)),
        (np.zeros((2, 3)), TensorSpec((2, 3), np.float64)),
        (np.zeros((2, 3)), TensorSpec((None, 3), np.float64)),
        (b"x", TensorSpec(None, str)),
        (None, NoneTensorSpec()),
        (Ragged.from_rows([[1], []], np.int32), RaggedTensorSpec((2, None), np.int32, 1)),
        (Ragged(np.ones((2, 3)), [0, 2]), RaggedTensorSpec((1, None, 3), np.float64, 1)),
    ],
)
def test_files_without_elements_have_the_columns_of_the_spec(
    element: Any, spec: Any, tmp_path: Path
) -> None:
    schemas = []
    for name, elements in (("f", []), ("g", [{"a": element}])):
        writer = ChunkWriter(str(tmp_path / name), spec={"a": spec})
        for each in elements:
            writer.write(Chunk.of([each]))
        writer.close()
        assert_same(elements_of(str(tmp_path / name)), elements)
        schemas.append(pa.ipc.open_file(tmp_path / name).schema)
    assert schemas[0] == schemas[1]
    polars.read_ipc([tmp_path / "f", tmp_path / "g"])


def test_a_spec_that_leaves_the_columns_open(tmp_path: Path) -> None:
    writer = ChunkWriter(str(tmp_path / "f"), spec=RaggedTensorSpec((2, None, None), np.int32, 1))
    writer.close()
    assert elements_of(str(tmp_path / "f")) == []


def test_other_libraries_refuse_a_file_that_is_not_complete(tmp_path: Path) -> None:
    writer = ChunkWriter(str(tmp_path / "f"))
    writer.write(Chunk.of([np.int32(1)]))
    writer.pause()
    with pytest.raises(pa.ArrowInvalid, match="Not an Arrow file"):
        pa.ipc.open_file(tmp_path / "f")
    with pytest.raises(polars.exceptions.PolarsError, match="."):
        polars.read_ipc(tmp_path / "f")
    with pytest.raises(DataLossError, match="the file ends here and is not complete"):
        elements_of(str(tmp_path / "f"))
    writer.abandon()


def test_buffers_are_aligned_in_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "f", Chunk.of([(np.float32(1), b"x", np.int8(2))] * 3))
    with pa.memory_map(path) as source:
        table = pa.ipc.open_file(source).read_all()
        buffers = [b for column in table.columns for b in column.chunk(0).buffers() if b]
        assert [buffer.address % 64 for buffer in buffers] == [0] * 4


# Files that continue a file


def test_another_file_where_the_layout_changes(tmp_path: Path) -> None:
    path = tmp_path / "f"
    elements = [np.int32(1), np.int32(2), b"x", (b"y",), np.zeros(2), np.zeros(3), np.zeros((1, 1))]
    writer = ChunkWriter(str(path))
    for each in elements:
        writer.write(Chunk.of([each]))
        writer.pause()
    writer.close()
    names = ["f", "f.1", "f.2", "f.3", "f.4", "f.5"]
    assert sorted(file.name for file in tmp_path.iterdir()) == names
    rows = [pa.ipc.open_file(tmp_path / name).read_all().num_rows for name in names]
    assert rows == [2, 1, 1, 1, 1, 1]
    for skip in range(9):
        assert_same(elements_of(str(path), skip=skip), elements[skip:])
    (tmp_path / "f.3").unlink()
    found: list[Chunk] = []
    with pytest.raises(NotFoundError, match=r"'.*f\.3' does not exist"):
        found.extend(read_chunks(str(path)))
    assert sum(map(len, found)) == 4


def test_one_file_for_all_shapes_of_a_spec(tmp_path: Path) -> None:
    shapes = [(2, 3), (2, 3), (1, 3), (2, 3)]
    elements = [(np.ones(shape), np.array([b"x"] * shape[0], object)) for shape in shapes]
    spec = (TensorSpec((None, 3)), TensorSpec(None, str))
    writer = ChunkWriter(str(tmp_path / "f"), spec=spec)
    for each in elements:
        writer.write(Chunk.of([each]))
        writer.pause()
    writer.close()
    assert [file.name for file in tmp_path.iterdir()] == ["f"]
    assert_same(elements_of(str(tmp_path / "f")), elements)


def test_renaming_and_abandoning_files_that_continue(tmp_path: Path) -> None:
    writer = ChunkWriter(str(tmp_path / "f"))
    for each in (1, b"x"):
        writer.write(Chunk.of([each]))
    writer.close()
    writer.rename(str(tmp_path / "g"))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["g", "g.1"]
    assert elements_of(str(tmp_path / "g")) == [1, b"x"]
    writer.abandon()
    assert elements_of(str(tmp_path / "g")) == [1, b"x"]
    writer = ChunkWriter(str(tmp_path / "f"))
    for each in (1, b"x", 2):
        writer.write(Chunk.of([each]))
    writer.abandon()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["g", "g.1"]


def test_arrays_of_one_shape_are_read_at_once(tmp_path: Path) -> None:
    writer = ChunkWriter(str(tmp_path / "f"), spec=TensorSpec((None, 2)))
    writer.write(Chunk.of([np.ones((3, 2))] * 5))
    writer.close()
    (chunk,) = read_chunks(str(tmp_path / "f"))
    assert chunk.columns[0].shape == (5, 3, 2)
    assert not chunk.columns[0].flags.owndata


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
    with pytest.raises(DataLossError, match="written with compression 'GZIP', not 'NONE'; read it"):
        elements_of(path)
    path = write(tmp_path / "g", Chunk.of([np.int32(1)]))
    with pytest.raises(DataLossError, match="written with compression 'NONE', not 'GZIP'; read it"):
        elements_of(path, "GZIP")


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="read_chunks: '.*nope' does not exist"):
        elements_of(str(tmp_path / "nope"))
    with pytest.raises(NotFoundError, match="ChunkWriter: the folder of '.*' does not"):
        ChunkWriter(str(tmp_path / "no" / "folder"))


class FullDisk(io.BytesIO):
    """A file that accepts some bytes, and then raises."""

    left = 100

    def write(self, data: Any) -> int:
        self.left -= len(data)
        if self.left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "create_bytes", lambda path, call: FullDisk())
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


def test_cut_anywhere(small: tuple[Path, str | None, list[Any]]) -> None:
    path, packing, elements = small
    data = path.read_bytes()
    for size in spread(range(len(data)), 200):
        path.write_bytes(data[:size])
        assert_damaged(path, packing, elements)
    path.write_bytes(data + b"\1")  # Zeros after a GZIP stream are padding.
    assert_damaged(path, packing, elements)


def means_the_same(data: bytes, other: bytes) -> bool:
    """Whether two gzip files have equal contents: no checksum covers the time in their heads."""
    with contextlib.suppress(zlib.error, EOFError, OSError):
        return gzip.decompress(data) == gzip.decompress(other)
    return False


def test_flipped_anywhere(small: tuple[Path, str | None, list[Any]]) -> None:
    path, packing, elements = small
    data = path.read_bytes()
    for flipped in flips_of(data):
        path.write_bytes(flipped)
        if packing and means_the_same(flipped, data):
            assert_same(elements_of(str(path), packing), elements)
        else:
            assert_damaged(path, packing, elements)


def test_damage_is_located(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"something else")
    with pytest.raises(DataLossError, match="at byte 0: it does not begin as a file of this kind"):
        elements_of(str(path))
    data = Path(write(path, Chunk.of([np.int32(1)]))).read_bytes()
    path.write_bytes(data + b"!")
    with pytest.raises(DataLossError, match="the file does not end with a footer"):
        elements_of(str(path))
    path.write_bytes(data[:-6] + bytes(1 << 20) + data[-6:])
    with pytest.raises(DataLossError, match="the file does not end with a footer"):
        elements_of(str(path))


def find_parts(data: bytes) -> dict[str, int]:
    """Where the parts of a file with one record batch begin."""
    schema = 8
    batch = schema + 8 + int.from_bytes(data[schema + 4 : schema + 8], "little")
    body = batch + 8 + int.from_bytes(data[batch + 4 : batch + 8], "little")
    end = data.index(b"\xff\xff\xff\xff\0\0\0\0", body)
    return {"schema": schema, "batch": batch, "body": body, "end": end, "footer": end + 8}


@pytest.mark.parametrize(
    ("part", "within", "change", "problem"),
    [
        ("schema", 0, "cut", "at byte {schema}: the file ends here and is not complete"),
        ("batch", 3, "cut", "at byte {batch}: the file ends here and is not complete"),
        ("batch", 30, "cut", "at byte {batch}: the file ends within the head of a message"),
        ("body", 1, "cut", "at byte {batch}: the file ends within the record batch; delete it"),
        ("end", 0, "cut", "at byte {end}: the file ends here and is not complete"),
        ("footer", 30, "cut", "at byte {footer}: the file does not end with a footer, so it is"),
        ("batch", 0, "flip", "at byte {batch}: no message begins here"),
        ("batch", 7, "flip", "at byte {batch}: (no message begins|the file ends within)"),
        ("batch", 40, "flip", "at byte {batch}: the checksum of the head is wrong"),
        ("body", 0, "flip", "at byte {batch}: the checksum of the record batch is wrong"),
        ("footer", 40, "flip", "at byte {footer}: the checksum of the footer is wrong"),
    ],
)
def test_damage_says_where(
    part: str, within: int, change: str, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "f"
    data = bytearray(Path(write(path, Chunk.of([np.int32(1)]))).read_bytes())
    parts = find_parts(data)
    place = parts[part] + within
    if change == "cut":
        del data[place:]
    else:
        data[place] ^= 1 << 6
    path.write_bytes(data)
    with pytest.raises(DataLossError, match=problem.format(**parts)):
        elements_of(str(path))


def test_arrow_files_of_other_programs(tmp_path: Path) -> None:
    feather.write_feather(pa.table({"a": [1]}), str(tmp_path / "f"))
    with pytest.raises(DataLossError, match=r"penstock did not write .*; see Dataset\.from_arrow"):
        elements_of(str(tmp_path / "f"))


# Files with right checksums and contradictory contents


class CraftedChunk(NamedTuple):
    """A schema and a record batch."""

    structure: Any = "*"
    layout: Any = ("number", "int64")
    rows: int = 1
    buffers: Any = ((), (bytes(8),))
    leaf: Any = 0


NUMBER = ["number", "int64"]
TEXT = ["text"]


def int64s(*values: int) -> list[bytes]:
    return [np.array(values, np.int64).tobytes()]


def int32s(*values: int) -> list[bytes]:
    return [np.array(values, np.int32).tobytes()]


LONG_SHAPE = int64s(*[1] * 65)

WITHOUT_SENSE: dict[str, CraftedChunk] = {
    "structure": CraftedChunk(structure=["tuple"]),
    "two leaves": CraftedChunk(structure=["tuple", ["*", "*"]]),
    "no structure": CraftedChunk(structure=None),
    "wrong leaf": CraftedChunk(leaf=1),
    "leaf of text": CraftedChunk(leaf="0"),
    "unknown layout": CraftedChunk(layout=["spam"]),
    "no layout": CraftedChunk(layout=3),
    "dtype": CraftedChunk(layout=["number", "int99"]),
    "dtype of strings": CraftedChunk(layout=["number", "string"]),
    "negative size": CraftedChunk(layout=["fixed", [-1], NUMBER]),
    "huge size": CraftedChunk(layout=["fixed", [1 << 62], NUMBER]),
    "many dimensions": CraftedChunk(layout=["fixed", [1] * 65, NUMBER]),
    "size of text": CraftedChunk(layout=["fixed", ["1"], NUMBER]),
    "fixed lists": CraftedChunk(layout=["fixed", [1], ["list", "int64", NUMBER]]),
    "list of nothing": CraftedChunk(layout=["list", "int64", ["none"]]),
    "row splits of floats": CraftedChunk(layout=["list", "float64", NUMBER]),
    "rank 0": CraftedChunk(layout=["varied", 0, NUMBER]),
    "rank 65": CraftedChunk(layout=["varied", 65, NUMBER]),
    "varied lists": CraftedChunk(layout=["varied", 1, ["list", "int64", NUMBER]]),
    "no rows": CraftedChunk(rows=0),
    "many rows": CraftedChunk(layout=["none"], rows=1 << 21, buffers=()),
    "too few values": CraftedChunk(rows=2),
    "too few buffers": CraftedChunk(buffers=[[]]),
    "too many buffers": CraftedChunk(buffers=[[], [bytes(8)], []]),
    "missing values": CraftedChunk(buffers=[[bytes(8)], [bytes(8)]]),
    "fixed": CraftedChunk(layout=["fixed", [1 << 30], NUMBER], buffers=[[], [], [bytes(8)]]),
    "strings begin late": CraftedChunk(layout=TEXT, buffers=[[], int64s(1, 2), [b"ab"]]),
    "strings fall": CraftedChunk(layout=TEXT, rows=2, buffers=[[], int64s(0, 2, 1), [b"ab"]]),
    "long strings": CraftedChunk(layout=TEXT, buffers=[[], int64s(0, 1 << 40), [b"ab"]]),
    "row splits rise from 1": CraftedChunk(
        layout=["list", "int64", NUMBER], buffers=[[], int64s(1, 1), [], int64s(0)]
    ),
    "row splits fall": CraftedChunk(
        layout=["list", "int64", NUMBER], rows=2, buffers=[[], int64s(0, 2, 1), [], int64s(0)]
    ),
    "negative row splits": CraftedChunk(
        layout=["list", "int64", NUMBER], buffers=[[], int64s(0, -1), [], int64s(0)]
    ),
    "shapes that do not fit": CraftedChunk(
        layout=["varied", 2, NUMBER],
        buffers=[[], [], int32s(0, 2), [], int64s(7, 7), [], [], int32s(2, 2)],
    ),
    "a negative dimension": CraftedChunk(
        layout=["varied", 2, NUMBER],
        buffers=[[], [], int32s(0, 2), [], int64s(7, 7), [], [], int32s(-1, -2)],
    ),
    "dimensions that fall": CraftedChunk(
        layout=["varied", None, NUMBER],
        rows=2,
        buffers=[[], [], int64s(0, 1, 2), [], int64s(7, 7), [], int64s(0, 2, 1), [], int64s(1, 1)],
    ),
    "a negative dimension of any rank": CraftedChunk(
        layout=["varied", None, NUMBER],
        rows=2,
        buffers=[[], [], int64s(0, 1, 2), [], int64s(7, 7), [], int64s(0, 0, 1), [], int64s(-1)],
    ),
    "a rank above 64": CraftedChunk(
        layout=["varied", None, NUMBER],
        rows=2,
        buffers=[[], [], int64s(0, 1, 2), [], int64s(7, 7), [], int64s(0, 0, 65), [], LONG_SHAPE],
    ),
    "single values that are two": CraftedChunk(
        layout=["varied", None, NUMBER],
        rows=2,
        buffers=[[], [], int64s(0, 2, 3), [], int64s(7, 7, 7), [], int64s(0, 0, 1), [], int64s(1)],
    ),
}


def craft(path: Path, crafted: CraftedChunk) -> str:
    """Writes a file whose checksums are right."""
    out = ArrowOut(str(path), "NONE", "test")
    table = Schema(crafted.structure, []).table()
    found = {"format": 1, "structure": crafted.structure}
    table[2] = key_values(
        {"penstock": json.dumps(found | {"columns": [[crafted.leaf, crafted.layout]]})}
    )
    out.begin(types.SimpleNamespace(table=lambda: table))  # type: ignore[arg-type]
    out.add(crafted.rows, [], crafted.buffers)
    out.finish(has_more=False)
    return str(path)


def test_a_crafted_file_that_makes_sense(tmp_path: Path) -> None:
    assert elements_of(craft(tmp_path / "f", CraftedChunk())) == [0]


@pytest.mark.parametrize("name", WITHOUT_SENSE)
def test_sound_files_without_sense(name: str, tmp_path: Path) -> None:
    path = craft(tmp_path / "f", WITHOUT_SENSE[name])
    with pytest.raises(DataLossError, match=r"is damaged at byte \d+: it makes no sense"):
        elements_of(path)


def test_a_wrong_count(tmp_path: Path) -> None:
    out = ArrowOut(str(tmp_path / "f"), "NONE", "test")
    out.begin(Schema("*", [("value", 0, NUMBER)]))
    out.add(1, [1], [[], [bytes(8)]])
    out._rows = 3
    out.finish(has_more=False)
    with pytest.raises(DataLossError, match="it counts 3 elements, but there are 1"):
        elements_of(str(tmp_path / "f"))


def test_two_schemas(tmp_path: Path) -> None:
    out = ArrowOut(str(tmp_path / "f"), "NONE", "test")
    for _ in range(2):
        out.begin(Schema("*", [("value", 0, NUMBER)]))
    out.finish(has_more=False)
    with pytest.raises(DataLossError, match="a message of another kind"):
        elements_of(str(tmp_path / "f"))


def test_files_of_another_format_are_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "f", Chunk.of([np.int32(1)]))
    monkeypatch.setattr(chunks, "FORMAT", 2)
    problem = r"another version of penstock \(format 1, this one reads 2\); delete it"
    with pytest.raises(DataLossError, match=problem):
        elements_of(path)


def test_deep_nesting_is_damage(tmp_path: Path) -> None:
    out = ArrowOut(str(tmp_path / "f"), "NONE", "test")
    table = Schema("*", []).table() | {2: key_values({"penstock": "[" * 60_000})}
    out.begin(types.SimpleNamespace(table=lambda: table))  # type: ignore[arg-type]
    out.finish(has_more=False)
    with pytest.raises(DataLossError, match="it makes no sense"):
        elements_of(str(tmp_path / "f"))


def test_offsets_that_int32_cannot_hold() -> None:
    wide = np.broadcast_to(np.zeros(1), ((1 << 31) - 10,))[:, None][:, :0]
    rows = [Ragged(wide, np.array([0, len(wide)], np.int32))] * 2
    with pytest.raises(InvalidArgumentError, match=r"\d+ values are too many for row splits"):
        BatchBuffers().add(rows, ["list", "int64", ["list", "int32", NUMBER]])
