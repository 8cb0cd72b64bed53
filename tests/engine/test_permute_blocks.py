"""Shuffles by blocks: the order, what is read for it, and how well it mixes."""

import collections

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from penstock.data import Dataset, TFRecordDataset
from penstock.data.experimental.service import distribute
from penstock.engine import table_access
from penstock.engine.permute import BlockOrder
from penstock.errors import InvalidArgumentError
from penstock.io import TFRecordWriter
from penstock.plan.block_lengths import block_lengths
from penstock.plan.codec import decode, encode

GROUPS = [30, 7, 0, 30, 1, 30, 30, 22, 30, 30]


def write(path, groups=GROUPS):
    schema = pa.schema([("x", pa.int64())])
    first = 0
    with pa.parquet.ParquetWriter(path, schema) as writer:
        for size in groups:
            writer.write_table(pa.table({"x": np.arange(first, first + size)}), max(size, 1))
            first += size
    return str(path)


@pytest.fixture
def table(tmp_path):
    return Dataset.from_parquet(write(tmp_path / "x.parquet"))


@pytest.fixture
def loads(monkeypatch):
    """How often each block was read."""
    found = collections.Counter()
    load = table_access.TableAccess._load

    def count_load(self, block):
        found[block] += 1
        return load(self, block)

    monkeypatch.setattr(table_access.TableAccess, "_load", count_load)
    return found


def values(dataset):
    return [int(row["x"]) for row in dataset]


TOTAL = sum(GROUPS)


@pytest.mark.parametrize("blocks", [1, 2, 3, 9, 10, 100])
@pytest.mark.parametrize("lengths", [GROUPS, [5], [1] * 9, [0, 0, 4]])
def test_every_element_comes_once_and_windows_are_permuted_blocks(lengths, blocks):
    order = BlockOrder(np.array(lengths), blocks, key=5)
    total = sum(lengths)
    found = order.elements(np.arange(total))
    assert sorted(found) == list(range(total))
    assert order.elements(range(total)).tolist() == found.tolist()
    assert [int(order.elements(np.array([i]))[0]) for i in range(total)] == found.tolist()
    owners = np.searchsorted(np.cumsum(lengths), found, side="right")
    seen: set[int] = set()
    for part in order.cut(range(total)):
        inside = set(owners[part.start : part.stop].tolist())
        assert len(inside) <= blocks
        assert not inside & seen
        seen |= inside


def test_windows_have_nearly_as_many_blocks_as_each_other():
    order = BlockOrder(np.full(9, 10), 8, key=1)
    assert [len(part) for part in order.cut(range(90))] == [40, 50]


def test_long_orders_are_the_same_in_any_pieces():
    order = BlockOrder(np.full(50, 1000), 7, key=3)
    whole = order.elements(np.arange(50_000))
    pieces = [order.elements(range(i, min(i + 777, 50_000))) for i in range(0, 50_000, 777)]
    assert np.concatenate(pieces).tolist() == whole.tolist()
    assert order.elements(range(10, 20_000)).tolist() == whole[10:20_000].tolist()


def test_each_block_is_read_once_in_a_pass_even_if_blocks_are_large(table, loads, monkeypatch):
    monkeypatch.setattr(table_access, "_CACHE_BYTES", 0)
    shuffled = table.shuffle(blocks=3, seed=1)
    assert sorted(values(shuffled)) == list(range(TOTAL))
    assert len(loads) == 9
    assert set(loads.values()) == {1}
    loads.clear()
    list(table.shuffle(TOTAL, seed=1))
    # A full shuffle reads most blocks for each chunk. On a fast machine each chunk is twice as long
    # as the one before, so there are eight at least; the first touch few blocks, and some are kept.
    assert sum(loads.values()) > 2 * 9


def test_the_order_depends_on_the_seed_and_the_epoch(table):
    once = values(table.shuffle(blocks=3, seed=1))
    assert once == values(table.shuffle(blocks=3, seed=1))
    assert once != values(table.shuffle(blocks=3, seed=2))
    twice = values(table.shuffle(blocks=3, seed=1).repeat(2))
    assert sorted(twice) == sorted(list(range(TOTAL)) * 2)
    assert twice[:TOTAL] != twice[TOTAL:]
    same = values(table.shuffle(blocks=3, seed=1, reshuffle_each_iteration=False).repeat(2))
    assert same[:TOTAL] == same[TOTAL:]


def test_any_position_and_every_tenth_resume(table):
    shuffled = table.shuffle(blocks=3, seed=4, reshuffle_each_iteration=False)
    expected = values(shuffled)
    assert [int(shuffled[i]["x"]) for i in range(TOTAL)] == expected
    for count in range(0, TOTAL + 1, 10):
        iterator = iter(shuffled)
        for _ in range(count):
            next(iterator)
        resumed = iter(shuffled)
        resumed.load_state_dict(iterator.state_dict())
        assert values(resumed) == expected[count:]


def test_the_same_after_the_codec_and_on_workers(table):
    shuffled = table.shuffle(blocks=3, seed=4).map(lambda row: row["x"])
    expected = [int(x) for x in shuffled]
    assert [int(x) for x in Dataset(decode(encode(shuffled.__plan__)))] == expected
    served = shuffled.apply(distribute("distributed_epoch", "local://2"))
    assert [int(x) for x in served] == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda ds: ds.skip(12),
        lambda ds: ds.take(95),
        lambda ds: ds.shard(4, 3),
        lambda ds: ds.skip(5).shard(3, 1).take(40),
        lambda ds: ds.concatenate(ds),
        lambda ds: ds.map(lambda row: row).prefetch(2).enumerate().map(lambda i, row: row),
        lambda ds: ds[20:60],
    ],
)
def test_operators_before_it_keep_the_blocks(table, change):
    changed = change(table)
    lengths = block_lengths(changed.__plan__)
    assert lengths is not None
    assert lengths.sum() == len(changed)
    assert len(lengths) >= 10
    assert sorted(values(changed.shuffle(blocks=2, seed=1))) == sorted(values(changed))


def test_the_blocks_of_an_indexed_file(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.engine.formats.record_spans.BLOCK_BYTES", 300)
    with TFRecordWriter(tmp_path / "x") as writer:
        for number in range(100):
            writer.write(b"%d" % number)
    records = TFRecordDataset(tmp_path / "x", index=tmp_path / "indexes")
    shuffled = list(records.shuffle(blocks=2, seed=1))
    assert shuffled != list(records)
    assert sorted(map(int, shuffled)) == list(range(100))


def test_it_mixes_as_the_page_says():
    rows, count = 100, 200
    total = rows * count
    positions = np.arange(total)
    for blocks in (2, 10, 50):
        found = BlockOrder(np.full(count, rows), blocks, key=7).elements(positions)
        displacement = np.abs(found - positions).mean() / total
        assert 0.28 < displacement < 0.38  # One third, as with a full shuffle.
        owners = found // rows
        neighbours = (owners[1:] == owners[:-1]).mean()
        assert neighbours == pytest.approx(1 / blocks, rel=0.15)


def test_arguments_that_do_not_fit_are_refused(table):
    with pytest.raises(InvalidArgumentError, match="buffer_size=5 and blocks=2 exclude each other"):
        table.shuffle(5, blocks=2)
    with pytest.raises(InvalidArgumentError, match="blocks must be at least 1, got 0"):
        table.shuffle(blocks=0)
    with pytest.raises(InvalidArgumentError, match="blocks=2 needs random access, but filter"):
        table.filter(lambda row: True).shuffle(blocks=2)
    message = "blocks=2 needs a source that is read by blocks, as from_parquet"
    for plain in (Dataset.range(5), table.batch(2), table.shuffle(3).repeat(2)):
        with pytest.raises(InvalidArgumentError, match=message):
            plain.shuffle(blocks=2)
    with pytest.raises(InvalidArgumentError, match="needs a buffer_size, from how many"):
        table.shuffle()
