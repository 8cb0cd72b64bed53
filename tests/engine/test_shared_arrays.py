"""Shared arrays: one memory for all processes; one holder at a time fills it as rows are needed."""

import pickle
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest

from penstock.data import Dataset
from penstock.engine.processes import array_holder
from penstock.engine.processes.array_holder import ArrayHolder, HolderConnection, NoHolderError
from penstock.engine.processes.array_memory import BLOCK, ArrayMemory, runs_of
from penstock.engine.processes.array_offers import ArrayOffers
from penstock.engine.processes.shared_arrays import (
    ArrayReader,
    OpenArrays,
    find_lazy_rows,
    find_reader,
    refer_to_shared,
)
from penstock.errors import DataLossError, UnavailableError
from penstock.plan import codec

BLOCKS = 100
ROWS = 8 * BLOCKS
"""Rows of an eighth of a block."""


@pytest.fixture
def rows():
    return np.random.default_rng(1).integers(0, 1 << 30, (ROWS, BLOCK // 8 // 4), np.int32)


@pytest.fixture
def offers():
    made = ArrayOffers()
    yield made
    made.close()


def never(name):
    """Where every array has a holder, nothing is fetched."""

    def fetch(start, stop):
        raise UnavailableError(f"{name} has no holder")

    return fetch


def fetching(array, asked):
    def fetch(start, stop):
        asked.append((start, stop))
        return array.reshape(-1).view(np.uint8)[start:stop].data

    return fetch


def count(reader):
    """How many blocks are filled."""
    return int(reader.memory.flags.sum())


def open_plan_of(dataset, user, fetch=never):
    arrays = OpenArrays(fetch)
    plan = codec.decode(codec.encode(dataset.__plan__, user.refer), arrays.open)
    arrays.fill_hidden(plan)
    return plan


def test_rows_arrive_when_they_are_read(rows, offers):
    plan = open_plan_of(Dataset.from_tensor_slices(rows), offers.add_user())
    read = Dataset(plan)
    reader = find_reader(plan.data.chunk.columns[0])
    assert count(reader) == 0
    np.testing.assert_array_equal(read[799], rows[799])
    assert count(reader) == 1
    np.testing.assert_array_equal(np.stack(list(read.take(8))), rows[:8])
    assert count(reader) == 1 + 64  # Rows that are read in order bring the next ones along.
    np.testing.assert_array_equal(np.stack(list(read.shuffle(800, seed=3))).sum(0), rows.sum(0))
    assert count(reader) == BLOCKS


def test_rows_that_are_larger_than_a_block(offers):
    large = np.arange(6 * 3 * BLOCK // 8 + 42).reshape(6, -1)
    plan = open_plan_of(Dataset.from_tensor_slices(large), offers.add_user())
    lazy = find_lazy_rows(plan.data.chunk)
    lazy.require(np.array([3, 1]))
    column = plan.data.chunk.columns[0]
    np.testing.assert_array_equal(column[[3, 1]], large[[3, 1]])
    assert count(find_reader(column)) < 11
    lazy.require(range(5, -1, -1))
    np.testing.assert_array_equal(column, large)


def test_strings_arrive_when_they_are_read(offers):
    strings = [b"%d" % i * (i % 5000) for i in range(3000)]  # From none to half a block.
    plan = open_plan_of(Dataset.from_tensor_slices(strings), offers.add_user())
    column, read = plan.data.rows.columns[0], Dataset(plan)
    reader = find_reader(column.data)
    assert count(reader) == 0
    assert read[2999] == strings[2999]
    assert 1 <= count(reader) <= 2
    assert list(read.take(5)) == strings[:5]
    assert count(reader) <= 2 + 64  # Strings that are read in order bring the next ones along.
    picked = list(read.shuffle(3000, seed=3).take(3))
    assert all(each in strings for each in picked)
    assert count(reader) < reader.memory.blocks / 2
    assert sorted(read.shuffle(3000, seed=3)) == sorted(strings)
    assert list(read) == strings
    assert find_reader(column.starts) is None, "small arrays travel with the plan"


def test_where_many_strings_begin_is_shared_too(offers):
    strings = [b"ab" * (i % 7) for i in range(200_000)]
    strings[5], strings[-1] = b"x" * (5 * BLOCK + 1), b""
    plan = open_plan_of(Dataset.from_tensor_slices(strings), offers.add_user())
    column = plan.data.rows.columns[0]
    assert count(find_reader(column.starts)) == count(find_reader(column.data)) == 0
    for index in (
        np.array([199_999]),
        np.array([5, 199_998]),
        range(199_990, 200_000),
        range(3, 0, -1),
    ):
        assert column.take(np.array(index)).tolist() == [strings[i] for i in index]
    assert count(find_reader(column.data)) < find_reader(column.data).memory.blocks / 2


def test_code_that_looks_at_all_strings_waits_for_them(offers):
    names = [b"a name of a file %06d" % i * 3 for i in range(30_000)]
    for look in (
        lambda plan: plan.data.chunk.columns[0].tolist(),
        lambda plan: list(pickle.loads(pickle.dumps(Dataset(plan)))),
        lambda plan: [plan.data.first(), *plan.data.chunk.columns[0][1:]],
    ):
        plan = open_plan_of(Dataset.from_tensor_slices(names), offers.add_user())
        assert count(find_reader(plan.data.rows.columns[0].data)) == 0
        assert look(plan) == names


def test_the_first_row_of_strings_does_not_make_the_others(offers):
    names = [b"%09d" % i * 9 for i in range(30_000)]
    plan = open_plan_of(Dataset.from_tensor_slices((names, np.arange(30_000))), offers.add_user())
    assert plan.data.first() == (names[0], 0)
    assert "chunk" not in vars(plan.data)
    assert count(find_reader(plan.data.rows.columns[0].data)) <= 64


def test_arrays_of_functions_are_complete(rows, offers):
    plan = open_plan_of(Dataset.range(3).map(lambda i: rows[i, 0]), offers.add_user())
    assert [int(x) for x in Dataset(plan)] == rows[:3, 0].tolist()


@pytest.mark.parametrize("mapped", [False, True])
def test_functions_may_change_their_copy_of_an_array(rows, offers, mapped, tmp_path):
    if mapped:
        np.save(tmp_path / "rows.npy", rows)
    scratch = np.load(tmp_path / "rows.npy", mmap_mode="r+") if mapped else rows.copy()

    def add(number):
        scratch[0, 0] += number
        return scratch[0, 0] + scratch[-1, -1]

    dataset = Dataset.range(1, 4).map(add)
    plans = [open_plan_of(dataset, offers.add_user()) for _ in range(2)]
    for plan in plans:
        found = [int(number) for number in Dataset(plan)]
        begin = int(rows[0, 0]) + int(rows[-1, -1])
        assert found == [begin + 1, begin + 3, begin + 6]
    np.testing.assert_array_equal(scratch, rows)


def test_functions_of_a_plan_share_what_they_change(rows, offers):
    def add(number):
        rows[0, 0] += number
        return number

    dataset = Dataset.range(1, 4).map(add).map(lambda number: rows[0, 0])
    begin = int(rows[0, 0])
    plan = open_plan_of(dataset, offers.add_user())
    assert [int(number) for number in Dataset(plan)] == [begin + 1, begin + 3, begin + 6]


def test_rows_that_a_function_reads_too_are_complete(rows, offers):
    rows.flags.writeable = False
    dataset = Dataset.from_tensor_slices(rows).map(lambda row: rows[-1, -1] + row[0])
    plan = open_plan_of(dataset, offers.add_user())
    assert next(iter(Dataset(plan))) == rows[-1, -1] + rows[0, 0]


def test_below_a_snapshot_arrays_are_complete(rows, offers, tmp_path):
    dataset = Dataset.from_tensor_slices(rows).snapshot(str(tmp_path))
    plan = open_plan_of(dataset, offers.add_user())
    assert codec.fingerprint(plan.input) == codec.fingerprint(dataset.__plan__.input)


def test_an_opened_array_is_sent_on_by_the_same_reference(rows, offers):
    rows.flags.writeable = False
    reference = offers.add_user().refer(rows)
    opened = OpenArrays(never).open(reference)
    assert refer_to_shared(opened) == reference
    assert not opened.flags.writeable
    assert refer_to_shared(opened[1:]) is None  # A part is sent by value, and therefore complete.
    np.testing.assert_array_equal(opened, rows)


@pytest.mark.parametrize("view", [np.asfortranarray, lambda a: a[::2], lambda a: a[:, 1:]])
def test_arrays_in_any_order_are_shared(rows, offers, view):
    plan = open_plan_of(Dataset.from_tensor_slices(view(rows)), offers.add_user())
    np.testing.assert_array_equal(np.stack(list(Dataset(plan))), view(rows))


def test_an_offer_is_used_again_unless_the_array_has_changed(rows, offers):
    first = offers.add_user()
    reference = first.refer(rows)
    ArrayReader(reference, never(""), BLOCK).require(slice(3, 5))
    rows[-1] += 1  # That part was not copied yet.
    again = offers.add_user()
    assert again.refer(rows) == reference
    rows[3 * 8] += 1
    changed = again.refer(rows)
    assert changed != reference
    plan = open_plan_of(Dataset.from_tensor_slices(rows), again)
    np.testing.assert_array_equal(np.stack(list(Dataset(plan))), rows)
    ArrayReader(reference, never(""), BLOCK).require()  # `first` still uses the old one.
    first.close()
    again.close()
    with pytest.raises(NoHolderError, match="no process of this machine"):
        HolderConnection(reference.name, rows.nbytes)


def test_a_reader_becomes_the_holder_of_what_the_last_one_left(rows):
    offers, asked = ArrayOffers(), []
    reference = offers.add_user().refer(rows)
    readers = [ArrayReader(reference, fetching(rows, asked), 4 * BLOCK) for _ in range(2)]
    readers[0].require(slice(0, 8))
    offers.close()
    readers[0].require(slice(7, 10))
    assert asked == [(8 * BLOCK, 12 * BLOCK)]
    readers[1].require()
    assert readers[0].memory.flags.all()
    assert readers[0].memory.identity == readers[1].memory.identity
    for reader in readers:
        np.testing.assert_array_equal(reader.memory.bytes, rows.reshape(-1).view(np.uint8))


def test_a_holder_that_came_later_is_copied_from(rows):
    offers = ArrayOffers()
    reference = offers.add_user().refer(rows)
    early = ArrayReader(reference, never("early"), BLOCK)
    early.require(slice(0, 8))
    offers.close()
    late = ArrayReader(reference, fetching(rows, []), BLOCK)
    early.require()
    assert late.memory.identity != early.memory.identity
    np.testing.assert_array_equal(early.memory.bytes, rows.reshape(-1).view(np.uint8))


def test_a_reader_fetches_what_its_holder_cannot_get(rows, offers):
    reference = offers.add_user().refer(rows)
    name, asked = f"{reference.name}-elsewhere", []
    reference = replace(reference, name=name)
    holder = ArrayHolder(name, ArrayMemory(rows.nbytes), never(name))
    reader = ArrayReader(reference, fetching(rows, asked), BLOCK)
    reader.require()
    assert asked
    np.testing.assert_array_equal(reader.memory.bytes, rows.reshape(-1).view(np.uint8))
    holder.close()


def test_without_a_holder_or_a_source_the_reader_says_so(rows):
    offers = ArrayOffers()
    reference = offers.add_user().refer(rows)
    readers = [ArrayReader(reference, never("array"), BLOCK) for _ in range(2)]
    offers.close()
    for reader in readers:  # The first becomes the holder, the second gets its error.
        with pytest.raises(UnavailableError, match="array has no holder"):
            reader.require(slice(0, 1))


def test_a_holder_of_another_user_is_not_believed(rows, offers, monkeypatch):
    reference = offers.add_user().refer(rows)
    monkeypatch.setattr(array_holder, "_is_same_user", lambda connected: False)
    reader = ArrayReader(reference, fetching(rows, []), BLOCK)
    reader.require()
    np.testing.assert_array_equal(reader.memory.bytes, rows.reshape(-1).view(np.uint8))


def test_memory_of_another_size_is_refused(rows, offers):
    reference = offers.add_user().refer(rows)
    with pytest.raises(DataLossError, match="not the memory of an array of 1000000 bytes"):
        HolderConnection(reference.name, 1_000_000)


def test_an_array_that_cannot_be_read_is_an_error():
    def fail(start, stop):
        raise OSError("it was closed")

    holder = ArrayHolder(None, ArrayMemory(BLOCK), fail)
    with pytest.raises(DataLossError, match="cannot be copied .it was closed"):
        holder.provide([(0, 1)])
    holder.close()


def test_runs():
    assert runs_of(np.array([1, 2, 3, 7, 9, 10])) == [(1, 4), (7, 8), (9, 11)]
    assert runs_of(np.array([], np.int64)) == []


FORKED = """
    import os
    import numpy as np
    from penstock.engine.processes.array_memory import BLOCK
    from penstock.engine.processes.array_offers import ArrayOffers
    from penstock.engine.processes.shared_arrays import ArrayReader

    def is_right(reader, block):
        reader.require(slice(block, block + 1))
        part = slice(block * BLOCK, (block + 1) * BLOCK)
        return (reader.memory.bytes[part] == rows[part]).all()

    rows = np.arange(20 * BLOCK, dtype=np.uint64).view(np.uint8)[: 20 * BLOCK]
    offers = ArrayOffers()
    reader = ArrayReader(offers.add_user().refer(rows), None, BLOCK)
    assert is_right(reader, 0)
    child = os.fork()
    if not child:
        os._exit(0 if is_right(reader, 5) else 1)
    assert is_right(reader, 6)
    assert os.waitpid(child, 0)[1] == 0
    assert is_right(reader, 7)
"""


def test_a_forked_child_reads_on_its_own_connection():
    script = textwrap.dedent(FORKED)
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)
