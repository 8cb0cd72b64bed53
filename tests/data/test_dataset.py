"""Arguments of methods of `Dataset` that the tests of the operators do not cover."""

import inspect
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import penstock as tf
from penstock.data import AUTOTUNE, Dataset, experimental
from penstock.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from penstock.plan import nodes

TEN = Dataset.range(10)


class Point(NamedTuple):
    x: Any
    y: Any


def ints(dataset: Any) -> list[int]:
    return [int(element) for element in dataset]


def lists(dataset: Any) -> list[Any]:
    return [element.tolist() for element in dataset]


def lengths(*sizes: int) -> Dataset:
    return Dataset.from_tensor_slices(np.array(sizes)).map(lambda n: np.full(n, n))


def test_elements_share_memory_but_cannot_be_written_to() -> None:
    rows = np.zeros((4, 2))
    for element in (*Dataset.from_tensor_slices(rows), *Dataset.from_tensor_slices(rows).batch(2)):
        assert np.shares_memory(element, rows)
        assert not element.flags.writeable
    assert rows.flags.writeable
    ragged = tf.Ragged.from_rows([[1, 2], [3]])
    assert not next(iter(Dataset.from_tensor_slices(ragged))).flags.writeable


def test_what_every_iteration_hands_out_again_cannot_be_written_to() -> None:
    rows = np.zeros((4, 2))
    held = [rows[0], rows[1]]
    for ds in (Dataset.from_tensors({"a": rows}), experimental.from_list([{"a": a} for a in held])):
        for copy in (ds, pickle.loads(pickle.dumps(ds))):
            assert not any(element["a"].flags.writeable for element in copy)
    assert rows.flags.writeable


def test_a_scan_may_write_to_its_state_but_not_to_what_was_given() -> None:
    def add(state: Any, n: Any) -> Any:
        state += n
        return state, state.copy()

    start = np.zeros(1, np.int64)
    sums = TEN.take(3).scan(start, add)
    assert lists(sums) == lists(sums) == [[0], [1], [3]]
    assert start.tolist() == [0]


def test_a_slice_is_lazy_and_like_that_of_a_list() -> None:
    numbers = list(range(10))
    for part in (slice(2, 5), slice(-3, None), slice(None, -7), slice(1, 9, 3), slice(8, 20)):
        assert ints(TEN[part]) == numbers[part]
        assert len(TEN[part]) == len(numbers[part])
    assert ints(TEN[5:2]) == []
    assert ints(Dataset.counter()[3:6]) == [3, 4, 5]


def test_an_index_counts_from_either_end() -> None:
    assert int(TEN[3]) == 3
    assert int(TEN[-1]) == 9
    assert TEN.batch(4)[2].tolist() == [8, 9]


def test_a_dataset_is_true_even_if_it_is_empty() -> None:
    assert bool(Dataset.range(0))
    assert len(Dataset.range(0)) == 0


def test_more_elements_than_an_int64_can_count() -> None:
    endless = TEN.repeat(10**18)
    assert int(endless.cardinality()) == np.iinfo(np.int64).max
    assert ints(endless.take(11)) == [*range(10), 0]


def test_a_range_wraps_in_a_small_dtype() -> None:
    bytes_ = Dataset.range(300, output_type=np.int8)
    assert ints(bytes_) == np.arange(300).astype(np.int8).tolist()
    assert ints(bytes_.shuffle(300, seed=1)) != ints(bytes_)
    assert next(iter(bytes_)).dtype == np.int8


def test_negative_counts() -> None:
    assert ints(TEN.take(-5)) == list(range(10))
    assert ints(TEN.skip(-1)) == []
    assert int(TEN.repeat(-7).cardinality()) == tf.data.INFINITE_CARDINALITY


def test_every_public_method_has_an_example() -> None:
    methods = [m for name, m in vars(Dataset).items() if not name.startswith("_")]
    texts = [inspect.getdoc(getattr(method, "__func__", method)) or "" for method in methods]
    assert len(texts) > 40
    assert [text for text in texts if ">>>" not in text] == []


def test_a_named_tuple_is_one_argument() -> None:
    points = Dataset.from_tensor_slices(Point([1, 2], [3, 4]))
    assert ints(points.map(lambda p: p.x * p.y)) == [3, 8]
    assert ints(points.map(tuple).map(lambda x, y: x * y)) == [3, 8]


def test_arguments_of_a_generator_are_numpy_values() -> None:
    seen: list[Any] = []

    def generate(*args: Any) -> Any:
        seen.append(args)
        return iter([1])

    assert ints(Dataset.from_generator(generate, np.int32, args=(2, "x", [1.5]))) == [1]
    number, text, vector = seen[-1]
    assert (number.dtype, text, vector.dtype) == (np.int32, b"x", np.float32)


def test_a_dataset_travels_without_its_iterations() -> None:
    copy = pickle.loads(pickle.dumps(TEN.shuffle(10, seed=1)))
    assert ints(copy) == ints(TEN.shuffle(10, seed=1))


@pytest.mark.parametrize(
    "dataset",
    [
        TEN.map(lambda n: n * 3).filter(lambda n: n > 5),
        (lambda factor: TEN.map(lambda n: n * factor))(4),
        TEN.flat_map(lambda n: Dataset.range(n).map(lambda m: m + n)),
        Dataset.from_generator(lambda: iter([1, 2]), np.int64).cache(),
        Dataset.from_tensors(TEN).flat_map(lambda ds: ds),
    ],
)
def test_functions_without_a_name_travel_too(dataset: Dataset) -> None:
    copy = pickle.loads(pickle.dumps(dataset))
    assert type(copy) is Dataset
    assert ints(copy) == ints(dataset)


def test_a_reader_comes_back_as_a_dataset(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    copy = pickle.loads(pickle.dumps(tf.data.TextLineDataset(tmp_path / "a.txt")))
    assert type(copy) is Dataset
    assert list(copy) == [b"one", b"two"]


def test_every_iteration_of_one_dataset_is_shuffled_anew() -> None:
    once, kept = TEN.shuffle(10, seed=1), TEN.shuffle(10, seed=1, reshuffle_each_iteration=False)
    assert ints(once) != ints(once)
    assert ints(kept) == ints(kept)


def test_a_full_shuffle_by_unknown_cardinality() -> None:
    assert ints(TEN.shuffle(tf.data.UNKNOWN_CARDINALITY, seed=1)) == ints(TEN.shuffle(10, seed=1))


def test_shard_waits_for_a_hint() -> None:
    hint = experimental.SHARD_HINT
    assert int(TEN.shard(hint, hint).cardinality()) == tf.data.UNKNOWN_CARDINALITY


class TestBuckets:
    def test_batches_of_similar_lengths(self) -> None:
        ds = lengths(1, 5, 2, 4, 3).bucket_by_sequence_length(len, [3, 5], [2, 2, 2])
        assert lists(ds) == [
            [[1, 0], [2, 2]],
            [[4, 4, 4, 4], [3, 3, 3, 0]],
            [[5, 5, 5, 5, 5]],
        ]
        assert repr(ds.element_spec.shape) == "TensorShape([None, None])"

    def test_len_of_a_dict_is_refused(self) -> None:
        ds = lengths(1, 2).map(lambda x: {"ids": x, "label": 0})
        ds = ds.bucket_by_sequence_length(len, [3], [2, 2])
        words = r"len counts the features ids, label; write .* lambda row: len\(row\['ids'\]\)"
        with pytest.raises(InvalidArgumentError, match=words):
            list(ds)

    def test_the_length_of_one_window_does_not_limit_other_windows(self) -> None:
        ds = lengths(2, 2, 1, 2).bucket_by_sequence_length(len, [4], [2, 2])
        assert lists(ds) == [[[2, 2], [2, 2]], [[1, 0], [2, 2]]]

    @pytest.mark.parametrize("sizes", [(1, 2), (2, 2), (2, 1)])
    def test_to_the_boundary(self, sizes: tuple[int, int]) -> None:
        ds = lengths(*sizes).bucket_by_sequence_length(
            len, [5], [2, 2], pad_to_bucket_boundary=True
        )
        assert [batch.shape for batch in ds] == [(2, 4)]

    def test_to_the_boundary_where_shapes_are_declared(self) -> None:
        ds = Dataset.from_tensor_slices(np.ones((2, 2, 3))).bucket_by_sequence_length(
            len, [5], [2, 2], padded_shapes=[None, 3], pad_to_bucket_boundary=True
        )
        assert [batch.shape for batch in ds] == [(2, 4, 3)]

    @pytest.mark.parametrize("sizes", [(1, 2, 3, 4, 8, 8), (2, 2, 4, 4)])
    @pytest.mark.parametrize("declared", [False, True])
    def test_the_spec_holds_for_every_bucket(self, sizes: tuple[int, ...], declared: bool) -> None:
        ds = lengths(*sizes)
        if declared:
            wide = tf.TensorSpec([None], tf.int64)
            ds = ds.map(lambda x: x, output_signature=wide)
        for boundary in (False, True):
            made = ds.bucket_by_sequence_length(
                len, [3, 6, 9], [2] * 4, pad_to_bucket_boundary=boundary
            )
            shape = made.element_spec.shape
            assert all(shape.fits(batch.shape) for batch in made)
            assert shape.dims == (None, None)

    def test_the_spec_of_one_bucket_is_its_own(self) -> None:
        ds = lengths(1, 2).bucket_by_sequence_length(len, [5], [2, 2], pad_to_bucket_boundary=True)
        assert ds.element_spec.shape.dims == (None, 4)

    def test_an_endless_dataset_stays_endless(self) -> None:
        ds = lengths(1, 2).repeat().bucket_by_sequence_length(len, [5], [2, 2])
        assert ds.cardinality() == experimental.INFINITE_CARDINALITY

    def test_without_padding(self) -> None:
        ds = lengths(2, 2).bucket_by_sequence_length(len, [3], [2, 2], no_padding=True)
        assert lists(ds) == [[[2, 2], [2, 2]]]


class TestPadding:
    def test_minus_one_is_an_unknown_dimension(self) -> None:
        assert lists(lengths(1, 2).padded_batch(2, padded_shapes=[-1])) == [[[1, 0], [2, 2]]]

    def test_one_value_for_all_components(self) -> None:
        pairs = Dataset.zip(lengths(1, 2), lengths(2, 1))
        (first, second), *_ = pairs.padded_batch(2, padding_values=np.int64(9))
        assert (first.tolist(), second.tolist()) == ([[1, 9], [2, 2]], [[2, 2], [1, 9]])

    def test_none_means_the_defaults_of_all_leaves_below_it(self) -> None:
        ds = lengths(1, 2).map(lambda x: (x, {"s": x, "t": (x, x)}))
        ((first, rest),) = ds.padded_batch(2, padding_values=(np.int64(-1), None))
        zeros = [[1, 0], [2, 2]]
        assert first.tolist() == [[1, -1], [2, 2]]
        assert [x.tolist() for x in (rest["s"], *rest["t"])] == [zeros] * 3
        with pytest.raises(ValueError, match="padding_values must have the structure"):
            ds.padded_batch(2, padding_values=(np.int64(-1), {"other": None}))

    def test_a_tensor_shape_is_a_shape(self) -> None:
        ds = lengths(1, 2).padded_batch(2, padded_shapes=tf.TensorShape([3]))
        assert lists(ds) == [[[1, 0, 0], [2, 2, 0]]]


class TestResampling:
    def test_a_target_may_be_rounded(self) -> None:
        drawn = TEN.rejection_resample(lambda n: n % 3, [0.33, 0.33, 0.33], [1, 1, 1])
        assert sorted(int(n) for _, n in drawn) == list(range(10))

    @pytest.mark.parametrize("initial", [None, [0.9, 0.1]])
    def test_reaches_the_target(self, initial: Any) -> None:
        ds = Dataset.range(20_000).map(lambda n: (n, n % 10 == 9))
        drawn = ds.rejection_resample(lambda n, rare: int(rare), [0.5, 0.5], initial, seed=1)
        classes = [int(number) for number, _ in drawn]
        assert 0.45 < np.mean(classes) < 0.55
        assert classes.count(1) > 1900

    def test_the_most_wanted_class_is_never_dropped(self) -> None:
        drawn = TEN.rejection_resample(lambda n: n % 2, [0.0, 1.0], [0.5, 0.5])
        assert [int(n) for _, n in drawn] == [1, 3, 5, 7, 9]

    def test_an_endless_dataset_stays_endless(self) -> None:
        drawn = TEN.repeat().rejection_resample(lambda n: n % 2, [0.5, 0.5], [0.5, 0.5])
        assert int(drawn.cardinality()) == tf.data.INFINITE_CARDINALITY
        assert len(list(drawn.take(50))) == 50


class TestSampling:
    def test_weights_for_every_choice(self) -> None:
        weights = Dataset.from_tensor_slices([[0.0, 1.0], [1.0, 0.0]]).repeat()
        ds = Dataset.sample_from_datasets([Dataset.range(3), Dataset.range(10, 13)], weights)
        assert ints(ds.take(4)) == [10, 0, 11, 1]

    def test_a_dataset_without_weight_is_left_out(self) -> None:
        ds = Dataset.sample_from_datasets([TEN, Dataset.range(3)], [0.0, 0.5])
        assert ints(ds) == [0, 1, 2]
        assert ints(Dataset.sample_from_datasets([TEN, TEN], [0.0, 0.0])) == []

    def test_the_order_is_the_same_in_every_iteration_unless_asked(self) -> None:
        parts = [Dataset.from_tensors(i).repeat(30) for i in (0, 1)]
        same = Dataset.sample_from_datasets(parts, seed=1)
        assert ints(same) == ints(same)
        other = Dataset.sample_from_datasets(parts, seed=1, rerandomize_each_iteration=True)
        assert ints(other) != ints(other)

    @pytest.mark.parametrize(
        ("endless", "stop", "cardinality"), [(2, True, -1), (1, False, -1), (1, True, -2)]
    )
    def test_endless_parts(self, endless: int, stop: bool, cardinality: int) -> None:
        parts = [TEN.repeat()] * endless + [TEN] * (2 - endless)
        ds = Dataset.sample_from_datasets(parts, stop_on_empty_dataset=stop)
        assert int(ds.cardinality()) == cardinality


def test_interleave_opens_two_datasets_on_every_machine() -> None:
    for cycle in (None, AUTOTUNE):
        ds = TEN.take(3).interleave(lambda n: Dataset.from_tensors(n).repeat(2), cycle)
        assert ints(ds) == [0, 1, 0, 1, 2, 2]


def test_a_map_without_a_seed_draws_one() -> None:
    ds = TEN.map(lambda n, random: random.integers(1000), random=True)
    assert isinstance(ds._plan, nodes.Map)
    assert ds._plan.random is not None
    assert ints(ds.take(3)) == [int(ds[i]) for i in range(3)]


def test_a_declared_signature_needs_no_call() -> None:
    calls: list[Any] = []
    ds = TEN.map(lambda n: calls.append(n) or n, output_signature=tf.TensorSpec((), tf.int64))
    assert "element_spec=TensorSpec(shape=(), dtype=tf.int64" in repr(ds)
    assert calls == []
    assert repr(TEN.map(abs)) == "<Dataset map(abs), 10 elements>"
    assert calls == []


def test_slices_of_datasets() -> None:
    parts = [Dataset.range(2), Dataset.range(3)]
    dataset = Dataset.from_tensor_slices(parts)
    assert len(dataset) == 2
    assert ints(dataset.interleave(lambda part: part)) == [0, 0, 1, 1, 2]
    pairs = Dataset.from_tensor_slices({"part": parts, "number": [7, 8]})
    made = pairs.flat_map(lambda one: one["part"].map(lambda x: x * one["number"]))
    assert ints(made) == [0, 7, 0, 8, 16]
    with pytest.raises(ValueError, match=r"from_tensor_slices: .* cannot be made into an array"):
        Dataset.from_tensor_slices([Dataset.range(2), 3])


VARYING = {
    "later": lambda x: np.zeros(3 if x < 3 else 4),
    "at once": lambda x: np.zeros(x),
    "never": lambda x: np.zeros(3),
}


@pytest.mark.parametrize("asked", [False, True], ids=["", "spec asked before"])
@pytest.mark.parametrize("make", VARYING.values(), ids=VARYING)
def test_what_samples_show_decides_nothing(make: Any, asked: bool) -> None:
    """Two elements of one shape do not prove the shape of the third."""
    ds = Dataset.range(6).map(make)
    if asked:
        assert ds.element_spec.dtype == np.float64
    ragged = ds.ragged_batch(2)
    shapes = [len(make(x)) for x in range(6)]
    assert [len(row) for batch in ragged for row in batch] == shapes
    assert all(isinstance(batch, tf.Ragged) for batch in ragged)
    assert ragged.element_spec.shape.dims == (None, None)
    padded = ds.padded_batch(2)
    assert all(padded.element_spec.shape.fits(batch.shape) for batch in padded)
    assert ds.unbatch().cardinality() == experimental.UNKNOWN_CARDINALITY
    assert ds.rebatch(3).element_spec.shape.dims == (None,)


def test_a_ragged_batch_says_which_dimension_it_did_not_expect() -> None:
    ds = Dataset.range(6).map(lambda x: np.zeros((3, 3 if x < 3 else 4))).ragged_batch(2)
    with pytest.raises(ValueError, match=r"has shape \(3, 4\), but those before it \(None, 3\)"):
        list(ds)
    spec = tf.TensorSpec([None, None], tf.float64)
    ds = Dataset.range(6).map(lambda x: np.zeros((3, 3 if x < 3 else 4)), output_signature=spec)
    assert [x[1][0].shape for x in ds.ragged_batch(2)] == [(3,), (4,), (4,)]


def test_ragged_batches_of_elements_without_rows() -> None:
    def generate() -> Any:
        yield np.zeros((0, 3, 0, 4))
        yield np.ones((1, 3, 2, 4))

    spec = tf.TensorSpec([None, 3, None, 4], tf.float64)
    ds = Dataset.from_generator(generate, output_signature=spec).ragged_batch(2)
    (batch,) = ds
    assert [len(row) for row in batch] == [0, 1]
    assert [part.shape for part in batch[1][0]] == [(2, 4)] * 3
    assert ds.element_spec.shape.dims == (None, None, 3, None, 4)


def test_unbatch_leaves_none_as_it_is() -> None:
    ds = Dataset.range(4).map(lambda x: (x, None)).batch(2).unbatch()
    assert [(int(x), none) for x, none in ds] == [(x, None) for x in range(4)]
    with pytest.raises(ValueError, match="an element is a single value and has no rows"):
        list(Dataset.range(4).map(lambda x: (x, None)).unbatch())


def test_endless_datasets_that_must_end_are_refused() -> None:
    endless = experimental.assert_cardinality(experimental.INFINITE_CARDINALITY)
    iterator = iter(Dataset.range(2).apply(endless))
    assert [int(next(iterator)), int(next(iterator))] == [0, 1]
    with pytest.raises(tf.errors.FailedPreconditionError, match="expected endless elements"):
        next(iterator)
    assert ints(Dataset.range(2).repeat().apply(endless).take(3)) == [0, 1, 0]


@pytest.mark.parametrize(
    "make",
    [
        lambda ds: ds.group_by_window(lambda x: x % 2, lambda key, w: w.batch(2), 2),
        lambda ds: ds.interleave(lambda x: Dataset.range(2), num_parallel_calls=2),
    ],
)
def test_what_is_endless_and_what_is_not_known(make: Any) -> None:
    assert make(TEN.repeat()).cardinality() == experimental.INFINITE_CARDINALITY
    assert make(TEN).cardinality() == experimental.UNKNOWN_CARDINALITY


def test_shuffle_true_is_the_habit_of_another_library() -> None:
    with pytest.warns(UserWarning, match=r"shuffles nothing; write shuffle\(len\(dataset\)\)"):
        Dataset.range(3).shuffle(True)


def test_select_computes_only_the_elements_at_positions() -> None:
    seen: list[int] = []

    def square(x: Any) -> Any:
        seen.append(int(x))
        return x * x

    chosen = Dataset.range(10).map(square).select(np.array([3, 9, 3], np.uint8))
    assert len(chosen) == 3
    assert [int(x) for x in chosen] == [9, 81, 9]
    assert set(seen) == {3, 9}
    assert int(chosen[1]) == 81
    assert [int(x) for x in Dataset.range(4).repeat().select(range(3, 6))] == [3, 0, 1]
    assert list(Dataset.range(4).select([])) == []


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ([10], "positions must be from 0 to 9, got 10"),
        ([0, -1], "positions must be from 0 to 9, got -1"),
        ([0.5], "must be a list or an array of integers, got"),
        ([[1]], "must be a list or an array of integers, got"),
        ([True, False], "got .*; numpy.flatnonzero makes positions of a mask"),
    ],
)
def test_positions_that_are_refused(positions: Any, message: str) -> None:
    with pytest.raises((InvalidArgumentError, InvalidTypeError), match=f"select: .*{message}"):
        Dataset.range(10).select(positions)


def test_select_needs_random_access() -> None:
    with pytest.raises(FailedPreconditionError, match="lacks because of filter: .* or use filter"):
        Dataset.range(10).filter(lambda x: True).select([1])
    with pytest.raises(InvalidArgumentError, match="positions must be at least 0, got -1"):
        Dataset.range(10).repeat().select([-1])
