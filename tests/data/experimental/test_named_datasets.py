"""Names of `tf.data.experimental` in plain penstock: NumPy values, texts of errors, states."""

import bz2
import functools
import gzip
import pathlib
import sqlite3
from contextlib import closing

import numpy as np
import pytest

import penstock
from penstock.data import Dataset, TFRecordDataset
from penstock.data import experimental as exp
from penstock.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    UnfitTypeError,
    UnknownError,
)
from penstock.io import FixedLenFeature, RaggedFeature, VarLenFeature, serialize_example


@pytest.fixture
def database(tmp_path: pathlib.Path) -> str:
    path = str(tmp_path / "a #1?.sqlite")
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE a (x INTEGER, y TEXT)")
    connection.executemany("INSERT INTO a VALUES (?, ?)", [(i, f"t{i}") for i in range(9)])
    connection.commit()
    connection.close()
    return path


def query(path, text="SELECT x, y FROM a", types=(np.int64, "string")):
    return exp.SqlDataset("sqlite", path, text, types)


def test_a_query_can_be_resumed(database):
    iterator = iter(query(database))
    first = [next(iterator) for _ in range(4)]
    resumed = iter(query(database))
    resumed.load_state_dict(iterator.state_dict())
    rest = [(int(x), y) for x, y in resumed]
    assert [int(x) for x, _ in first] == [0, 1, 2, 3]
    assert rest == [(i, b"t%d" % i) for i in range(4, 9)]


def test_a_query_reads_what_is_there_now(database):
    dataset = query(database, "SELECT count(*) FROM a", np.int32)
    assert list(dataset) == [9]
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("DELETE FROM a WHERE x > 3")
    assert list(dataset) == [4]


def test_a_service_runs_queries(database):
    remote = query(database).apply(exp.service.distribute("distributed_epoch", "local://1"))
    assert [int(x) for x, _ in remote] == list(range(9))


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        ("SELECT z FROM a", UnknownError, r"SqlDataset: 'SELECT z FROM a' of .* no such column: z"),
        ("SELECT x FROM a", InvalidArgumentError, "returns 1 columns, but output_types has 2"),
        ("DELETE FROM a", InvalidArgumentError, "attempt to write a readonly database"),
    ],
)
def test_queries_that_fail(database, text, error, match):
    with pytest.raises(error, match=match):
        list(query(database, text))
    assert len(list(query(database))) == 9


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (("pg", "p", "q", (np.int32,)), InvalidArgumentError, "must be \"sqlite\", got 'pg'"),
        (("sqlite", "p", None, (np.int32,)), InvalidArgumentError, "query must be a string, got N"),
        (("sqlite", 3, "q", (np.int32,)), InvalidTypeError, "data_source_name must be a string"),
        (("sqlite", "p", "q", (np.float32,)), InvalidArgumentError, "must be of int8, .* float32"),
        (("sqlite", "p", "q", [np.int32]), InvalidTypeError, "must be a tuple of dtypes, got"),
    ],
)
def test_arguments_of_queries(arguments, error, match):
    with pytest.raises(error, match=f"SqlDataset: .*{match}"):
        exp.SqlDataset(*arguments)


@pytest.mark.parametrize("compression", [None, "GZIP", "ZLIB"])
def test_a_dataset_of_strings_is_written(tmp_path, compression):
    path = tmp_path / "records"
    strings = Dataset.range(5).map(lambda x: b"%d" % x)
    exp.TFRecordWriter(path, compression).write(strings)
    assert list(TFRecordDataset(path, compression)) == [b"%d" % x for x in range(5)]


def test_other_elements_are_not_written(tmp_path):
    writer = exp.TFRecordWriter(tmp_path / "records")
    for dataset in (Dataset.range(3), Dataset.from_tensors([b"a"]), Dataset.from_tensors((b"", 1))):
        with pytest.raises(TypeError, match=r"TFRecordWriter.write: elements must be single st"):
            writer.write(dataset)
    with pytest.raises(InvalidArgumentError, match="compression_type must be"):
        exp.TFRecordWriter(tmp_path / "records", "LZ4")
    assert not (tmp_path / "records").exists()


PAIRS = Dataset.from_tensor_slices((["a", "b"], np.array([5, 6])))


def test_tables_are_of_numpy_values():
    table = exp.table_from_dataset(PAIRS, default_value=-7)
    assert table.lookup(np.array([["b", "x"]])).tolist() == [[6, -7]]
    assert table[b"a"] == 5
    assert type(table.lookup("a")) is np.int64
    assert (len(table), table.key_dtype.name, table.value_dtype.name) == (2, "string", "int64")
    buckets = exp.index_table_from_dataset(Dataset.range(3, 5), 4, key_dtype=np.int64)
    assert buckets.lookup(np.array([4, 3])).tolist() == [1, 0]
    assert 2 <= buckets.lookup(np.int64(9)) < 6
    assert buckets.size() == 6


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: exp.table_from_dataset(PAIRS.concatenate(
            Dataset.from_tensor_slices((["a"], np.array([1]))))),
         FailedPreconditionError, "table_from_dataset: the key b'a' has two values, 5 and 1"),
        (lambda: exp.table_from_dataset(Dataset.range(3)), InvalidTypeError, "needs a dataset of"),
        (lambda: exp.table_from_dataset(PAIRS.batch(1)), InvalidArgumentError, "pairs of single"),
        (lambda: exp.table_from_dataset(PAIRS, -1), InvalidArgumentError, "num_oov_buckets must"),
        (lambda: exp.table_from_dataset(PAIRS, vocab_size=0), InvalidArgumentError, "vocab_size"),
        (lambda: exp.table_from_dataset(PAIRS, key_dtype=np.float32), InvalidTypeError,
         "key_dtype must be an integer or string, got float32"),
        (lambda: exp.table_from_dataset(PAIRS, 1, key_dtype=np.int64), InvalidTypeError,
         r"num_oov_buckets needs keys of key_dtype \(int64\)"),
        (lambda: exp.table_from_dataset(PAIRS.map(lambda k, v: (v, k))), InvalidArgumentError,
         "default_value must be given where values are string"),
        (lambda: exp.table_from_dataset(PAIRS).lookup(3), InvalidTypeError,
         "keys are string, got int32"),
        (lambda: exp.table_from_dataset(PAIRS, hasher_spec=Strong()), InvalidArgumentError,
         "hasher_spec must be None"),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_made(call, error, match):
    with pytest.raises(error, match=match):
        call()


class Strong:
    hasher = "stronghash"


RECORDS = Dataset.from_tensor_slices(
    [serialize_example({"x": i, "w": ["a"] * i, "n": [i, 2 * i]}) for i in range(3)]
)


def test_parsed_examples_are_arrays_with_a_spec():
    features = {
        "x": FixedLenFeature([], "int64"),
        "w": VarLenFeature("string"),
        "n": RaggedFeature("int64", partitions=[RaggedFeature.UniformRowLength(2)]),
    }
    parsed = RECORDS.batch(2, drop_remainder=True).apply(exp.parse_example_dataset(features))
    assert parsed.element_spec["x"] == penstock.TensorSpec((2,), "int64")
    assert parsed.element_spec["w"] == penstock.RaggedTensorSpec((2, None), "string")
    assert parsed.element_spec["n"].shape == (2, None, 2)
    (batch,) = parsed
    assert type(batch["x"]) is np.ndarray
    assert batch["w"].to_list() == [[], [b"a"]]
    assert batch["n"].to_list() == [[[0, 0]], [[1, 2]]]


def test_examples_that_cannot_be_parsed():
    with pytest.raises(InvalidArgumentError, match="features must be a dict from names to feat"):
        exp.parse_example_dataset(None)
    with pytest.raises(UnfitTypeError, match="feature 'x' must be a FixedLenFeature"):
        exp.parse_example_dataset({"x": 3})
    with pytest.raises(InvalidArgumentError, match="num_parallel_calls must be an integer, got N"):
        exp.parse_example_dataset({"x": FixedLenFeature([], "int64")}, None)
    parse = exp.parse_example_dataset({"x": FixedLenFeature([], "int64")})
    with pytest.raises(InvalidTypeError, match="vectors of strings, got .*; batch the records"):
        RECORDS.apply(parse)
    with pytest.raises(UnfitTypeError, match="FixedLenFeature: dtype must be float32, .* got None"):
        FixedLenFeature([], None)


def test_batched_features_need_a_reader_and_a_label_that_exists(tmp_path):
    features = {"x": FixedLenFeature([], "int64")}
    with pytest.raises(InvalidTypeError, match="reader must be a function of a file name"):
        exp.make_batched_features_dataset(tmp_path, 2, features, reader=3)
    with pytest.raises(InvalidArgumentError, match=r"label_key must be one of the features \['x'"):
        exp.make_batched_features_dataset(tmp_path, 2, features, label_key="y")


def test_groups_are_reduced_by_functions():
    sums = exp.Reducer(lambda key: np.int64(key), lambda s, x: s + x, lambda s: {"sum": s})
    grouped = Dataset.range(6).apply(exp.group_by_reducer(lambda x: -(x % 3), sums))
    assert [int(x["sum"]) for x in grouped] == [5, 4, 3]
    with pytest.raises(TypeError, match="group_by_reducer: reducer must be a Reducer, got 3"):
        Dataset.range(3).apply(exp.group_by_reducer(lambda x: x, 3))
    with pytest.raises(InvalidArgumentError, match="a key must be one int64"):
        Dataset.range(3).apply(exp.group_by_reducer(lambda x: 0.5, sums))
    other = exp.Reducer(lambda key: np.int64(0), lambda s, x: 0.5, lambda s: s)
    with pytest.raises(InvalidTypeError, match="changed the dtype of its state"):
        Dataset.range(3).apply(exp.group_by_reducer(lambda x: x, other))


@pytest.mark.parametrize(("sloppy", "deterministic"), [(None, None), (False, True), (True, False)])
def test_the_options_order_a_parallel_interleave_that_is_neither(sloppy, deterministic):
    one = exp.parallel_interleave(Dataset.from_tensors, cycle_length=2, sloppy=sloppy)
    assert Dataset.range(3).apply(one).__plan__.deterministic is deterministic


def test_a_header_has_an_encoding(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("größe\n1\n".encode("latin-1"))
    (batch,) = exp.make_csv_dataset(str(path), 1, num_epochs=1, encoding="latin-1")
    assert list(batch) == ["größe"]
    with pytest.raises(InvalidArgumentError, match="a.csv' is not 'utf-8' .*; pass the encoding"):
        exp.make_csv_dataset(str(path), 1)
    with pytest.raises(
        InvalidArgumentError, match="encoding must be one that Python knows.* got 'nonsense'"
    ):
        exp.make_csv_dataset(str(path), 1, encoding="nonsense")


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
@pytest.mark.parametrize("names", [None, ["x"]])
@pytest.mark.parametrize("mtime", [0, int.from_bytes(b'a"b"')])
def test_compressed_files_are_refused_unless_it_is_said_how(tmp_path, encoding, names, mtime):
    path = tmp_path / "a.csv"
    path.write_bytes(gzip.compress(b"x\n1\n", mtime=mtime))
    read = functools.partial(exp.make_csv_dataset, str(path), 1, names, encoding=encoding)
    with pytest.raises(InvalidArgumentError, match=r'by gzip; pass compression_type="GZIP"'):
        read()
    (batch,) = read(num_epochs=1, compression_type="GZIP")
    assert {name: column.tolist() for name, column in batch.items()} == {"x": [1]}
    path.write_bytes(bz2.compress(b"x\n1\n"))
    with pytest.raises(InvalidArgumentError, match="a.csv' is compressed by bzip2; unpack it"):
        read()
    rows = exp.CsvDataset([str(path), str(path)], [np.int32], header=True)
    with pytest.raises(InvalidArgumentError, match="a.csv' is compressed by bzip2; unpack it"):
        list(rows)
    assert list(rows.ignore_errors()) == []


def test_a_number_too_large_for_a_float32_is_a_float64(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("x,y\n3e50,1.5\n")
    (batch,) = exp.make_csv_dataset(str(path), 1, num_epochs=1)
    assert (batch["x"].dtype, batch["y"].dtype) == (np.float64, np.float32)
    assert batch["x"].tolist() == [3e50]


def test_rows_have_as_many_fields_as_there_are_names(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("1,2\n")
    with pytest.raises(InvalidArgumentError, match="but a row of '.*a.csv' has 2 fields"):
        exp.make_csv_dataset(str(path), 1, ["a", "b", "c"], header=False)
    with pytest.raises(InvalidArgumentError, match="select_columns must name one or more columns"):
        exp.make_csv_dataset(str(path), 1, ["a", "b"], header=False, select_columns=[0, "a"])


def test_a_saved_dataset_knows_its_compression(tmp_path):
    Dataset.range(3).save(str(tmp_path), compression="GZIP")
    assert list(Dataset.load(str(tmp_path))) == [0, 1, 2]
    with pytest.raises(DataLossError, match="was written with compression 'GZIP'"):
        list(Dataset.load(str(tmp_path), compression="NONE"))


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"field_delim": "::"}, InvalidArgumentError, "field_delim must be one character"),
        ({"compression_type": "LZ4"}, InvalidArgumentError, "compression_type must be"),
        ({"buffer_size": 0}, InvalidArgumentError, "buffer_size must be at least 1, got 0"),
        ({"record_defaults": []}, InvalidArgumentError, "must be of one or more columns, got 0"),
        ({"select_cols": [0, 1]}, InvalidArgumentError, "of the 2 selected columns, got 1"),
        ({"record_defaults": [np.bool_]}, UnfitTypeError, "must be one of int32, .*, got bool"),
    ],
)
def test_arguments_of_csv_files_are_checked_at_the_call(options, error, match):
    with pytest.raises(error, match=f"CsvDataset: .*{match}"):
        exp.CsvDataset(**{"filenames": "none", "record_defaults": [0]} | options)
