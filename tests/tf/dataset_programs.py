"""Small programs about datasets, which TensorFlow and `penstock.tf` run alike.

A program gets the module `tf` and an empty folder, and returns values for `describe`. `attempt` and
`elements` keep the kinds of errors: an error is the list of the names of its classes.
"""

# ruff: noqa: B023 (loops rebind variables on purpose)

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
from collections.abc import Callable
from typing import Any

from tests.tf.describe import describe

Program = Callable[[Any, pathlib.Path], Any]
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def error_of(error: BaseException) -> Any:
    return {"error": [kind.__name__ for kind in type(error).__mro__[:-1]]}


def attempt(call: Callable[[], Any]) -> Any:
    """What a call returns, or the kind of its error."""
    try:
        return describe(call())
    except Exception as error:
        return error_of(error)


def elements(make: Callable[[], Any]) -> Any:
    """The elements of a dataset, and an error that ends them; `build` is an error before them."""
    try:
        dataset = make()
    except Exception as error:
        return {"build": error_of(error)}
    found: list[Any] = []
    try:
        for element in dataset:
            found.append(describe(element))
    except Exception as error:
        found.append(error_of(error))
    return found


def spec(dataset: Any) -> Any:
    """The dtypes and shapes of an element, as text."""
    return _spec(dataset.element_spec)


def _spec(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _spec(value[key]) for key in sorted(value)}
    if isinstance(value, tuple):
        return [_spec(one) for one in value]
    dims = value.shape.dims
    shape = None if dims is None else [dim if dim is None else int(dim) for dim in value.shape]
    return [value.dtype.name, shape]


def is_like(found: Any, expected: Any) -> bool:
    """Whether an answer has the values and the kinds of errors of a recorded one.

    An error may come earlier: when a dataset is made, and not when it is iterated over.
    """
    if isinstance(expected, dict) and "error" in expected:
        return isinstance(found, dict) and expected["error"][0] in found.get("error", ())
    if isinstance(found, dict) and "build" in found and isinstance(expected, list):
        found = [found["build"]]
    if isinstance(expected, dict) and isinstance(found, dict):
        return found.keys() == expected.keys() and all(
            is_like(found[key], expected[key]) for key in expected
        )
    if isinstance(expected, list) and isinstance(found, list):
        pairs = zip(found, expected, strict=False)
        return len(found) == len(expected) and all(is_like(*pair) for pair in pairs)
    return type(found) is type(expected) and bool(found == expected)


# Databases


def students(folder: pathlib.Path) -> str:
    """A database with values of every kind of SQLite."""
    path = str(folder / "students.sqlite")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "CREATE TABLE students (id INTEGER NOT NULL PRIMARY KEY, name VARCHAR(100), "
            "motto BLOB, rank INTEGER, credit FLOAT, big INTEGER)"
        )
        connection.executemany(
            "INSERT INTO students (name, motto, rank, credit, big) VALUES (?, ?, ?, ?, ?)",
            [
                ("Ada", b"\x00\x01x", 127, 3.75, 2**63 - 1),
                ("Bo", None, -128, -0.5, -(2**63)),
                (None, b"", 0, 1e300, 300),
            ],
        )
        connection.execute("CREATE TABLE empty (x INTEGER)")
        connection.commit()
    return path


def sql(tf: Any, folder: pathlib.Path, query: str, *types: Any) -> Any:
    return elements(
        lambda: tf.data.experimental.SqlDataset("sqlite", students(folder), query, types)
    )


@program
def sql_columns(tf: Any, folder: pathlib.Path) -> Any:
    query = "SELECT name, motto, rank, credit FROM students ORDER BY id"
    return sql(tf, folder, query, tf.string, tf.string, tf.int32, tf.float64)


@program
def sql_dtypes(tf: Any, folder: pathlib.Path) -> Any:
    path = students(folder)
    names = "int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool float16 float32 float64 string"
    return {
        f"{column} {name}": elements(
            lambda column=column, name=name: tf.data.experimental.SqlDataset(
                "sqlite", path, f"SELECT {column} FROM students ORDER BY id", (getattr(tf, name),)
            )
        )
        for name in names.split()
        for column in ("id", "name", "motto", "rank", "credit", "big")
    }


@program
def sql_errors(tf: Any, folder: pathlib.Path) -> Any:
    path, make = students(folder), tf.data.experimental.SqlDataset

    def run(*arguments: Any) -> Any:
        return elements(lambda: make(*arguments))

    one = "SELECT id FROM students"
    return {
        "driver": run("mysql", path, one, (tf.int32,)),
        "driver type": run(1, path, one, (tf.int32,)),
        "source type": run("sqlite", 1, one, (tf.int32,)),
        "query type": run("sqlite", path, None, (tf.int32,)),
        "no database": run("sqlite", str(folder / "other.sqlite"), one, (tf.int32,)),
        "no such table": run("sqlite", path, "SELECT x FROM nowhere", (tf.int32,)),
        "no such column": run("sqlite", path, "SELECT x FROM students", (tf.int32,)),
        "syntax": run("sqlite", path, "SELECT id FROM FROM students", (tf.int32,)),
        "too many types": run("sqlite", path, one, (tf.int32, tf.int32)),
        "too few types": run("sqlite", path, "SELECT id, rank FROM students", (tf.int32,)),
        "insert": run("sqlite", path, "INSERT INTO empty VALUES (1)", (tf.int32,)),
        "drop": run("sqlite", path, "DROP TABLE empty", (tf.int32,)),
        "nothing": run("sqlite", path, "SELECT x FROM empty", (tf.int32,)),
        "not a tuple": run("sqlite", path, one, tf.int32),
        "list": run("sqlite", path, one, [tf.int32]),
        "dict": run("sqlite", path, "SELECT id, rank FROM students", {"b": tf.int32, "a": tf.int8}),
        "no dtype": run("sqlite", path, one, ("nonsense",)),
    }


@program
def sql_in_a_pipeline(tf: Any, folder: pathlib.Path) -> Any:
    path = students(folder)
    make = tf.data.experimental.SqlDataset
    dataset = make("sqlite", path, "SELECT id, rank FROM students", (tf.int64, tf.int32))
    queries = tf.data.Dataset.from_tensor_slices(
        ["SELECT id FROM students", "SELECT rank FROM students WHERE rank > 0"]
    )
    return {
        "spec": spec(dataset),
        "cardinality": int(dataset.cardinality()),
        "repeat": elements(lambda: dataset.repeat(2)),
        "batch": elements(lambda: dataset.batch(2)),
        "queries": elements(
            lambda: queries.flat_map(lambda query: make("sqlite", path, query, (tf.int32,)))
        ),
    }


# Records of datasets


@program
def write_records(tf: Any, folder: pathlib.Path) -> Any:
    dataset = tf.data.Dataset.from_tensor_slices([b"a", b"", b"bcd"])
    result = {}
    for kind in (None, "", "GZIP", "ZLIB"):
        path = str(folder / f"records{kind}")
        writer = tf.data.experimental.TFRecordWriter(path, kind)
        result[str(kind)] = {
            "write": attempt(lambda writer=writer: writer.write(dataset)),
            "read": elements(lambda path=path, kind=kind: tf.data.TFRecordDataset(path, kind)),
        }
    return result


@program
def write_records_again(tf: Any, folder: pathlib.Path) -> Any:
    path = str(folder / "records")
    writer = tf.data.experimental.TFRecordWriter(path)
    writer.write(tf.data.Dataset.from_tensors("long record"))
    writer.write(tf.data.Dataset.from_tensors("x"))
    return elements(lambda: tf.data.TFRecordDataset(path))


@program
def write_records_errors(tf: Any, folder: pathlib.Path) -> Any:
    path, make = str(folder / "records"), tf.data.experimental.TFRecordWriter
    texts = tf.data.Dataset.from_tensors("x")
    failing = tf.data.Dataset.from_tensor_slices([b"1", b"x"]).map(
        lambda text: tf.strings.as_string(tf.strings.to_number(text))
    )
    return {
        "list": attempt(lambda: make(path).write(["x"])),
        "numbers": attempt(lambda: make(path).write(tf.data.Dataset.range(3))),
        "vectors": attempt(lambda: make(path).write(texts.batch(1))),
        "pairs": attempt(lambda: make(path).write(tf.data.Dataset.zip((texts, texts)))),
        "dict": attempt(lambda: make(path).write(texts.map(lambda x: {"a": x}))),
        "no folder": attempt(lambda: make(str(folder / "no" / "file")).write(texts)),
        "compression type": attempt(lambda: make(path, 3)),
        "file type": attempt(lambda: make(3)),
        "failing": attempt(lambda: make(path).write(failing)),
        "empty": attempt(lambda: make(path).write(texts.take(0))),
        "empty file": elements(lambda: tf.data.TFRecordDataset(path)),
    }


@program
def write_text_records(tf: Any, folder: pathlib.Path) -> Any:
    path = str(folder / "records")
    with tf.io.TFRecordWriter(path) as writer:
        writer.write("text ü")
        writer.write(b"bytes")
        errors = {
            "number": attempt(lambda: writer.write(1)),
            "none": attempt(lambda: writer.write(None)),
        }
    return [errors, elements(lambda: tf.data.TFRecordDataset(path))]


# Reductions by key


@program
def reduce_by_key(tf: Any, folder: pathlib.Path) -> Any:
    reducer = tf.data.experimental.Reducer(
        init_func=lambda key: (key * 10, tf.constant(0.0)),
        reduce_func=lambda state, x: (state[0] + x, state[1] + 1.0),
        finalize_func=lambda total, count: (total, count),
    )
    dataset = tf.data.Dataset.range(10).map(lambda x: x * 7 % 10)
    grouped = dataset.apply(tf.data.experimental.group_by_reducer(lambda x: x % 3 - 1, reducer))
    return {
        "elements": elements(lambda: grouped),
        "again": elements(lambda: grouped.repeat(2)),
        "spec": spec(grouped),
        "cardinality": int(grouped.cardinality()),
        "endless": int(
            dataset.repeat()
            .apply(tf.data.experimental.group_by_reducer(lambda x: x % 3, reducer))
            .cardinality()
        ),
        "nothing": elements(
            lambda: dataset.take(0).apply(
                tf.data.experimental.group_by_reducer(lambda x: x % 3, reducer)
            )
        ),
    }


@program
def reduce_growing_states(tf: Any, folder: pathlib.Path) -> Any:
    reducer = tf.data.experimental.Reducer(
        init_func=lambda key: ([0], 1),
        reduce_func=lambda state, value: (
            tf.concat([state[0], [tf.cast(value, tf.int32)]], 0),
            state[1] * 2,
        ),
        finalize_func=lambda s, t: (s, t),
    )
    dataset = tf.data.Dataset.range(1, 5).apply(
        tf.data.experimental.group_by_reducer(lambda x: tf.constant(0, tf.int64), reducer)
    )
    return [elements(lambda: dataset), spec(dataset)]


@program
def reduce_dicts(tf: Any, folder: pathlib.Path) -> Any:
    reducer = tf.data.experimental.Reducer(
        init_func=lambda key: {"s": tf.constant(""), "n": tf.constant(0, tf.int64)},
        reduce_func=lambda state, row: {"s": state["s"] + row["s"], "n": state["n"] + row["n"]},
        finalize_func=lambda state: {"text": state["s"], "sum": state["n"]},
    )
    rows = tf.data.Dataset.from_tensor_slices(
        {"s": ["a", "b", "c"], "n": tf.constant([1, 2, 3], tf.int64)}
    )
    dataset = rows.apply(tf.data.experimental.group_by_reducer(lambda row: row["n"] % 2, reducer))
    return [elements(lambda: dataset), spec(dataset)]


@program
def reduce_errors(tf: Any, folder: pathlib.Path) -> Any:
    group, make = tf.data.experimental.group_by_reducer, tf.data.experimental.Reducer
    dataset = tf.data.Dataset.range(4)
    zero = lambda x: tf.constant(0, tf.int64)  # noqa: E731
    good = make(zero, lambda state, x: state + x, lambda state: state)

    def run(key: Any, reducer: Any) -> Any:
        return elements(lambda: dataset.apply(group(key, reducer)))

    return {
        "key float": run(lambda x: tf.constant(1.0), good),
        "key int32": run(lambda x: tf.constant(1), good),
        "key vector": run(lambda x: tf.constant([1, 2], tf.int64), good),
        "state dtype": run(
            zero, make(lambda key: tf.constant(0), lambda state, x: x, lambda state: state)
        ),
        "no reducer": run(zero, None),
        "key is no function": run(3, good),
        "init takes none": run(zero, make(lambda: 0, lambda s, x: s, lambda s: s)),
        "reduce takes one": run(zero, make(zero, lambda s: s, lambda s: s)),
        "no dataset": attempt(lambda: group(zero, good)(3)),
        "init raises": run(
            zero, make(lambda key: tf.strings.to_number("x"), lambda s, x: s, lambda s: s)
        ),
    }


# Tables of datasets


@program
def tables(tf: Any, folder: pathlib.Path) -> Any:
    numbers = tf.data.Dataset.range(4)
    words = tf.data.Dataset.from_tensor_slices(["a", "b", "c", "d"])
    pairs = tf.data.Dataset.zip((words, numbers.map(lambda x: x * x)))
    swapped = tf.data.Dataset.zip((numbers, words))
    make, index = (
        tf.data.experimental.table_from_dataset,
        (tf.data.experimental.index_table_from_dataset),
    )
    some = tf.constant(["c", "x", "a", "yy"])
    some_numbers = tf.constant([2, 9, 0], tf.int64)
    table = make(pairs)
    return {
        "plain": attempt(lambda: table.lookup(some)),
        "size": attempt(table.size),
        "dtypes": [table.key_dtype.name, table.value_dtype.name],
        "item": attempt(lambda: table[tf.constant("b")]),
        "default": attempt(lambda: make(pairs, default_value=7).lookup(some)),
        "buckets": attempt(lambda: make(pairs, num_oov_buckets=3).lookup(some)),
        "bucket size": attempt(lambda: make(pairs, num_oov_buckets=3).size()),
        "part": attempt(lambda: make(pairs, vocab_size=2).lookup(some)),
        "words": attempt(
            lambda: make(swapped, default_value="?", key_dtype=tf.int64).lookup(some_numbers)
        ),
        "index": attempt(lambda: index(words).lookup(some)),
        "index buckets": attempt(lambda: index(words, num_oov_buckets=2).lookup(some)),
        "index part": attempt(lambda: index(words, vocab_size=3, default_value=9).lookup(some)),
        "index of numbers": attempt(
            lambda: index(numbers.map(lambda x: x * 10), key_dtype=tf.int64).lookup(
                tf.constant([30, 5], tf.int64)
            )
        ),
        "buckets of numbers": attempt(
            lambda: index(
                numbers.map(lambda x: x * 10), num_oov_buckets=5, key_dtype=tf.int64
            ).lookup(tf.constant([30, 5, 6, 7], tf.int64))
        ),
        "static": attempt(
            lambda: tf.lookup.StaticHashTable(
                tf.data.experimental.DatasetInitializer(pairs), -1
            ).lookup(some)
        ),
        "vocabulary": attempt(
            lambda: tf.lookup.StaticVocabularyTable(
                tf.data.experimental.DatasetInitializer(pairs), 2
            ).lookup(some)
        ),
        "floats": attempt(lambda: make(words.map(lambda w: (w, tf.constant(0.5)))).lookup(some)),
        "map": elements(
            lambda: words.map(lambda w: (w, tf.constant(1))).map(lambda w, n: table.lookup(w))
        ),
    }


@program
def table_errors(tf: Any, folder: pathlib.Path) -> Any:
    numbers = tf.data.Dataset.range(4)
    words = tf.data.Dataset.from_tensor_slices(["a", "b", "c", "a"])
    pairs = tf.data.Dataset.zip((words, numbers))
    make, index = (
        tf.data.experimental.table_from_dataset,
        (tf.data.experimental.index_table_from_dataset),
    )
    first = tf.data.experimental.DatasetInitializer
    return {
        "twice": attempt(lambda: make(pairs).lookup(tf.constant(["a"]))),
        "equal twice": attempt(
            lambda: make(words.map(lambda w: (w, tf.constant(5, tf.int64)))).lookup(
                tf.constant(["a"])
            )
        ),
        "no pairs": attempt(lambda: make(numbers)),
        "triples": attempt(lambda: make(tf.data.Dataset.zip((words, numbers, numbers)))),
        "vectors": attempt(lambda: make(pairs.batch(2))),
        "vector values": attempt(lambda: make(tf.data.Dataset.zip((words, numbers.batch(1))))),
        "ragged keys": attempt(
            lambda: make(numbers.map(lambda x: (tf.ragged.constant([[1], [2, 3]]), x)))
        ),
        "no default": attempt(
            lambda: make(tf.data.Dataset.zip((numbers, words)), key_dtype=tf.int64)
        ),
        "buckets": attempt(lambda: make(pairs, num_oov_buckets=-1)),
        "vocabulary 0": attempt(lambda: make(pairs, vocab_size=0)),
        "vocabulary too large": attempt(
            lambda: make(pairs.take(3), vocab_size=5).lookup(tf.constant(["a"]))
        ),
        "float keys": attempt(lambda: make(pairs, key_dtype=tf.float32)),
        "key dtype": attempt(
            lambda: make(pairs.take(2), num_oov_buckets=1, key_dtype=tf.int64).lookup(
                tf.constant(["a"])
            )
        ),
        "default dtype": attempt(lambda: make(pairs.take(2), default_value="x")),
        "lookup dtype": attempt(lambda: make(pairs.take(2)).lookup(tf.constant([1]))),
        "none": attempt(lambda: make(None)),
        "index none": attempt(lambda: index(None)),
        "index twice": attempt(lambda: index(words).lookup(tf.constant(["a"]))),
        "initializer": attempt(lambda: first(numbers)),
        "initializer triples": attempt(
            lambda: first(tf.data.Dataset.zip((words, numbers, numbers)))
        ),
        "initializer none": attempt(lambda: first(None)),
        "endless": attempt(
            lambda: index(words.take(3).repeat(), vocab_size=3).lookup(tf.constant(["c"]))
        ),
    }


# Serialized examples


def example(tf: Any, **features: Any) -> bytes:
    def feature(values: Any) -> Any:
        if isinstance(values[0], bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        if isinstance(values[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    made = {name: feature(values) for name, values in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()


def records(tf: Any, folder: pathlib.Path) -> list[str]:
    """Two files with four examples each."""
    paths = []
    for file in range(2):
        paths.append(str(folder / f"part{file}.tfrecord"))
        with tf.io.TFRecordWriter(paths[-1]) as writer:
            for row in range(4):
                writer.write(
                    example(
                        tf,
                        file=[file],
                        record=[row],
                        words=[b"w%d" % word for word in range(row + 1)],
                        label=[b"even" if row % 2 == 0 else b"odd"],
                    )
                )
    return paths


def fixed_features(tf: Any) -> dict[str, Any]:
    return {
        "file": tf.io.FixedLenFeature([], tf.int64),
        "record": tf.io.FixedLenFeature([1], tf.int64),
        "label": tf.io.FixedLenFeature([], tf.string),
    }


@program
def parse_examples(tf: Any, folder: pathlib.Path) -> Any:
    dataset = tf.data.TFRecordDataset(records(tf, folder)).batch(3)
    parse = tf.data.experimental.parse_example_dataset
    parsed = dataset.apply(parse(fixed_features(tf)))
    rows = {"words": tf.io.RaggedFeature(tf.string, row_splits_dtype=tf.int64)}
    steps = {"words": tf.io.FixedLenSequenceFeature([], tf.string, allow_missing=True)}
    missing = {
        "none": tf.io.FixedLenFeature([], tf.float32, default_value=2.5),
        "many": tf.io.FixedLenFeature([2], tf.int64, default_value=[1, 2]),
        "pads": tf.io.FixedLenSequenceFeature([], tf.int64, True, default_value=4),
    }
    return {
        "fixed": elements(lambda: parsed),
        "spec": spec(parsed),
        "cardinality": int(parsed.cardinality()),
        "ragged": elements(lambda: dataset.apply(parse(rows))),
        "steps": elements(lambda: dataset.apply(parse(steps))),
        "missing": elements(lambda: dataset.apply(parse(missing))),
        "parallel": elements(
            lambda: dataset.apply(
                parse(fixed_features(tf), num_parallel_calls=2, deterministic=True)
            )
        ),
        "autotune": elements(
            lambda: dataset.apply(parse(fixed_features(tf), num_parallel_calls=tf.data.AUTOTUNE))
        ),
        "empty": elements(lambda: dataset.take(0).apply(parse(fixed_features(tf)))),
    }


@program
def parse_errors(tf: Any, folder: pathlib.Path) -> Any:
    parse, fixed = tf.data.experimental.parse_example_dataset, tf.io.FixedLenFeature
    good = example(tf, x=[1, 2], f=[0.5])
    dataset = tf.data.Dataset.from_tensors([good])

    def run(features: Any, data: Any = dataset, **options: Any) -> Any:
        return elements(lambda: data.apply(parse(features(), **options)))

    one = lambda: {"x": fixed([2], tf.int64)}  # noqa: E731
    return {
        "none": run(lambda: None),
        "empty": run(dict),
        "list": run(lambda: [fixed([], tf.int64)]),
        "not a feature": run(lambda: {"x": 3}),
        "scalars": run(one, tf.data.Dataset.from_tensors(good)),
        "numbers": run(one, tf.data.Dataset.range(3).batch(2)),
        "matrix": run(one, tf.data.Dataset.from_tensors([[good]])),
        "pair": run(one, tf.data.Dataset.from_tensors(([good], [good]))),
        "no dataset": attempt(lambda: parse(one())(3)),
        "dtype": run(lambda: {"x": fixed([2], tf.float32)}),
        "shape": run(lambda: {"x": fixed([3], tf.int64)}),
        "missing": run(lambda: {"y": fixed([], tf.int64)}),
        "unknown shape": run(lambda: {"x": fixed([None], tf.int64)}),
        "no shape": run(lambda: {"x": fixed(None, tf.int64)}),
        "no dtype": run(lambda: {"x": fixed([2], None)}),
        "default shape": run(lambda: {"y": fixed([2], tf.int64, default_value=[1, 2, 3])}),
        "default dtype": run(lambda: {"y": fixed([2], tf.int64, default_value=["a", "b"])}),
        "bad dtype": run(lambda: {"x": fixed([2], tf.int32)}),
        "truncated": run(one, tf.data.Dataset.from_tensors([good[:-3]])),
        "sequence without missing": run(lambda: {"x": tf.io.FixedLenSequenceFeature([], tf.int64)}),
        "sequence with default": run(
            lambda: {"x": tf.io.FixedLenSequenceFeature([2], tf.int64, True, default_value=[1, 2])}
        ),
        "variable without dtype": run(lambda: {"x": tf.io.VarLenFeature(None)}),
        "calls 0": run(one, num_parallel_calls=0),
        "calls float": run(one, num_parallel_calls=1.5),
        "calls none": run(one, num_parallel_calls=None),
    }


@program
def batched_features(tf: Any, folder: pathlib.Path) -> Any:
    paths = records(tf, folder)
    make = tf.data.experimental.make_batched_features_dataset

    def run(**options: Any) -> Any:
        given = {
            "file_pattern": str(folder / "*.tfrecord"),
            "batch_size": 3,
            "features": fixed_features(tf),
            "shuffle": False,
            "num_epochs": 1,
        }
        return elements(lambda: make(**(given | options)))

    endless = make(paths, 3, fixed_features(tf), shuffle=False)
    label = make(paths, 3, fixed_features(tf), label_key="label", num_epochs=1)
    return {
        "one epoch": run(),
        "two epochs": run(num_epochs=2),
        "list": run(file_pattern=paths),
        "drop": run(drop_final_batch=True),
        "label": run(label_key="label"),
        "two readers": run(reader_num_threads=2),
        "autotuned readers": run(reader_num_threads=tf.data.AUTOTUNE, file_pattern=paths[:1]),
        "parsers": run(parser_num_threads=4),
        "reader": run(reader=tf.data.TFRecordDataset, reader_args=[""]),
        "prefetch": run(prefetch_buffer_size=1),
        "pairs": run(reader=lambda path: tf.data.TFRecordDataset(path).map(lambda r: ("k", r))),
        "endless spec": spec(endless),
        "endless": int(endless.cardinality()),
        "label spec": spec(label),
        "first batches": elements(lambda: endless.take(4)),
        "ragged": run(features={"words": tf.io.RaggedFeature(tf.string)}),
        "no files": run(file_pattern=str(folder / "*.none")),
        "no file": run(file_pattern=[]),
        "wrong label": run(label_key="nothing"),
        "no features": run(features=None),
        "batch 0": run(batch_size=0),
        "reader that is none": run(reader=3),
        "wrong feature": run(features={"file": tf.io.FixedLenFeature([], tf.float32)}),
        "compressed": run(reader_args=["GZIP"]),
        "shuffled": sorted(
            row
            for batch in make(paths, 3, fixed_features(tf), num_epochs=1, shuffle_seed=3)
            for row in (batch["file"] * 10 + batch["record"][:, 0]).numpy().tolist()
        ),
    }


# CSV


@program
def csv_encoding(tf: Any, folder: pathlib.Path) -> Any:
    path = folder / "rows.csv"
    path.write_bytes("größe,name\n1,ä\n2,b\n".encode("latin-1"))
    make = tf.data.experimental.make_csv_dataset

    def run(**options: Any) -> Any:
        return elements(lambda: make(str(path), 2, num_epochs=1, shuffle=False, **options))

    return {
        "latin-1": run(encoding="latin-1"),
        "ISO-8859-1": run(encoding="ISO-8859-1"),
        "names given": run(encoding="latin-1", column_names=["a", "b"]),
        "all given": run(column_names=["a", "b"], column_defaults=[tf.int32, tf.string]),
    }


@program
def csv_errors(tf: Any, folder: pathlib.Path) -> Any:
    path = folder / "rows.csv"
    path.write_text("a,b,c\n1,2,x\n3,4.5,y\n")
    empty = folder / "empty"
    empty.write_text("")
    other = folder / "other"
    other.write_text("a,b,d\n1,2,x\n")
    make = tf.data.experimental.make_csv_dataset

    def run(*paths: Any, **options: Any) -> Any:
        names = [str(one) for one in paths] or str(path)
        return elements(
            lambda: make(names, options.pop("size", 2), num_epochs=1, shuffle=False, **options)
        )

    return {
        "plain": run(),
        "no files": run(folder / "none*"),
        "empty list": elements(lambda: make([], 2)),
        "empty file": run(empty),
        "headers differ": run(path, other),
        "no header": run(header=False),
        "names": run(column_names=["a", "b", "c"]),
        "too few names": run(column_names=["a", "b"]),
        "too many names": run(column_names=["a", "b", "c", "d"]),
        "duplicate names": run(column_names=["a", "a", "c"]),
        "label": run(label_name="b"),
        "wrong label": run(label_name="x"),
        "select names": run(select_columns=["a", "c"]),
        "select numbers": run(select_columns=[0, 2]),
        "select again": run(select_columns=["a", "a"]),
        "select both": run(select_columns=["a", 0]),
        "select unknown": run(select_columns=["x"]),
        "select -1": run(select_columns=[-1]),
        "select 3": run(select_columns=[3]),
        "select order": run(select_columns=["c", "a"]),
        "select none": run(select_columns=[]),
        "defaults": run(column_defaults=[tf.int32, tf.float64, tf.string]),
        "defaults for selection": run(
            select_columns=["a", "c"], column_defaults=[tf.int64, tf.string]
        ),
        "wrong number of defaults for selection": run(
            select_columns=["a", "c"], column_defaults=[tf.int64]
        ),
        "compression": run(compression_type="LZ4"),
        "batch 0": run(size=0),
        "rows for inference": run(num_rows_for_inference=1),
        "all rows for inference": run(num_rows_for_inference=None),
        "ignore errors": run(num_rows_for_inference=1, ignore_errors=True),
        "quotes": run(use_quote_delim=False),
        "delimiter": run(field_delim=";"),
        "na": run(na_value="1"),
    }


# Saved datasets


@program
def load_without_compression(tf: Any, folder: pathlib.Path) -> Any:
    dataset = tf.data.Dataset.range(3)
    plain, packed = str(folder / "plain"), str(folder / "packed")
    dataset.save(plain)
    dataset.save(packed, compression="GZIP")
    load = tf.data.Dataset.load
    return {
        "plain": elements(lambda: load(plain)),
        "packed by name": elements(lambda: load(packed, compression="GZIP")),
        "plain as packed": elements(lambda: load(plain, compression="GZIP")),
        "nowhere": elements(lambda: load(str(folder / "nowhere"))),
    }


@program
def csv_rows(tf: Any, folder: pathlib.Path) -> Any:
    path = folder / "rows.csv"
    path.write_text("1,2,x\n3,,y\n")
    make = tf.data.experimental.CsvDataset

    def run(defaults: Any, **options: Any) -> Any:
        return elements(
            lambda: make(str(path), defaults() if callable(defaults) else defaults, **options)
        )

    good = [[0], [0], [""]]
    return {
        "plain": run(good),
        "dtypes": run(lambda: [tf.int32, tf.int32, tf.string]),
        "matrix": run([[[1, 2], [3, 4]], [0], [""]]),
        "two values": run([[1, 2], [0], [""]]),
        "matrix of one": run([[[1]], [0], [""]]),
        "complex": run(lambda: [tf.complex64, tf.int32, tf.string]),
        "bool": run(lambda: [tf.bool, tf.int32, tf.string]),
        "none": run(None),
        "number": run(3),
        "no columns": run([]),
        "buffer 0": run(good, buffer_size=0),
        "buffer -1": run(good, buffer_size=-1),
        "buffer text": run(good, buffer_size="x"),
        "buffer float": run(good, buffer_size=1.5),
        "delimiters": run(good, field_delim="::"),
        "no delimiter": run(good, field_delim=""),
        "delimiter number": run(good, field_delim=3),
        "compression": run(good, compression_type="LZ4"),
        "gzip": run(good, compression_type="GZIP"),
        "select": run([[0], [""]], select_cols=[0, 2]),
        "select falling": run([[0], [""]], select_cols=[2, 0]),
        "select negative": run([[0], [""]], select_cols=[-1, 0]),
        "select too few": run([[0], [""]], select_cols=[0]),
        "select too large": run([[0], [""]], select_cols=[0, 9]),
        "select text": run([[0], [""]], select_cols=["a", "b"]),
        "select and exclude": run([[0]], select_cols=[0], exclude_cols=[1]),
        "exclude": run([[0], [""]], exclude_cols=[1]),
        "exclude falling": run([[0]], exclude_cols=[2, 1]),
        "header": run(good, header=True),
        "header text": run(good, header="x"),
        "no file": elements(lambda: make(str(folder / "none"), good)),
        "file number": elements(lambda: make(3, good)),
        "na": run(good, na_value="x"),
    }


@program
def variables_of_loops(tf: Any, _: pathlib.Path) -> Any:
    """A function has the values that its variables had when a dataset got it."""
    Dataset = tf.data.Dataset
    rows = Dataset.range(6)
    made: dict[str, list[Any]] = {}
    for i in range(1, 4):
        for name, dataset in {
            "map": rows.map(lambda x: x + i),
            "filter": rows.filter(lambda x: x % 4 == i),
            "take_while": rows.take_while(lambda x: x < i),
            "flat_map": rows.flat_map(lambda x: Dataset.from_tensors(x).repeat(i)),
            "interleave": rows.interleave(lambda x: Dataset.range(i), cycle_length=2),
            "scan": rows.scan(tf.constant(0, tf.int64), lambda s, x: (s + i, s + x)),
            "window": rows.group_by_window(lambda x: x % i, lambda _, w: w.batch(i), 6),
            "apply": rows.apply(lambda d: d.map(lambda x: x - i)),
        }.items():
            made.setdefault(name, []).append(dataset)
    chained = rows
    for i in range(3):
        chained = chained.map(lambda x: x + i)
    found = {name: [elements(lambda d=d: d) for d in some] for name, some in made.items()}
    return found | {"chained": elements(lambda: chained)}
