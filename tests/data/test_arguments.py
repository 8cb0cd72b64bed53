"""Every wrong argument of a public call fails at the call and says what is wrong with it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as tf
from penstock.data import Dataset, FixedLengthRecordDataset, Options, TextLineDataset
from penstock.data import experimental as x
from penstock.errors import (
    InternalError,
    InvalidArgumentError,
    InvalidTypeError,
    NotADatasetError,
    OpError,
    OutOfRangeError,
    UnimplementedError,
)

TEN = Dataset.range(10)
PAIRS = Dataset.from_tensor_slices(([1, 2], [3, 4]))
LENGTHS = Dataset.range(1, 5, output_type=np.int32).map(lambda n: np.full(n, n))
RAGGED = Dataset.from_tensor_slices(tf.Ragged.from_rows([[1], [2, 3]]))
UNKNOWN_RANK = Dataset.from_generator(lambda: iter([1]), np.int32)
WINDOWS = TEN.window(2)
SPEC = tf.TensorSpec((), tf.int32)

Case = tuple[Callable[[], Any], type[Exception], str]

NUMBERS: list[Case] = [
    (lambda: TEN.batch(None), InvalidArgumentError, "batch: batch_size must be an integer, got N"),
    (lambda: TEN.batch([1, 2]), InvalidArgumentError, r"must be one integer, got \[1, 2\] \(list"),
    (lambda: TEN.batch(np.array([1])), InvalidArgumentError, "must be one integer, got array"),
    (lambda: TEN.batch(2.5), InvalidTypeError, r"must be an integer, got 2.5 \(float\)"),
    (lambda: TEN.batch("a"), InvalidTypeError, r"must be an integer, got 'a' \(str\)"),
    (lambda: TEN.batch(2**70), InvalidArgumentError, "batch_size must fit into 64 bits, got 118"),
    (
        lambda: TEN.batch(0),
        InvalidArgumentError,
        "Dataset.batch: batch_size must be at least 1, got 0",
    ),
    (lambda: TEN.take("long " * 30), InvalidTypeError, r"got 'long .{51}\.\.\. \(str\)"),
    (
        lambda: Dataset.range(np.int32(3)),
        InvalidArgumentError,
        "stop must be an int64, got an int32",
    ),
    (lambda: Dataset.range(), InvalidArgumentError, r"range: takes \(stop\), .* got \(\)"),
    (lambda: Dataset.range(0, 5, 0), InvalidArgumentError, "range: step must not be 0"),
    (lambda: Dataset.counter(0.5), InvalidTypeError, "counter: start must be an integer, got 0.5"),
    (lambda: Dataset.counter("a", dtype=np.float32), InvalidTypeError, "start must be a float32"),
    (
        lambda: Dataset.counter(300, dtype=np.int8),
        InvalidArgumentError,
        "counter: start must fit into int8, got 300",
    ),
    (lambda: Dataset.counter(dtype=tf.string), InvalidTypeError, "start must be a string, got 0"),
    (lambda: TEN.prefetch(-2), InvalidArgumentError, r"prefetch: .* or AUTOTUNE \(-1\), got -2"),
    (lambda: TEN.shuffle(0), InvalidArgumentError, r"shuffle: .* UNKNOWN_CARDINALITY .* got 0"),
    (lambda: TEN.shard(0, 0), InvalidArgumentError, "shard: num_shards must be at least 1, got 0"),
    (
        lambda: TEN.shard(2, 2),
        InvalidArgumentError,
        "index must be from 0 to 1 with 2 shards, got 2",
    ),
    (lambda: TEN.shard(2, -1), InvalidArgumentError, "shard: index must be from 0 to 1"),
    (lambda: TEN.window(0), InvalidArgumentError, "window: size must be at least 1"),
    (
        lambda: TEN.batch(2).rebatch([]),
        InvalidArgumentError,
        "batch_size must not be an empty list",
    ),
    (
        lambda: TEN.batch(2).rebatch(-1),
        InvalidArgumentError,
        "batch_size must be at least 0, got -1",
    ),
    (
        lambda: TEN.interleave(Dataset.range, 0),
        InvalidArgumentError,
        "cycle_length must be at least",
    ),
    (
        lambda: TEN.map(abs, 0),
        InvalidArgumentError,
        "num_parallel_calls must be at least 1, or AUTO",
    ),
]

FLAGS_AND_TEXTS: list[Case] = [
    (lambda: TEN.cache(None), InvalidArgumentError, "cache: filename must be a path, got None"),
    (
        lambda: TEN.batch(2, "yes"),
        InvalidTypeError,
        "drop_remainder must be True or False, got 'yes'",
    ),
    (lambda: TEN.batch(2, 1), InvalidTypeError, "drop_remainder must be True or False, got 1"),
    (
        lambda: TEN.batch(2, None),
        InvalidArgumentError,
        "drop_remainder must be True or False, got None",
    ),
    (lambda: TEN.cache(5), InvalidTypeError, "cache: filename must be a str, bytes or os.PathLike"),
    (lambda: TEN.save("x", 5), InvalidTypeError, "save: compression must be a string, got 5"),
    (
        lambda: TEN.save("x", "ZIP"),
        InvalidArgumentError,
        "compression must be \"GZIP\" or None, got 'ZIP'",
    ),
    (
        lambda: TEN.save("x", checkpoint_args=[]),
        InvalidTypeError,
        "checkpoint_args must be a dict of the arguments of a CheckpointManager, got",
    ),
    (
        lambda: TEN.save("x", checkpoint_args={"checkpoint": 1}),
        InvalidArgumentError,
        "must not have the key 'checkpoint'",
    ),
    (
        lambda: TEN.save("memory://x", checkpoint_args={"directory": "y"}),
        InvalidArgumentError,
        "checkpoint_args needs a folder of this machine, got 'memory://x'",
    ),
    (
        lambda: TEN.save("x", checkpoint_args={"directory": "y", "interval": 5}),
        TypeError,
        "unexpected keyword argument 'interval'",
    ),
    (
        lambda: Dataset.list_files(None),
        InvalidArgumentError,
        "file_pattern must be file names, got None",
    ),
    (lambda: Dataset.list_files(5), InvalidTypeError, "file_pattern must be file names, got 5"),
    (lambda: TextLineDataset(5), InvalidTypeError, "TextLineDataset: filenames must be file names"),
    (
        lambda: TextLineDataset(TEN),
        InvalidTypeError,
        "filenames must hold strings, got a dataset of",
    ),
    (lambda: TextLineDataset("a", 5), InvalidTypeError, "compression_type must be a string, got 5"),
    (
        lambda: FixedLengthRecordDataset("a", None),
        InvalidArgumentError,
        "record_bytes must be an int",
    ),
    (
        lambda: TEN.with_options(5),
        InvalidTypeError,
        "with_options: options must be an Options, got 5",
    ),
    (
        lambda: TEN.map(abs, 2, synchronous=True),
        InvalidArgumentError,
        "num_parallel_calls=2 exclude",
    ),
    (
        lambda: TEN.map(abs, vectorized=True, random=True),
        InvalidArgumentError,
        "vectorized and random",
    ),
    (lambda: TEN.map(abs, seed=3), InvalidArgumentError, "map: seed=3 needs random=True"),
]

STRUCTURES: list[Case] = [
    (
        lambda: Dataset(5),
        InvalidTypeError,
        r"Dataset: needs a plan, got 5 \(int\); use Dataset.from",
    ),
    (
        lambda: Dataset.from_tensors(None),
        InvalidArgumentError,
        "needs at least one value, got None",
    ),
    (
        lambda: Dataset.from_tensors(object()),
        InvalidArgumentError,
        "Dataset.from_tensors: a value of",
    ),
    (
        lambda: Dataset.from_tensor_slices(5),
        InvalidArgumentError,
        "at least one dimension, got .*5",
    ),
    (lambda: Dataset.from_tensor_slices(None), InvalidArgumentError, "nothing to slice in None"),
    (
        lambda: Dataset.from_tensor_slices(([1], [1, 2])),
        InvalidArgumentError,
        r"rows as the first, got 1 in \[0\] and 2 in \[1\]",
    ),
    (
        lambda: Dataset.from_tensor_slices({"a": [1], "b": ([2], 5)}),
        InvalidArgumentError,
        r"at least one dimension, got np.int32\(5\) \(int32\) in \['b'\]\[1\]; use",
    ),
    (
        lambda: Dataset.range(3).shuffle(),
        InvalidArgumentError,
        r"Dataset.shuffle: needs a buffer_size, .* len\(dataset\)",
    ),
    (
        lambda: Dataset.range(3, output_type=5),
        InvalidTypeError,
        "output_type: 5 is not a data type",
    ),
    (
        lambda: TEN.map(abs, output_signature=5),
        InvalidTypeError,
        "output_signature must hold specs",
    ),
    (lambda: Dataset.from_generator(iter, np.int32, args=5), InvalidTypeError, "args must be a tu"),
    (lambda: Dataset.from_generator(5, SPEC), InvalidTypeError, "from_generator: needs a function"),
    (
        lambda: Dataset.from_generator([1, 2], SPEC),
        InvalidTypeError,
        r"needs a function that returns an iterator, .*; got \[1, 2\] \(list\)",
    ),
    (
        lambda: Dataset.from_tensor_slices([{"a": 1}, {"a": 2}]),
        InvalidArgumentError,
        'cannot be made into an array; make a dict of lists, like {"a": .1, 2.}, or use',
    ),
    (
        lambda: Dataset.from_generator(iter),
        InvalidTypeError,
        "needs an output_signature, e.g. Tens",
    ),
    (
        lambda: Dataset.from_generator(iter, np.int32, output_signature=SPEC),
        InvalidTypeError,
        "output_signature already says what output_types and output_shapes do",
    ),
    (
        lambda: Dataset.from_generator(iter, (np.int32, np.int32), output_shapes=3),
        InvalidTypeError,
        "output_shapes must have the structure of output_types, got 3",
    ),
    (
        lambda: TEN.unbatch(),
        InvalidArgumentError,
        "unbatch: every component must have rows, got Ten",
    ),
    (
        lambda: Dataset.from_tensors(([1], [1, 2])).unbatch(),
        InvalidArgumentError,
        r"components of an element have \[1, 2\] rows",
    ),
    (
        lambda: next(iter(Dataset.range(3).map(lambda x: ()).unbatch())),
        InvalidArgumentError,
        "unbatch: elements must have components",
    ),
    (lambda: PAIRS.unique(), InvalidArgumentError, "unique: elements must have one component, got"),
    (
        lambda: Dataset.from_tensors(1.0).unique(),
        InvalidTypeError,
        "must be int32, int64 or strings",
    ),
    (
        lambda: WINDOWS.as_numpy_iterator(),
        InvalidTypeError,
        "as_numpy_iterator: elements are dataset",
    ),
    (
        lambda: next(WINDOWS.map(lambda d: d).as_numpy_iterator()),
        InvalidTypeError,
        "as_numpy_iterator: an element is a dataset; iterate over it",
    ),
]

MERGING: list[Case] = [
    (
        lambda: TEN.concatenate([1]),
        NotADatasetError,
        r"dataset must be a Dataset, got \[1\] \(list\)",
    ),
    (lambda: TEN.concatenate([1]), AttributeError, "concatenate: dataset must be"),
    (
        lambda: TEN.concatenate(TEN, TEN),  # type: ignore[arg-type]
        InvalidTypeError,
        "Dataset.concatenate: name must be a str, got a Dataset; concatenate one dataset at a time",
    ),
    (
        lambda: TEN.concatenate(PAIRS),
        InvalidTypeError,
        "Dataset.concatenate: elements must have the",
    ),
    (
        lambda: Dataset.zip(),
        InvalidTypeError,
        "zip: needs datasets, either as arguments or by keyw",
    ),
    (lambda: Dataset.zip(TEN, datasets=TEN), InvalidTypeError, "zip: needs datasets, either"),
    (lambda: Dataset.zip([TEN]), InvalidTypeError, "zip: a list is not a structure; use a tuple"),
    (lambda: Dataset.zip((TEN, 5)), NotADatasetError, "zip: every part must be a Dataset, got 5"),
    (lambda: Dataset.zip(()), InvalidArgumentError, r"zip: needs at least one dataset, got \(\)"),
    (
        lambda: Dataset.choose_from_datasets(TEN, TEN),
        InvalidTypeError,
        "datasets must be a list of",
    ),
    (
        lambda: Dataset.choose_from_datasets([], TEN),
        InvalidArgumentError,
        "datasets must not be empt",
    ),
    (
        lambda: Dataset.choose_from_datasets([5], TEN),
        NotADatasetError,
        r"datasets\[0\] must be a Dat",
    ),
    (
        lambda: Dataset.choose_from_datasets([TEN], PAIRS),
        InvalidTypeError,
        "must hold int64 scalars",
    ),
    (
        lambda: Dataset.sample_from_datasets([TEN], [0.5, 0.5]),
        InvalidArgumentError,
        "each of the 1 d",
    ),
    (
        lambda: Dataset.sample_from_datasets([TEN], [1]),
        InvalidTypeError,
        "must be floats, got .*int64",
    ),
    (lambda: Dataset.sample_from_datasets([TEN], [np.inf]), InvalidArgumentError, "must be finite"),
]

PADDING: list[Case] = [
    (
        lambda: RAGGED.batch(2).padded_batch(2),
        InvalidTypeError,
        "must be arrays, got Ragged.*; use ragged_batch",
    ),
    (lambda: WINDOWS.padded_batch(2), InvalidTypeError, "got DatasetSpec.*; flat_map them first"),
    (lambda: UNKNOWN_RANK.padded_batch(2), InvalidArgumentError, "unknown; give padded_shapes"),
    (
        lambda: LENGTHS.padded_batch(2, [2, 2]),
        InvalidArgumentError,
        r"\(2, 2\) cannot hold an elem",
    ),
    (lambda: LENGTHS.padded_batch(2, [-5]), InvalidArgumentError, r"must hold shapes, got \[-5\]"),
    (
        lambda: LENGTHS.padded_batch(2, ([2], [2])),
        InvalidArgumentError,
        "padded_shapes must hold sha",
    ),
    (
        lambda: PAIRS.padded_batch(2, 5),
        InvalidTypeError,
        "padded_shapes must have the structure of",
    ),
    (
        lambda: PAIRS.padded_batch(2, ([], [], [])),
        InvalidArgumentError,
        "must have the structure of",
    ),
    (lambda: LENGTHS.padded_batch(2, None, 1.5), InvalidTypeError, r"int32, got 1.5 \(float32\)"),
    (
        lambda: LENGTHS.padded_batch(2, None, [1, 2]),
        InvalidArgumentError,
        "must hold single values",
    ),
    (
        lambda: LENGTHS.padded_batch(2, None, object()),
        InvalidArgumentError,
        "padding_values: a value",
    ),
]

FUNCTIONS: list[Case] = [
    (lambda: TEN.map(5), InvalidArgumentError, "Dataset.map: needs a function, got 5"),
    (lambda: TEN.filter(lambda: True), InvalidTypeError, "filter: <lambda> at test_arguments.py:"),
    (
        lambda: PAIRS.map(lambda a: a),
        InvalidTypeError,
        r"is called with 2 arguments \(one for each component of the element\), but takes \(a\)",
    ),
    (
        lambda: TEN.map(lambda x: x, random=True),
        InvalidTypeError,
        r"with 2 arguments \(the element, and a generator because of random=True\), but",
    ),
    (
        lambda: TEN.reduce(0, lambda x: x),
        InvalidTypeError,
        r"with 2 arguments \(the state and the element\), but takes \(x\)",
    ),
    (
        lambda: TEN.group_by_window(lambda x: x, lambda x: x, 2),
        InvalidTypeError,
        r"with 2 arguments \(the key and the dataset of a window\), but takes \(x\)",
    ),
    (lambda: TEN.map(lambda: 1), InvalidTypeError, r"with 1 argument \(the element\), but"),
    (
        lambda: TEN.filter(lambda n: n),
        InvalidArgumentError,
        "must return one True or False, got np",
    ),
    (lambda: TEN.take_while(lambda n: None), InvalidArgumentError, "take_while: .* got None"),
    (
        lambda: TEN.flat_map(lambda n: n),
        NotADatasetError,
        "flat_map: .* must return a Dataset, got",
    ),
    (lambda: TEN.flat_map(lambda n: n), AttributeError, "must return a Dataset"),
    (
        lambda: TEN.scan(np.int64(0), lambda s, n: s),
        InvalidTypeError,
        r"scan: .* \(state, output\)",
    ),
    (
        lambda: TEN.scan(0, lambda s, n: (s + n, n)),
        InvalidTypeError,
        "changed the dtype of its stat",
    ),
    (
        lambda: TEN.group_by_window(abs, max),
        InvalidArgumentError,
        "window_size or window_size_func",
    ),
    (
        lambda: TEN.group_by_window(lambda n: np.int32(1), lambda k, d: d, 2),
        InvalidArgumentError,
        "group_by_window: .* a key must be one int64",
    ),
    (
        lambda: TEN.group_by_window(lambda n: n, lambda k, d: k, 2),
        NotADatasetError,
        "group_by_window: .* must return a Dataset",
    ),
    (lambda: TEN.apply(5), InvalidTypeError, "apply: needs a function, got 5"),
    (lambda: TEN.apply(lambda d: 5), InvalidTypeError, "apply: .* must return a Dataset, got 5"),
    (
        lambda: LENGTHS.bucket_by_sequence_length(len, [3], [2]),
        InvalidArgumentError,
        r"must be one more than bucket_boundaries \(1\), got 1",
    ),
    (
        lambda: LENGTHS.bucket_by_sequence_length(len, [3, 2], [2, 2, 2]),
        InvalidArgumentError,
        r"bucket_boundaries must rise, got \[3, 2\]; sort them, each once",
    ),
    (
        lambda: LENGTHS.bucket_by_sequence_length(len, [3, 3], [2, 2, 2]),
        InvalidArgumentError,
        r"bucket_boundaries must rise, got \[3, 3\]",
    ),
    (
        lambda: list(
            LENGTHS.bucket_by_sequence_length(len, [2], [2, 2], pad_to_bucket_boundary=True)
        ),
        InternalError,
        "lengths must be below the last of bucket_boundaries, 2",
    ),
    (
        lambda: TEN.rejection_resample(abs, "a"),
        InvalidArgumentError,
        "target_dist must be a list of",
    ),
    (lambda: TEN.rejection_resample(abs, [-1, 2]), InvalidArgumentError, "one per class, got"),
    (
        lambda: TEN.rejection_resample(abs, [1, 2]),
        InvalidArgumentError,
        r"target_dist must sum to 1, got \[1, 2\], which sums to 3; divide it by its sum",
    ),
    (
        lambda: TEN.rejection_resample(abs, [0.5, 0.5], [1]),
        InvalidArgumentError,
        "target_dist has 2 classes, initial_dist 1",
    ),
    (
        lambda: list(TEN.rejection_resample(lambda n: 5, [0.5, 0.5])),
        InvalidArgumentError,
        "class_func must return 0 to 1, got 5",
    ),
]

RESULTS: list[Case] = [
    (lambda: TEN[10], OutOfRangeError, r"Dataset\[10\]: there are 10 elements"),
    (lambda: TEN[-11], OutOfRangeError, r"Dataset\[-11\]: there are 10 elements"),
    (lambda: TEN["a"], InvalidTypeError, r"Dataset\[...\]: an index must be an integer, got 'a'"),
    (lambda: TEN[::-1], InvalidArgumentError, "step must be at least 1, got -1"),
    (
        lambda: TEN.filter(lambda n: True)[0],
        UnimplementedError,
        r"no random access \(filter: how many",
    ),
    (
        lambda: TEN.filter(lambda n: True)[-1],
        InvalidTypeError,
        r"Dataset\[-1\]: the length is not known",
    ),
    (lambda: len(TEN.repeat()), InvalidTypeError, r"len\(Dataset\): the dataset is infinite"),
    (
        lambda: len(TEN.repeat(10**18)),
        InvalidTypeError,
        r"len\(Dataset\): 10{19} elements are more than len\(\) can return; use cardinality\(\)",
    ),
    (
        lambda: len(TEN.unique()),
        InvalidTypeError,
        "length is not known before all elements are made",
    ),
    (lambda: TEN.reduce(0, lambda s, n: s + n), InvalidTypeError, "changed the dtype of its state"),
    (lambda: TEN.get_single_element(), InvalidArgumentError, "exactly one element, there is more"),
    (lambda: TEN.take(0).get_single_element(), InvalidArgumentError, "there is none"),
]

EXPERIMENTAL: list[Case] = [
    (lambda: x.at(TEN, -1), OutOfRangeError, "at: index must be at least 0, got -1"),
    (lambda: x.from_list(5), InvalidTypeError, "from_list: needs a list of elements, got 5"),
    (lambda: x.from_list([]), InvalidArgumentError, "from_list: needs at least one element"),
    (
        lambda: TEN.repeat().apply(x.pad_to_cardinality(4)),
        InvalidArgumentError,
        "must be known, got -1",
    ),
    (
        lambda: TEN.apply(x.pad_to_cardinality(4)),
        InvalidArgumentError,
        "there are 10 elements already",
    ),
    (
        lambda: TEN.apply(x.pad_to_cardinality(11)),
        InvalidArgumentError,
        "elements must be dicts, got",
    ),
    (
        lambda: x.CsvDataset("a", [[1, 2]]),
        InvalidArgumentError,
        "must hold dtypes or single values",
    ),
    (
        lambda: x.CsvDataset("a", [object()]),
        InvalidArgumentError,
        "record_defaults: a value of type",
    ),
    (lambda: x.CsvDataset("a", [tf.int8]), InvalidTypeError, "one of int32, .*, got int8"),
    (
        lambda: x.CsvDataset("a", [[0]], select_cols=[2, 1]),
        InvalidArgumentError,
        r"must rise, got \[2, 1",
    ),
    (
        lambda: x.CsvDataset("a", [[0]], select_cols=[0], exclude_cols=[1]),
        InvalidArgumentError,
        "select_cols and exclude_cols exclude each other",
    ),
    (
        lambda: x.make_csv_dataset("a", 2, encoding="x"),
        InvalidArgumentError,
        "encoding must be one that Python knows, such as \"utf-8\", got 'x'",
    ),
]

CASES = [
    *(NUMBERS + FLAGS_AND_TEXTS + STRUCTURES + MERGING),
    *(PADDING + FUNCTIONS + RESULTS + EXPERIMENTAL),
]


@pytest.mark.parametrize(("call", "kind", "match"), CASES, ids=[case[2][:40] for case in CASES])
def test_a_wrong_argument_fails_at_the_call(
    call: Callable[[], Any], kind: type[Exception], match: str
) -> None:
    with pytest.raises(kind, match=match):
        call()


@pytest.mark.parametrize("value", [2, True + 1, np.int32(2), np.int64(2), np.array(2), np.uint8(2)])
def test_every_integer_is_an_integer(value: Any) -> None:
    assert len(TEN.batch(value)) == 5


def test_a_dataset_is_never_taken_for_a_vector() -> None:
    with pytest.raises(InvalidTypeError, match="batch_size must be an integer, got <Dataset range"):
        TEN.batch(TEN)  # type: ignore[arg-type]


@pytest.fixture
def csv_file(tmp_path: Path) -> str:
    path = tmp_path / "a.csv"
    path.write_text("x,y\n1,a\n2,b\n")
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"header": False}, "make_csv_dataset: needs column_names where there is no header"),
        ({"column_names": ["x", "x"]}, r"column_names must differ, got \['x', 'x'\]"),
        ({"select_columns": ["z"]}, r"names or numbers of columns \['x', 'y'\], got 'z'"),
        ({"column_defaults": [0]}, "one for each of the 2 columns that are read, got 1"),
        ({"label_name": "z"}, r"must be one of the columns \['x', 'y'\], got 'z'"),
    ],
)
def test_wrong_columns(csv_file: str, arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidArgumentError, match=match):
        x.make_csv_dataset(csv_file, 2, **arguments)


def test_headers_that_differ(csv_file: str) -> None:
    other = Path(csv_file).with_name("b.csv")
    other.write_text("x,z\n")
    with pytest.raises(InvalidArgumentError, match="all files must have one header, got"):
        x.make_csv_dataset([csv_file, str(other)], 2)


def fail(x: Any) -> Any:
    raise KeyError("x")


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("bucket_by_sequence_length", lambda d: d.bucket_by_sequence_length(fail, [3], [2, 2])),
        ("rejection_resample", lambda d: d.rejection_resample(fail, [0.5, 0.5], [0.5, 0.5])),
    ],
)
def test_a_failing_function_is_named_with_the_call_that_got_it(
    name: str, make: Callable[[Dataset], Dataset]
) -> None:
    with pytest.raises(OpError, match=f"^Dataset.{name}: fail at test_arguments.py:.* failed for"):
        list(make(TEN.map(lambda x: x)))


def test_bucket_sizes_are_at_least_1() -> None:
    made = LENGTHS.bucket_by_sequence_length(len, [3], [2, 0])
    match = "^Dataset.bucket_by_sequence_length: bucket_batch_sizes must be at least 1, got 0"
    with pytest.raises(InvalidArgumentError, match=match):
        list(made)


def test_choices_of_a_function_must_be_integers() -> None:
    made = Dataset.choose_from_datasets([TEN, TEN], Dataset.range(2).map(float))
    match = (
        r"^Dataset.choose_from_datasets: choice_dataset must hold int64 scalars, got .*0\.0.*; map"
    )
    with pytest.raises(InvalidTypeError, match=match):
        list(made)


def test_options_of_a_dataset_are_frozen() -> None:
    options = Dataset.range(3).with_options(Options(deterministic=True)).options()
    with pytest.raises(ValueError, match="cannot change; make new ones"):
        options.deterministic = False
