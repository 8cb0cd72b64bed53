"""Splits: the pieces of a plan give together exactly its elements, without extra work."""

import os
import random
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.data.dataset import SHARD_HINT, Dataset
from penstock.data.file_datasets import FixedLengthRecordDataset, TextLineDataset, TFRecordDataset
from penstock.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from penstock.io import TFRecordWriter
from penstock.plan import nodes as n
from penstock.plan import parts, splits
from penstock.plan.bounds import bound_plan
from penstock.plan.cuts import cut
from penstock.plan.functions import Function
from penstock.plan.optimize import prepare
from penstock.plan.options import Options, ShardingPolicy
from penstock.plan.parts import with_parts
from penstock.plan.shape import ENDLESS, GUESS
from penstock.plan.splits import piece, shape_of
from tests.conformance.random_plans import plans
from tests.effort import examples, spread
from tests.engine.driving import MOST, drain_stream, model, open_stream
from tests.engine.example_plans import OPERATORS, for_every_operator, fresh, plan_of

ENDLESS_TRIED = 3


def run(plan, limit=7):
    return drain_stream(open_stream(prepare(plan)), limit)


def parts_of(plan):
    """The elements of each stream, as the shape of the plan describes it."""
    plan = with_parts(plan)
    shape = shape_of(plan)
    streams = ENDLESS_TRIED if shape.streams == ENDLESS else shape.streams
    return [run(piece(plan, shape.kind, i, shape.streams)) for i in range(streams)]


def bare(elements):
    """Numbers as Python sees them."""
    return [
        tuple(bare(x)) if isinstance(x, tuple) else x[2] if isinstance(x, list) else x
        for x in elements
    ]


def join_parts(parts):
    return [element for part in parts for element in part]


def count_elements(elements):
    return Counter(map(repr, elements))


def check_pieces(plan, expected):
    found = join_parts(parts_of(plan))
    if shape_of(plan).turns is None:
        assert found[:MOST] == expected
    else:
        assert count_elements(found) == count_elements(expected)


# Shapes


def two(dataset):
    """Two inner datasets in turn."""
    return dataset.interleave(Dataset.from_tensors, 2)


@pytest.mark.parametrize(
    ("make", "turns"),
    [
        (lambda d: d, (2, 1, 9)),
        (lambda d: d.repeat(), (2, 1, -1)),
        (lambda d: d.filter(lambda x: True), (2, 1, -2)),
        (lambda d: d.flat_map(Dataset.from_tensors), (2, 1, -2)),
    ],
)
def test_turns(make, turns):
    plan = two(make(Dataset.range(9))).map(abs).filter(lambda x: True)
    assert shape_of(plan.__plan__).turns == turns
    assert shape_of(plan.flat_map(Dataset.from_tensors).__plan__).turns == turns
    assert shape_of(make(Dataset.range(9)).__plan__).turns is None


@pytest.mark.parametrize(
    ("make", "kind", "streams", "length"),
    [
        (lambda d: d.range(10), "random", 1, 10),
        (lambda d: d.range(10).map(lambda x: x, 2, False).batch(3), "random", 1, 4),
        (lambda d: d.range(10).prefetch(2).with_options(Options()), "random", 1, 10),
        (lambda d: d.range(10).shuffle(4).repeat(), "random", 1, -1),
        (lambda d: d.range(10).filter(lambda x: x > 1), "split", 10, -2),
        (lambda d: d.range(0).filter(lambda x: x > 1), "split", 1, -2),
        (lambda d: d.range(10_000).filter(lambda x: x > 1), "split", 1112, -2),
        (lambda d: d.range(10**7).filter(lambda x: x > 1), "split", 9766, -2),
        (lambda d: d.range(9).repeat().filter(lambda x: x > 1), "split", ENDLESS, -2),
        (lambda d: d.range(9).flat_map(d.from_tensors), "split", 9, -2),
        (lambda d: d.range(9).interleave(d.from_tensors, 2), "split", 9, -2),
        (lambda d: d.range(9).interleave(d.from_tensors, 1), "split", 9, -2),
        (lambda d: two(two(d.range(9))), "single", 1, -2),
        (lambda d: two(d.range(9)).concatenate(d.range(3)), "single", 1, -2),
        (lambda d: d.range(3).concatenate(two(d.range(9))), "single", 1, -2),
        (lambda d: d.range(9).batch(2).unbatch(), "split", 5, -2),
        (lambda d: d.range(4).filter(lambda x: True).concatenate(d.range(3)), "split", 7, -2),
        (lambda d: TextLineDataset(["a", "b"]), "split", 2, -2),
        (lambda d: TextLineDataset(["a"]), "split", 1, -2),
        (lambda d: TextLineDataset(["a", "b"], num_parallel_reads=2), "split", 2, -2),
        (lambda d: TextLineDataset(["a", "b"]).map(len), "split", 2, -2),
        (lambda d: TextLineDataset(["a", "b"]).batch(2), "single", 1, -2),
        (lambda d: d.range(9).filter(lambda x: True).shuffle(9), "single", 1, -2),
        (lambda d: d.range(9).filter(lambda x: True).take(2), "single", 1, -2),
        (lambda d: d.range(9).take_while(lambda x: True), "single", 1, -2),
        (lambda d: d.range(9).scan(np.int64(0), lambda s, x: (s, x)), "single", 1, 9),
        (lambda d: d.range(9).cache(), "single", 1, 9),
        (lambda d: d.range(9).window(2), "single", 1, 5),
    ],
)
def test_shapes(make, kind, streams, length):
    shape = shape_of(make(Dataset).__plan__)
    assert (shape.kind, shape.streams, shape.length) == (kind, streams, length)


def test_nested_services_are_one_stream():
    inner = n.Distribute(Dataset.range(9).__plan__, "grpc://x:1", 1)
    assert shape_of(inner).kind == "single"
    assert shape_of(n.Filter(inner, Function(bool))).kind == "single"


# Pieces


@for_every_operator()
def test_pieces_are_the_plan(plan):
    check_pieces(fresh(plan), model(plan))


@examples(150)
@given(plans())
def test_pieces_of_random_plans_are_the_plan(plan):
    check_pieces(fresh(plan), model(plan))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("operator", ["filter failing", "flat_map shuffled", "interleave failing"])
def test_pieces_of_every_size_are_the_plan(operator, size, monkeypatch):
    monkeypatch.setattr(splits, "_PIECES", -(-13 // size))
    for source in ("access", "failing access"):
        plan = plan_of(operator, source)
        check_pieces(plan, model(plan))


def test_endless_plans_have_endless_pieces(monkeypatch):
    monkeypatch.setattr(splits, "_ENDLESS_LENGTH", 4)
    plan = Dataset.counter().filter(lambda x: x % 3 != 0).__plan__
    assert bare(join_parts(parts_of(plan))) == [x for x in range(4 * ENDLESS_TRIED) if x % 3 != 0]


@pytest.mark.parametrize("make", [lambda d: d, lambda d: d.flat_map(Dataset.from_tensors)])
def test_beyond_the_last_piece_there_is_nothing(make):
    plan = make(Dataset.range(3)).filter(lambda x: True).__plan__
    assert run(piece(plan, "split", 3, 3)) == run(piece(plan, "split", 99, 3)) == []


def test_pieces_number_their_elements_as_the_whole_does():
    def noisy(x, random):
        return x * 1000 + random.integers(1000)

    def failing(x):
        if x % 2:
            raise ValueError("odd")
        return True

    drawn = n.Map(Dataset.range(6).__plan__, Function(noisy), random=5)
    plan = n.Filter(drawn, Function(lambda x: True))
    assert join_parts(parts_of(plan)) == run(plan)
    stream = open_stream(
        piece(n.Filter(Dataset.range(6).__plan__, Function(failing)), "split", 3, 6)
    )
    with pytest.raises(ValueError, match=r"failed for element 3 \(.*\): ValueError: odd"):
        stream.pull(1)


def test_pieces_resume():
    plan = Dataset.range(40).flat_map(lambda x: Dataset.range(x % 4).shuffle(4)).__plan__
    for number in (0, 7, 39):
        whole = piece(plan, "split", number, 40)
        stream = open_stream(whole)
        expected = drain_stream(open_stream(whole), 3)
        for count in range(len(expected) + 1):
            assert drain_stream(open_stream(whole, stream.save()), 3) == expected[count:]
            if count < len(expected):
                stream.pull(1)


def test_options_stay_but_order_is_kept():
    options = Options(deterministic=False, executor="inline")
    dataset = Dataset.range(8).map(lambda x: x, 4).with_options(options).filter(lambda x: x > 1)
    made = piece(dataset.__plan__, "split", 3, 8)
    assert n.options_of(made) == options
    assert bare(run(made)) == [3]
    for form in ("random", "single", "whole"):
        mapped = dataset.__plan__.input.input
        assert piece(mapped, form, 0, 1).deterministic is True
        assert piece(mapped, form, 0, 1).blocked is None


def test_a_plan_that_is_not_divided_has_no_pieces():
    with pytest.raises(InvalidArgumentError, match="a cache is filled .* not divided into pieces"):
        piece(Dataset.range(3).cache().__plan__, "split", 0, 1)


# Files


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    folder = tmp_path_factory.mktemp("splits")
    draw = random.Random(3)
    paths = [folder / f"{number}.txt" for number in range(3)]
    for path in paths:
        count = draw.randrange(20, 60)
        text = "\r\n".join("x" * draw.randrange(9) + str(number) for number in range(count))
        path.write_text(text + draw.choice(["", "\n"]))
    return [str(path) for path in paths]


@pytest.mark.parametrize("part_bytes", [1, 5, 20, 90, 10**6])
@pytest.mark.parametrize(
    "order", [list, lambda names: Dataset.from_tensor_slices(names).shuffle(3)]
)
def test_large_files_are_read_by_parts(lines, part_bytes, order, monkeypatch):
    monkeypatch.setattr(parts, "PART_BYTES", part_bytes)
    plan = with_parts(TextLineDataset(order(lines)).map(bytes.upper).__plan__)
    streams = shape_of(plan).streams
    assert streams == 3 if part_bytes == 10**6 else streams > 3
    assert join_parts(parts_of(plan)) == run(plan)


def test_small_files_are_not_read_by_as_many_parts_as_large_ones(lines, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "PART_BYTES", 30)
    (tmp_path / "large").write_text("a line\n" * 100)
    names = [str(tmp_path / "large"), *(lines[:1] * 6)]
    counts = [-(-os.path.getsize(name) // 30) for name in names]
    assert shape_of(TextLineDataset(names).__plan__).streams == sum(counts)
    drawn = with_parts(TextLineDataset(Dataset.from_tensor_slices(names).shuffle(9)).__plan__)
    assert sum(counts) < shape_of(drawn).streams <= 4 * sum(counts)
    assert join_parts(parts_of(drawn)) == run(drawn)
    monkeypatch.setattr(parts, "_MOST_SIZES", 5)
    many = with_parts(TextLineDataset(names).__plan__)
    assert shape_of(many).streams % len(names) == 0
    assert join_parts(parts_of(many)) == run(many)


def test_parts_of_fixed_records(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "PART_BYTES", 10)
    path = tmp_path / "records"
    path.write_bytes(b"HH" + bytes(range(150)) + b"F")
    plan = with_parts(FixedLengthRecordDataset(str(path), 3, 2, 1).__plan__)
    assert shape_of(plan).streams == 16
    assert join_parts(parts_of(plan)) == run(plan)
    assert len(run(plan)) == 50


def test_parts_of_tfrecord_files(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "PART_BYTES", 50)
    path = str(tmp_path / "records")
    with TFRecordWriter(path) as writer:
        for number in range(40):
            writer.write(str(number).encode() * (number % 7))
    plan = with_parts(TFRecordDataset(path).map(len).__plan__)
    streams = shape_of(plan).streams
    assert streams > 10
    guessed = [run(piece(plan, "split", i, streams, begin=GUESS)) for i in range(streams)]
    assert join_parts(guessed) == run(plan)
    assert parts_of(plan) == [run(plan), *[[]] * (streams - 1)]  # The first is the whole file.
    assert run(piece(plan, "split", 3, streams, begin=os.path.getsize(path))) == []


def test_what_cannot_be_read_by_parts_is_not(lines, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "PART_BYTES", 1)
    assert shape_of(TextLineDataset(lines, "GZIP").__plan__).streams == 3
    assert shape_of(TextLineDataset(["not/there"]).__plan__).streams == 1
    assert shape_of(TextLineDataset(Dataset.from_tensors("a").map(str)).__plan__).streams == 1
    assert shape_of(TextLineDataset([]).__plan__).streams == 1
    assert with_parts(plan := with_parts(TextLineDataset(lines).__plan__)) == plan
    inside = n.Distribute(TextLineDataset(lines).__plan__, "grpc://x:1", 1)
    assert with_parts(inside) is inside


def test_files_in_every_way_of_reading(lines, tmp_path):
    records = [str(tmp_path / f"{number}.tfrecord") for number in range(3)]
    for number, path in enumerate(records):
        with TFRecordWriter(path) as writer:
            for item in range(number + 2):
                writer.write(f"{number}.{item}".encode())
    names = Dataset.from_tensor_slices(lines)
    for dataset in (
        TextLineDataset(lines),
        TextLineDataset(lines, num_parallel_reads=2),
        names.shuffle(3, seed=1).interleave(TextLineDataset, 2, 3),
        names.filter(lambda name: not name.endswith(b"1.txt")).flat_map(TextLineDataset),
        TFRecordDataset(records).map(len),
        TFRecordDataset(records).concatenate(TextLineDataset(lines)),
    ):
        plan = dataset.__plan__
        assert shape_of(plan).kind == "split"
        check_pieces(plan, run(plan))


def test_saved_datasets_are_read_by_shard(tmp_path):
    path = str(tmp_path / "saved")
    Dataset.range(20).save(path, shard_func=lambda x: x % 4)
    plan = Dataset.load(path).filter(lambda x: x != 7).__plan__
    shape = shape_of(plan)
    assert (shape.kind, shape.streams, shape.length) == ("split", 4, -2)
    found = parts_of(plan)
    assert join_parts(found) == run(plan)
    assert bare(found[1]) == [1, 5, 9, 13, 17]
    assert run(piece(plan, "split", 4, 4)) == []


# What is drawn


def pick_two(x):
    return Dataset.range(9).shuffle(9, seed=1).take(2)


def draw_numbers(dataset):
    """A random function of every element."""
    noisy = Function(lambda *parts: float(parts[-1].random()))
    return Dataset(n.Map(dataset.__plan__, noisy, random=4))


def kept_some(dataset):
    return dataset.filter(lambda x: x % 3 != 1)


def twice(x):
    return np.array([x, x])


DRAWN = {
    "filter": kept_some,
    "flat_map": lambda d: d.flat_map(lambda x: Dataset.range(x % 4)),
    "interleave": lambda d: d.interleave(lambda x: Dataset.range(x % 4), 3, 2),
    "unbatch": lambda d: d.batch(4).unbatch(),
    "unbatch some": lambda d: kept_some(d).map(lambda x: np.zeros(x % 4)).unbatch(),
    "ignore_errors": lambda d: d.map(lambda x: 1 // (x % 3)).ignore_errors(),
    "concatenate": lambda d: kept_some(d).concatenate(d).concatenate(kept_some(d)),
    "concatenate to rows": lambda d: d.concatenate(kept_some(d)),
    "concatenate to batches": lambda d: d.batch(2).concatenate(kept_some(d).map(twice)).unbatch(),
    "concatenate to rows, twice": lambda d: d.concatenate(kept_some(d)).concatenate(d).map(abs),
    "parallel": lambda d: kept_some(d).map(lambda x: x, 2).prefetch(2),
    "vectorized": lambda d: kept_some(d).map(lambda x: x, vectorized=True),
    "flat_map picked": lambda d: kept_some(d).flat_map(pick_two).flat_map(pick_two),
    "random function": lambda d: draw_numbers(kept_some(d)).filter(lambda x: x > 0.5),
}


def check_drawn(dataset):
    """A piece, and a piece that resumes from a state, draws what the whole plan draws."""
    for plan in (dataset.flat_map(pick_two).__plan__, draw_numbers(dataset).__plan__):
        assert shape_of(plan).kind == "split"
        expected = run(plan)
        check_pieces(plan, expected)
        stream = open_stream(prepare(plan))
        for count in range(min(len(expected), 30)):
            if count < 3 or count % 7 == 0:
                assert (
                    drain_stream(open_stream(prepare(plan), stream.save()), 5) == expected[count:]
                )
            stream.pull(1)
        stream.close()


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("size", [1, 5])
def test_what_is_drawn_does_not_depend_on_how_many_came_before(name, size, monkeypatch):
    monkeypatch.setattr(splits, "_PIECES", -(-13 // size))
    check_drawn(DRAWN[name](Dataset.range(13)))


@pytest.mark.parametrize("part_bytes", spread([5, 90, 10**6], 2))
def test_what_is_drawn_for_records(lines, tmp_path, part_bytes, monkeypatch):
    monkeypatch.setattr(parts, "PART_BYTES", part_bytes)
    check_drawn(TextLineDataset(lines))
    check_drawn(TextLineDataset(lines).filter(lambda line: len(line) > 4))
    check_drawn(Dataset.from_tensor_slices(lines).interleave(TextLineDataset, 2, 3))
    path = tmp_path / "records"
    path.write_bytes(bytes(range(150)))
    check_drawn(FixedLengthRecordDataset(str(path), 3))
    with TFRecordWriter(tmp_path / "records") as writer:
        for item in range(7):
            writer.write(b"x" * item)
    check_drawn(TFRecordDataset([str(path), str(path)]))


def test_what_is_drawn_for_the_records_before_a_damaged_one(tmp_path):
    path = tmp_path / "records"
    with TFRecordWriter(path) as writer:
        for item in range(5):
            writer.write(b"%d" % item)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    dataset = TFRecordDataset([str(path), str(path)])
    expected = run(draw_numbers(dataset).__plan__)
    assert len(expected) == 10
    assert expected[:4] == run(draw_numbers(dataset.ignore_errors()).__plan__)[:4]
    check_pieces(draw_numbers(dataset).__plan__, expected)


@pytest.mark.parametrize("shards", [1, 4])
def test_what_is_drawn_for_saved_elements(tmp_path, shards):
    path = str(tmp_path / "saved")
    Dataset.range(20).save(path, shard_func=lambda x: x % shards)
    check_drawn(Dataset.load(path))
    check_drawn(kept_some(Dataset.load(path)))


def test_operators_that_do_nothing_change_nothing_that_is_drawn():
    for make in (lambda d: d.skip(0), lambda d: d.shard(1, 0), lambda d: d.take(99)):
        plan = make(kept_some(Dataset.range(13))).flat_map(pick_two).__plan__
        made = remote_parts(plan)[0]
        assert run(made) == run(plan) == drain_stream(open_stream(plan), 7)


# Static shards and shares


def shards(dataset, policy, workers=2):
    found = (piece(dataset.__plan__, "shard", i, workers, policy) for i in range(workers))
    return [bare(run(part)) for part in found]


def test_static_shards(lines):
    numbers = Dataset.range(7)
    assert shards(numbers, ShardingPolicy.DATA) == [[0, 2, 4, 6], [1, 3, 5]]
    assert shards(numbers, ShardingPolicy.FILE_OR_DATA) == [[0, 2, 4, 6], [1, 3, 5]]
    assert shards(numbers, ShardingPolicy.OFF) == [list(range(7))] * 2
    assert shards(numbers, ShardingPolicy.HINT) == [list(range(7))] * 2
    hinted = numbers.shard(SHARD_HINT, SHARD_HINT).map(lambda x: x + 1)
    assert shards(hinted, ShardingPolicy.HINT) == [[1, 3, 5, 7], [2, 4, 6]]
    text = TextLineDataset(lines)
    first, second = shards(text, ShardingPolicy.FILE)
    assert first == run(TextLineDataset([lines[0], lines[2]]).__plan__)
    assert second == run(TextLineDataset([lines[1]]).__plan__)
    assert shards(text, ShardingPolicy.FILE_OR_DATA) == [first, second]


def test_static_shards_that_are_refused(lines):
    with pytest.raises(NotFoundError, match=r"ShardingPolicy.FILE: .*ShardingPolicy.FILE_OR_DATA"):
        shards(Dataset.range(7), ShardingPolicy.FILE)
    with pytest.raises(InvalidArgumentError, match=r"reads 1 file, .*use ShardingPolicy.FILE_OR_D"):
        shards(TextLineDataset(lines[0]), ShardingPolicy.FILE)
    # Where TensorFlow refuses too few files, the elements are divided.
    halves = shards(TextLineDataset(lines[0]), ShardingPolicy.FILE_OR_DATA)
    assert count_elements(join_parts(halves)) == count_elements(
        run(TextLineDataset(lines[0]).__plan__)
    )
    with pytest.raises(FailedPreconditionError, match="SHARD_HINT is filled in"):
        shards(Dataset.range(7).shard(SHARD_HINT, SHARD_HINT), ShardingPolicy.DATA)


def shares(dataset, workers=2):
    return [bare(run(piece(dataset.__plan__, "share", i, workers))) for i in range(workers)]


def test_shares_have_all_operators_on_each_workers_part(lines, tmp_path):
    assert shares(Dataset.range(7).filter(lambda x: x > 1).take(2)) == [[2, 4], [3, 5]]
    assert shares(Dataset.range(7).enumerate()) == [
        [(0, 0), (1, 2), (2, 4), (3, 6)],
        [(0, 1), (1, 3), (2, 5)],
    ]
    pairs = Dataset.zip((Dataset.range(4), Dataset.range(10, 14)))
    assert count_elements(join_parts(shares(pairs))) == count_elements(bare(run(pairs.__plan__)))
    text = TextLineDataset(lines)
    assert count_elements(join_parts(shares(text.shuffle(5)))) == count_elements(run(text.__plan__))
    sampled = Dataset.sample_from_datasets([Dataset.range(4), Dataset.range(9)], seed=1)
    assert count_elements(join_parts(shares(sampled))) == count_elements([*range(4), *range(9)])
    path = str(tmp_path / "saved")
    Dataset.range(9).save(path, shard_func=lambda x: x % 3)
    assert shares(Dataset.load(path)) == [[0, 3, 6, 2, 5, 8], [1, 4, 7]]
    assert shares(Dataset.load(path), 1) == [[0, 3, 6, 1, 4, 7, 2, 5, 8]]
    generated = Dataset.from_generator(lambda: iter(range(5)), output_types=np.int64)
    assert shares(generated) == [[0, 2, 4], [1, 3]]
    named = n.Distribute(Dataset.range(3).__plan__, "grpc://x:1", 1, job_name="a")
    assert piece(named, "share", 1, 2) is named


def test_shares_have_caches_of_their_own(tmp_path):
    dataset = Dataset.range(4).cache(str(tmp_path / "kept"))
    assert shares(dataset) == shares(dataset) == [[0, 2], [1, 3]]


# Bounds


WITH_ACCESS = [
    (operator, source)
    for operator in OPERATORS
    for source in ("access", "failing access")
    if prepare(plan_of(operator, source)).blocked is None
]


@pytest.mark.parametrize(("operator", "source"), WITH_ACCESS)
def test_bounded_plans_are_the_first_elements(operator, source):
    plan = prepare(plan_of(operator, source))
    expected = model(plan)
    for start, stop in ((0, 1), (0, 3), (2, 5), (7, 30), (12, 13)):
        stream = open_stream(bound_plan(plan, stop), min(start, len(expected)))
        assert drain_stream(stream, 7) == expected[start:stop]


@examples(100)
@given(plans(), st.integers(0, 20), st.integers(1, 20))
def test_bounded_random_plans(plan, start, count):
    plan = prepare(piece(plan, "random", 0, 1))
    assume(plan.blocked is None)
    expected = model(plan)
    stream = open_stream(bound_plan(plan, start + count), min(start, len(expected)))
    assert drain_stream(stream, 5) == expected[start : start + count]


@pytest.mark.parametrize(
    ("make", "calls"),
    [
        (lambda d: d, 1),
        (lambda d: d.prefetch(4), 1),
        (lambda d: d.repeat(), 1),
        (lambda d: d.repeat(3).enumerate(), 1),
        (lambda d: d.batch(2).repeat(5), 2),
        (lambda d: d.skip(2), 1),
        (lambda d: d.take(45), 1),
        (lambda d: d.zip((d, d)), 2),
        (lambda d: d.concatenate(d), 1),
        (lambda d: d.shard(2, 1), 1),
        (lambda d: d.shuffle(10), 1),
        (lambda d: d.map(lambda x: x, 4).repeat(2).repeat(2).prefetch(1), 1),
        (lambda d: d.with_options(Options()), 1),
    ],
)
@pytest.mark.parametrize(("start", "stop"), [(0, 1), (5, 9), (40, 55), (90, 101), (99, 200)])
def test_bounded_plans_call_no_function_for_later_elements(make, calls, start, stop):
    called = []

    def note_call(x):
        called.append(x)
        return x

    plan = prepare(make(Dataset.range(50).map(note_call, num_parallel_calls=8)).__plan__)
    called.clear()
    if plan.cardinality >= 0:
        start, stop = min(start, plan.cardinality), min(stop, plan.cardinality)
    found = drain_stream(open_stream(bound_plan(plan, max(stop, 1)), start), 9)
    assert len(found) == stop - start
    assert len(called) == calls * len(found)


def test_bounds_keep_what_is_known_of_specs():
    plan = Dataset.range(9).map(lambda x: np.zeros(x)).ragged_batch(2)
    assert plan.element_spec is not None
    made = bound_plan(plan.__plan__, 2)
    assert made.input.found_spec == plan.__plan__.input.found_spec


# Cuts


def remote_parts(plan):
    """The plan that the client runs, the shape that it requests, and the text of `explain()`."""
    found = []

    def remote(part):
        found.append(part)
        return one_stream(part)

    made, words = cut(plan, remote)
    return made, found, words


def one_stream(part):
    """The elements of a part, as an operator that depends on their order only."""
    return n.TakeWhile(part, Function(always))


def always(*parts):
    return True


@for_every_operator()
def test_cuts_change_no_element(plan):
    made, _, _ = remote_parts(fresh(plan))
    assert drain_stream(open_stream(made), 7) == model(plan)


@examples(150)
@given(plans())
def test_cuts_of_random_plans_change_no_element(plan):
    made, found, words = remote_parts(fresh(plan))
    assert drain_stream(open_stream(made), 7) == model(plan)
    assert words is not None or made == one_stream(found[0])
    for part in found:
        if shape_of(part).kind == "single":
            assert remote_parts(part)[1:] == ([part], None)


def is_large(x):
    return x > 1


def ones():
    yield 1


@pytest.mark.parametrize(
    ("make", "local", "remote", "words"),
    [
        (
            lambda d: d.range(9).filter(is_large).batch(2).map(lambda x: x),
            ["map", "batch"],
            [["filter", "range"]],
            r"batch and all after it run in the client: it counts elements, and their numbers .*"
            r"\(filter: how many .*\); put filter after batch .*stateful = .per_worker",
        ),
        (
            lambda d: d.range(9).filter(is_large).repeat(2),
            ["repeat"],
            [["filter", "range"]],
            "repeat and all",
        ),
        (
            lambda d: d.from_generator(ones, output_types=np.int64).map(is_large).batch(2),
            [],
            [["batch", "map", "from_generator"]],
            None,
        ),
        (
            lambda d: d.zip((d.range(9), d.range(9).filter(is_large), d.range(3))),
            ["zip", "range", "range"],
            [["filter", "range"]],
            "zip and all .*: it takes elements of several datasets in turn; Options.service",
        ),
        (
            lambda d: d.range(9).map(is_large).cache(),
            ["cache"],
            [["map", "range"]],
            "cache and all .*: a cache is filled by one pass",
        ),
        (lambda d: d.range(9).unique(), [], [["unique", "range"]], None),
        (
            lambda d: d.range(9).scan(np.int64(0), lambda s, x: (s, x)).batch(2),
            [],
            [["batch", "scan", "range"]],
            None,
        ),
        (
            lambda d: d.range(9).map(is_large).window(2).flat_map(lambda w: w.batch(2)),
            ["flat_map", "window"],
            [["map", "range"]],
            "window and all",
        ),
        (
            lambda d: d.from_generator(ones, output_types=np.int64).window(2),
            ["window"],
            [["from_generator"]],
            "window and all",
        ),
        (lambda d: d.range(9).window(2), ["window", "range"], [], "nothing in it can be computed"),
        (
            lambda d: TextLineDataset(["a", "b"]).shuffle(9).batch(2),
            ["batch", "shuffle"],
            [["TextLineDataset", "from_tensor_slices"]],
            "shuffle and all",
        ),
    ],
)
def test_where_plans_are_cut(make, local, remote, words):
    made, found, said = remote_parts(make(Dataset).__plan__)
    assert [list(labels(part)) for part in found] == remote
    assert list(labels(made, found)) == local
    assert (said is None) == (words is None)
    assert re.match(words or "", said or "")


def labels(node, without=()):
    if isinstance(node, n.TakeWhile) and node.function.call is always:
        node = node.input
    if node in without:
        return
    yield node.label
    for part in node.inputs:
        yield from labels(part, without)


def test_nested_services_stay_or_go_as_one():
    inner = n.Distribute(Dataset.range(9).map(is_large).__plan__, "grpc://x:1", 1)
    filtered = Dataset.range(9).filter(is_large).__plan__
    made, found, _ = remote_parts(Dataset.zip((Dataset(inner), Dataset(filtered))).__plan__)
    assert found == [filtered]
    assert made.parts[0] is inner
    mapped = n.Map(inner, Function(is_large))
    assert remote_parts(mapped)[1:] == ([mapped], None)
    assert remote_parts(inner)[1:] == ([inner], None)
