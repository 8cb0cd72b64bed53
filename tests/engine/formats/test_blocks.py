"""Files of blocks, which earlier releases wrote: they are read, and damage is found."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.data.dataset import Dataset
from penstock.element import nest
from penstock.element.buffers import MALFORMED, measure
from penstock.element.chunk import Chunk
from penstock.engine.formats import blocks
from penstock.engine.formats.blocks import Head
from penstock.errors import DataLossError
from tests.effort import spread
from tests.engine.formats.block_files import BlocksOut
from tests.engine.formats.comparing import assert_damaged, assert_same, elements_of, flips_of
from tests.engine.formats.recorded_saves.record import FOLDER, changing, element

PACKINGS = [None, "GZIP"]


# Recorded files


def test_saved_datasets_of_an_earlier_release() -> None:
    for name, compression in (("plain", None), ("gzip", "GZIP")):
        found = Dataset.load(FOLDER / "blocks-2" / name, compression=compression)
        assert len(found) == 6
        by_shard = [element(number) for number in (2, 4, 6, 1, 3, 5)]
        assert_same_values(list(found), by_shard)
        assert_same_values(list(found.skip(2)), by_shard[2:])


def assert_same_values(found: list[Any], expected: list[Any]) -> None:
    """As `assert_same`; the named tuples are of another module."""
    leaves = [tuple(nest.flatten(each)[0]) for each in found]
    assert_same(leaves, [tuple(nest.flatten(each)[0]) for each in expected])
    assert [list(each) for each in found] == [list(each) for each in expected]


def test_a_cache_of_an_earlier_release(tmp_path: Path) -> None:
    for file in (FOLDER / "blocks-2").glob("cache.*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    plan = Dataset.range(1, 7).map(lambda number: element(int(number)))
    filled = plan.take(0).concatenate(plan).cache(str(tmp_path / "cache"))
    assert_same_values(list(filled), [element(number) for number in range(1, 7)])


def test_structures_that_change_in_a_file_of_an_earlier_release() -> None:
    path = str(FOLDER / "blocks-2" / "changing")
    for skip in range(6):
        assert_same(elements_of(path, skip=skip), changing()[skip:])


# Damage


@pytest.fixture(params=PACKINGS, ids=str)
def small(request: Any, tmp_path: Path) -> tuple[Path, str | None, list[Any]]:
    """A file of two blocks of elements."""
    elements = [(np.int32(i), b"x" * i) for i in range(4)]
    out = BlocksOut(tmp_path / "small", request.param)
    for i in (0, 2):
        out.add_chunk(Chunk.of(elements[i : i + 2]))
    out.finish(4)
    return tmp_path / "small", request.param, elements


def test_cut_anywhere(small: tuple[Path, str | None, list[Any]]) -> None:
    path, packing, elements = small
    data = path.read_bytes()
    for size in spread(range(len(data)), 200):
        path.write_bytes(data[:size])
        assert_damaged(path, packing, elements)
    path.write_bytes(data + b"\0")
    assert_damaged(path, packing, elements)


def test_flipped_anywhere(small: tuple[Path, str | None, list[Any]]) -> None:
    path, packing, elements = small
    for flipped in flips_of(path.read_bytes()):
        path.write_bytes(flipped)
        assert_damaged(path, packing, elements)


def test_damage_is_located(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"something else")
    with pytest.raises(DataLossError, match="at byte 0: it does not begin as a file of this kind"):
        elements_of(str(path))
    out = BlocksOut(path)
    out.add_chunk(Chunk.of([np.int32(1)]))
    data = Path(out.finish(1)).read_bytes()
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
    out = BlocksOut(tmp_path / "f")
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
    out = BlocksOut(tmp_path / "f")
    for kind, rows in kinds:
        body = [] if kind == b"TREE" else [bytes(64)]
        out.add(kind, rows, "*" if kind == b"TREE" else [["none", 1]], body)
    out.finish(1)
    with pytest.raises(DataLossError, match=problem):
        elements_of(str(tmp_path / "f"))


def test_sizes_must_fill_the_block(tmp_path: Path) -> None:
    out = BlocksOut(tmp_path / "f")
    out.add(b"TREE", 0, "*")
    out.add(b"ROWS", 1, [["array", "int32", [1]]], [bytes(128)])
    out.finish(1)
    with pytest.raises(DataLossError, match="128 bytes, described as 64"):
        elements_of(str(tmp_path / "f"))


@pytest.mark.parametrize("packing", PACKINGS)
def test_files_of_another_version_are_refused_in_words(packing: Any, tmp_path: Path) -> None:
    out = BlocksOut(tmp_path / "f", packing)
    out.add_chunk(Chunk.of([np.int32(1)]))
    path = Path(out.finish(1))
    data = path.read_bytes()
    assert data.startswith(b"penstock chunks 2 ")
    path.write_bytes(b"penstock chunks 1 " + data[18:])
    problem = r"another version of penstock \(format 1, this one reads 2\); delete it"
    with pytest.raises(DataLossError, match=problem):
        elements_of(str(path), packing)


def test_deep_nesting_is_damage(tmp_path: Path) -> None:
    out = BlocksOut(tmp_path / "f")
    out.put(Head(b"TREE", 0, 60_000, 60_000, 60_000, blocks.crc32c(b"[" * 60_000)), b"[" * 60_000)
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
    out = BlocksOut(tmp_path / "f", packing)
    out.put(Head(b"TREE", 0, 4, size, stored, blocks.crc32c(b'"*" ')), b'"*" ')
    out.close()
    with pytest.raises(DataLossError, match=problem):
        elements_of(str(tmp_path / "f"), packing)
